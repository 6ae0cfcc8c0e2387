"""What Kueue says of a pod that waits in one of its queues, from its Workload and queue objects. Pure.

A pod with the label `kueue.x-k8s.io/queue-name` gets a scheduling gate and a Workload, which Kueue's controller owns.
The Workload's conditions have the reason in Kueue's own words; a LocalQueue and its ClusterQueue have the numbers.
Their fields are those of `kueue.x-k8s.io/v1beta2`, and of v1beta1 where that differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trialpod_operator.cluster.pods.reading import Pod, foreign

GATES = frozenset({"kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology"})
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
GROUP_LABEL = "kueue.x-k8s.io/pod-group-name"
POD_UID_LABEL = "kueue.x-k8s.io/job-uid"

GROUP = "kueue.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
"""Of Kueue's API, the newest first."""

_GONE = ("doesn't exist", "terminating or missing")
_STOPPED = ("is stopped", "is inactive")

Object = Mapping[str, Any]


def queue_of(item: Object) -> str:
    """Return the queue that a pod, or the template of one, names; "" when it names none."""
    return str(((item.get("metadata") or {}).get("labels") or {}).get(QUEUE_LABEL) or "")


def is_held(pod: Pod) -> bool:
    """Return whether only Kueue keeps a pod from being scheduled."""
    gates = (pod.get("spec") or {}).get("schedulingGates") or ()
    return bool(gates) and {str(gate.get("name")) for gate in gates} <= GATES


def workload_query(pod: Pod) -> dict[str, str]:
    """Return the selector by which the API server finds a pod's Workload."""
    metadata = pod.get("metadata") or {}
    group = (metadata.get("labels") or {}).get(GROUP_LABEL)
    if group:
        return {"fieldSelector": f"metadata.name={group}"}
    return {"labelSelector": f"{POD_UID_LABEL}={metadata.get('uid', '')}"}


def words(workload: Object) -> str:
    """Return why a Workload is not admitted, as Kueue says it; "" when it says nothing, or it is admitted."""
    conditions = {str(each.get("type")): each for each in (workload.get("status") or {}).get("conditions") or ()}

    def holds(kind: str) -> bool:
        return (conditions.get(kind) or {}).get("status") == "True"

    if holds("Admitted"):
        return ""
    if (workload.get("spec") or {}).get("active") is False:
        why = (conditions.get("Evicted") or conditions.get("DeactivationTarget") or {}).get("message")
        return foreign(f"its Workload is not active{f': {why}' if why else ''}", 300)
    if holds("QuotaReserved"):
        open_checks = [
            f"{each.get('name')} is {each.get('state')}{': ' + each['message'] if each.get('message') else ''}"
            for each in (workload.get("status") or {}).get("admissionChecks") or ()
            if each.get("state") != "Ready"
        ]
        return foreign("quota is reserved; the admission check " + ", ".join(open_checks), 300) if open_checks else ""
    return foreign(str((conditions.get("QuotaReserved") or {}).get("message") or ""), 300)


def is_stuck(said: str) -> bool:
    """Return whether waiting alone will not help, after what Kueue says."""
    return any(each in said for each in _GONE) or "is not active" in said


def remedy(said: str, queue: str) -> str:
    """Return what to do about it."""
    if any(each in said for each in _GONE):
        return (
            f"create it, or name another in the label {QUEUE_LABEL} of spec.template.metadata "
            "(`kubectl get localqueues`); a new label is for pods made from then on"
        )
    if any(each in said for each in _STOPPED):
        return "the queue's administrator has stopped it, or not completed it: it continues when that is corrected"
    return f"`kubectl describe localqueue{f' {queue}' if queue else ''}` shows the quota in use"


def numbers(local: Object, cluster: Object | None = None) -> str:
    """Return how full a queue is.

    Args:
        local: the LocalQueue.
        cluster: its ClusterQueue, where that may be read: only there is the quota.
    """
    status = local.get("status") or {}
    name = str((local.get("spec") or {}).get("clusterQueue") or "")
    counts = (
        f"{int(status.get('admittedWorkloads') or 0)} admitted, {int(status.get('pendingWorkloads') or 0)} waiting"
    )
    if (cluster is None and not status) or not name:
        return counts
    quotas = _quotas(cluster) if cluster is not None else {}
    source = (cluster or local).get("status") or {}
    used = source.get("flavorsReservation") or source.get("flavorsUsage") or source.get("flavorUsage") or ()
    parts = []
    for flavor in used:
        for resource in flavor.get("resources") or ():
            key = str(flavor.get("name")), str(resource.get("name"))
            limit = f" of {quotas[key]}" if key in quotas else ""
            parts.append(f"{key[1]} {resource.get('total', 0)}{limit} ({key[0]})")
    total = (cluster.get("status") or {}).get("pendingWorkloads") if cluster is not None else None
    everywhere = f" ({total} waiting in all its queues)" if total else ""
    return f"{counts}; ClusterQueue {name}{everywhere}" + (f": in use {', '.join(parts)}" if parts else "")


def position(pending: Iterable[Object], names: Iterable[str]) -> int | None:
    """Return how many Workloads are before the first of these in their ClusterQueue, None when none is there.

    Args:
        pending: items of the visibility API's answer.
        names: of the Workloads.
    """
    wanted = set(names)
    found = [
        int(each.get("positionInClusterQueue") or 0)
        for each in pending
        if (each.get("metadata") or {}).get("name") in wanted
    ]
    return min(found, default=None)


def _quotas(cluster: Object) -> dict[tuple[str, str], str]:
    return {
        (str(flavor.get("name")), str(resource.get("name"))): str(resource.get("nominalQuota"))
        for group in (cluster.get("spec") or {}).get("resourceGroups") or ()
        for flavor in group.get("flavors") or ()
        for resource in flavor.get("resources") or ()
    }


# How many attempts may be in progress: an experiment runs ahead of its placed pods by a few only, because every
# further pending pod costs the scheduler and the pods after it in a queue.

AHEAD = 16
"""Number of attempts that are started in addition to those that have a node."""

IN_QUEUE = 4
"""The same, while some wait in a queue."""

WAITS_AFTER_S = 5.0
"""Time after which a pod that its queue has not admitted counts as pending."""


def slots(
    now: int | None,
    placed: int,
    most: int | None,
    *,
    queued: bool = False,
    waits: bool = False,
    grouped: bool = False,
) -> int | None:
    """Return how many attempts may be in progress, None when that stays as it is.

    Args:
        now: as it is; None = nothing holds them back.
        placed: attempts that have a place: a node, or their work already.
        most: the user's limit, if there is one.
        queued: the pods go through a queue.
        waits: the queue lets some of them wait.
        grouped: each attempt has several pods.
    """
    if queued:
        ahead = IN_QUEUE if waits else max(IN_QUEUE, placed)
    elif most is None:
        ahead = 1 if grouped else AHEAD
    else:
        ahead = max(AHEAD, placed)
    wanted = placed + ahead
    if most is not None and wanted >= most:
        return None if now is None or now >= most else most
    return wanted if now is None or wanted > now or wanted < now - ahead else None
