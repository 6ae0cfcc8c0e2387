"""ASHA with promotion: who waits, who is promoted, and when."""

from __future__ import annotations

import math
from typing import Any

import pytest

from trialpod.errors import InvalidInputError
from trialpod.testing.simulation import SimulatedExperiment, SimulatedTrial, Step
from trialpod.tune.schedulers import PromotionASHAScheduler


def experiment(count: int, slots: int = 1, **arguments: Any) -> SimulatedExperiment:
    def make() -> PromotionASHAScheduler:
        return PromotionASHAScheduler(metric="score", mode="max", **{"max_t": 9, "reduction_factor": 3, **arguments})

    return SimulatedExperiment(make, [{}] * count, slots=slots, lazily=True)


def running(simulated: SimulatedExperiment) -> list[int]:
    return [number for number, trial in enumerate(simulated.trials) if trial.status == "RUNNING"]


def test_the_best_of_a_rung_is_promoted_when_a_place_is_free() -> None:
    simulated = experiment(9)
    for number, score in enumerate((0.1, 0.9, 0.3)):
        assert running(simulated) == [number]
        simulated.play([Step(number, metrics={"score": score})])
    # one of three may pass, and it is the second, which continues before a fourth starts
    assert running(simulated) == [1]
    assert simulated.trials[1].iteration == 1
    assert [what for _, what, _ in simulated.log] == ["START", "PAUSE", "START", "PAUSE", "START", "PAUSE", "START"]
    assert simulated.log[-2][2] == {
        "scheduler": "asha_promotion",
        "rule": "rung",
        "time_attr": "training_iteration",
        "time": 1,
        "metric": "score",
        "mode": "max",
        "value": 0.3,
        "rung": 1,
        "rank": 2,
        "compared": 3,
    }


def test_a_trial_that_would_be_promoted_at_once_does_not_pause() -> None:
    simulated = experiment(9)
    for number, score in enumerate((0.1, 0.3, 0.9)):
        simulated.play([Step(number, metrics={"score": score})])
    assert [what for _, what, _ in simulated.log if what != "START"] == ["PAUSE", "PAUSE"]
    assert running(simulated) == [2]


def test_trial_lost_before_its_pause() -> None:
    simulated = experiment(9)
    simulated.play([Step(0, metrics={"score": 0.1})])
    lost = simulated.trials[0]
    lost.status, lost.iteration = "PENDING", 0
    simulated.play([Step(1, metrics={"score": 0.9})])
    assert running(simulated) == [0]
    assert [horizon.at for horizon in simulated.scheduler.horizons(lost)] == [1.0]
    simulated.play([Step(0, metrics={"score": 0.1})])
    assert running(simulated) == [2]
    simulated.play([Step(2, metrics={"score": 0.3})])
    assert running(simulated) == [1]
    assert "1: 3 reached, 1 promoted" in simulated.scheduler.debug_string()


def test_higher_rungs_come_first_and_max_t_ends_a_trial() -> None:
    simulated = experiment(9, reduction_factor=2, max_t=4)
    for number, score in enumerate((0.1, 0.9)):
        simulated.play([Step(number, metrics={"score": score})])
    simulated.play([Step(1, metrics={"score": 0.9})] * 1)  # at 2: alone there, so it waits
    assert running(simulated) == [2]
    simulated.play([Step(2, metrics={"score": 0.8})])
    assert running(simulated) == [3]
    simulated.play([Step(3, metrics={"score": 0.95})])
    assert running(simulated) == [3]
    simulated.play([Step(3, metrics={"score": 0.95})])  # the second at 2: one of them passes, and it is this one
    assert running(simulated) == [3]
    simulated.play([Step(3, metrics={"score": 0.95})] * 2)
    assert simulated.trials[3].status == "TERMINATED"
    assert simulated.decisions()["t_00003"][-1][1]["rule"] == "max_t"


def test_planned_share_passes_a_rung() -> None:
    simulated = experiment(27, slots=4)

    def score(trial: SimulatedTrial) -> dict[str, float]:
        return {"score": -int(trial.trial_id[-2:]) / 27}

    left = simulated.finish(100, score)
    reached = [trial.iteration for trial in simulated.trials]
    assert sum(iteration > 1 for iteration in reached) == 9
    assert reached.count(9) >= 1
    assert left == len([iteration for iteration in reached if iteration < 9])


def test_nan_is_never_promoted() -> None:
    simulated = experiment(3, reduction_factor=2)
    for number in range(3):
        simulated.play([Step(number, metrics={"score": math.nan})])
    assert running(simulated) == []


def test_a_trial_that_jumps_over_rungs_counts_in_all_of_them() -> None:
    simulated = experiment(3, time_attr="time_total_s")
    simulated.play([Step(0, advance=5.0, metrics={"score": 0.5})])
    scheduler = simulated.scheduler
    assert isinstance(scheduler, PromotionASHAScheduler)
    assert scheduler.debug_string() == "asha_promotion: 1: 1 reached, 1 promoted | 3: 1 reached, 0 promoted"


@pytest.mark.parametrize(
    "wrong", [{"max_t": 0}, {"grace_period": -1}, {"reduction_factor": 1}, {"grace_period": 10}, {"mode": "maximum"}]
)
def test_wrong_arguments_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        PromotionASHAScheduler(**{"max_t": 9, **wrong})


def test_a_state_of_other_rungs_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="continue with the parameters"):
        PromotionASHAScheduler(max_t=9).set_state(PromotionASHAScheduler(max_t=100).get_state())
