"""Regret, ranks and speed-up of the quality benchmark."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks" / "quality"))

import measure
from simulator import Moment, Outcome
from tasks.task import Reference

pytestmark = pytest.mark.once

REFERENCE = Reference(best=1.0, median=3.0, worst=9.0, full_training_s=1.0)


class TestRegret:
    @pytest.mark.parametrize(
        ("value", "expected"), [(1.0, 0.0), (2.0, 0.5), (3.0, 1.0), (8.0, 1.0), (0.5, 0.0), (math.nan, 1.0)]
    )
    def test_runs_from_the_best_known_to_a_median_config(self, value, expected):
        assert measure.normalised(value, REFERENCE) == expected

    def test_is_that_of_the_moment_in_effect(self):
        outcome = Outcome(moments=[Moment(0.2, 2.5, 2.8), Moment(0.6, 1.5, 1.2)])
        assert [measure.regret(outcome, REFERENCE, share) for share in (0.1, 0.2, 0.5, 0.6, 1.0)] == [
            1.0, 0.75, 0.75, 0.25, 0.25,
        ]  # fmt: skip
        assert measure.regret_in_hand(outcome, REFERENCE, 1.0) == pytest.approx(0.1)


class TestComparison:
    GRID = (0.25, 0.5, 0.75, 1.0)
    SLOW = {"t": [[1.0, 0.8, 0.4, 0.2]]}  # noqa: RUF012
    FAST = {"t": [[0.4, 0.2, 0.1, 0.1]]}  # noqa: RUF012

    def test_ranks_share_ties(self):
        methods = {"a": {"t": [[0.1]]}, "b": {"t": [[0.3]]}, "c": {"t": [[0.1]]}}
        assert measure.ranks(methods, 0) == {"a": 1.5, "b": 3.0, "c": 1.5}

    def test_speed_up_compares_the_budget_for_their_final_regret(self):
        assert measure.speed_up(self.FAST, self.SLOW, self.GRID) == 2.0

    def test_speed_up_is_zero_when_their_regret_is_not_reached(self):
        assert measure.speed_up(self.SLOW, self.FAST, self.GRID) == 0.0

    def test_means_weigh_tasks_equally(self):
        assert measure.mean({"a": [[0.0]], "b": [[1.0], [1.0], [1.0]]}, 0) == 0.5


class TestInterval:
    def test_holds_the_mean_and_repeats(self):
        regrets = {f"task{n}": [[n / 10], [n / 10 + 0.05]] for n in range(8)}
        low, high = measure.interval(lambda drawn: measure.mean(drawn[0], 0), [regrets], draws=200)
        assert low < measure.mean(regrets, 0) < high
        assert (low, high) == measure.interval(lambda drawn: measure.mean(drawn[0], 0), [regrets], draws=200)

    def test_of_the_same_method_twice_is_no_difference(self):
        regrets = {"a": [[0.1], [0.4]], "b": [[0.7], [0.2]]}
        assert measure.interval(lambda d: measure.mean(d[0], 0) - measure.mean(d[1], 0), [regrets] * 2) == (0.0, 0.0)
