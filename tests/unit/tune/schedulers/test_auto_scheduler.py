"""The scheduler `auto`: who continues, who waits, which rung is skipped, and how every experiment ends."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import Horizon
from trialpod.testing.simulation import SimulatedExperiment, SimulatedTrial, Step
from trialpod.tune.schedulers import AutoScheduler, ResourceChangingScheduler


def experiment(count: int, slots: int = 1, *, checkpoints: bool = True, **arguments: Any) -> SimulatedExperiment:
    def make() -> AutoScheduler:
        given = {"max_t": 9, "grace_period": 1, "calibration": 0, "metric": "loss", "mode": "min", **arguments}
        return AutoScheduler(**given)

    return SimulatedExperiment(make, [{}] * count, slots=slots, lazily=True, restarts=True, checkpoints=checkpoints)


def running(simulated: SimulatedExperiment) -> list[int]:
    return [number for number, trial in enumerate(simulated.trials) if trial.status == "RUNNING"]


def number_of(trial: SimulatedTrial) -> int:
    return int(trial.trial_id[-2:])


def by_number(trial: SimulatedTrial) -> dict[str, float]:
    return {"loss": float(number_of(trial))}


def misleading(trial: SimulatedTrial) -> dict[str, float]:
    """The order at iteration 1 is the opposite of all later ones."""
    return {"loss": number_of(trial) * (1.0 if trial.iteration > 1 else -1.0)}


class TestRungs:
    def test_best_continues_and_others_pause_with_their_reason(self) -> None:
        simulated = experiment(9)
        for number, loss in enumerate((0.5, 0.9, 0.1)):
            simulated.play([Step(number, metrics={"loss": loss})])
        assert running(simulated) == [2]  # of three one passes, and it is this one: without a pause
        assert [trial.status for trial in simulated.trials[:2]] == ["PAUSED", "PAUSED"]
        reason = simulated.decisions()["t_00001"][-1][1]
        assert (reason["rule"], reason["rank"], reason["compared"], reason["kept"]) == ("rung", 2, 2, 0)

    @pytest.mark.parametrize("mode", ["min", "max"])
    def test_better_is_what_mode_says_and_ties_go_to_the_older(self, mode: str) -> None:
        simulated = experiment(9, mode=mode, stop_not_finite=False)
        losses = (0.5, 0.5, 0.9, math.inf, -math.inf, math.nan)
        for number, loss in enumerate(losses):
            simulated.play([Step(number, metrics={"loss": loss})])
            if number == 2:
                # In "max" the third is best and passes; it waits at the next rung, where it is alone.
                simulated.play([Step(2, 2, metrics={"loss": loss})] * 2)
                assert (simulated.trials[2].iteration > 1) == (mode == "max")
        first = [trial_id for trial_id, what, _ in simulated.log if what == "START"].count("t_00000")
        assert first == 2  # it came first, so it was promoted in place of its equal

    def test_result_without_the_metric_changes_nothing(self) -> None:
        simulated = experiment(3)
        simulated.play([Step(0), Step(0), Step(0, metrics={"loss": "text"}), Step(0, metrics={"loss": None})])
        assert running(simulated) == [0]
        simulated.play([Step(0, metrics={"loss": 1.0})])
        assert simulated.trials[0].status == "PAUSED"

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_diverged_trial_stops_at_once_below_any_rung(self, value: float) -> None:
        simulated = experiment(3, grace_period=5)
        simulated.play([Step(0, metrics={"loss": value})])
        assert simulated.trials[0].status == "TERMINATED"
        assert simulated.log[-2][2]["rule"] == "not_finite"

    def test_trials_without_checkpoints_stop_instead(self) -> None:
        simulated = experiment(9, checkpoints=False)
        assert simulated.finish(100, by_number) == 0
        assert all(trial.status == "TERMINATED" for trial in simulated.trials)
        stopped = [reason for _, what, reason in simulated.log if what == "STOP" and reason["rule"] == "rung"]
        assert stopped
        assert not any(reason["checkpoint"] for reason in stopped)
        assert max(trial.iteration for trial in simulated.trials) == 9

    def test_gpu_seconds_count_the_gpus_of_the_trial(self) -> None:
        simulated = experiment(2, time_attr="gpu_seconds", max_t=36, grace_period=4)
        trial = simulated.trials[0]
        trial.resources = {"cpu": 1.0, "nvidia.com/gpu": 4.0}
        simulated.scheduler.on_trial_add(simulated, trial)
        assert Horizon("time_total_s", 1.0) in simulated.scheduler.horizons(trial)
        simulated.play([Step(0, advance=1.0, metrics={"loss": 1.0})])
        assert trial.status == "PAUSED"


class TestEnd:
    @pytest.mark.parametrize("slots", [1, 3])
    @pytest.mark.parametrize("count", [1, 2, 3, 10])
    @pytest.mark.parametrize("calibration", [0, 4])
    def test_some_trial_is_trained_to_the_end(self, count: int, slots: int, calibration: int) -> None:
        simulated = experiment(count, slots, calibration=calibration)
        simulated.finish(100, by_number)
        assert all(trial.status == "TERMINATED" for trial in simulated.trials)
        assert simulated.trials[0].iteration == 9  # the best

    def test_trial_that_others_paused_continues_before_new_ones(self) -> None:
        simulated = experiment(3)
        simulated.trials[0].status = "PAUSED"  # a script asked for it, or its pod was asked to save and end
        assert simulated.scheduler.choose_trial_to_run(simulated) is simulated.trials[0]

    def test_failed_trials_are_not_promoted(self) -> None:
        simulated = experiment(6)
        for number in range(2):
            simulated.play([Step(number, metrics={"loss": float(number)})])
        simulated.play([Step(2, "die")])
        simulated.play([Step(number, metrics={"loss": 5.0}) for number in range(3, 6)])
        assert simulated.finish(100, by_number) >= 1
        assert simulated.trials[2].status == "ERROR"


class TestFirstRung:
    def test_skipped_when_it_misleads_and_its_reason_says_why(self) -> None:
        simulated = experiment(20, 2, calibration=4)
        simulated.finish(100, misleading)
        assert "1: 20 reached" in simulated.scheduler.debug_string()
        assert "(skipped)" in simulated.scheduler.debug_string()
        reasons = [reason for _, what, reason in simulated.log if what == "PAUSE" and "skipped" in reason]
        assert reasons
        assert reasons[-1]["skipped"][0]["tau"] == -1.0
        json.dumps(reasons, allow_nan=False)
        text = AutoScheduler.describe_reason({"source": "scheduler", **reasons[-1]})
        assert "rung 1 predicts rung 3 with tau -1" in text

    def test_stays_when_it_predicts(self) -> None:
        simulated = experiment(20, 2, calibration=4)
        simulated.finish(100, by_number)
        assert "(skipped)" not in simulated.scheduler.debug_string()

    def test_nobody_waits_for_a_decision_at_a_skipped_rung(self) -> None:
        simulated = experiment(20, 1, calibration=4)
        while "(skipped)" not in simulated.scheduler.debug_string():
            (number,) = running(simulated)
            trial = simulated.trials[number]
            following = SimulatedTrial(trial.trial_id, trial.config, trial.resources)
            following.iteration = trial.iteration + 1
            simulated.play([Step(number, metrics=misleading(following))])
        simulated.finish(4, misleading)
        fresh = SimulatedTrial("fresh", {}, {})
        simulated.scheduler.on_trial_add(simulated, fresh)
        assert next(horizon.at for horizon in simulated.scheduler.horizons(fresh)) == 3.0


class TestArguments:
    @pytest.mark.parametrize(
        "wrong", [{"reduction_factor": 1.00001}, {"reduction_factor": 1.01, "grace_period": None}]
    )
    def test_rungs_without_number_are_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(InvalidInputError, match=r"reduction_factor=.* more than 64 rungs"):
            experiment(1, max_t=100, **wrong)

    def test_short_trainings_have_no_rung(self) -> None:
        simulated = experiment(3, max_t=1)
        assert simulated.finish(100, by_number) == 0


class TestInsideOthers:
    def test_search_learns_of_rungs_through_resource_changing(self) -> None:
        base = AutoScheduler(metric="loss", mode="min", max_t=9, grace_period=2)
        scheduler = ResourceChangingScheduler(base, None)
        simulated = SimulatedExperiment(lambda: scheduler, [{}], slots=1)
        seen = []
        for iteration in (1, 2, 3):
            result = {"training_iteration": iteration, "loss": 1.0}
            scheduler.on_trial_result(simulated, simulated.trials[0], result)
            seen.append(scheduler.filled_rung)
        assert seen == [None, 2.0, None]
