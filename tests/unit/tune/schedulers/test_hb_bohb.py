"""HyperBand for BOHB: the order of brackets, the budget, and partial brackets."""

from __future__ import annotations

from trialpod.testing.simulation import SimulatedExperiment, SimulatedTrial, Step
from trialpod.tune.schedulers import HyperBandForBOHB


def make() -> HyperBandForBOHB:
    return HyperBandForBOHB(metric="score", mode="max", max_t=9, reduction_factor=3)


def test_the_bracket_with_the_most_trials_is_filled_first() -> None:
    simulated = SimulatedExperiment(make, [{}] * 30)
    sizes = [bracket["size"] for bracket in simulated.scheduler.get_state()["brackets"]]
    assert sizes == [9, 5, 3, 9, 5]


def test_a_result_at_a_rung_carries_its_budget() -> None:
    scheduler, trial = make(), SimulatedTrial("a", {}, "a")
    simulated = SimulatedExperiment(make, [])
    scheduler.on_trial_add(simulated, trial)
    result = {"training_iteration": 1, "score": 0.5}
    assert scheduler.on_trial_result(simulated, trial, result) == "PAUSE"
    assert result["hyperband_info/budget"] == 1.0


def test_a_partial_bracket_is_cut_down_only_when_nothing_runs() -> None:
    simulated = SimulatedExperiment(make, [{}] * 11)  # 9 and 2 of 5
    for number in (9, 10):
        simulated.play([Step(number, metrics={"score": 0.5})] * 3)
    assert [trial.status for trial in simulated.trials[9:]] == ["PAUSED", "PAUSED"]
    for number in range(9):
        simulated.play([Step(number, "complete", metrics={"score": 0.5})])
    assert [trial.status for trial in simulated.trials[9:]] == ["RUNNING", "RUNNING"]
