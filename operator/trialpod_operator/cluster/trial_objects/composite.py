"""An object of another kind and its primary pod, as one pod: what the rest of the operator looks at. Pure.

The composite has the object's name, uid and labels, and the pod's spec and status; `pod` says which pod that is, None
before there is one. Where
the two say different things:

* a pod that the cluster takes away is a disruption, whatever the object's controller makes of it;
* else an object that has failed has failed, unless the trial's own container says more precisely why;
* a container that was started again in the same pod has ended: an attempt is one run of its process;
* a pod that is gone has ended; another that the controller made in its place is not the attempt's;
* without a pod the attempt is pending.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trialpod_operator.api.reasons import Reason
from trialpod_operator.api.trial_resource.kinds import TrialKind
from trialpod_operator.cluster import names
from trialpod_operator.cluster.cache import Object
from trialpod_operator.cluster.pods.reading import condition, container_state, foreign, last_end, trial_container

IDENTITY = ("name", "namespace", "uid", "labels", "annotations", "creationTimestamp", "ownerReferences")


def compose(item: Object, pod: Object | None, kind: TrialKind, *, gone: bool = False) -> Object:
    """Return the composite.

    Args:
        item: the object, as it was last seen.
        pod: the primary pod, as it was last seen; None before there was one.
        kind: of the object.
        gone: the pod is not there any more.
    """
    metadata = {name: item["metadata"][name] for name in IDENTITY if name in item["metadata"]}
    for each in (item, pod if pod is not None and not gone else None):
        if each is not None and each["metadata"].get("deletionTimestamp"):
            for name in ("deletionTimestamp", "deletionGracePeriodSeconds"):
                if name in each["metadata"]:
                    metadata[name] = each["metadata"][name]
    failed, done = kind.failure.holds(item), kind.success.holds(item)
    words = foreign(kind.failure.words(item) or (item.get("status") or {}).get("message"))
    if pod is None:
        status: dict[str, Any] = {"phase": "Pending"}
        if is_echo(item, kind):  # its pod came and went unseen
            status = {"phase": "Failed", "conditions": [_VANISHED]}
        elif failed or done:
            said = (
                f"the {kind.kind} failed"
                if failed
                else f"the {kind.kind} ended before a pod of it had begun the trial"
            )
            status = _ended(status, f"{said}{f': {words}' if words and failed else ''}")
        return {"metadata": metadata, "spec": {}, "status": status, "pod": None}
    status = dict(pod.get("status") or {})
    container = str(trial_container(pod).get("name", ""))
    status = _without_restarts(status, container)
    shown = {"metadata": pod["metadata"], "spec": pod.get("spec") or {}, "status": status}
    terminated = container_state(shown, container).get("terminated")
    disrupted = is_disrupted(shown)
    leaving = gone or bool(pod["metadata"].get("deletionTimestamp"))
    precise = terminated is not None and bool(terminated.get("exitCode")) and not leaving
    if failed and not disrupted and not precise and not is_echo(item, kind):
        status = _ended(status, f"the {kind.kind} failed{f': {words}' if words else ''}")
    elif gone:
        status["phase"] = "Failed"
        if not disrupted and terminated is None:
            status["conditions"] = [*(status.get("conditions") or ()), _VANISHED]
    elif status.get("phase") == "Succeeded" and not (failed or done):
        status["phase"] = "Running"  # the object has more to do; it gets a moment for it
    if mark := (pod["metadata"].get("annotations") or {}).get(names.CONTAINER_ANNOTATION):
        metadata["annotations"] = {**(metadata.get("annotations") or {}), names.CONTAINER_ANNOTATION: mark}
    which = {"name": pod["metadata"]["name"], "uid": pod["metadata"].get("uid", "")}
    return {"metadata": metadata, "spec": pod.get("spec") or {}, "status": status, "pod": which}


_VANISHED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": str(Reason.POD_VANISHED),
    "message": "it is gone",
}
_DISRUPTIONS = ("DisruptionTarget", "TerminationTarget")


def is_echo(item: Object, kind: TrialKind) -> bool:
    """Return whether an object has failed only because its pod ended."""
    echo = kind.known.echo if kind.known is not None else ""
    return bool(echo) and kind.failure.holds(item) and kind.failure.words(item).startswith(echo)


def is_disrupted(pod: Object) -> bool:
    """Return whether the cluster takes a pod away."""
    return any((condition(pod, kind) or {}).get("status") == "True" for kind in _DISRUPTIONS)


def ending_mark(pod: Object | None, *, gone: bool) -> str:
    """Return a text that changes when a pod comes to an end; "" while it has not. Then the object is asked for."""
    if pod is None:
        return ""
    container = str(trial_container(pod).get("name", ""))
    parts = [
        "gone" if gone else "",
        "leaving" if pod["metadata"].get("deletionTimestamp") else "",
        "ended" if "terminated" in container_state(pod, container) else "",
    ]
    phase = str((pod.get("status") or {}).get("phase"))
    parts.append(phase if phase in ("Failed", "Succeeded") else "")
    return " ".join(filter(None, parts))


def _ended(status: Mapping[str, Any], message: str) -> dict[str, Any]:
    return {**status, "phase": "Failed", "reason": str(Reason.TRIAL_RESOURCE_FAILED), "message": message}


def _without_restarts(status: dict[str, Any], container: str) -> dict[str, Any]:
    """Return the status of a pod with the first end of a container that was started again as its end."""
    found = [each for each in status.get("containerStatuses") or () if each.get("name") == container]
    if not found or not found[0].get("restartCount"):
        return status
    ended = last_end({"lastState": found[0].get("lastState") or {}})
    if not ended:
        return status
    others = [each for each in status["containerStatuses"] if each is not found[0]]
    own = {**found[0], "state": {"terminated": dict(ended)}}
    return {
        **status,
        "phase": "Failed" if ended.get("exitCode") else "Succeeded",
        "containerStatuses": [own, *others],
    }
