"""The median stopping rule, by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from trialpod.errors import InvalidInputError
from trialpod.testing.simulation import SimulatedExperiment, SimulatedTrial, Step
from trialpod.tune.schedulers import MedianStoppingRule


def experiment(count: int = 4, slots: int | None = None, **arguments: Any) -> SimulatedExperiment:
    defaults = {"time_attr": "training_iteration", "grace_period": 1, "metric": "score", "mode": "max"}
    return SimulatedExperiment(lambda: MedianStoppingRule(**{**defaults, **arguments}), [{}] * count, slots=slots)


def report(simulated: SimulatedExperiment, number: int, *scores: float) -> str:
    simulated.play([Step(number, metrics={"score": score}) for score in scores])
    return simulated.trials[number].status


def test_stops_below_the_median_of_means() -> None:
    simulated = experiment()
    report(simulated, 0, 0.2, 0.4)  # means 0.3, 0.5, 0.9
    report(simulated, 1, 0.4, 0.6)
    report(simulated, 2, 0.9, 0.9)
    assert report(simulated, 3, 0.45) == "RUNNING"  # at 1 the means are 0.2, 0.4, 0.9
    assert report(simulated, 3, 0.44) == "TERMINATED"
    assert simulated.log[-1] == (
        "t_00003",
        "STOP",
        {
            "scheduler": "median_stopping_rule",
            "rule": "median",
            "time_attr": "training_iteration",
            "time": 2,
            "metric": "score",
            "mode": "max",
            "value": 0.44,
            "best": 0.45,
            "cutoff": 0.5,
            "rank": 3,
            "compared": 4,
        },
    )


def test_grace_period_and_minimum_of_samples() -> None:
    simulated = experiment(grace_period=3)
    for number in range(3):
        report(simulated, number, 0.9, 0.9)
    assert report(simulated, 3, 0.0, 0.0) == "RUNNING"
    report(simulated, 0, 0.9)
    report(simulated, 1, 0.9)
    assert report(simulated, 3, 0.0) == "RUNNING"  # two others came to 3
    report(simulated, 2, 0.9)
    assert report(simulated, 3, 0.0) == "RUNNING"  # and none to 4


def test_nan_in_means_and_trials() -> None:
    simulated = experiment(5)
    for number, score in enumerate((math.nan, 0.1, 0.2, 0.3)):
        report(simulated, number, score)
    assert report(simulated, 4, math.nan) == "TERMINATED"
    assert simulated.log[-1][2]["best"] is None
    assert simulated.log[-1][2]["compared"] == 4


def test_one_nan_does_not_hide_a_good_value() -> None:
    simulated = experiment(5)
    for number, score in enumerate((0.1, 0.1, 0.1)):
        report(simulated, number, score, score)
    assert report(simulated, 3, 0.9, math.nan) == "RUNNING"


def test_time_is_shared_while_there_are_too_few_to_compare() -> None:
    simulated = experiment(slots=1)
    assert report(simulated, 0, 0.5) == "PAUSED"
    assert simulated.trials[1].status == "RUNNING"
    assert simulated.log[1][2]["rule"] == "time_slice"
    assert experiment(1).trials[0].status == "RUNNING"
    alone = experiment(1)
    assert report(alone, 0, 0.5) == "RUNNING"


def test_a_soft_stop_pauses_and_comes_back_last() -> None:
    simulated = experiment(hard_stop=False, slots=4)
    for number in range(3):
        report(simulated, number, 0.9)
    assert report(simulated, 3, 0.1) == "RUNNING"  # paused, and started again: no other waits
    assert ("t_00003", "PAUSE") in [(trial, what) for trial, what, _ in simulated.log]
    assert report(simulated, 3, 0.1, 0.1) == "RUNNING"
    assert simulated.scheduler.horizons(simulated.trials[3]) == []


def test_the_last_result_counts_once_when_the_trial_completes() -> None:
    scheduler = MedianStoppingRule(time_attr="training_iteration", grace_period=0, metric="score", mode="max")
    simulated, trial = experiment(), SimulatedTrial("a", {}, "a")
    result = {"training_iteration": 1, "score": 0.5}
    scheduler.on_trial_result(simulated, trial, result)
    scheduler.on_trial_complete(simulated, trial, result)
    assert scheduler.get_state()["trials"]["a"][:2] == [[1], [0.5]]
    scheduler.on_trial_complete(simulated, trial, {"training_iteration": 2, "score": 0.6})
    assert scheduler.get_state()["trials"]["a"][:2] == [[1, 2], [0.5, 0.6]]


def test_repeated_results_replace_earlier_ones() -> None:
    simulated = experiment(grace_period=0)
    report(simulated, 0, 0.1, 0.2, 0.3)
    simulated.play([Step(0, "result", -2.0, {"score": 0.7, "training_iteration": 2})])
    assert simulated.scheduler.get_state()["trials"]["t_00000"][:2] == [[1, 2], [0.1, 0.7]]


@pytest.mark.parametrize(
    "wrong",
    [{"grace_period": -1}, {"min_samples_required": 0}, {"min_time_slice": math.nan}, {"hard_stop": "no"},
     {"mode": "median"}, {"time_attr": ""}],
)  # fmt: skip
def test_wrong_arguments_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        MedianStoppingRule(**wrong)
