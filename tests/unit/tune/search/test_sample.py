"""Distributions: bounds, grids of quantised ones, and errors that name the argument."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialpod.errors import InvalidInputError
from trialpod.tune.search import BasicVariantGenerator, sample
from trialpod.tune.search.sample import Domain, SearchSpaceError
from trialpod.tune.search.spaces.variants import same_space

seeds = st.integers(0, 2**32)


def values_of(domain: Domain, seed: int, count: int = 50) -> list[Any]:
    return list(domain.sample(size=count, random_state=seed))


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), seeds)
def test_uniform_values_lie_between_the_bounds(lower: float, width: float, seed: int) -> None:
    domain = sample.uniform(lower, lower + width)
    assert all(domain.is_valid(value) for value in values_of(domain, seed))


@given(st.floats(1e-12, 1e6), st.floats(1.001, 1e6), st.sampled_from([2, math.e, 10]), seeds)
def test_loguniform_values_lie_between_the_bounds(lower: float, factor: float, base: float, seed: int) -> None:
    domain = sample.loguniform(lower, lower * factor, base)
    assert all(domain.is_valid(value) for value in values_of(domain, seed))


@given(st.integers(-1000, 1000), st.integers(1, 500), st.sampled_from([0.05, 0.1, 0.25, 1, 3]), seeds)
def test_quantised_floats_are_multiples_of_q_between_the_bounds(first: int, steps: int, q: float, seed: int) -> None:
    domain = sample.quniform(first * q, (first + steps) * q, q)
    for value in values_of(domain, seed):
        assert domain.is_valid(value)
        assert math.isclose(value / q, round(value / q), abs_tol=1e-9)


@given(st.integers(-1000, 1000), st.integers(0, 500), st.integers(2, 40), seeds)
def test_quantised_integers_are_multiples_of_q(lower: int, width: int, q: int, seed: int) -> None:
    if lower + width < -(-lower // q) * q:
        with pytest.raises(SearchSpaceError, match="no multiple"):
            sample.qrandint(lower, lower + width, q)
        return
    domain = sample.qrandint(lower, lower + width, q)
    for value in values_of(domain, seed):
        assert domain.is_valid(value)
        assert value % q == 0
        assert type(value) is int


@given(st.integers(1, 1000), st.integers(1, 10**6), st.integers(1, 9), seeds)
def test_log_integers_stay_in_their_domain(lower: int, width: int, q: int, seed: int) -> None:
    plain = sample.lograndint(lower, lower + width)
    assert all(plain.is_valid(value) for value in values_of(plain, seed))
    quantised = sample.qlograndint(lower * q, (lower + width) * q, q)
    assert all(quantised.is_valid(value) and value % q == 0 for value in values_of(quantised, seed))


def test_multiples_of_q_are_equally_likely() -> None:
    counts = Counter(values_of(sample.qrandint(0, 30, 10), 1, 4000))
    assert sorted(counts) == [0, 10, 20, 30]
    assert all(880 < count < 1120 for count in counts.values())


def test_the_upper_bound_of_integers_is_left_out_when_q_is_1() -> None:
    assert set(values_of(sample.randint(0, 3), 1)) == {0, 1, 2}
    assert set(values_of(sample.qrandint(0, 3), 1)) == {0, 1, 2}
    assert set(values_of(sample.qrandint(0, 3, 1), 1)) == {0, 1, 2}
    assert not sample.randint(0, 3).is_valid(3)
    assert sample.qrandint(0, 4, 2).is_valid(4)


def test_whole_numbers_written_as_floats_are_taken_as_bounds() -> None:
    assert set(values_of(sample.randint(0, 1e0), 1)) == {0}  # type: ignore[arg-type]


def test_normal_values_have_the_given_mean_and_deviation() -> None:
    drawn = values_of(sample.randn(10, 2), 3, 4000)
    mean = sum(drawn) / len(drawn)
    assert mean == pytest.approx(10, abs=0.15)
    assert math.sqrt(sum((v - mean) ** 2 for v in drawn) / len(drawn)) == pytest.approx(2, abs=0.15)
    assert all(value % 5 == 0 for value in values_of(sample.qrandn(10, 20, 5), 3))


def test_choice_draws_every_value_and_domains_show_what_they_are() -> None:
    assert set(values_of(sample.choice(["a", "b"]), 2)) == {"a", "b"}
    assert sample.choice(["a", "b"]).categories == ["a", "b"]
    domain = sample.qloguniform(1, 100, 1)
    assert (domain.lower, domain.upper) == (1, 100)
    assert domain.sampler == {"name": "loguniform", "base": 10, "q": 1}


def test_a_seeded_generator_gives_the_same_values_again() -> None:
    domain = sample.uniform(0, 1)
    assert domain.sample(random_state=random.Random(4)) == domain.sample(random_state=random.Random(4))
    assert domain.sample(random_state=4) == domain.sample(random_state=4)


def test_sample_from_takes_one_argument_or_none() -> None:
    assert sample.sample_from(lambda config: config["a"] + 1).sample({"a": 1}) == 2
    assert sample.sample_from(lambda: 7).sample({"a": 1}) == 7


@pytest.mark.parametrize(
    ("make", "argument", "message"),
    [
        (lambda: sample.loguniform(0, 1), "lower", "greater than 0"),
        (lambda: sample.lograndint(-1, 10), "lower", "greater than 0"),
        (lambda: sample.uniform(1, 1), "upper", "upper must be greater than lower"),
        (lambda: sample.randint(3, 2), "upper", "upper must be greater than lower"),
        (lambda: sample.quniform(0.05, 1, 0.1), "lower", "not a multiple of q 0.1"),
        (lambda: sample.quniform(0, 1.05, 0.1), "upper", "use 1 or|use 1.1|use 1,"),
        (lambda: sample.quniform(0, 1, 0), "q", "greater than 0"),
        (lambda: sample.qrandint(1, 4, 5), "q", "no multiple of 5 from 1 to 4"),
        (lambda: sample.randint(0.5, 2), "lower", "whole number"),  # type: ignore[arg-type]
        (lambda: sample.uniform("0", 1), "lower", "must be a finite number"),  # type: ignore[arg-type]
        (lambda: sample.uniform(0, math.inf), "upper", "finite"),
        (lambda: sample.choice([]), "categories", "at least one"),
        (lambda: sample.choice("ab"), "categories", "list"),
        (lambda: sample.grid_search("ab"), "values", "list"),
        (lambda: sample.sample_from(3), "func", "function"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_are_refused_with_their_name(make: Any, argument: str, message: str) -> None:
    with pytest.raises(SearchSpaceError, match=message) as error:
        make()
    assert error.value.argument == argument
    assert isinstance(error.value, InvalidInputError)


class TestDomainsOfRay:
    """The classes of ``ray.tune.search.sample``, as scripts and converters use them."""

    def test_methods_make_the_domains_of_the_functions(self) -> None:
        pairs = [
            (sample.Float(0, 2).uniform(), sample.uniform(0, 2)),
            (sample.Float(1e-3, 1).loguniform(), sample.loguniform(1e-3, 1)),
            (sample.Float(None, None).normal(1, 2), sample.randn(1, 2)),
            (sample.Float(0, 2).uniform().quantized(0.5), sample.quniform(0, 2, 0.5)),
            (sample.Integer(1, 9).uniform(), sample.randint(1, 9)),
            (sample.Integer(1, 9).loguniform(), sample.lograndint(1, 9)),
            (sample.Integer(1, 9).quantized(2), sample.qrandint(1, 9, 2)),
            (sample.Categorical([1, 2]).uniform(), sample.choice([1, 2])),
        ]
        for made, known in pairs:
            assert same_space(made, known), (made, known)

    def test_samplers(self) -> None:
        sampler = sample.qloguniform(1, 100, 1).get_sampler()
        assert isinstance(sampler, sample.Quantized)
        assert (sampler.q, type(sampler.get_sampler())) == (1, sample.LogUniform)
        normal = sample.randn(1, 2).get_sampler()
        assert isinstance(normal, sample.Normal)
        assert (normal.mean, normal.sd) == (1, 2)
        assert sample.sample_from(lambda: 1).is_function()
        assert (sample.uniform(0, 1).cast("3"), sample.randint(0, 3).cast(2.7)) == (3.0, 2)

    def test_grid_of_a_choice(self) -> None:
        space = {"a": sample.Categorical([1, 2]).grid(), "b": 3}
        search = BasicVariantGenerator(seed=1)
        search.configure(space)
        found = [search.next_suggestion(), search.next_suggestion()]
        assert [each and each.config for each in found] == [{"a": 1, "b": 3}, {"a": 2, "b": 3}]
        assert search.finished

    def test_bounds_are_needed_to_draw(self) -> None:
        with pytest.raises(SearchSpaceError, match="lower must be a number"):
            sample.Float(None, 3).uniform()
        with pytest.raises(SearchSpaceError, match="normal distribution"):
            sample.Float(1, 3).normal()
        with pytest.raises(SearchSpaceError, match="the config or nothing"):
            sample.sample_from(lambda one, two: one)


def test_a_text_is_a_choice_of_its_characters_under_rays_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trialpod.compat.ray.installed", lambda: True)
    assert sample.choice("abc").categories == ["a", "b", "c"]
    for empty in ("", {}):
        assert sample.choice(empty).categories == []  # type: ignore[arg-type]
