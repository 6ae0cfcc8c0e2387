"""How free resources are handed out; the numbers of Ray are compared in test_ray_decisions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trialpod.errors import InvalidInputError
from trialpod.testing.simulation import SimulatedExperiment
from trialpod.tune.schedulers import DistributeResources, DistributeResourcesToTopJob, FIFOScheduler

SCHEDULER = SimpleNamespace(base_trial_resources={"cpu": 1.0, "memory": 5.0})


def ask(function: Any, experiment: SimulatedExperiment, number: int = 0, iteration: int = 1) -> Any:
    trial = experiment.trials[number]
    return function(experiment, trial, {"training_iteration": iteration}, SCHEDULER)


def test_free_resources_are_shared_evenly_and_others_stay() -> None:
    assert ask(DistributeResources(), SimulatedExperiment(FIFOScheduler, [{}] * 4)) == {"cpu": 4.0, "memory": 5.0}
    assert ask(DistributeResources(increase_by_times=2), SimulatedExperiment(FIFOScheduler, [{}] * 4))["cpu"] == 3.0
    assert (
        ask(DistributeResources(reserve_resources={"CPU": 8}), SimulatedExperiment(FIFOScheduler, [{}] * 4))["cpu"]
        == 2
    )


def test_what_is_overdrawn_is_taken_back() -> None:
    experiment = SimulatedExperiment(FIFOScheduler, [{}] * 2, cpus=6.0)
    for trial in experiment.trials:
        trial.resources = {"cpu": 5.0, "memory": 5.0}
    assert ask(DistributeResources(), experiment) == {"cpu": 1.0, "memory": 5.0}


def test_a_total_of_ones_own_counts_instead_of_the_experiments() -> None:
    function = DistributeResources(total_resources={"cpu": 6})
    assert ask(function, SimulatedExperiment(FIFOScheduler, [{}] * 2))["cpu"] == 3.0
    unknown = SimulatedExperiment(FIFOScheduler, [{}] * 2)
    unknown.total_resources = dict  # type: ignore[method-assign]
    with pytest.raises(InvalidInputError, match="total_resources, such as"):
        ask(DistributeResources(), unknown)


def test_the_top_job_gets_all_and_one_without_a_result_is_not_it() -> None:
    experiment = SimulatedExperiment(FIFOScheduler, [{}] * 3)
    experiment.trials[1].last_result = {"score": 0.5}
    function = DistributeResourcesToTopJob(metric="score", mode="max")
    assert ask(function, experiment, 0)["cpu"] == 1.0
    assert ask(function, experiment, 1)["cpu"] == 14.0
    with pytest.raises(InvalidInputError, match="set metric and mode"):
        ask(DistributeResourcesToTopJob(), experiment)


@pytest.mark.parametrize(
    "wrong",
    [{"add_bundles": True}, {"increase_by": {}}, {"increase_by": {"memory": 5}}, {"increase_by": {"cpu": -1}},
     {"increase_by_times": 0.5}, {"reserve_resources": 3}, {"total_resources": {"cpu": "4"}}],
)  # fmt: skip
def test_wrong_arguments_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        DistributeResources(**wrong)
