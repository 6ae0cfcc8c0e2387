from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialpod_operator.display.view import RunningTrial, remaining_s, trials_per_minute

_time = st.floats(0, 1e6)
_running = st.builds(RunningTrial, age_s=_time, limit_s=st.none() | _time)


class TestRate:
    def test_counts_over_the_whole_time(self) -> None:
        """Trials that end in the same instant say nothing of the next ones."""
        assert trials_per_minute(2, 20.0) == 6.0
        assert trials_per_minute(0, 20.0) is None
        assert trials_per_minute(3, 0.0) is None


class TestEta:
    def test_of_trials_that_end_together(self) -> None:
        """4 trials of 15 s on 2 slots, 5.7 s after the first two have ended at once."""
        running = [RunningTrial(5.7), RunningTrial(5.7)]
        assert remaining_s([15.0, 15.0], running, 0, early_stopping=False) == pytest.approx(9.3)

    def test_waiting_trials_take_the_first_free_slot(self) -> None:
        running = [RunningTrial(10.0), RunningTrial(4.0)]
        assert remaining_s([15.0, 15.0], running, 3, early_stopping=False) == pytest.approx(5 + 15 + 15)

    def test_from_the_limit_of_iterations_before_any_has_ended(self) -> None:
        running = [RunningTrial(30.0, limit_s=60.0), RunningTrial(20.0, limit_s=62.0)]
        assert remaining_s([], running, 0, early_stopping=True) == pytest.approx(42.0)
        assert remaining_s([], running, 2, early_stopping=True) == pytest.approx(103.0)

    def test_early_stopping_takes_what_trials_took_so_far(self) -> None:
        running = [RunningTrial(2.0, limit_s=80.0)]
        assert remaining_s([3.0, 5.0, 1.0], running, 0, early_stopping=True) == pytest.approx(2.0)
        assert remaining_s([3.0, 5.0, 1.0], running, 0, early_stopping=False) == pytest.approx(78.0)

    @pytest.mark.parametrize(
        ("durations", "running"), [([], [RunningTrial(3.0)]), ([1.0], [RunningTrial(9.0), RunningTrial(0.5)])]
    )
    def test_unknown(self, durations: list[float], running: list[RunningTrial]) -> None:
        assert remaining_s(durations, running, 2, early_stopping=False) is None

    def test_of_a_hundred_thousand_trials_is_quick(self) -> None:
        eta = remaining_s([1.0] * 300, [RunningTrial(0.5)] * 8, 100_000, early_stopping=False)
        assert eta == pytest.approx(100_000 / 8, rel=0.01)

    @given(st.lists(_time, max_size=30), st.lists(_running, max_size=8), st.integers(0, 2000))
    def test_is_never_below_what_running_trials_need(
        self, durations: list[float], running: list[RunningTrial], waiting: int
    ) -> None:
        eta = remaining_s(durations, running, waiting, early_stopping=False)
        if eta is None:
            return
        assert math.isfinite(eta)
        assert eta >= 0
        for trial in running:
            if trial.limit_s is not None:
                assert eta >= trial.limit_s - trial.age_s

    @given(st.floats(0.1, 1e3), st.integers(1, 8), st.integers(1, 40), st.integers(1, 40), st.floats(0.01, 0.99))
    def test_is_exact_when_all_take_the_same(
        self, each: float, slots: int, ended_rounds: int, total_rounds: int, part: float
    ) -> None:
        running = [RunningTrial(each * part)] * slots
        eta = remaining_s([each] * slots * ended_rounds, running, slots * total_rounds, early_stopping=True)
        assert eta == pytest.approx(each * (1 - part) + each * total_rounds)
