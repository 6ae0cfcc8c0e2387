"""An attempt that should have a pod, and how to find its pod again after the operator was replaced.

Invariant: `pod_key` names the pod. It is the attempt itself, unless it runs in the pod of an earlier one, or in
one that was made for another trial (`reuse`).
"""

from __future__ import annotations

from dataclasses import dataclass

from trialpod_operator.cluster import names
from trialpod_operator.cluster.cache import Object, ObjectCache
from trialpod_operator.cluster.pods.group import Group
from trialpod_operator.cluster.pods.terminated import read_termination
from trialpod_operator.engine.trial import Trial

NEXT_ASSIGNMENT_TIMEOUT_S = 30.0
"""Maximum time that a pod which continues in place may take to ask for its trial's next attempt."""

RECREATE_DELAY_S = 1.0
MAX_RECREATE_DELAY_S = 30.0
"""A pod that vanishes before it began is recreated at once; from the second time on, after such a delay."""


PodKey = tuple[str, int]
"""A trial's id and an attempt: the one that a pod was made for, which names it."""


@dataclass
class PodBinding:
    """An attempt that should have a pod."""

    trial: Trial
    attempt: int
    pod_attempt: int  # the attempt that its pod was made for
    pod_trial: str = ""  # and the trial, when that is another one
    assigned: bool = False  # it has fetched its assignment
    stop_at: float | None = None  # when its pod is deleted unless it has ended
    pod_uid: str = ""  # of the pod that asked, or was made; once assigned, of the one in which it works
    created_at: float = 0.0  # when the pod was asked for; 0 = not yet
    asked_at: float = 0.0  # when the server was last asked about it
    last_alive: object = None  # its pod, as it was when it was last found to show no end
    expected_by: float = 0.0  # a pod that continues in place has to ask until then
    explained_by: float = 0.0  # until then the kubelet may say why it killed the pod
    sigterm_by: float = 0.0  # and why it sent SIGTERM
    resources: dict[str, float] | None = None  # of its pod, where a scheduler gave it others than the manifest
    recreated: int = 0  # how often its pod went away before it began
    refused: int = 0  # how often its pod was refused
    adopted: bool = False  # it was in progress when this operator opened the experiment
    not_before: float = 0.0  # when its pod may be recreated
    group: Group | None = None  # of the pod and its workers
    named: tuple[int, str, str] | None = None  # `pod_attempt`, `pod_trial`, and the pod's name that follows from them

    @property
    def current(self) -> bool:
        """Whether the trial still runs this attempt."""
        return self.trial.running and self.trial.attempt == self.attempt

    @property
    def pod_key(self) -> PodKey:
        """The attempt that its pod was made for."""
        return self.pod_trial or self.trial.trial_id, self.pod_attempt

    @property
    def in_reused_pod(self) -> bool:
        """Whether it continues in a pod that was made for another attempt."""
        return self.pod_key != (self.trial.trial_id, self.attempt)

    @property
    def continues_in_place(self) -> bool:
        """Whether it continues in a pod of an earlier attempt of its trial."""
        return self.in_reused_pod and not self.pod_trial

    def reset_pod(self, now: float) -> None:
        """Its pod is gone, or will not ask; the attempt has not begun and gets a pod of its own."""
        if not self.in_reused_pod:
            self.recreated += 1
            if self.recreated > 1:
                self.not_before = now + min(
                    RECREATE_DELAY_S * 2.0 ** min(self.recreated - 2, 10), MAX_RECREATE_DELAY_S
                )
        self.return_to_own_pod()

    def return_to_own_pod(self) -> None:
        """It begins in the pod that is made for it, and not in the earlier one that was expected."""
        self.pod_trial, self.pod_attempt = "", self.attempt
        self.pod_uid, self.created_at, self.expected_by, self.explained_by = "", 0.0, 0.0, 0.0


def is_leaving(pod: Object, deleted: set[str]) -> bool:
    """Return whether a pod has ended, or its end was asked for."""
    metadata = pod["metadata"]
    return (
        bool(metadata.get("deletionTimestamp")) or metadata.get("uid") in deleted or read_termination(pod) is not None
    )


def pod_key(pod: Object) -> PodKey | None:
    """Return the attempt that a pod which may be reused was made for; None for any other pod."""
    text = str((pod["metadata"].get("annotations") or {}).get(names.MADE_FOR_ANNOTATION, ""))
    trial_id, _, attempt = text.rpartition("/")
    return (trial_id, int(attempt)) if trial_id and attempt.isdecimal() else None


def labelled_for(pod: Object, binding: PodBinding) -> bool:
    """Return whether the pod's labels name the binding's attempt."""
    labels = pod["metadata"].get("labels") or {}
    return labels.get(names.TRIAL_ID_LABEL) == binding.trial.trial_id and attempt_label(pod) == binding.attempt


def adopt(key: str, trial: Trial, cache: ObjectCache, now: float) -> PodBinding:
    """Return the binding of an attempt that was in progress when the operator started.

    Args:
        key: "namespace/name" of the experiment.
        trial: which runs.
        cache: has what the API server shows now.
        now: seconds since the epoch.
    """
    name = key.partition("/")[2]
    given = trial.current.pid != 0 or trial.current.received > 0
    own = cache.pod(key, names.pod_name(name, trial.trial_id, trial.attempt))
    pod_trial, pod_attempt, pod = trial.trial_id, trial.attempt, own
    if given:  # the journal has where: its own pod, which a late watch may not show yet, or another one
        if trial.current.reused_pod:
            pod_trial, _, number = trial.current.reused_pod.rpartition("/")
            pod_attempt = int(number)
            pod = cache.pod(key, names.pod_name(name, pod_trial, pod_attempt))
        if pod is not None and trial.current.pod_uid not in ("", pod["metadata"].get("uid")):
            pod = None  # created after the attempt's own had gone, by an operator that did not know that it had begun
    elif own is None and (earlier := _earlier_pods(key, trial, cache)):
        pod = earlier[-1]  # it continues there
        pod_trial, pod_attempt = pod_key(pod) or (trial.trial_id, attempt_label(pod))
    own_pod = (pod_trial, pod_attempt) == (trial.trial_id, trial.attempt)
    return PodBinding(
        trial,
        trial.attempt,
        pod_attempt,
        pod_trial=pod_trial if pod_trial != trial.trial_id else "",
        assigned=given,
        pod_uid=str(pod["metadata"].get("uid", "")) if pod is not None else trial.current.pod_uid,
        asked_at=now,
        expected_by=0.0 if own_pod or given else now + NEXT_ASSIGNMENT_TIMEOUT_S,
        resources=trial.resources,
        adopted=True,
    )


def _earlier_pods(key: str, trial: Trial, cache: ObjectCache) -> list[Object]:
    """Return the pods in which an attempt that has not begun may continue, the latest last."""
    pods = [
        pod
        for pod in cache.pods_of_trial(key, trial.trial_id)
        if names.RANK_LABEL not in pod["metadata"]["labels"]  # pods of groups never continue in place
        and "pod" not in pod  # an object of another kind runs one attempt
        and not is_leaving(pod, set())
        and (attempt_label(pod) == trial.attempt if pod_key(pod) else 0 < attempt_label(pod) <= trial.attempt)
    ]
    return sorted(pods, key=attempt_label)


def attempt_label(pod: Object) -> int:
    """Return the attempt that a pod's label names; 0 when a user has made something else of it."""
    text = str((pod["metadata"].get("labels") or {}).get(names.ATTEMPT_LABEL) or "")
    return int(text) if text.isdecimal() else 0
