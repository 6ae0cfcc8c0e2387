"""Mutations: their forms, and that what comes out lies inside the domain."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialpod import tune
from trialpod.errors import InvalidInputError
from trialpod.tune.schedulers.pbt_mutations import compiled_mutations, explore, filled, missing_keys, picked

DOMAINS: list[Any] = [
    tune.uniform(0.5, 2.0),
    tune.quniform(0.0, 2.0, 0.25),
    tune.loguniform(1e-5, 1e-1),
    tune.randint(1, 9),
    tune.qrandint(8, 64, 8),
    tune.lograndint(1, 1000),
    tune.choice(["a", "b", "c"]),
    [16, 32, 64],
    {"loguniform": [1e-4, 1e-1]},
    {"randint": {"lower": 1, "upper": 9}},
    {"choice": [True, False]},
]


@given(st.integers(0, 10**6), st.sampled_from(DOMAINS), st.floats(0, 1), st.floats(0.01, 100))
def test_perturbed_values_never_leave_the_domain(seed: int, domain: Any, probability: float, factor: float) -> None:
    mutations = compiled_mutations({"x": domain})
    rng = random.Random(seed)
    config = {"x": mutations["x"].draw(rng), "other": 1}
    for _ in range(10):
        config, operations = explore(config, mutations, probability, (factor, 1 / factor), rng)
        assert mutations["x"].is_valid(config["x"]), operations
        assert config["other"] == 1
        q = getattr(mutations["x"], "q", None)
        assert q is None or abs(config["x"] / q - round(config["x"] / q)) < 1e-9


def test_list_values_move_to_a_neighbour() -> None:
    mutations = compiled_mutations({"x": [1, 10, 100]})
    rng = random.Random(3)
    seen = {tuple(explore({"x": 1}, mutations, 0.0, (2.0,), rng)[0].values()) for _ in range(20)}
    assert seen == {(1,), (10,)}
    new, operations = explore({"x": 7}, mutations, 0.0, (2.0,), rng)
    assert (new["x"] in (1, 10, 100), operations["x"]) == (True, "resample")


def test_types_are_kept_and_source_untouched() -> None:
    mutations = compiled_mutations({"a": {"n": lambda: 3}, "flag": lambda: True})
    config = {"a": {"n": 5, "m": [1]}, "flag": False}
    new, operations = explore(config, mutations, 0.0, (1.2,), random.Random(0))
    assert new == {"a": {"n": 6, "m": [1]}, "flag": False}
    assert operations == {"a": {"n": "* 1.2"}, "flag": "unchanged"}
    assert config["a"]["n"] == 5


def test_whole_numbers_of_a_continuous_domain_move() -> None:
    mutations = compiled_mutations({"lr": tune.uniform(0.01, 10)})
    seen = {explore({"lr": 1}, mutations, 0.0, (1.2, 0.8), random.Random(seed))[0]["lr"] for seed in range(20)}
    assert seen == {1.2, 0.8}
    new, operations = explore({"lr": 9}, mutations, 0.0, (1.2,), random.Random(0))
    assert (new, operations) == ({"lr": 10}, {"lr": "* 1.2 (kept in its domain)"})


def test_what_was_cut_back_to_the_domain_says_so() -> None:
    _, operations = explore({"x": 1.9}, compiled_mutations({"x": {"uniform": [0, 2]}}), 0.0, (1.2,), random.Random(0))
    assert operations == {"x": "* 1.2 (kept in its domain)"}


def test_missing_parameters_are_found_and_drawn() -> None:
    mutations = compiled_mutations({"lr": {"uniform": [0, 1]}, "net": {"layers": [1, 2], "width": [8]}})
    config = {"net": {"layers": 2}}
    assert missing_keys(config, mutations) == ["lr", "net/width"]
    whole = filled(config, mutations, random.Random(0))
    assert whole["net"] == {"layers": 2, "width": 8}
    assert picked({**whole, "z": 1}, mutations).keys() == {("lr",), ("net", "layers"), ("net", "width")}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"x": 3}, r"\['x'\] must be a list of values, a domain"),
        ({"x": []}, r"\['x'\] needs at least one value"),
        ({"x": {}}, r"\['x'\] is empty"),
        ({"x": {"uniform": [2, 1]}}, r"\['x'\]: upper must be greater than lower"),
        ({"x": {"uniform": 3}}, r"\['x'\]: uniform takes a list"),
        ({"x": {"uniform": [1]}}, r"\['x'\]: .*upper"),
        ({"x": {"logunifrm": [1, 2]}}, "did you mean 'loguniform'"),
        ({"x": tune.sample_from(lambda: 1)}, "sample_from cannot be used"),
        ({1: [1]}, "names of parameters are strings"),
        ([1], "must map names"),
    ],
)
def test_wrong_mutations_are_refused_by_path(wrong: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        compiled_mutations(wrong)
