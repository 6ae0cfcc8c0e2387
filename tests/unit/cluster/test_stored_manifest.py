"""Manifests as the API server holds them: a newer definition than the operator's does no harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trialpod_operator.cluster.stored_manifest import check_stored


def stored(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "trialpod.dev/v1alpha1",
        "kind": "TuneExperiment",
        "metadata": {"name": "digits", "namespace": "team", "uid": "u", "generation": 1},
        "spec": {"trainable": {"entrypoint": "train:train"}, "numSamples": 3, **spec},
        "status": {"observedGeneration": -1},
    }


@pytest.mark.parametrize(
    "newer",
    [{"fromTheFuture": True}, {"checkpoint": {"frequency": 2, "fromTheFuture": {"a": 1}}}, {"one": 1, "two": [2]}],
)
def test_fields_of_a_newer_definition_are_left_out(newer: dict[str, Any]) -> None:
    item = stored(**newer)
    checked = check_stored(item)
    assert checked.problems == []
    assert checked.experiment is not None
    assert checked.experiment.spec.num_samples == 3
    assert item == stored(**newer), "the object itself stays as it is"


@pytest.mark.parametrize("field", ["generateName", "fromTheFuture"])
def test_metadata_of_the_api_server_is_left_out(field: str) -> None:
    item = stored()
    item["metadata"][field] = "digits-"
    checked = check_stored(item)
    assert checked.problems == []
    assert checked.experiment is not None
    assert checked.experiment.metadata.name == "digits"


def test_mistakes_are_still_found_beside_them() -> None:
    checked = check_stored(stored(fromTheFuture=True, scheduler={"name": "ashaa"}))
    assert [problem.path for problem in checked.problems] == ["spec.scheduler.name"]


def test_unknown_distribution_or_field_is_an_error() -> None:
    checked = check_stored(stored(searchSpace={"lr": {"loguniforn": [1, 2]}}, template={"sepc": {}}))
    assert len(checked.problems) == 2


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("inner", [False, True])
def test_operator_opens_no_file_that_a_scheduler_names(tmp_path: Path, inner: bool, started: bool) -> None:
    (tmp_path / "key").write_text("SECRET")
    scheduler: dict[str, Any] = {"name": "PBT-Replay", "parameters": {"policy_file": str(tmp_path / "key")}}
    path = "spec.scheduler.parameters.policy_file"
    if inner:
        scheduler = {"name": "resource_changing", "parameters": {"base_scheduler": scheduler}}
        path = "spec.scheduler.parameters.base_scheduler.parameters.policy_file"
    item = stored(numSamples=1, scheduler=scheduler)
    if started:
        item["status"]["startTime"] = "2024-01-01T00:00:00Z"
    (problem,) = check_stored(item).problems
    assert problem.path == path
    assert "policy: [...]" in problem.message
    assert "SECRET" not in problem.message
