"""`algorithm: auto` in manifests and in `TuneConfig`: what it stands for, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy")
pytest.importorskip("threadpoolctl")

import json

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import TrainableRef
from trialpod.tune import TuneConfig, uniform
from trialpod.tune.backends import ExperimentRequest
from trialpod.tune.schedulers import FIFOScheduler
from trialpod.tune.schedulers.auto import AutoScheduler
from trialpod_operator.api import auto
from trialpod_operator.api.document import Document
from trialpod_operator.api.loader import load_manifests
from trialpod_operator.api.rules import check_rules
from trialpod_operator.experiment.plan import ExperimentPlan, plan_from_manifest, plan_from_request

SPEC: dict[str, Any] = {
    "trainable": {"entrypoint": "a:b"},
    "searchSpace": {"x": {"uniform": [0, 1]}},
    "metric": "loss",
    "mode": "min",
    "algorithm": "auto",
}


def manifest(**more: Any) -> dict[str, Any]:
    spec = {key: value for key, value in {**SPEC, **more}.items() if value is not None}
    return {
        "apiVersion": "trialpod.dev/v1alpha1", "kind": "TuneExperiment", "metadata": {"name": "one"}, "spec": spec
    }  # fmt: skip


def planned(stored: dict[str, Any] | None = None, **more: Any) -> ExperimentPlan:
    (experiment,) = load_manifests(json.dumps(manifest(**more)), "one.json")
    return plan_from_manifest(experiment, Path("."), stored)


def request(**more: Any) -> ExperimentRequest:
    return ExperimentRequest(
        name="one",
        storage_path="/nowhere",
        trainable=TrainableRef(entrypoint="a:b"),
        trainable_name="b",
        is_class=False,
        param_space={"x": uniform(0, 1)},
        metric="loss",
        mode="min",
        algorithm="auto",
        **more,
    )


def problems(**more: Any) -> dict[str, str]:
    found = check_rules(Document(manifest(**more)), set()).problems
    return {problem.path: problem.message for problem in found}


class TestManifest:
    def test_stands_for_scheduler_and_search(self) -> None:
        plan = planned(stop={"training_iteration": 81})
        assert isinstance(plan.scheduler, AutoScheduler)
        assert plan.scheduler.get_state()["milestones"][:3] == [3, 9, 27]
        assert type(plan.search.searcher).__name__ == "AutoSearch"  # type: ignore[attr-defined]

    def test_is_not_the_default(self) -> None:
        plan = planned(algorithm=None)
        assert isinstance(plan.scheduler, FIFOScheduler)
        assert type(plan.search).__name__ == "BasicVariantGenerator"

    @pytest.mark.parametrize("field", ["scheduler", "searchAlgorithm"])
    def test_conflict_names_both_fields(self, field: str) -> None:
        found = problems(**{field: {"name": "auto"}})
        assert list(found) == [f"spec.{field}"]
        assert "spec.algorithm" in found[f"spec.{field}"]

    def test_gpu_hours_without_gpus_would_never_end(self) -> None:
        assert list(problems(maxGpuHours=3)) == ["spec.maxGpuHours"]
        assert problems(maxGpuHours=3, numSamples=9) == problems(maxGpuHours=3, resources={"nvidia.com/gpu": 1}) == {}

    def test_a_single_trial_by_default_is_pointed_out(self) -> None:
        found = {each.path: each.message for each in check_rules(Document(manifest()), set()).warnings}
        assert "1 trial" in found["spec.algorithm"]
        for limit in ({"numSamples": 1}, {"timeBudget": "1h"}):
            assert not check_rules(Document(manifest(**limit)), set()).warnings

    def test_a_budget_of_hours_is_planned(self) -> None:
        assert planned(maxTrialHours=3).settings.plans_budget
        assert not planned(timeBudget="1h").settings.plans_budget
        assert not planned(maxTrialHours=3, algorithm=None).settings.plans_budget

    def test_needs_a_metric(self) -> None:
        assert list(problems(metric=None, mode=None)) == ["spec.algorithm"]

    def test_first_rung_stays_when_the_stop_rule_changes(self) -> None:
        first = planned(stop={"training_iteration": 81})
        later = planned(first.document, stop={"training_iteration": 270})
        assert later.scheduler.get_state()["milestones"] == first.scheduler.get_state()["milestones"]

    @pytest.mark.parametrize(
        ("more", "samples"),
        [
            ({}, 1),
            ({"maxTrialHours": 3}, -1),
            ({"timeBudget": "1h"}, -1),
            ({"maxTrialHours": 3, "numSamples": 7}, 7),
            ({"maxTrialHours": 3, "algorithm": None}, 1),
        ],
    )
    def test_a_budget_makes_the_number_of_trials_open(self, more: dict[str, Any], samples: int) -> None:
        assert planned(**more).settings.num_samples == samples


class TestScript:
    def test_stands_for_scheduler_and_search(self) -> None:
        plan = plan_from_request(request(stop={"training_iteration": 27.0}), None)
        assert isinstance(plan.scheduler, AutoScheduler)
        assert plan.scheduler.get_state()["milestones"][:2] == [1, 3]
        assert type(plan.search.searcher).__name__ == "AutoSearch"  # type: ignore[attr-defined]

    @pytest.mark.parametrize(("field", "value"), [("scheduler", FIFOScheduler()), ("search_alg", "random")])
    def test_conflict_names_both_arguments(self, field: str, value: Any) -> None:
        with pytest.raises(InvalidInputError, match=rf"algorithm='auto' and {field}"):
            TuneConfig(metric="loss", mode="min", algorithm="auto", **{field: value})

    def test_needs_a_metric(self) -> None:
        with pytest.raises(InvalidInputError, match="metric"):
            TuneConfig(algorithm="auto")

    def test_unknown_name_is_refused(self) -> None:
        with pytest.raises(InvalidInputError, match="algorithm"):
            TuneConfig(metric="loss", mode="min", algorithm="autto")  # type: ignore[arg-type]

    def test_a_budget_makes_the_number_of_trials_open(self) -> None:
        assert TuneConfig(metric="a", mode="min", algorithm="auto", max_gpu_hours=2).num_samples == -1
        assert TuneConfig(metric="a", mode="min", max_gpu_hours=2).num_samples == 1


@pytest.mark.parametrize(("full", "rung"), [(None, None), (0.5, None), (1, 1), (27, 1), (100, 4), (1000, 37)])
def test_first_rung_is_a_27th_of_the_full_training(full: float | None, rung: int | None) -> None:
    assert auto.first_rung(full) == rung
