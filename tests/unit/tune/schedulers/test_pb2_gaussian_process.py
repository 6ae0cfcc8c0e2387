"""The model of PB2 finds where improvement was greatest, and does not repeat what runs already."""

from __future__ import annotations

import random

import pytest

from trialpod.tune.schedulers.pb2_gaussian_process import next_point

pytest.importorskip("numpy")

BOUNDS = [(0.0, 10.0)]


def observations(peak: float, count: int = 40) -> tuple[list[tuple[float, float, list[float]]], list[float]]:
    rng = random.Random(5)
    rows = [(float(number), 0.0, [rng.uniform(0, 10)]) for number in range(count)]
    return rows, [-((point[0] - peak) ** 2) for _, _, point in rows]


def test_the_point_is_near_the_best_improvement() -> None:
    for peak in (2.0, 5.0, 8.0):
        rows, targets = observations(peak)
        (x,) = next_point(rows, targets, (40.0, 0.0), BOUNDS, [], random.Random(0))
        assert x == pytest.approx(peak, abs=1.0)


def test_a_point_that_already_runs_is_less_attractive() -> None:
    rows, targets = [(0.0, 0.0, [0.0]), (1.0, 0.0, [10.0])], [0.0, 0.0]
    (first,) = next_point(rows, targets, (1.0, 0.0), BOUNDS, [], random.Random(0))
    (second,) = next_point(rows, targets, (1.0, 0.0), BOUNDS, [[first]], random.Random(0))
    assert abs(second - first) > 1.0


def test_a_single_or_constant_observation_is_enough() -> None:
    (x,) = next_point([(1.0, 2.0, [3.0])], [0.0], (1.0, 2.0), BOUNDS, [], random.Random(0))
    assert 0 <= x <= 10


def test_the_same_generator_gives_the_same_point() -> None:
    rows, targets = observations(4.0)
    points = [next_point(rows, targets, (40.0, 0.0), BOUNDS, [], random.Random(7)) for _ in range(2)]
    assert points[0] == points[1]
