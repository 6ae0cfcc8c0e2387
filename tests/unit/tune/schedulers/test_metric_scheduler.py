"""What schedulers with a metric share."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from trialpod.errors import InvalidInputError
from trialpod.testing.simulation import SimulatedExperiment, SimulatedTrial
from trialpod.tune.schedulers import MedianStoppingRule, create_scheduler
from trialpod.tune.schedulers.metric_scheduler import check_mode, comparable, decoded, encoded, is_number


def test_a_missing_metric_is_an_error_with_a_remedy() -> None:
    scheduler = MedianStoppingRule()
    with pytest.raises(InvalidInputError, match=r"median_stopping_rule scheduler compares .* set both in"):
        scheduler.on_trial_add(SimulatedExperiment(MedianStoppingRule, []), SimulatedTrial("a", {}, "a"))


def test_metric_and_mode_are_taken_once() -> None:
    scheduler = MedianStoppingRule()
    assert scheduler.set_search_properties("acc", "max")
    assert not scheduler.set_search_properties("acc", None)
    anonymous = MedianStoppingRule()
    assert anonymous.set_search_properties(None, "min")
    assert anonymous.metric == "_metric"


def test_a_misspelt_mode_is_answered_with_the_nearest() -> None:
    with pytest.raises(InvalidInputError, match="got 'mx'; did you mean 'max'"):
        check_mode("mx")


def test_numbers_survive_json_whatever_they_are() -> None:
    for value in (0.1, 3, math.inf, -math.inf):
        assert decoded(json.loads(json.dumps(encoded(value), allow_nan=False))) == value
    assert math.isnan(decoded(encoded(math.nan)))
    assert comparable(math.nan) == -math.inf
    assert [is_number(value) for value in (1, 0.5, math.nan, True, "1", None)] == [True] * 3 + [False] * 3


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("asha", {"brackets": 10**9}, "brackets must be a whole number from 1 to 100"),
        ("asha", {"reduction_factor": 1.0000001}, "more than 1000 rungs"),
        ("asha_promotion", {"reduction_factor": 1.0000001}, "more than 1000 rungs"),
        ("asha_promotion", {"grace_period": 5e-324, "reduction_factor": 1.4}, "more than 1000 rungs"),
        ("hyperband", {"reduction_factor": 1.0000001}, "more than 1000 rungs"),
        ("hb_bohb", {"reduction_factor": 1.0000001}, "more than 1000 rungs"),
    ],
)
def test_rungs_without_end_are_refused_at_once(name: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        create_scheduler(name, **parameters)
