"""Why a pod does not run yet, and what to do about it, read from the pod object.

Why a pod could not be created is worked out in `rejected`; `rejection_reason` is exported here too. Severity `stuck`
means that waiting alone does not help.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from trialpod_operator.api import status_models
from trialpod_operator.api.reasons import Reason
from trialpod_operator.cluster.pods import queues
from trialpod_operator.cluster.pods.reading import (
    OTHER_PLATFORM_REMEDY,
    PendingReason,
    Pod,
    Severity,
    condition,
    foreign,
    is_sidecar,
    last_end,
    last_lines,
    own_name,
    seconds,
    status_of,
    trial_container,
)

__all__ = ["PendingReason", "Severity", "pending_reason", "summarize"]

PATIENCE_S = 30.0
"""How long the usual steps of a start (containers being created, init containers) are not worth a word."""

UNNOTICED_S = 10.0
"""Maximum time that a scheduler takes to handle a pod."""

QUEUE_LABEL = queues.QUEUE_LABEL

_SHORT = re.compile(r"(\d+) Insufficient ([^,\s]+?)\.?(?:[,\s]|$)")
_PREEMPTION = re.compile(r"\s*preemption: .*", re.DOTALL)
_NODES = re.compile(r"^0/(\d+) nodes? (?:is|are) available:\s*")
_MISSING = re.compile(r"(secret|configmap) \"([^\"]+)\" not found", re.IGNORECASE)
_VOLUME_KEY = re.compile(r"references non-existent (secret|config) key: (\S+)")
_IN_OBJECT = re.compile(r"couldn't find key (\S+) in (Secret|ConfigMap) (?:[^/\s]+/)?(\S+)", re.IGNORECASE)
_IMAGE_REASONS = frozenset(
    {"ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError",
     "RegistryUnavailable", "SignatureValidationFailed"}
)  # fmt: skip
# Numbers as words: a digest may have them too.
_TOO_MANY = re.compile(r"toomanyrequests|\b429\b")
_NO_ACCESS = re.compile(r"unauthorized|denied|\b40[13]\b|no basic auth")
# As containerd, Docker and CRI-O say it.
_OTHER_PLATFORM = re.compile(r"no match for platform|no matching manifest for|no image found in .* for architecture")
_STARTING = frozenset({"ContainerCreating", "PodInitializing", ""})


def pending_reason(pod: Pod, now: float, *, event: str = "") -> PendingReason | None:
    """Return why the trial's container does not run yet; None when it runs or ran, or nothing is wrong.

    Args:
        pod: the pod.
        now: seconds since the epoch.
        event: message of the latest Warning event about the pod. Some reasons show only there (a volume whose Secret
            is missing). For a pod that waits in a queue of Kueue's, what that says.
    """
    metadata = pod.get("metadata") or {}
    status = status_of(pod)
    if metadata.get("deletionTimestamp") or status.get("phase") not in (None, "", "Pending"):
        return None
    created = seconds(metadata.get("creationTimestamp"))
    scheduled = condition(pod, "PodScheduled") or {}
    since = seconds(scheduled.get("lastTransitionTime")) or created
    gates = [str(gate.get("name")) for gate in (pod.get("spec") or {}).get("schedulingGates") or ()]
    if gates:
        return _gated(pod, gates, since, event)
    if scheduled.get("reason") == Reason.SCHEDULING_GATED:
        return None  # its last gate was lifted right now: the scheduler has not said anything since
    if scheduled.get("status") == "False":
        return _unschedulable(scheduled, since)
    if not scheduled and not (pod.get("spec") or {}).get("nodeName"):
        if created is None or now - created <= UNNOTICED_S:
            return None
        scheduler = (pod.get("spec") or {}).get("schedulerName") or "default-scheduler"
        return PendingReason(
            reason=Reason.NOT_SCHEDULED,
            message=f"the scheduler {scheduler} has not handled the pod yet",
            remedy="check that it runs, and spec.template.spec.schedulerName",
            since=since,
        )
    return _on_its_node(pod, now, since, event)


def _gated(pod: Pod, gates: list[str], since: float | None, said: str) -> PendingReason:
    if queues.is_held(pod):
        queue = queues.queue_of(pod)
        where = f"the queue {queue}" if queue else "its queue"
        return PendingReason(
            reason=Reason.QUEUED,
            message=f"Kueue has not admitted the pod from {where}{f': {said}' if said else ''}",
            remedy=queues.remedy(said, queue),
            severity="stuck" if queues.is_stuck(said) else "waiting",
            since=since,
        )
    return PendingReason(
        reason=Reason.SCHEDULING_GATED,
        message=f"the pod is held by the scheduling gate{'s' if len(gates) > 1 else ''} {', '.join(gates)}",
        remedy="the owner of the gate must lift it",
        since=since,
    )


def _unschedulable(scheduled: Mapping[str, Any], since: float | None) -> PendingReason:
    words = foreign(_PREEMPTION.sub("", str(scheduled.get("message") or "")), 600)
    if scheduled.get("reason") == Reason.SCHEDULER_ERROR:
        return PendingReason(
            reason=Reason.SCHEDULER_ERROR,
            message=f"the scheduler failed: {words}",
            remedy="it retries automatically",
            since=since,
        )
    count = _NODES.match(words)
    why = _NODES.sub("", words).rstrip(". ")
    if count is None:
        # About the pod itself (a volume claim, a resource claim), not about nodes.
        missing = "not found" in why
        return PendingReason(
            reason=Reason.UNSCHEDULABLE,
            message=f"the pod cannot be scheduled: {why}",
            remedy="create what is missing, or change spec.template" if missing else "see `kubectl describe pod`",
            severity="stuck" if missing else "waiting",
            since=since,
        )
    short = sorted(((int(match[1]), match[2]) for match in _SHORT.finditer(why)), reverse=True)
    lack = " and ".join(f"enough {name} on {number} of {count[1]} nodes" for number, name in short)
    message = f"no node has room: there is not {lack}; the scheduler says: {why}" if short else f"no node fits: {why}"
    return PendingReason(
        reason=Reason.UNSCHEDULABLE, message=message, remedy=_node_remedy(why, bool(short)), since=since
    )


def _node_remedy(why: str, short: bool) -> str:
    advice = []
    if short:
        advice.append("ask for less in spec.resources, lower spec.maxConcurrentTrials, or add nodes")
    if "untolerated taint" in why:
        advice.append("to use tainted nodes, add spec.template.spec.tolerations")
    if "affinity" in why or "selector" in why:
        advice.append("check nodeSelector and affinity in spec.template.spec")
    if "unschedulable" in why and not advice:
        advice.append("the nodes are cordoned: `kubectl uncordon NODE`")
    return "; ".join(advice) or "see `kubectl describe pod`"


def _on_its_node(pod: Pod, now: float, since: float | None, event: str) -> PendingReason | None:
    status = status_of(pod)
    for each in status.get("initContainerStatuses") or ():
        name, state = str(each.get("name", "")), each.get("state") or {}
        found = _container_waits(pod, name, each.get("image", ""), state.get("waiting"), since)
        if found is not None:
            return found
        if "running" in state and not is_sidecar(pod, name):
            if since is None or now - since <= PATIENCE_S:
                return None
            started = seconds(state["running"].get("startedAt"))
            return PendingReason(
                reason=Reason.INITIALIZING,
                message=f"init container {name} is running",
                remedy=f"`kubectl logs {_name_of(pod)} -c {name}` shows what it does",
                since=started or since,
            )
    trial = str(trial_container(pod).get("name", ""))
    for each in sorted(status.get("containerStatuses") or (), key=lambda item: item.get("name") != trial):
        state = each.get("state") or {}
        found = _container_waits(pod, str(each.get("name", "")), each.get("image", ""), state.get("waiting"), since)
        if found is not None:
            return found
    if event and (found := _by_event(event, since)) is not None:
        return found
    if since is None or now - since <= PATIENCE_S:
        return None
    node = (pod.get("spec") or {}).get("nodeName") or "the node"
    return PendingReason(
        reason=Reason.CONTAINER_CREATING,
        message=f"{node} is still preparing the container (pulling the image, mounting volumes)"
        + (f": {foreign(event)}" if event else ""),
        remedy="`kubectl describe pod` shows its steps",
        since=since,
    )


def _container_waits(
    pod: Pod, name: str, image: str, waiting: Mapping[str, Any] | None, since: float | None
) -> PendingReason | None:
    reason = str((waiting or {}).get("reason") or "")
    if waiting is None or reason in _STARTING:
        return None
    words = foreign(waiting.get("message"))
    if reason in _IMAGE_REASONS:
        return _image(_image_of(pod, name) or image, reason, words, since)
    if reason in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"):
        return _config_error(name, reason, words, since)
    if reason == Reason.CRASH_LOOP_BACK_OFF:
        return PendingReason(
            reason=reason,
            message=f"container {name} keeps failing{_why_it_fails(pod, name)}",
            remedy=f"`kubectl logs {_name_of(pod)} -c {name} --previous` says more; correct it in spec.template",
            severity="stuck",
            since=since,
        )
    return PendingReason(
        reason=reason if reason.isalnum() else Reason.CONTAINER_WAITING,
        message=f"container {name} waits: {reason}{f': {words}' if words else ''}",
        remedy="see `kubectl describe pod`",
        since=since,
    )


def _name_of(pod: Pod) -> str:
    metadata = pod.get("metadata") or {}
    namespace, name = metadata.get("namespace"), own_name(pod)
    return f"-n {namespace} {name}" if namespace else name or "POD"


def _why_it_fails(pod: Pod, name: str) -> str:
    status = status_of(pod)
    for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        if each.get("name") == name and (end := last_end(each)):
            words = foreign(last_lines(end.get("message")))
            return f": status {end.get('exitCode')}{f': {words}' if words else ''}"
    return ""


def _image_of(pod: Pod, name: str) -> str:
    spec = pod.get("spec") or {}
    for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
        if container.get("name") == name:
            return str(container.get("image") or "")
    return ""


def _image(image: str, reason: str, words: str, since: float | None) -> PendingReason:
    low = words.lower()
    severity: Severity = "stuck"
    if reason == "InvalidImageName":
        why, remedy = "it is not a valid image name", "correct spec.image"
    elif reason == "ErrImageNeverPull":
        why, remedy = "it is not on the node, and imagePullPolicy is Never", "load it onto the nodes"
    elif _OTHER_PLATFORM.search(low):  # before "not found", which containerd says of it too
        why, remedy = "it is not built for the architecture of the pod's node", OTHER_PLATFORM_REMEDY
    elif _TOO_MANY.search(low):
        why, severity = "the registry limits how often it is asked", "waiting"
        remedy = "it is retried; use imagePullSecrets or a mirror"
    elif _NO_ACCESS.search(low):
        why = "the registry refuses access, or has no such image"
        remedy = "check spec.image, and imagePullSecrets in spec.template.spec"
    elif "not found" in low or "manifest unknown" in low or "does not exist" in low:
        why, remedy = "the registry has no such image", "check the name and the tag in spec.image"
    else:
        why, severity = words or reason, "waiting"
        remedy = "it is retried; check spec.image and whether the nodes reach the registry"
    return PendingReason(
        reason=Reason.IMAGE_PULL_FAILED,
        message=f"the image {image} cannot be pulled: {why}",
        remedy=remedy,
        severity=severity,
        since=since,
    )


def _config_error(name: str, reason: str, words: str, since: float | None) -> PendingReason:
    missing = _missing_object(words, since)
    if missing is not None:
        return missing
    if "runAsNonRoot" in words or "non-root" in words:
        return PendingReason(
            reason=Reason.RUNS_AS_ROOT,
            message=f"container {name} may not run as root: {words}",
            remedy="set a numeric USER in the image, or runAsUser in spec.template.spec.securityContext",
            severity="stuck",
            since=since,
        )
    return PendingReason(
        reason=reason,
        message=f"container {name} cannot be started: {words or reason}",
        remedy="correct spec.template, then the pod starts by itself or is recreated",
        severity="stuck" if reason == "CreateContainerConfigError" else "waiting",
        since=since,
    )


def _by_event(event: str, since: float | None) -> PendingReason | None:
    missing = _missing_object(event, since)
    if missing is not None:
        return missing
    if "FailedMount" in event or "MountVolume" in event or "AttachVolume" in event or "Unable to attach" in event:
        return PendingReason(
            reason=Reason.MOUNT_FAILED,
            message=f"a volume cannot be mounted: {foreign(event)}",
            remedy="it is retried; see `kubectl describe pod`",
            since=since,
        )
    return None


def _missing_object(words: str, since: float | None) -> PendingReason | None:
    """Return what is missing when a message of the kubelet is about a Secret or a ConfigMap."""
    if match := _IN_OBJECT.search(words):
        key, kind, name = match[1], match[2], match[3].rstrip(".,")
    elif match := _MISSING.search(words):
        key, kind, name = "", match[1], match[2]
    elif match := _VOLUME_KEY.search(words):
        key, kind, name = match[2].rstrip(".,"), match[1], ""
    else:
        return None
    secret = kind.lower() == "secret"
    word = "Secret" if secret else "ConfigMap"
    if key:
        reason = Reason.SECRET_KEY_NOT_FOUND if secret else Reason.CONFIG_MAP_KEY_NOT_FOUND
        message = f"the {word}{f' {name}' if name else ''} has no key {key}"
        remedy = "add it, or correct the key in spec; the pod then starts by itself"
    else:
        reason = Reason.SECRET_NOT_FOUND if secret else Reason.CONFIG_MAP_NOT_FOUND
        message = f"the {word} {name} does not exist"
        remedy = "create it in the experiment's namespace; the pod then starts by itself"
    return PendingReason(
        reason=reason,
        message=message,
        remedy=remedy,
        severity="stuck",
        since=since,
    )


def summarize(
    entries: Iterable[tuple[str, PendingReason]], now: float, previous: Mapping[str, Any] | None = None
) -> status_models.Waiting | None:
    """Return one entry for all trials that wait: the most frequent reason, with its count and an example.

    Args:
        entries: names of what waits, and why.
        now: seconds since the epoch.
        previous: the `waiting` of the status before; its `since` is kept while the reason stays.
    """
    found = sorted(entries, key=lambda entry: entry[0])
    if not found:
        return None
    counts = Counter(waiting.reason for _, waiting in found)
    stuck = {waiting.reason for _, waiting in found if waiting.severity == "stuck"}
    reason = min(counts, key=lambda each: (-counts[each], each not in stuck, each))
    alike = [(name, waiting) for name, waiting in found if waiting.reason == reason]
    known = [waiting.since for _, waiting in alike if waiting.since is not None]
    since = min(known, default=None)
    if previous is not None and previous.get("reason") == reason:
        earlier = seconds(previous.get("since"))
        since = min((time for time in (since, earlier) if time is not None), default=None)
    name, example = alike[0]
    others = len(found) - len(alike)
    rest = f" ({others} more wait for other reasons)" if others else ""
    return status_models.Waiting(
        reason=reason,
        message=f"{name}: {example.text}{rest}",
        count=counts[reason],
        since=status_models.format_time(now if since is None else since),
    )
