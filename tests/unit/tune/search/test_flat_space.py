from __future__ import annotations

import random
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trialpod import tune
from trialpod.errors import InvalidInputError
from trialpod.protocol.values import opaque_decoder, params_encoder
from trialpod.tune.search.spaces.flat_space import FlatSpace

BOUNDS = st.tuples(st.integers(1, 50), st.integers(1, 50)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def _domains() -> st.SearchStrategy[Any]:
    return st.one_of(
        BOUNDS.map(lambda b: tune.uniform(*b)),
        BOUNDS.map(lambda b: tune.loguniform(*b)),
        BOUNDS.map(lambda b: tune.quniform(b[0] * 0.1, b[1] * 0.1, 0.1)),
        BOUNDS.map(lambda b: tune.qloguniform(b[0] * 0.5, b[1] * 0.5, 0.5)),
        BOUNDS.map(lambda b: tune.randint(*b)),
        BOUNDS.map(lambda b: tune.lograndint(*b)),
        BOUNDS.map(lambda b: tune.qrandint(b[0] * 3, b[1] * 3, 3)),
        BOUNDS.map(lambda b: tune.qlograndint(b[0] * 4, b[1] * 4, 4)),
        st.lists(st.integers() | st.text(max_size=3), min_size=2, max_size=4, unique=True).map(tune.choice),
    )


@given(st.lists(_domains(), min_size=1, max_size=4), st.integers(0, 2**32), st.floats(-1e9, 1e9))
@example([tune.choice([0, -(2**63) - 1])], 0, 0.0)
def test_a_point_and_its_config_are_the_same_thing(domains: list[Any], seed: int, wild: float) -> None:
    space = {"a": {str(number): domain for number, domain in enumerate(domains)}, "last": tune.uniform(0, 1)}
    flat, rng = FlatSpace(space, "the test"), random.Random(seed)
    for values in ({d.name: d.draw(rng) for d in flat.dimensions}, {d.name: wild for d in flat.dimensions}):
        exact = flat.canonical(values)
        config, resolved = flat.build(exact, rng)
        assert flat.encode(config) == exact
        assert flat.canonical(exact) == exact
        assert all(domain.is_valid(config["a"][str(number)]) for number, domain in enumerate(domains))
        assert set(resolved) >= {d.path for d in flat.active(exact)}
        travelled = opaque_decoder.decode(params_encoder.encode(config))
        assert flat.encode(travelled) == exact


def test_upper_bounds_are_excluded_as_in_ray() -> None:
    flat = FlatSpace({"a": tune.randint(0, 4), "b": tune.qrandint(0, 8, 4), "c": tune.lograndint(1, 4)}, "the test")
    assert [d.decode(1e9) for d in flat.dimensions] == [3, 8, 3]
    assert [d.decode(-1e9) for d in flat.dimensions] == [0, 0, 1]


def test_a_domain_with_one_value_is_a_constant() -> None:
    flat = FlatSpace({"a": tune.randint(3, 4), "b": tune.choice([7]), "x": tune.uniform(0, 1)}, "the test")
    assert [d.name for d in flat.dimensions] == ["x"]
    assert flat.build({"x": 0.5}, random.Random(0))[0] == {"a": 3, "b": 7, "x": 0.5}


def test_parameters_of_an_option_are_active_while_it_is_chosen() -> None:
    space = {"model": tune.choice([{"depth": tune.randint(1, 9)}, {"lr": tune.uniform(0, 1)}, "none"])}
    flat = FlatSpace(space, "the test")
    assert [d.name for d in flat.dimensions] == ["model", "model[0]/depth", "model[1]/lr"]
    for values in ({"model": 0, "model[0]/depth": 4}, {"model": 1, "model[1]/lr": 0.25}, {"model": 2}):
        config, _ = flat.build(values, random.Random(0))
        assert flat.encode(config) == values
    assert flat.complete({"model": 2}).keys() == {"model", "model[0]/depth", "model[1]/lr"}


def test_config_of_several_options_is_ambiguous() -> None:
    space = {
        "model": tune.choice([{"units": tune.randint(1, 64)}, {"units": tune.randint(32, 512)}, "a", "b", "b"]),
        "n": tune.choice([1, 1.0, True]),
    }
    flat = FlatSpace(space, "the test")
    models = [{"units": 31}, {"units": 40}, {"units": 64}, "a", "b"]
    assert [flat.is_ambiguous({"model": each, "n": 1}) for each in models] == [False, True, False, False, True]


def test_functions_and_constants_are_filled_in() -> None:
    space = {"x": tune.uniform(0, 1), "twice": tune.sample_from(lambda c: c["x"] * 2), "deep": [1, {"k": "v"}]}
    flat = FlatSpace(space, "the test")
    assert flat.build({"x": 0.25}, random.Random(0))[0] == {"x": 0.25, "twice": 0.5, "deep": [1, {"k": "v"}]}


def test_options_of_different_types_are_distinguished() -> None:
    flat = FlatSpace({"a": tune.choice([1, True, 1.0, "1", (1, 2)])}, "the test")
    assert [flat.encode({"a": value})["a"] for value in (1, True, 1.0, "1", [1, 2])] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"a": {"b": tune.grid_search([1])}}, "a/b: the test does not go through a grid_search; use choice"),
        ({"a": tune.randn(1, 2)}, r"no bounds; use uniform\(-5, 7\)"),
        ({"a": 1}, "nothing to search"),
        ({"a/b": tune.uniform(0, 1), "a": {"b": tune.uniform(5, 6)}}, "a/b: the search space has two parameters"),
        ({"a/b": 1, "a": {"b": tune.uniform(5, 6)}}, "a/b: the search space has two parameters of this name"),
        ({1: tune.uniform(0, 1), "1": tune.uniform(5, 6)}, "1: the search space has two parameters of this name"),
        ({}, "nothing to search"),
    ],
)
def test_what_cannot_be_searched_is_refused(space: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        FlatSpace(space, "the test")


@pytest.mark.parametrize("value", [2.0, "0.5", None, True, float("nan"), np.bool_(True), np.float64("inf")])
def test_a_value_outside_of_its_domain_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError, match="x: "):
        FlatSpace({"x": tune.uniform(0, 1)}, "the test").encode({"x": value})


