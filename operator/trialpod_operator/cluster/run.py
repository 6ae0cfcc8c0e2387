"""An attempt that should have a pod, and how to find its pod again after the operator was replaced.

Invariant: `pod_attempt` names the pod. It is `attempt`, unless the attempt goes on in the pod of an earlier one.
"""

from __future__ import annotations

from dataclasses import dataclass

from trialpod_operator.cluster import names
from trialpod_operator.cluster.endings import read_ending
from trialpod_operator.cluster.seen import Object, Seen
from trialpod_operator.engine.trial import Trial

ASK_AGAIN_S = 30.0
"""So long a pod that goes on in place may take to ask for its trial's next attempt."""

REMADE_BASE_S = 1.0
REMADE_MOST_S = 30.0
"""A pod that goes away before it began is made again at once; from the second time on, after such pauses."""


@dataclass
class Run:
    """An attempt that should have a pod."""

    trial: Trial
    attempt: int
    pod_attempt: int  # the attempt that its pod was made for
    given: bool = False  # it has fetched its assignment
    stop_at: float | None = None  # when its pod is deleted unless it has ended
    pod_uid: str = ""  # of the pod that asked, or was made
    created_at: float = 0.0  # when the pod was asked for; 0 = not yet
    asked_at: float = 0.0  # when the server was last asked about it
    expect_by: float = 0.0  # a pod that goes on in place has to ask until then
    resources: dict[str, float] | None = None  # of its pod, where a scheduler gave it others than the manifest
    remade: int = 0  # how often its pod went away before it began
    not_before: float = 0.0  # when its pod may be made again

    def make_anew(self, now: float) -> None:
        """Its pod is gone, or will not ask; the attempt has not begun and gets a pod of its own."""
        if self.pod_attempt == self.attempt:
            self.remade += 1
            if self.remade > 1:
                self.not_before = now + min(REMADE_BASE_S * 2.0 ** min(self.remade - 2, 10), REMADE_MOST_S)
        self.pod_attempt, self.pod_uid, self.created_at, self.expect_by = self.attempt, "", 0.0, 0.0


def is_leaving(pod: Object, deleted: set[str]) -> bool:
    """Return whether a pod has ended, or its end was asked for."""
    metadata = pod["metadata"]
    return bool(metadata.get("deletionTimestamp")) or metadata.get("uid") in deleted or read_ending(pod) is not None


def adopt(key: str, trial: Trial, seen: Seen, now: float) -> Run:
    """Return the run of an attempt that was under way when the operator started.

    Args:
        key: "namespace/name" of the experiment.
        trial: which runs.
        seen: what the server has shown, just now.
        now: seconds since the epoch.
    """
    name = key.partition("/")[2]
    pods = [
        pod
        for pod in seen.pods(key)
        if (pod["metadata"].get("labels") or {}).get(names.TRIAL_ID_LABEL) == trial.trial_id
        and not is_leaving(pod, set())
        and _number(pod) <= trial.attempt
    ]
    pods.sort(key=_number)
    own = seen.pod(key, names.pod_name(name, trial.trial_id, trial.attempt))
    pod_attempt, pod = trial.attempt, own
    if own is None and pods:
        pod_attempt, pod = _number(pods[-1]), pods[-1]  # it goes on in place
    given = trial.pid != 0 or trial.received > 0
    return Run(
        trial,
        trial.attempt,
        pod_attempt,
        given=given,
        pod_uid=str(pod["metadata"].get("uid", "")) if pod is not None else "",
        asked_at=now,
        expect_by=now + ASK_AGAIN_S if pod_attempt != trial.attempt and not given else 0.0,
        resources=trial.resources,
    )


def _number(pod: Object) -> int:
    return int((pod["metadata"].get("labels") or {}).get(names.ATTEMPT_LABEL, "0"))
