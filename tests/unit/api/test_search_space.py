"""The manifest form of a search space, and the exact place of each mistake."""

from __future__ import annotations

import random
from typing import Any

import pytest

from trialpod.tune.search import sample
from trialpod.tune.search.sample import Categorical, Float, Integer
from trialpod.tune.search.spaces.variants import VariantSpace
from trialpod_operator.api.search_space import compile_search_space, lookalikes, varies


def compiled(document: dict[str, Any]) -> dict[str, Any]:
    space, problems = compile_search_space(document)
    assert problems == []
    return space


def problem(document: dict[str, Any]) -> tuple[str, str]:
    _, (found,) = compile_search_space(document)
    return found.path, found.message


def test_the_documented_form_compiles() -> None:
    space = compiled(
        {
            "lr": {"loguniform": [1e-4, 1e-1]},
            "layers": {"grid_search": [1, 2, 3]},
            "optimizer": {"name": {"choice": ["sgd", "adam"]}, "momentum": {"uniform": {"lower": 0.1, "upper": 0.9}}},
            "units": {"qrandint": [8, 64, 8]},
            "noise": {"randn": []},
            "epochs": 5,
            "tags": ["a", {"uniform": [0, 1]}],
        }
    )
    assert isinstance(space["lr"], Float)
    assert (space["lr"].lower, space["lr"].upper) == (1e-4, 1e-1)
    assert isinstance(space["optimizer"]["name"], Categorical)
    assert isinstance(space["optimizer"]["momentum"], Float)
    assert isinstance(space["units"], Integer)
    assert isinstance(space["tags"][1], Float)
    assert space["epochs"] == 5
    assert VariantSpace(space).grid_count == 3


def test_an_empty_space_is_a_space() -> None:
    assert compile_search_space({}) == ({}, [])
    assert compile_search_space(None) == ({}, [])


def test_a_literal_is_untouched() -> None:
    space = compiled({"a": {"literal": {"grid_search": [1, 2]}}, "b": {"literal": 3}})
    assert VariantSpace(space).grid_count == 1
    config = VariantSpace(space).variant(0, random.Random(0)).config
    assert config == {"a": {"grid_search": [1, 2]}, "b": 3}


def test_values_of_choices_and_grids_may_contain_distributions() -> None:
    space = compiled(
        {"model": {"grid_search": [{"kind": "svm", "c": {"uniform": [0, 1]}}, {"width": {"grid_search": [1, 2]}}]},
         "optimizer": {"choice": [{"name": "sgd", "lr": {"uniform": [0, 1]}}]}}
    )  # fmt: skip
    assert VariantSpace(space).grid_count == 3
    config = VariantSpace(space).variant(0, random.Random(0)).config
    assert 0 <= config["model"]["c"] <= 1
    assert 0 <= config["optimizer"]["lr"] <= 1


@pytest.mark.parametrize(
    "nested",
    [{"model": {"width": [1, 2]}}, {"model": {"random": [1, 2]}}, {"model": {"uniforms": {"lr": 3}}},
     {"a": {"b": {"c": 1}}}, {"model": {"normal": 3, "q": 1}}, {"model": {"units": 3}}, {"model": {"choices": "x"}}],
)  # fmt: skip
def test_a_nested_config_with_an_ordinary_key_stays_one(nested: dict[str, Any]) -> None:
    assert compiled(nested) == nested


@pytest.mark.parametrize(
    ("typo", "intended"),
    [("logunifrom", "loguniform"), ("Uniform", "uniform"), ("gridsearch", "grid_search"), ("chioce", "choice"),
     ("choices", "choice"), ("log_uniform", "loguniform"), ("randnit", "randint")],
)  # fmt: skip
def test_a_misspelt_distribution_is_found(typo: str, intended: str) -> None:
    path, message = problem({"optimizer": {"lr": {typo: [1, 2]}}})
    assert path == f"spec.searchSpace.optimizer.lr.{typo}"
    assert f"did you mean {intended!r}" in message


