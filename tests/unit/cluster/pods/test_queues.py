"""What Kueue's objects say about a pod that waits; their shapes are those of Kueue v0.18 on a real cluster."""

from __future__ import annotations

from typing import Any

import pytest

from trialpod_operator.cluster.pods import queues


def workload(*conditions: tuple[str, str, str, str], **status: Any) -> dict[str, Any]:
    listed = [dict(zip(("type", "status", "reason", "message"), each, strict=True)) for each in conditions]
    return {"metadata": {"name": "pod-a"}, "spec": {"active": True}, "status": {"conditions": listed, **status}}


SHORT = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor default, 1 more needed"


@pytest.mark.parametrize(
    ("item", "said", "stuck", "step"),
    [
        (workload(("QuotaReserved", "False", "Pending", SHORT)), SHORT, False, "describe localqueue research"),
        (
            workload(("QuotaReserved", "False", "Inadmissible", "LocalQueue research doesn't exist")),
            "LocalQueue research doesn't exist",
            True,
            "kubectl get localqueues",
        ),
        (
            workload(("QuotaReserved", "False", "Inadmissible", "LocalQueue research is stopped")),
            "LocalQueue research is stopped",
            False,
            "has stopped it",
        ),
        (
            workload(
                ("QuotaReserved", "True", "QuotaReserved", "ok"),
                admissionChecks=[{"name": "buy", "state": "Pending", "message": "ordered"}, {"state": "Ready"}],
            ),
            "the admission check buy is Pending: ordered",
            False,
            "describe localqueue",
        ),
        (workload(("QuotaReserved", "True", "", ""), ("Admitted", "True", "Admitted", "yes")), "", False, "describe"),
        (workload(), "", False, "describe"),
        (
            {"spec": {"active": False}, "status": {"conditions": [{"type": "Evicted", "message": "deactivated"}]}},
            "its Workload is not active: deactivated",
            True,
            "describe",
        ),
    ],
)
def test_what_is_said_and_what_to_do(item: dict[str, Any], said: str, stuck: bool, step: str) -> None:
    found = queues.words(item)
    assert said in found
    assert bool(said) == bool(found)
    assert queues.is_stuck(found) == stuck
    assert step in queues.remedy(found, "research")


def test_only_kueues_own_gates_are_its_queue() -> None:
    gate = {"name": "kueue.x-k8s.io/admission"}
    assert queues.is_held({"spec": {"schedulingGates": [gate]}})
    assert not queues.is_held({"spec": {"schedulingGates": [gate, {"name": "example.com/other"}]}})
    assert not queues.is_held({"spec": {}})


def test_workload_is_found_by_uid_and_group_by_name() -> None:
    assert queues.workload_query({"metadata": {"uid": "u1"}}) == {"labelSelector": "kueue.x-k8s.io/job-uid=u1"}
    group = {"metadata": {"uid": "u1", "labels": {"kueue.x-k8s.io/pod-group-name": "digits-1"}}}
    assert queues.workload_query(group) == {"fieldSelector": "metadata.name=digits-1"}


def test_queue_numbers_include_quota_where_readable() -> None:
    used = [{"name": "default", "resources": [{"name": "cpu", "total": "3"}]}]
    local = {
        "spec": {"clusterQueue": "gpus"},
        "status": {"admittedWorkloads": 3, "pendingWorkloads": 12, "flavorsReservation": used},
    }
    flavors = [{"name": "default", "resources": [{"name": "cpu", "nominalQuota": "4"}]}]
    cluster = {
        "spec": {"resourceGroups": [{"flavors": flavors}]},
        "status": {"pendingWorkloads": 40, "flavorsReservation": used},
    }
    assert queues.numbers(local) == "3 admitted, 12 waiting; ClusterQueue gpus: in use cpu 3 (default)"
    assert queues.numbers(local, cluster) == (
        "3 admitted, 12 waiting; ClusterQueue gpus (40 waiting in all its queues): in use cpu 3 of 4 (default)"
    )
    assert queues.numbers({"spec": {}, "status": {}}) == "0 admitted, 0 waiting"


def test_the_position_is_that_of_the_first_of_ours() -> None:
    pending = [{"metadata": {"name": f"w{n}"}, "positionInClusterQueue": n} for n in range(4)]
    assert queues.position(pending, ["w3", "w2"]) == 2
    assert queues.position(pending, ["other"]) is None
