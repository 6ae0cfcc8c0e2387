"""Why an attempt got the SIGTERM that it says ended it.

An attempt that gets SIGTERM knows only that it has to end. A kubelet says why it ends a pod once the containers have
ended, later than the attempt's own word, and an attempt does not end before that word is taken. So a deadline is read
from the pod's start, and a startup probe's from its container's. A limit of the local disk leaves one second: the
attempt's word waits for longer than that. A liveness probe leaves no trace, and so looks like a node that shuts down.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from trialpod.protocol.messages import AttemptEnd
from trialpod_operator.api.reasons import Reason
from trialpod_operator.cluster.pods.reading import Pod, condition, seconds, status_of
from trialpod_operator.cluster.pods.terminated import CLOCK_SKEW_S, deadline_exceeded, read_termination, start_missed

SIGTERM_EXPLAINED_S = 1.5
"""Maximum time that a SIGTERM may still be explained; an attempt that hangs says so 2 s before it is killed."""

_LIMITS = (Reason.DEADLINE_EXCEEDED, Reason.STORAGE_LIMIT_EXCEEDED)


class Signalled(Protocol):
    """What keeps, for one pod, until when its SIGTERM may still be explained; 0 before it is reported."""

    sigterm_by: float


def judge_sigterm(of: Signalled, pod: Pod | None, end: AttemptEnd, now: float) -> AttemptEnd | None:
    """Return how the attempt ended whose pod says this; None while the pod may still show why.

    Args:
        of: what stands for the pod; its `sigterm_by` is set at the first call.
        pod: that was not ended by trialpod, as it was seen last.
        end: what the attempt says.
        now: seconds since the epoch.
    """
    if end.cause != "preempted" or pod is None or _is_taken_away(pod):
        return end
    ending = read_termination(pod)
    if ending is None and _past_deadline(pod, now):
        ending = deadline_exceeded(pod)
    if ending is not None:
        return msgspec.structs.replace(ending.attempt_end(), asks=end.asks) if ending.reason in _LIMITS else end
    of.sigterm_by = of.sigterm_by or now + SIGTERM_EXPLAINED_S
    if now < of.sigterm_by:
        return None
    missed = start_missed(pod, now)
    return end if missed is None else msgspec.structs.replace(missed.attempt_end(), asks=end.asks)


def _is_taken_away(pod: Pod) -> bool:
    targets = (condition(pod, kind) or {} for kind in ("DisruptionTarget", "TerminationTarget"))
    return bool((pod.get("metadata") or {}).get("deletionTimestamp")) or any(
        target.get("status") == "True" for target in targets
    )


def _past_deadline(pod: Pod, now: float) -> bool:
    """Return whether its kubelet ends the pod for its activeDeadlineSeconds, which count from status.startTime."""
    limit, since = (pod.get("spec") or {}).get("activeDeadlineSeconds"), seconds(status_of(pod).get("startTime"))
    return limit is not None and since is not None and now >= since + float(limit) - CLOCK_SKEW_S
