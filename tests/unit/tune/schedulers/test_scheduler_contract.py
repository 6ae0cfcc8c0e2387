"""Every scheduler that comes with trialpod holds to the contract that third parties test theirs against."""

from __future__ import annotations

from typing import Any

import pytest

from trialpod.testing import SchedulerContract
from trialpod.testing.simulation import SimulatedExperiment, Step
from trialpod.tune.schedulers import FIFOScheduler, create_scheduler
from trialpod.tune.schedulers.trial_scheduler import ControllerView, TrialScheduler, TrialView

pytestmark = pytest.mark.once

MUTATIONS = {"lr": {"loguniform": [1e-3, 1.0]}, "layers": [1, 2, 3]}
VARIANTS: dict[str, dict[str, Any]] = {
    "fifo": {"name": "fifo"},
    "asha": {"name": "asha", "max_t": 20, "reduction_factor": 2},
    "asha in seconds": {"name": "asha", "time_attr": "time_total_s", "max_t": 20, "grace_period": 1.5, "brackets": 2},
    "asha without an end": {"name": "asha", "max_t": 9, "reduction_factor": 3, "stop_last_trials": False},
    "asha_promotion": {"name": "asha_promotion", "max_t": 20, "reduction_factor": 2},
    "asha_promotion in seconds": {
        "name": "asha_promotion",
        "time_attr": "time_total_s",
        "max_t": 9,
        "grace_period": 2.5,
    },
    "auto": {"name": "auto", "max_t": 20, "calibration": 4},
    "auto, without an end": {"name": "auto", "reduction_factor": 2, "stop_not_finite": False},
    "auto in GPU seconds": {"name": "auto", "time_attr": "gpu_seconds", "max_t": 9, "grace_period": 2.5},
    "hyperband": {"name": "hyperband", "max_t": 9, "reduction_factor": 3},
    "hyperband in seconds": {"name": "hyperband", "time_attr": "time_total_s", "max_t": 20, "reduction_factor": 2.5},
    "hyperband without an end": {"name": "hyperband", "max_t": 4, "reduction_factor": 2, "stop_last_trials": False},
    "hb_bohb": {"name": "hb_bohb", "max_t": 9, "reduction_factor": 3},
    "median": {"name": "median_stopping_rule", "grace_period": 3, "time_attr": "training_iteration"},
    "median, soft": {"name": "medianstopping", "grace_period": 2, "hard_stop": False, "min_time_slice": 2},
    "pbt": {"name": "pbt", "perturbation_interval": 3, "hyperparam_mutations": MUTATIONS},
    "pbt, all together": {
        "name": "pbt",
        "perturbation_interval": 4,
        "burn_in_period": 5,
        "synch": True,
        "hyperparam_mutations": MUTATIONS,
        "quantile_fraction": 0.5,
    },
    "pbt, lenient": {
        "name": "pbt",
        "perturbation_interval": 2,
        "hyperparam_mutations": MUTATIONS,
        "require_attrs": False,
        "time_attr": "training_iteration",
    },
    "pb2": {"name": "pb2", "perturbation_interval": 6, "hyperparam_bounds": {"lr": [0.001, 1.0], "layers": [1, 5]}},
    "resource_changing": {
        "name": "resource_changing",
        "base_scheduler": {"name": "asha", "parameters": {"max_t": 20, "reduction_factor": 2}},
    },
    "resource_changing, top job": {
        "name": "resource_changing",
        "base_scheduler": {"name": "median_stopping_rule", "parameters": {"grace_period": 2}},
        "resources_allocation_function": "distribute_to_top_job",
    },
}


def made(variant: str, mode: str) -> TrialScheduler:
    arguments = dict(VARIANTS[variant])
    scheduler = create_scheduler(arguments.pop("name"), **arguments)
    assert scheduler.set_search_properties("score", mode)
    return scheduler


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("variant", VARIANTS)
class TestBuiltIn(SchedulerContract):
    @pytest.fixture(autouse=True)
    def _variant(self, variant: str, mode: str) -> None:
        self.variant, self.mode = variant, mode
        self.histories = 4 if variant == "pb2" else 10
        self.may_leave_paused = variant.startswith(("asha_promotion", "auto"))
        if variant.startswith("pb2"):
            pytest.importorskip("numpy")

    def make(self) -> TrialScheduler:
        return made(self.variant, self.mode)


class Impatient(FIFOScheduler):
    """Breaks the contract: stops trials before the horizon that it names."""

    def on_trial_result(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> str:
        return self.STOP if result["training_iteration"] == 3 else self.CONTINUE

    horizons = FIFOScheduler.horizons


class Forgetful(FIFOScheduler):
    """Breaks the contract: its state leaves out what it decides by."""

    def __init__(self) -> None:
        self.seen = 0

    def on_trial_result(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> str:
        self.seen += 1
        return self.STOP if self.seen % 5 == 0 else self.CONTINUE

    horizons = TrialScheduler.horizons


def contract_of(scheduler: type[TrialScheduler]) -> SchedulerContract:
    contract = SchedulerContract()
    contract.make = scheduler  # type: ignore[method-assign]
    return contract


def test_the_contract_finds_a_decision_before_the_horizon() -> None:
    with pytest.raises(AssertionError, match="before the horizon"):
        contract_of(Impatient).test_results_may_arrive_as_late_as_the_horizons_allow()


def test_the_contract_finds_a_state_that_is_not_complete() -> None:
    with pytest.raises(AssertionError, match="history"):
        contract_of(Forgetful).test_a_restart_before_anything_that_happens_changes_nothing()


def test_simulation_respects_its_capacity() -> None:
    experiment = SimulatedExperiment(FIFOScheduler, [{}] * 3, slots=2, lazily=True)
    assert [trial.status for trial in experiment.trials] == ["RUNNING", "RUNNING"]
    experiment.play([Step(0, "complete")])
    assert [trial.status for trial in experiment.trials] == ["TERMINATED", "RUNNING", "RUNNING"]
