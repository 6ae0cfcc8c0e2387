"""Who changed what of an experiment."""

from __future__ import annotations

from typing import Any

import msgspec

from trialpod_operator.cluster.status.events import changes, set_by
from trialpod_operator.engine.settings import Settings

OLD = Settings(name="e", trainable_name="t", num_samples=3)


def item(*entries: tuple[str, str, dict[str, Any]], subresource: str = "") -> dict[str, Any]:
    fields = [
        {"manager": manager, "time": time, "fieldsV1": {"f:spec": owned}, "subresource": subresource}
        for manager, time, owned in entries
    ]
    return {"metadata": {"managedFields": fields}}


def test_the_client_that_set_a_field_last_is_named_with_the_time() -> None:
    found = item(
        ("kubectl-patch", "2026-11-21T10:05:00Z", {"f:suspend": {}}),
        ("kubectl-client-side-apply", "2026-11-21T10:00:00Z", {"f:suspend": {}, "f:numSamples": {}}),
    )
    assert set_by(found, "spec", "suspend") == ("kubectl-patch", "2026-11-21T10:05:00Z")
    assert set_by(found, "spec", "numSamples")[0] == "kubectl-client-side-apply"
    assert set_by(found, "spec", "timeBudget") == ("", "")
    assert set_by({"metadata": {}}, "spec", "suspend") == ("", "")


def test_operators_status_writes_are_no_spec_change() -> None:
    assert set_by(item(("trialpod", "2026-11-21T10:05:00Z", {"f:suspend": {}}), subresource="status"), "spec") == (
        "",
        "",
    )


def test_changes_are_reported_with_old_and_new_values() -> None:
    new = msgspec.structs.replace(OLD, num_samples=9, max_gpu_hours=2.5, fail_fast=True)
    found = item(("argocd-controller", "2026-11-21T10:05:00Z", {"f:numSamples": {}}))
    assert changes(found, OLD, new, False, True) == (
        "spec.numSamples: 3 -> 9 (by argocd-controller at 2026-11-21T10:05:00Z); spec.maxGpuHours: none -> 2.5; "
        "spec.failurePolicy.failFast: false -> true; spec.suspend: false -> true"
    )
    assert changes(found, OLD, OLD, True, True) == ""
