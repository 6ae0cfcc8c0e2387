"""TrialPlateauStopper: deviation of the latest results of one trial."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stopper_checks import first_stop, met, reloaded, result

from trialpod.errors import InvalidInputError
from trialpod.tune.stopper import TrialPlateauStopper


def test_stops_when_latest_values_are_close() -> None:
    stopper = TrialPlateauStopper("loss", std=0.1, num_results=3, grace_period=1)
    # of 1.0, 0.5, 0.5: 0.236; of 0.5, 0.5, 0.6: 0.047
    assert first_stop(stopper, [1.0, 0.5, 0.5, 0.6]) == 4
    assert stopper.reason() == {
        "stopper": "trial_plateau", "metric": "loss", "std": pytest.approx(0.04714045), "threshold": 0.1,
        "num_results": 3, "results": 4, "value": 0.6,
    }  # fmt: skip


def test_a_deviation_equal_to_the_threshold_continues() -> None:
    assert first_stop(TrialPlateauStopper("loss", std=0.5, num_results=2, grace_period=0), [0, 1, 0]) is None
    assert first_stop(TrialPlateauStopper("loss", std=0.51, num_results=2, grace_period=0), [0, 1]) == 2


def test_no_trial_is_stopped_in_its_grace_period() -> None:
    assert first_stop(TrialPlateauStopper("loss", num_results=2, grace_period=6), [1.0] * 9) == 6
    assert first_stop(TrialPlateauStopper("loss"), [1.0] * 9) == 4


@pytest.mark.parametrize(
    ("mode", "value", "stops"), [("min", 1, 4), ("min", 3, None), ("max", 3, 4), ("max", 1, None)]
)
def test_a_plateau_counts_only_beyond_the_threshold(mode: str, value: float, stops: int | None) -> None:
    stopper = TrialPlateauStopper("loss", metric_threshold=2, mode=mode)
    assert first_stop(stopper, [value] * 6) == stops


@pytest.mark.parametrize("odd", [None, math.nan, math.inf, "text"])
def test_missing_or_infinite_values_keep_it_running(odd: Any) -> None:
    assert first_stop(TrialPlateauStopper("loss"), [1.0, 1.0, odd, 1.0, 1.0, 1.0, 1.0]) == 7


@pytest.mark.parametrize("large", [1e160, 1.7e308])
def test_values_too_large_to_square_keep_it_running(large: float) -> None:
    assert first_stop(TrialPlateauStopper("loss"), [large, 1.0, large, large, 1.0, 1.0, 1.0, 1.0]) == 8


@given(
    st.lists(st.sampled_from([0.0, 0.001, 0.5, math.nan, None]), max_size=12),
    st.integers(0, 12),
    st.integers(0, 6),
)
def test_state_and_horizons_change_no_decision(values: list[Any], at: int, grace: int) -> None:
    def make() -> TrialPlateauStopper:
        return TrialPlateauStopper("loss", std=0.01, num_results=3, grace_period=grace)

    stopper, other = make(), make()
    for number, value in enumerate(values, 1):
        if number == at:
            other = make()
            reloaded(stopper, other)
        data = result(number, value)
        waits = met(other, "a", data)
        decision = stopper("a", data)
        assert other("a", data) == decision
        assert waits or not decision
    assert json.dumps(stopper.get_state(), allow_nan=False) == json.dumps(other.get_state(), allow_nan=False)


@pytest.mark.parametrize(
    "wrong",
    [{"metric": ""}, {"std": "x"}, {"num_results": 0}, {"grace_period": -1}, {"mode": "up"}, {"metric_threshold": 0}],
)
def test_wrong_arguments_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        TrialPlateauStopper(**{"metric": "loss", **wrong})