@pytest.mark.parametrize(
    ("lr", "path", "message"),
    [
        ({"loguniform": [0, 1]}, "lr.loguniform[0]", "greater than 0"),
        ({"loguniform": {"lower": 0, "upper": 1}}, "lr.loguniform.lower", "greater than 0"),
        ({"uniform": [2, 1]}, "lr.uniform[1]", "upper must be greater"),
        ({"quniform": [0, 1, 0]}, "lr.quniform[2]", "greater than 0"),
        ({"uniform": ["1e-4", 1]}, "lr.uniform[0]", "take the quotes away"),
        ({"uniform": [True, 1]}, "lr.uniform[0]", "must be a number"),
        ({"uniform": [0]}, "lr.uniform", "needs upper: {uniform: [lower, upper]}"),
        ({"uniform": [0, 1, 2]}, "lr.uniform", "at most 2 arguments, got 3"),
        ({"uniform": {"low": 0, "upper": 1}}, "lr.uniform.low", "no argument 'low'"),
        ({"uniform": 3}, "lr.uniform", "takes a list of arguments"),
        ({"choice": []}, "lr.choice", "at least one"),
        ({"choice": "adam"}, "lr.choice", "takes a list of values"),
        ({"choice": {"a": 1}}, "lr.choice", "takes a list of values"),
        ({"choice": [1, {"grid_search": [1]}]}, "lr.choice[1].grid_search", "number of trials random"),
        ({"grid_search": []}, "lr.grid_search", "at least one"),
        ({"grid_search": [{"x": {"randint": [3, 1]}}]}, "lr.grid_search[0].x.randint[1]", "greater than lower"),
        ({"sample_from": "lambda: 1"}, "lr.sample_from", "cannot be written in a manifest"),
        ({"uniform": [0, 1], "q": 0.1}, "lr.uniform", "move q into uniform"),
        ({3: 1}, "lr.3", "are strings"),
    ],
)  # fmt: skip
def test_each_mistake_is_reported_where_it_is(lr: Any, path: str, message: str) -> None:
    found_path, found_message = problem({"lr": lr})
    assert found_path == f"spec.searchSpace.{path}"
    assert message in found_message


def test_all_mistakes_are_found_in_document_order() -> None:
    document = {"a": {"uniform": ["x", "y"]}, "b": [{"loguniform": [-1, 1]}], "c": {"choice": []}}
    _, problems = compile_search_space(document, "here")
    assert [found.path for found in problems] == [
        "here.a.uniform[0]", "here.a.uniform[1]", "here.b[0].loguniform[0]", "here.c.choice"
    ]  # fmt: skip


def test_the_space_itself_must_map_names() -> None:
    assert compile_search_space([1])[1][0].message == "must be a mapping of parameter names, got a list"
    path, message = problem({"grid_search": [1, 2]})
    assert path == "spec.searchSpace.grid_search"
    assert "parameter's name belongs" in message


class TestLookalikesInPython:
    """In a script a mapping is a constant, as for Ray; what is written as in a manifest is told."""

    def test_are_found_with_their_place(self) -> None:
        space = {"x": {"uniform": [0, 1]}, "net": {"lr": "tune.loguniform(1e-3, 1)", "units": [{"choice": [1, 2]}]}}
        assert lookalikes(space) == ["x", "net.lr", "net.units[0]"]

    def test_constants_and_distributions_are_none(self) -> None:
        assert (
            lookalikes({"uniform": [0, 1], "a": {"grid_search": [1]}, "b": sample.uniform(0, 1), "c": "relu"}) == []
        )
        assert lookalikes({"a": {"uniform": "he"}, "b": {"uniform": [0, 1], "c": 1}}) == []


