"""What a pod object says, read in one place: conditions, containers, times."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trialpod import variables
from trialpod_operator.cluster import names

Pod = Mapping[str, Any]

MAX_FOREIGN = 400
"""Characters that are kept of a text that Kubernetes or a container wrote."""

OTHER_PLATFORM_REMEDY = (
    "use an image that is built for it too, or choose nodes of the image's architecture: kubernetes.io/arch in "
    "spec.template.spec.nodeSelector"
)


def status_of(pod: Pod) -> Mapping[str, Any]:
    """Return the pod's status; empty before its first."""
    status: Mapping[str, Any] = pod.get("status") or {}
    return status


def node_of(pod: Pod | None) -> str:
    """Return the node that a pod is on, or ""."""
    spec: Mapping[str, Any] = (pod or {}).get("spec") or {}
    return str(spec.get("nodeName") or "")


def own_name(pod: Pod) -> str:
    """Return the name under which the API server has a pod: of an object of another kind its pod's, "" for none."""
    if "pod" in pod:
        return str((pod["pod"] or {}).get("name") or "")
    return str((pod.get("metadata") or {}).get("name") or "")


def condition(pod: Pod, kind: str) -> Mapping[str, Any] | None:
    """Return one of the pod's conditions."""
    for each in status_of(pod).get("conditions") or ():
        if each.get("type") == kind:
            found: Mapping[str, Any] = each
            return found
    return None


def trial_container(pod: Pod) -> Mapping[str, Any]:
    """Return the container in which the attempt runs; others may stand before it, put there at admission."""
    containers = (pod.get("spec") or {}).get("containers") or []
    marked = ((pod.get("metadata") or {}).get("annotations") or {}).get(names.CONTAINER_ANNOTATION)
    for container in containers:
        if container.get("name") == marked or any(
            variable.get("name") == variables.RUNNER for variable in container.get("env") or ()
        ):
            chosen: Mapping[str, Any] = container
            return chosen
    named = [container for container in containers if container.get("name") == names.CONTAINER]
    first: Mapping[str, Any] = (named or containers or [{}])[0]
    return first


def container_state(pod: Pod, name: str) -> Mapping[str, Any]:
    """Return the state of a container: a mapping with one key, `waiting`, `running` or `terminated`, or none."""
    for each in status_of(pod).get("containerStatuses") or ():
        if each.get("name") == name:
            state: Mapping[str, Any] = each.get("state") or {}
            return state
    return {}


def is_sidecar(pod: Pod, init_container: str) -> bool:
    """Return whether an init container is one that runs beside the others and is started again when it ends."""
    for each in (pod.get("spec") or {}).get("initContainers") or ():
        if each.get("name") == init_container:
            return bool(each.get("restartPolicy") == "Always")
    return False


def failed_beside(pod: Pod) -> list[Mapping[str, Any]]:
    """Return the statuses of the containers whose end explains that of the attempt, beside the trial's own.

    Those are init containers that failed, and sidecars that failed before the trial's container did.
    """
    status = status_of(pod)
    trial = str(trial_container(pod).get("name", ""))
    own = container_state(pod, trial).get("terminated")
    ended = seconds((own or {}).get("finishedAt"))
    found = []
    for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        if each.get("name") == trial:
            continue
        state = last_end(each)
        if not state.get("exitCode"):
            continue
        first = each in (status.get("initContainerStatuses") or ()) and not is_sidecar(pod, str(each.get("name")))
        at = seconds(state.get("finishedAt"))
        before = own is not None and own.get("exitCode") and ended is not None and at is not None and at <= ended
        if first or before:
            found.append(each)
    return found


def failed_so_far(pod: Pod) -> list[Mapping[str, Any]]:
    """Return the statuses of containers that failed while the trial's ran; none of a pod that is being deleted."""
    if (pod.get("metadata") or {}).get("deletionTimestamp"):
        return []
    trial = str(trial_container(pod).get("name", ""))
    status = status_of(pod)
    beside = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return [each for each in beside if each.get("name") != trial and last_end(each).get("exitCode")]


def last_end(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return how a container ended last, from its status; empty when it has not ended."""
    state = (container.get("state") or {}).get("terminated") or (container.get("lastState") or {}).get("terminated")
    found: Mapping[str, Any] = state or {}
    return found


def last_lines(output: object, count: int = 3) -> str:
    """Return the last lines of an output in one."""
    lines = [line.strip() for line in str(output or "").splitlines() if line.strip()]
    return " / ".join(lines[-count:])


def seconds(time: str | None) -> float | None:
    """Return one of Kubernetes' times in seconds since the epoch; None when there is none."""
    if not time:
        return None
    return dt.datetime.fromisoformat(time).timestamp()


def foreign(text: object, limit: int = MAX_FOREIGN) -> str:
    """Return a text from outside on one line, its middle cut out when it is long."""
    words = " ".join("".join(c if c.isprintable() else " " for c in str(text or "")).split())
    if len(words) <= limit:
        return words
    head = limit // 2
    return f"{words[:head]} ... {words[-(limit - head - 5) :]}"


Severity = Literal["waiting", "stuck"]


@dataclass(frozen=True, kw_only=True)
class PendingReason:
    """Why something does not run.

    Attributes:
        reason: one word for programs.
        message: what it waits for.
        remedy: what to do.
        severity: `stuck` when waiting alone will not help.
        since: in seconds since the epoch, where that is known.
    """

    reason: str
    message: str
    remedy: str
    severity: Severity = "waiting"
    since: float | None = None

    @property
    def text(self) -> str:
        """The message with the remedy."""
        return f"{self.message}; {self.remedy}" if self.remedy else self.message
