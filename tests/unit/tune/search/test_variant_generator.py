"""Resolution: the order of grid points, domains in grids, dependencies and cycles."""

from __future__ import annotations

import random
import time
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialpod.tune.search.sample import (
    Constant,
    Domain,
    SearchSpaceError,
    choice,
    grid_search,
    randint,
    sample_from,
    uniform,
)
from trialpod.tune.search.spaces.variants import RecursiveDependencyError, VariantSpace


def configs(space: dict[str, Any], seed: int = 0) -> list[dict[str, Any]]:
    variants = VariantSpace(space)
    return [variants.variant(index, random.Random(seed)).config for index in range(variants.grid_count)]


def test_the_first_variable_by_path_changes_fastest() -> None:
    space = {"b": grid_search([1, 2]), "a": {"z": grid_search(["xy", "p", "q"])}}
    assert [(c["a"]["z"], c["b"]) for c in configs(space)] == [
        ("xy", 1), ("p", 1), ("q", 1), ("xy", 2), ("p", 2), ("q", 2)
    ]  # fmt: skip


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_grid_points_are_the_cartesian_product_each_once(sizes: list[int]) -> None:
    space = {f"k{number}": grid_search(list(range(size))) for number, size in enumerate(sizes)}
    found = [tuple(config.values()) for config in configs(space)]
    expected = [tuple(reversed(point)) for point in product(*(range(size) for size in reversed(sizes)))]
    assert found == expected


def test_a_grid_inside_a_grid_value_is_searched_too() -> None:
    space = {
        "model": grid_search([{"kind": "mlp", "width": grid_search([8, 16])}, {"kind": "svm"}]),
        "seed": grid_search([0, 1]),
    }
    found = [(c["model"]["kind"], c["model"].get("width"), c["seed"]) for c in configs(space)]
    assert found == [
        ("mlp", 8, 0), ("mlp", 16, 0), ("svm", None, 0), ("mlp", 8, 1), ("mlp", 16, 1), ("svm", None, 1)
    ]  # fmt: skip


def test_nested_domains_are_drawn() -> None:
    space = {
        "layers": [randint(1, 5), (randint(5, 9), "relu")],
        "optimizer": grid_search([{"momentum": uniform(0, 1)}]),
        "nested": choice([{"lr": uniform(2, 3)}]),
    }
    (config,) = configs(space)
    assert 1 <= config["layers"][0] < 5
    assert 5 <= config["layers"][1][0] < 9
    assert isinstance(config["layers"][1], tuple)
    assert 0 <= config["optimizer"]["momentum"] <= 1
    assert 2 <= config["nested"]["lr"] <= 3


def test_sample_from_sees_later_values() -> None:
    space = {
        "a": sample_from(lambda config: config["b"] * 2),
        "b": sample_from(lambda spec: spec.config.model.units + 1),
        "model": {"units": grid_search([10])},
        "c": sample_from(lambda: 5),
        "d": sample_from(lambda config: config.get("missing", "default")),
        "e": sample_from(lambda config: dict(config["model"])["units"]),
    }
    (config,) = configs(space)
    assert config == {"a": 22, "b": 11, "model": {"units": 10}, "c": 5, "d": "default", "e": 10}


def test_a_cycle_is_an_error_that_names_its_members() -> None:
    space = {"a": sample_from(lambda c: c["b"]), "b": sample_from(lambda c: c["a"])}
    with pytest.raises(RecursiveDependencyError, match="cannot resolve a, b"):
        configs(space)


def test_length_of_dependency_chains() -> None:
    def chain(length: int) -> dict[str, Any]:
        space: dict[str, Any] = {f"k{number:02d}": sample_from(_next_of(number)) for number in range(length)}
        return {**space, f"k{length:02d}": sample_from(lambda: 0)}

    assert configs(chain(19))[0]["k00"] == 19
    with pytest.raises(RecursiveDependencyError, match="20"):
        configs(chain(20))


def _next_of(number: int) -> Any:
    return lambda config: config[f"k{number + 1:02d}"] + 1


def test_an_error_in_a_function_names_its_parameter() -> None:
    with pytest.raises(SearchSpaceError, match=r"model/lr.*KeyError"):
        configs({"model": {"lr": sample_from(lambda config: config["typo"])}})


def test_a_grid_inside_a_drawn_value_is_refused() -> None:
    with pytest.raises(SearchSpaceError, match="number of trials random"):
        configs({"a": choice([{"b": grid_search([1, 2])}])})


def test_empty_and_malformed_grids_are_refused() -> None:
    with pytest.raises(SearchSpaceError, match="a: grid_search needs at least one"):
        VariantSpace({"a": {"grid_search": []}})
    with pytest.raises(SearchSpaceError, match="a/b: grid_search needs a list"):
        VariantSpace({"a": {"b": {"grid_search": "xyz"}}})


def test_a_constant_is_taken_as_it_is() -> None:
    space = {"a": Constant({"grid_search": [1, 2]}), "b": sample_from(lambda c: len(c["a"]["grid_search"]))}
    assert configs(space) == [{"a": {"grid_search": [1, 2]}, "b": 2}]


def test_configs_share_no_containers() -> None:
    space = {"a": {"b": [1]}, "g": grid_search([{"x": [1]}])}
    first, second = configs(space)[0], configs(space)[0]
    first["a"]["b"].append(2)
    first["g"]["x"].append(2)
    assert second == {"a": {"b": [1]}, "g": {"x": [1]}}
    assert configs(space)[0] == second


def test_a_grid_of_a_million_points_takes_no_time_and_no_memory() -> None:
    space: dict[str, Any] = {f"k{number}": grid_search(list(range(100))) for number in range(10)}
    started = time.perf_counter()
    variants = VariantSpace(space)
    assert variants.grid_count == 100**10
    assert variants.variant(100**10 - 1, random.Random(0)).config == dict.fromkeys(space, 99)
    assert variants.variant(1, random.Random(0)).config["k0"] == 1
    assert VariantSpace({"a": grid_search(range(10**9))}).variant(10**9 - 1, random.Random(0)).config == {
        "a": 10**9 - 1
    }
    assert time.perf_counter() - started < 30


@given(st.integers(0, 10**6))
def test_no_domain_is_left_in_a_config(seed: int) -> None:
    space = {"a": choice([uniform(0, 1), choice([1, {"b": randint(0, 3)}])]), "c": [[uniform(0, 1)]]}

    def leaves(node: Any) -> list[Any]:
        if isinstance(node, dict):
            return [leaf for value in node.values() for leaf in leaves(value)]
        if isinstance(node, list):
            return [leaf for value in node for leaf in leaves(value)]
        return [node]

    assert not any(isinstance(leaf, Domain) for leaf in leaves(configs(space, seed)[0]))