class TestNumbersOfNumPy:
    FLAT = FlatSpace({"n": tune.randint(1, 9), "x": tune.uniform(0, 1), "big": tune.randint(0, 2**70)}, "the test")

    @pytest.mark.parametrize("n", [np.int64(3), np.uint8(3), np.array(3), np.float32(3)])
    @pytest.mark.parametrize("x", [np.float32(0.5), np.float16(0.5), np.float64(0.5)])
    def test_are_numbers(self, n: Any, x: Any) -> None:
        found = self.FLAT.encode({"n": n, "x": x, "big": 2**69 + 1})
        assert found == {"n": 3, "x": 0.5, "big": 2**69 + 1}
        assert [type(value) for value in found.values()] == [int, float, int]

    def test_fraction_is_no_whole_number(self) -> None:
        with pytest.raises(InvalidInputError, match=r"n: 3\.5 is outside"):
            self.FLAT.encode({"n": np.float32(3.5)}, partial=True)


class TestRoundingAtTheEdge:
    """Draws from NumPy are Ray's, which may miss a bound by a rounding error."""

    SPACE: ClassVar = {"x": tune.quniform(0, 0.3, 0.1), "y": tune.quniform(-0.3, 0, 0.1)}

    def test_value_is_the_edge(self) -> None:
        drawn = float(np.round(0.3 / 0.1) * 0.1)
        assert drawn > 0.3
        flat = FlatSpace(self.SPACE, "the test")
        assert flat.encode({"x": drawn, "y": -drawn}) == {"x": 3, "y": -3}

    def test_option_with_it_is_found(self) -> None:
        flat = FlatSpace({"model": tune.choice(["none", self.SPACE])}, "the test")
        drawn = {"model": {"x": 3 * 0.1, "y": 0.0}}
        assert flat.encode(drawn) == {"model": 1, "model[1]/x": 3, "model[1]/y": 0}

    @pytest.mark.parametrize("value", [0.4, 0.3001, -0.1, 0.25])
    def test_value_beyond_it_is_refused(self, value: float) -> None:
        with pytest.raises(InvalidInputError, match="x: "):
            FlatSpace(self.SPACE, "the test").encode({"x": value, "y": 0.0})