class TestLooksLikeADistribution:
    """What is nearly one is a mistake with the nearest valid form, never silently a constant."""

    @pytest.mark.parametrize(
        ("lr", "path", "intended"),
        [
            (
                {"loguni": [1e-3, 1]},
                "lr.loguni",
                "did you mean 'loguniform', as in {loguniform: [lower, upper, base]}",
            ),
            ({"normal": [0, 1]}, "lr.normal", "did you mean 'randn'"),
            ({"int": [1, 3]}, "lr.int", "did you mean 'randint', as in {randint: [lower, upper]}"),
            ({"categorical": ["a", "b"]}, "lr.categorical", "did you mean 'choice', as in {choice: [a, b]}"),
            ({"grid": [1, 2]}, "lr.grid", "did you mean 'grid_search'"),
            ({"values": [1, 2]}, "lr.values", "did you mean 'choice'"),
            ({"float": {"min": 0, "max": 1}}, "lr.float", "did you mean 'uniform'"),
            ({"min": 0.0, "max": 1}, "lr", "write {uniform: [0.0, 1]}. "),
            ({"min": 1, "max": 8}, "lr", "write {uniform: [1, 8]}, or randint for integers"),
            ({"low": 1e-3, "high": 1, "log": True}, "lr", "write {loguniform: [0.001, 1]}"),
            ({"type": "log_uniform", "min": 0.1, "max": 1}, "lr", "write {loguniform: [0.1, 1]}"),
            ({"uniform": [0, 1], "log": True}, "lr.uniform", "take out log"),
            ({"loguniform": [1e-3, 1], "uniform": [0, 1]}, "lr.loguniform", "take out uniform"),
            ({"choice": [1, 2], "default": 1}, "lr.choice", "write {choice: {literal: ...}}"),
            ("tune.loguniform(1e-3, 1)", "lr", "write {loguniform: [1e-3, 1]}"),
            ("uniform(0, 1)", "lr", "write {uniform: [0, 1]}"),
            ("tune.choice(['a', 'b'])", "lr", "write {choice: ['a', 'b']}"),
            ("ray.tune.sample_from(lambda: 1)", "lr", "a distribution as a mapping"),
            ("loguniform:1e-3:1", "lr", "write {loguniform: [1e-3, 1]}"),
            ("choice:sgd:adam", "lr", "write {choice: [sgd, adam]}"),
            ({"uniform": 0, "1": None}, "lr.uniform", "stand in brackets: {uniform: [lower, upper]}"),
            ({"suggest_float": [0, 1]}, "lr.suggest_float", "did you mean 'uniform'"),
            ({"suggest_categorical": ["a", "b"]}, "lr.suggest_categorical", "did you mean 'choice'"),
            ({"float": [0.1, 1], "log": True}, "lr.float", "write {loguniform: [lower, upper, base]}, with no other"),
            ({"type": "range", "bounds": [0, 1]}, "lr.bounds", "write {uniform: [lower, upper]}, with no other key"),
            ({"parameterType": "double", "feasibleSpace": {"min": "0", "max": "1"}}, "lr", "write {uniform: [min"),
            (
                {"low": 0, "high": 1, "log": True},
                "lr",
                "write {loguniform: [1e-6, 1]}, say, whose lower bound is above",
            ),
            ({"from": 0, "to": 1}, "lr", "write {uniform: [0, 1]}"),
            ({"linspace": [0, 1, 5]}, "lr.linspace", "did you mean 'uniform'"),
            ({"feasibleSpace": {"min": "0.1", "max": "0.5"}}, "lr", "is a parameter of Katib"),
            ({"grid_search": ["uniform(0, 1)"]}, "lr.grid_search[0]", "write {uniform: [0, 1]}"),
        ],
    )
    def test_is_refused_with_the_valid_form(self, lr: Any, path: str, intended: str) -> None:
        found_path, message = problem({"optimizer": {"lr": lr}})
        assert found_path == f"spec.searchSpace.optimizer.{path}"
        assert intended in message

    @pytest.mark.parametrize(
        "constant",
        [
            {"min": 0, "max": "auto"},
            {"min": 0, "max": 1, "clip": True},
            {"mean": 0.5, "std": 0.2},
            {"values": "all"},
            {"float": 16},
            {"uniform": 0, "bias": 1},
            {"start": 0, "stop": 10, "step": 1},
            "choice: a or b",
            "uniform:",
            {"grid": {"rows": 2}},
            {"range": {"lr": 3}},
            {"uniform": "he", "gain": 2},
            {"choice": {"literal": 3}, "x": 1},
            {"lower": True, "upper": False},
            "f(x)",
            "relu(inplace)",
            "random forest (sklearn)",
        ],
    )
    def test_ordinary_values_stay_what_they_are(self, constant: Any) -> None:
        compile_search_space({"x": constant})
        assert problems_of({"x": constant}) == []

    @pytest.mark.parametrize("constant", [{"min": 0, "max": 1}, {"values": [1]}, "uniform(0, 1)"])
    def test_literal_takes_anything(self, constant: Any) -> None:
        assert problems_of({"x": {"literal": constant}}) == []

    def test_started_experiment_continues(self) -> None:
        space = {"x": {"min": 0, "max": 1}, "y": "uniform(0, 1)", "z": {"values": [1]}}
        assert compile_search_space(space, started=True) == (space, [])

    @pytest.mark.parametrize(
        ("space", "expected"),
        [
            ({}, False),
            ({"x": 1, "y": {"literal": {"uniform": [0, 1]}}, "z": {"grid_search": [1]}}, False),
            ({"x": {"choice": [1]}}, False),
            ({"x": {"choice": [{"y": {"uniform": [0, 1]}}]}}, True),
            ({"x": {"uniform": [0, 1]}}, True),
            ({"a": {"b": [{"grid_search": [1, 2]}]}}, True),
            ({"z": {"grid_search": [{"x": {"choice": [1, 2]}}]}}, True),
        ],
    )
    def test_varies(self, space: dict[str, Any], expected: bool) -> None:
        assert varies(compiled(space)) is expected


def problems_of(space: dict[str, Any]) -> list[str]:
    return [found.message for found in compile_search_space(space)[1] if "takes a list" not in found.message]
