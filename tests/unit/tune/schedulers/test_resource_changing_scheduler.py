"""Resources that change while another scheduler decides."""

from __future__ import annotations

from typing import Any

import pytest

from trialpod import tune
from trialpod.errors import InvalidInputError
from trialpod.legacy.internals.steering import SteeredScheduler
from trialpod.testing.simulation import SimulatedExperiment, Step
from trialpod.tune.plugins.goal import introduce_scheduler
from trialpod.tune.plugins.objectives import parse_objectives
from trialpod.tune.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
    ResourceChangingScheduler,
    TrialScheduler,
    create_scheduler,
)


def experiment(count: int = 2, **arguments: Any) -> SimulatedExperiment:
    return SimulatedExperiment(lambda: ResourceChangingScheduler(**arguments), [{}] * count)


def test_change_resumes_from_the_checkpoint() -> None:
    simulated = experiment()
    simulated.play([Step(0)])
    trial = simulated.trials[0]
    assert (trial.resources, trial.status, trial.iteration) == ({"cpu": 8.0}, "RUNNING", 1)
    simulated.play([Step(0)])
    assert [what for _, what, _ in simulated.log] == ["START", "START", "RESOURCES", "START"]


@pytest.mark.parametrize(("base", "saves"), [("asha", False), ("pbt", True)])
def test_checkpoints_are_as_frequent_as_with_the_base(base: str, saves: bool) -> None:
    parameters = {"hyperparam_mutations": {"x": [1, 2]}} if base == "pbt" else {}
    made = ResourceChangingScheduler({"name": base, "parameters": parameters})
    assert made.saves_at_horizon is saves


def test_decisions_are_the_base_schedulers() -> None:
    base = {"name": "asha", "parameters": {"metric": "score", "mode": "max", "reduction_factor": 2}}
    simulated = experiment(base_scheduler=base)
    simulated.play([Step(0, metrics={"score": 1.0}), Step(1, metrics={"score": 0.5})])
    assert simulated.trials[1].status == "TERMINATED"
    assert simulated.log[-1][2]["scheduler"] == "async_hyperband"


def test_forms_that_a_function_may_return() -> None:
    answers = [None, tune.PlacementGroupFactory([{"CPU": 3}]), {"cpu": 3}]
    simulated = experiment(1, resources_allocation_function=lambda *_: answers.pop(0))
    simulated.play([Step(0)] * 3)
    assert simulated.trials[0].resources == {"cpu": 3.0}
    assert [what for _, what, _ in simulated.log] == ["START", "RESOURCES", "START"]


def test_without_a_function_the_horizons_are_the_base_schedulers() -> None:
    simulated = experiment(resources_allocation_function=None)
    assert simulated.scheduler.horizons(simulated.trials[0]) == []


def test_metric_and_mode_reach_base_and_function() -> None:
    scheduler = ResourceChangingScheduler("asha", "distribute_to_top_job")
    assert scheduler.set_search_properties("score", "min")
    assert (scheduler.metric, scheduler.mode) == ("score", "min")
    assert scheduler.needs_metric
    assert not ResourceChangingScheduler().needs_metric
    assert not ResourceChangingScheduler(ASHAScheduler(metric="a")).set_search_properties("b", "min")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"base_scheduler": "ahsa"}, "Did you mean 'asha'"),
        ({"base_scheduler": {"name": "asha", "parameters": {"maxt": 1}}}, "Did you mean 'max_t'"),
        ({"base_scheduler": {"nam": "asha"}}, "base_scheduler must be a name"),
        ({"resources_allocation_function": "distribut"}, "Did you mean 'distribute'"),
        (
            {"resources_allocation_function": {"name": "distribute", "parameters": {"increase": 1}}},
            "Did you mean 'increase_by'",
        ),
        ({"resources_allocation_function": 3}, "resources_allocation_function must be a name"),
    ],
)
def test_wrong_arguments_are_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        create_scheduler("resource_changing", **arguments)


class TestWhatAllocationFunctionsAsk:
    """Ray's documentation writes its example of one with these."""

    def test_base_resources_as_a_placement_group(self) -> None:
        scheduler = ResourceChangingScheduler(resources_allocation_function=lambda *_: None)
        assert scheduler._base_trial_resources.required_resources == {"CPU": 1.0}


READ_BY_THE_ENGINE = [
    "changes_configs",
    "first_rung",
    "metric",
    "mode",
    "needs_metric",
    "num_perturbations",
    "objectives",
    "pending_trials",
    "several_metrics",
    "time_attr",
    "time_slicing",
]


@pytest.mark.parametrize("wrap", [lambda base: ResourceChangingScheduler(base, None), SteeredScheduler])
@pytest.mark.parametrize(
    "base",
    [
        HyperBandScheduler(compatible=True),
        ASHAScheduler(metric="a", mode="max"),
        PopulationBasedTraining(hyperparam_mutations={"lr": [1, 2]}),
        create_scheduler("auto"),
    ],
    ids=lambda base: base.NAME,
)
def test_what_the_engine_reads_is_the_inner_schedulers(wrap: Any, base: TrialScheduler) -> None:
    default = {"first_rung": None, "num_perturbations": 0, "objectives": [], "time_attr": None}
    wrapped = wrap(base)
    for name in READ_BY_THE_ENGINE:
        assert getattr(wrapped, name) == getattr(base, name, default.get(name)), name
    log = getattr(base, "policy_log", dict)
    assert wrapped.policy_log() == log()
    assert base.debug_string() in wrapped.debug_string()


@pytest.mark.parametrize("wrap", [ResourceChangingScheduler, SteeredScheduler])
def test_objectives_reach_the_inner_scheduler(wrap: Any) -> None:
    objectives = parse_objectives([{"name": "loss", "mode": "min"}, {"name": "size", "mode": "min"}])
    base = ASHAScheduler()
    introduce_scheduler(wrap(base), None, None, objectives)
    assert base.objectives == objectives
