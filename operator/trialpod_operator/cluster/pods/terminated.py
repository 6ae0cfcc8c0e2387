"""What ended an attempt, read from its pod. What the attempt itself reported takes precedence (but see `sigterm`).

| what the pod shows | kind | cause | reason |
|---|---|---|---|
| the attempt said how it ended | completed | completed | Reported |
| the pod is gone, and trialpod did not delete it | disruption | lost | PodVanished |
| trialpod deleted the pod | disruption | preempted | DeletedByOperator |
| stuck in deletion on a node that does not answer | disruption | lost | NodeUnreachable |
| condition DisruptionTarget (any reason), whatever the exit status | disruption | preempted | that reason |
| condition TerminationTarget (Kueue) | disruption | preempted | that reason |
| the object of spec.trialResource failed, and its pod does not say why | failure | failed | TrialResourceFailed |
| Evicted without DisruptionTarget: a storage limit | failure | failed | StorageLimitExceeded |
| Evicted without DisruptionTarget: the node was low (old kubelets) | disruption | preempted | Evicted |
| Terminated, Shutdown, NodeShutdown, Preempting (old kubelets) | disruption | preempted | that reason |
| DeadlineExceeded | failure | failed | DeadlineExceeded |
| OutOfcpu, UnexpectedAdmissionError, ...: turned away by the node | disruption | preempted | that reason |
| AppArmor, SysctlForbidden, PodOSNotSupported: turned away by any node | failure, no retry | failed | that reason |
| an init container failed | failure | failed | InitContainerFailed |
| OOMKilled | failure | failed | OOMKilled |
| StartError/ContainerCannotRun of the command | failure, no retry | failed | CommandNotFound |
| StartError/ContainerCannotRun, memory limit | failure | failed | OOMKilled |
| StartError/ContainerCannotRun otherwise: the node's runtime | disruption | preempted | that reason |
| ContainerStatusUnknown, or status 255 of trialpod's own command | disruption | lost | ContainerStatusUnknown |
| Pending forever: its node lost its sandbox after creating a container | disruption | lost | SandboxLost |
| deleted by another client, and had not ended before | disruption | preempted | PodDeleted |
| SIGTERM when the startupProbe should have succeeded (see `sigterm`) | failure | failed | ContainerFailed |
| status 143 without a liveness probe: SIGTERM from the node | disruption | preempted | Terminated |
| "exec format error" is all it says: another architecture | failure, no retry | failed | CommandNotFound |
| status 126/127, or no trialpod in the image | failure, no retry | failed | CommandNotFound, NoRuntime |
| status 0 without a report: os._exit(0) and the like | failure | failed | ExitedSilently |
| any other status | failure | failed | ContainerFailed |

The strings are those of kubelet, scheduler and controllers in the Kubernetes source (KEP-3329 for the conditions).
Conditions are matched by type and status; their reasons are for display.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from trialpod.protocol.messages import AttemptEnd, EndCause
from trialpod.runner.image_python import UNFIT
from trialpod_operator.api.reasons import Reason
from trialpod_operator.cluster import names
from trialpod_operator.cluster.pods.reading import (
    OTHER_PLATFORM_REMEDY,
    Pod,
    condition,
    container_state,
    failed_beside,
    failed_so_far,
    foreign,
    is_sidecar,
    last_end,
    last_lines,
    node_of,
    seconds,
    status_of,
    trial_container,
)

GONE_AFTER_S = 20.0
"""Time after its grace period at which a pod that is still there on a dead node is given up."""

EXPLAINED_S = 3.0
"""Time that a kubelet gets to say why it killed a pod: it reports the end of the container before the eviction."""

CLOCK_SKEW_S = 5.0
"""Clocks of a node and of the API server may differ by this; times closer together tell no order."""

_NODE_WENT = frozenset({"Terminated", "Shutdown", "NodeShutdown", "Preempting", "Preempted", "NodeLost"})
_NEVER_ADMITTED = frozenset(
    {"AppArmor", "SysctlForbidden", "PodOSNotSupported", "PodOSSelectorNodeLabelDoesNotMatch"}
)
_DISRUPTIONS: dict[str, Reason] = {
    reason: reason
    for reason in (
        Reason.PREEMPTION_BY_SCHEDULER,
        Reason.EVICTION_BY_EVICTION_API,
        Reason.DELETION_BY_TAINT_MANAGER,
        Reason.DELETION_BY_POD_GC,
        Reason.TERMINATION_BY_KUBELET,
    )
}
_COMMAND = re.compile(
    r"executable file not found|exec: .*(no such file|permission denied|is a directory)|exec format"
)
# All that a container has said: its runtime's words (runc, crun), not those of a program that ran.
_NOT_EXECUTED = re.compile(r"[^\n]*\bexec\b[^\n]*: \"?exec format error\"?[^\n]*", re.IGNORECASE)
_OOM_AT_START = re.compile(r"OOM-killed|memory limit too low", re.IGNORECASE)
_NO_RUNTIME = re.compile(r"No module named '?trialpod\b")
_OUR_COMMAND = "trialpod.runner.pod"
_LOST = Reason.CONTAINER_STATUS_UNKNOWN
_NOT_KNOWN = 255
"""What container runtimes say of a container that they lost, with its shim for example. Our command says it never."""
_MEMORY_FIELD = "spec.resources.memory"
_SIGNAL_HINTS = {
    signal.SIGKILL: f"most often for memory, of a process that the container started: raise {_MEMORY_FIELD}",
    signal.SIGSEGV: "an invalid memory access in native code",
    signal.SIGBUS: "often a full /dev/shm: mount an emptyDir with medium Memory there, in spec.template",
    signal.SIGABRT: "native code called abort(); its last output is in the log",
    signal.SIGFPE: "an arithmetic error in native code",
    signal.SIGILL: "an instruction that this node's processor does not have: pin spec.template to other nodes",
}


@dataclass(frozen=True, kw_only=True)
class Termination:
    """How an attempt ended, as its pod tells.

    Attributes:
        kind: `completed` only when the attempt itself has reported its end.
        cause: for the engine.
        reason: one word for programs.
        message: one sentence with the next step.
        retry: False when running it again cannot help.
        exit_code: of the trial's container, where it is known.
    """

    kind: Literal["completed", "failure", "disruption"]
    cause: EndCause
    reason: str
    message: str
    retry: bool = True
    exit_code: int | None = None

    @property
    def counts_as_failure(self) -> bool:
        """Whether it counts against maxFailures."""
        return self.kind == "failure"

    def attempt_end(self) -> AttemptEnd:
        """Return it as the event that the engine takes."""
        return AttemptEnd(cause=self.cause, error=self.message, retry=self.retry)


def read_termination(
    pod: Pod | None,
    *,
    vanished: bool = False,
    deleted_by_us: bool = False,
    said_end: bool = False,
    gone: bool = False,
    orphaned: bool = False,
) -> Termination | None:
    """Return what ended the attempt of a pod; None while it may still be running.

    Args:
        pod: the latest object that was seen of it; None when none is known.
        vanished: the API server has no such pod any more.
        deleted_by_us: trialpod deleted it.
        said_end: the attempt reported its end.
        gone: it is still listed but given up, see `presumed_gone`.
        orphaned: its TuneTrial was deleted, and so will it be; it gets no work any more.
    """
    pod = pod or {}
    name = str(trial_container(pod).get("name", ""))
    terminated = container_state(pod, name).get("terminated")
    over = terminated is not None or status_of(pod).get("phase") in ("Failed", "Succeeded")
    if not (over or vanished or gone):
        return None if deleted_by_us or said_end else _never_starting(pod)
    exit_code = terminated.get("exitCode") if terminated is not None else None
    if said_end:
        return Termination(
            kind="completed",
            cause="completed",
            reason=Reason.REPORTED,
            message="the attempt reported how it ended",
            exit_code=exit_code,
        )
    if deleted_by_us:
        return _disruption(Reason.DELETED_BY_OPERATOR, "trialpod ended the pod", exit_code=exit_code)
    return (
        _disrupted(pod, exit_code)
        or (_by_pod_reason(pod, terminated) if over else None)
        or (_by_init_container(pod) if over and terminated is None else None)
        or (_by_container(pod, terminated, orphaned=orphaned) if terminated is not None else None)
        or _without_a_word(pod, gone=gone and not vanished, over=over)
    )


def presumed_gone(pod: Pod, now: float, *, node_ready: bool | None = None, after_s: float = GONE_AFTER_S) -> bool:
    """Return whether a pod that is being deleted will never report its end, because its node is dead.

    Its process may in truth still be running behind a broken network: such an attempt must be fenced off as lost.

    Args:
        pod: the pod.
        now: seconds since the epoch.
        node_ready: the Ready condition of its node; None = not known, then the pod must show it.
        after_s: how long after the end of its grace period.
    """
    # deletionTimestamp is when the grace period ends, not when the deletion was asked for.
    deadline = seconds((pod.get("metadata") or {}).get("deletionTimestamp"))
    if deadline is None or now - deadline <= after_s:
        return False
    if node_ready is not None:
        return not node_ready
    target = condition(pod, "DisruptionTarget") or {}
    by_taint = target.get("status") == "True" and target.get("reason") == Reason.DELETION_BY_TAINT_MANAGER
    status = status_of(pod)
    return by_taint or status.get("reason") == "NodeLost" or status.get("phase") == "Unknown"


class Explainable(Protocol):
    """What keeps, for one pod, until when its end may still be explained; 0 before it has ended."""

    explained_by: float


def may_be_explained(of: Explainable, ending: Termination, now: float) -> bool:
    """Return whether to wait for the reason of a SIGKILL: an eviction is a disruption, or names a limit.

    Args:
        of: what stands for the pod; its `explained_by` is set at the first call.
        ending: as the pod shows it now.
        now: seconds since the epoch.
    """
    if ending.reason != Reason.CONTAINER_FAILED or ending.exit_code != 128 + signal.SIGKILL:
        return False
    of.explained_by = of.explained_by or now + EXPLAINED_S
    return now < of.explained_by


def deadline_exceeded(pod: Pod, exit_code: int | None = None) -> Termination:
    """Return the end of a pod at its activeDeadlineSeconds."""
    limit = (pod.get("spec") or {}).get("activeDeadlineSeconds")
    span = f" of {limit} s" if limit is not None else ""
    return _failure(
        Reason.DEADLINE_EXCEEDED,
        f"the pod was ended at its activeDeadlineSeconds{span}; raise it in spec.template.spec, or remove it",
        exit_code=exit_code,
    )


def start_missed(pod: Pod, now: float) -> Termination | None:
    """Return the end of a running container at its startupProbe; None while that has time, or when it succeeded."""
    container = trial_container(pod)
    name, probe = container.get("name"), container.get("startupProbe")
    statuses: Iterable[Mapping[str, Any]] = status_of(pod).get("containerStatuses") or ()
    status: Mapping[str, Any] = next((each for each in statuses if each.get("name") == name), {})
    since = seconds(((status.get("state") or {}).get("running") or {}).get("startedAt"))
    if probe is None or since is None or status.get("started") is not False:
        return None
    period, times = float(probe.get("periodSeconds") or 10), int(probe.get("failureThreshold") or 3)
    limit = float(probe.get("initialDelaySeconds") or 0) + period * times
    if now < since + limit - period - CLOCK_SKEW_S:  # it is probed at once, and then after each period
        return None
    return _failure(
        Reason.CONTAINER_FAILED,
        f"the container was ended because its startupProbe did not succeed within {limit:.0f} s; correct it in "
        "spec.template.spec, or remove it",
    )


def _failure(reason: str, message: str, *, exit_code: int | None = None, retry: bool = True) -> Termination:
    return Termination(
        kind="failure", cause="failed", reason=reason, message=message, retry=retry, exit_code=exit_code
    )


def _disruption(
    reason: str, message: str, *, exit_code: int | None = None, cause: EndCause = "preempted"
) -> Termination:
    return Termination(kind="disruption", cause=cause, reason=reason, message=message, exit_code=exit_code)


def _disrupted(pod: Pod, exit_code: int | None) -> Termination | None:
    target = condition(pod, "DisruptionTarget") or {}
    if target.get("status") == "True":
        reason = str(target.get("reason") or Reason.DISRUPTION_TARGET)
        what = _DISRUPTIONS[reason].meaning if reason in _DISRUPTIONS else "disrupted by the cluster"
        return _disruption(reason, f"the pod was {what}{_in_words(target.get('message'))}", exit_code=exit_code)
    target = condition(pod, "TerminationTarget") or {}
    if target.get("status") == "True":
        reason = str(target.get("reason") or Reason.TERMINATION_TARGET)
        words = _in_words(target.get("message"))
        return _disruption(reason, f"the pod was preempted by Kueue{words}", exit_code=exit_code)
    return None


def _never_starting(pod: Pod) -> Termination | None:
    """Return the ending of a pod whose node will never start it.

    A kubelet makes a pod that is not to be restarted no second sandbox once it has made a container for it, even one
    that was not started yet: when its node restarts in between, the pod stays Pending (kubernetes/kubernetes#118321).
    """
    status = status_of(pod)
    if status.get("phase") != "Pending" or (pod.get("metadata") or {}).get("deletionTimestamp"):
        return None
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    if not any(each.get("containerID") for each in containers):
        return None
    if (condition(pod, "PodReadyToStartContainers") or {}).get("status") != "False":
        return None
    node = (pod.get("spec") or {}).get("nodeName") or "its node"
    message = f"{node} lost the pod before its container had started; another pod is tried"
    return _disruption(Reason.SANDBOX_LOST, message, cause="lost")


def _by_pod_reason(pod: Pod, terminated: Mapping[str, Any] | None) -> Termination | None:
    status = status_of(pod)
    if status.get("phase") != "Failed":
        return None
    reason = str(status.get("reason") or "")
    words = foreign(status.get("message"))
    exit_code = terminated.get("exitCode") if terminated is not None else None
    if reason == Reason.TRIAL_RESOURCE_FAILED:
        return _failure(reason, words, exit_code=exit_code)
    if reason == Reason.EVICTED:
        if words.startswith(("The node was low", "The node had condition")):
            return _disruption(Reason.EVICTED, f"the pod was evicted from its node: {words}", exit_code=exit_code)
        return _failure(
            Reason.STORAGE_LIMIT_EXCEEDED,
            f"the pod wrote more to its local disk than it may: {words.rstrip('. ')}; raise "
            "spec.resources.ephemeral-storage (or the volume's sizeLimit in spec.template), or keep less on disk",
            exit_code=exit_code,
        )
    if reason == Reason.DEADLINE_EXCEEDED:
        return deadline_exceeded(pod, exit_code)
    if reason in _NODE_WENT:
        return _disruption(reason, f"the pod was ended by its node{_in_words(words)}", exit_code=exit_code)
    if terminated is None and reason in _NEVER_ADMITTED:
        return _failure(
            reason, f"nodes refuse the pod: {words}; change what spec.template.spec asks for", retry=False
        )
    if terminated is None and reason:
        return _disruption(reason, f"the node turned the pod away ({reason}){_in_words(words)}; another pod is tried")
    return None


def _by_init_container(pod: Pod) -> Termination | None:
    init = (pod.get("spec") or {}).get("initContainers") or ()
    for each in status_of(pod).get("initContainerStatuses") or ():
        state = (each.get("state") or {}).get("terminated")
        if state is None or not state.get("exitCode") or is_sidecar(pod, each.get("name", "")):
            continue
        how = (
            "ran out of memory"
            if state.get("reason") == Reason.OOM_KILLED
            else f"exited with status {state['exitCode']}"
        )
        container: Mapping[str, Any] = next((one for one in init if one.get("name") == each.get("name")), {})
        if why := _not_executed(pod, container, state):
            return _failure(Reason.INIT_CONTAINER_FAILED, f"init container {each.get('name')}: {why}")
        words = _in_words(last_lines(state.get("message")))
        return _failure(
            Reason.INIT_CONTAINER_FAILED,
            f"init container {each.get('name')} {how}{words}; its output is in the trial's log",
        )
    return None


def blame_beside(pod: Pod, end: AttemptEnd) -> AttemptEnd:
    """Return a failure that an attempt reported, with the containers of its pod that had failed before."""
    words = _beside(failed_so_far(pod)) if end.cause == "failed" else ""
    return msgspec.structs.replace(end, error=f"{end.error}{words}") if words else end


def _beside(failed: Iterable[Mapping[str, Any]]) -> str:
    """Return which containers had failed before the trial's did."""
    parts = []
    for each in failed:
        state = last_end(each)
        words = _in_words(last_lines(state.get("message")))
        parts.append(f"; before that container {each.get('name')} exited with status {state['exitCode']}{words}")
    return "".join(parts)


def _by_container(pod: Pod, terminated: Mapping[str, Any], *, orphaned: bool) -> Termination | None:
    reason, words = str(terminated.get("reason") or ""), foreign(terminated.get("message"))
    code = int(terminated.get("exitCode") or 0)
    if reason == Reason.OOM_KILLED or (code and _starting(reason) and _OOM_AT_START.search(words)):
        return _failure(Reason.OOM_KILLED, _out_of_memory(pod), exit_code=code)
    if _starting(reason):
        if _COMMAND.search(words):
            return _failure(Reason.COMMAND_NOT_FOUND, _no_command(words), exit_code=code, retry=False)
        return _disruption(
            reason, f"the node could not start the container: {words}; another pod is tried", exit_code=code
        )
    if code and (why := _not_executed(pod, trial_container(pod), terminated)):
        return _failure(Reason.COMMAND_NOT_FOUND, why, exit_code=code, retry=False)
    if reason == _LOST or (code == _NOT_KNOWN and _is_ours(pod)):
        return _disruption(_LOST, "the node lost track of the container", exit_code=code, cause="lost")
    if orphaned or _deleted_before(pod, terminated):
        return _disruption(Reason.POD_DELETED, "the pod was deleted by another client", exit_code=code)
    if code == 128 + signal.SIGTERM and "livenessProbe" not in trial_container(pod):
        return _disruption(Reason.TERMINATED, "the process was asked to end by its node", exit_code=code)
    return _by_exit_code(pod, code, str(terminated.get("message") or ""))


def _is_injected(pod: Pod) -> bool:
    command = trial_container(pod).get("command") or [""]
    return str(command[0]).startswith(f"{names.RUNTIME_DIR}/")


def _by_exit_code(pod: Pod, code: int, output: str) -> Termination:
    words = _in_words(_last_line(output))
    if code == 0:
        return _failure(
            Reason.EXITED_SILENTLY,
            "the process exited with status 0 before it reported its result (os._exit(0), or a command that is not "
            "trialpod's runner?); its log may say more",
            exit_code=code,
        )
    if code == UNFIT and _is_injected(pod):
        return _failure(Reason.NO_RUNTIME, output.strip(), exit_code=code, retry=False)
    if _NO_RUNTIME.search(output):
        image = trial_container(pod).get("image", "")
        return _failure(
            Reason.NO_RUNTIME,
            f"the image {image} has no trialpod in it; leave out spec.trainable.runtime: image, so that the pod "
            "brings it, or add `pip install trialpod` to its Dockerfile",
            exit_code=code,
            retry=False,
        )
    if code in (126, 127):
        return _failure(Reason.COMMAND_NOT_FOUND, _no_command(_last_line(output)), exit_code=code, retry=False)
    number = code - 128
    if number in signal.valid_signals():
        hint = _SIGNAL_HINTS.get(signal.Signals(number))
        printed = f"; the last line that it printed{words}" if words else ""
        probe = " (or its liveness probe failed)" if "livenessProbe" in trial_container(pod) else ""
        return _failure(
            Reason.CONTAINER_FAILED,
            f"the process was killed by {signal.Signals(number).name}{probe}{f': {hint}' if hint else ''}"
            f"{printed}{_beside(failed_beside(pod))}",
            exit_code=code,
        )
    return _failure(
        Reason.CONTAINER_FAILED,
        f"the process exited with status {code} before the trial was over{words}{_beside(failed_beside(pod))}; "
        "its log may say more",
        exit_code=code,
    )


def _without_a_word(pod: Pod, *, gone: bool, over: bool) -> Termination:
    node = (pod.get("spec") or {}).get("nodeName") or "its node"
    if gone:
        return _disruption(Reason.NODE_UNREACHABLE, f"node {node} stopped answering", cause="lost")
    if over:
        return _disruption(Reason.POD_ENDED, "the pod ended without saying why", cause="lost")
    return _disruption(
        Reason.POD_VANISHED, "the pod vanished without a word (deleted, or lost with its node)", cause="lost"
    )


def _deleted_before(pod: Pod, terminated: Mapping[str, Any]) -> bool:
    """Return whether the pod's deletion was asked for before its container ended, so that it explains the end."""
    metadata = pod.get("metadata") or {}
    deadline = seconds(metadata.get("deletionTimestamp"))
    if deadline is None:
        return False
    asked = deadline - float(metadata.get("deletionGracePeriodSeconds") or 0)
    ended = seconds(terminated.get("finishedAt"))
    return ended is None or ended >= asked - CLOCK_SKEW_S


def _is_ours(pod: Pod) -> bool:
    return _OUR_COMMAND in (trial_container(pod).get("command") or ())


def _starting(reason: str) -> bool:
    return reason in ("StartError", "ContainerCannotRun")


def _not_executed(pod: Pod, container: Mapping[str, Any], terminated: Mapping[str, Any]) -> str:
    """Return that a node's processor could not execute a container's program, "" if it did."""
    output = str(terminated.get("message") or "").strip()
    if not _NOT_EXECUTED.fullmatch(output):
        return ""
    return (
        f"the image {container.get('image', '')} is built for another architecture than that of "
        f"{node_of(pod) or 'its node'} ({foreign(output)}): {OTHER_PLATFORM_REMEDY}"
    )


def _out_of_memory(pod: Pod) -> str:
    limits = (trial_container(pod).get("resources") or {}).get("limits") or {}
    is_worker = ((pod.get("metadata") or {}).get("labels") or {}).get(names.RANK_LABEL, "0") != "0"
    field = "memory in spec.workers.resources (in spec.resources, without these)" if is_worker else _MEMORY_FIELD
    if "memory" in limits:
        return f"the trial ran out of memory at its limit of {limits['memory']}; raise {field}"
    return f"the trial ran out of memory on its node, and it has no limit; set {field} to what it needs"


def _no_command(words: str) -> str:
    return (
        f"the node cannot start the command of the trial's container{_in_words(words)}; correct it in spec.template, "
        "or leave out spec.trainable.runtime: image, so that the pod brings Python and trialpod"
    )


def _in_words(text: object) -> str:
    words = foreign(text).rstrip(". ")
    return f": {words}" if words else ""


def _last_line(output: object) -> str:
    lines = str(output or "").strip().splitlines()
    return lines[-1] if lines else ""
