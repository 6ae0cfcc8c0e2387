"""Keeps the groups of one experiment together: starts them when all their pods are there, sees what ends them.

Invariants:

* No pod of a group gets its work before all of them have asked for it; the start is committed before
  the first answer.
* The next group's pods are created when all those of the one before have a node: within an experiment, two groups
  never hold half of what each needs. Between experiments the timeout and its pauses do that.
* A head is ended, with its grace period, as soon as one of its workers is being removed, or has failed and
  that is confirmed in the journal. A worker on a SIGTERM continues until its group is over: the head needs it for its
  last step.

Owned by the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trialpod_operator.api.reasons import Reason
from trialpod_operator.cluster import names
from trialpod_operator.cluster.cache import Object, ObjectCache
from trialpod_operator.cluster.pods.binding import PodBinding, is_leaving
from trialpod_operator.cluster.pods.group import (
    FAILURE_CHECK_DELAY_S,
    Group,
    Member,
    deleted_worker,
    failure_of,
    incomplete,
    of_worker,
    pause_s,
)
from trialpod_operator.cluster.pods.pending import QUEUE_LABEL, pending_reason
from trialpod_operator.cluster.pods.pod_work import PodWork
from trialpod_operator.cluster.pods.reading import PendingReason, condition, node_of
from trialpod_operator.cluster.pods.terminated import Termination, may_be_explained, presumed_gone, read_termination

WORKER_CHECK_S = 60.0
"""Time without a result from a head after which the server is asked about its workers: one may be lost."""

MISSING_S = 5.0
"""The same for a pod that was created and not seen."""


class GroupWork:
    """The groups of one experiment.

    Args:
        key: "namespace/name" of the experiment.
        cache: what the watches have shown.
        work: acts at the API server.
        clock: seconds since the epoch.
    """

    def __init__(self, key: str, cache: ObjectCache, work: PodWork, clock: Callable[[], float]) -> None:
        self._key = key
        self._name = key.partition("/")[2]
        self._cache = cache
        self._work = work
        self._clock = clock
        self._first: PodBinding | None = None  # whose pods are to be scheduled before others are made
        self._timeouts: dict[str, int] = {}  # by the trial's id: how often its group did not come together

    def make(self, binding: PodBinding, replicas: int, timeout_s: float) -> None:
        """Make a binding that of a group; its pods that are there already are found."""
        group = binding.group = Group(replicas, timeout_s)
        for member in group.members:
            pod = self.pod(binding, member.rank)
            if pod is not None:
                member.uid, member.created_at = pod["metadata"].get("uid", ""), self._clock()
        group.quiet_since = self._clock()
        if binding.trial.current.failing is not None:
            group.cause, group.failed_at = failure_of(binding.trial.current.failing), self._clock()
        count = self._timeouts.get(binding.trial.trial_id, 0)
        if count:
            binding.not_before = self._clock() + pause_s(binding.trial.trial_id, count)

    def name_of(self, binding: PodBinding, rank: int) -> str:
        """Return the name of a pod of the group."""
        return names.pod_name(self._name, binding.trial.trial_id, binding.attempt, rank)

    def names(self, binding: PodBinding) -> set[str]:
        """Return the names of the workers' pods."""
        if binding.group is None:
            return set()
        return {self.name_of(binding, member.rank) for member in binding.group.members}

    def pod(self, binding: PodBinding, rank: int) -> Object | None:
        """Return a pod of the group, if it exists."""
        return self._cache.pod(self._key, self.name_of(binding, rank))

    def address(self, binding: PodBinding) -> str:
        """Return where the head can be reached by its workers, "" when that is not known yet."""
        pod = self.pod(binding, 0)
        return str((pod.get("status") or {}).get("podIP") or "") if pod is not None else ""

    # -- the start --

    def is_complete(self, binding: PodBinding) -> bool:
        """Return whether all pods of a group have requested their assignment, and still exist."""
        group = _group(binding)
        return (
            len(self._ready(binding)) == group.size and bool(self.address(binding)) and group.head_request is not None
        )

    def began(self, binding: PodBinding) -> None:
        """The group has its work."""
        self._timeouts.pop(binding.trial.trial_id, None)
        _group(binding).quiet_since = self._clock()
        _group(binding).release()

    def ended(self, trial_id: str) -> None:
        """A trial is over."""
        self._timeouts.pop(trial_id, None)

    def missing(self, binding: PodBinding) -> list[int]:
        """Return the ranks of the workers whose pods are to be created."""
        if binding.group is None or binding.assigned or binding.stop_at is not None:
            return []
        return [
            member.rank
            for member in binding.group.members
            if not member.created_at and self.pod(binding, member.rank) is None
        ]

    def first_in_line(self, bindings: Iterable[PodBinding]) -> PodBinding | None:
        """Return the group whose pods go before those of the others, None when no group waits for room."""
        self._first = self._find_first(bindings)
        return self._first

    def _find_first(self, bindings: Iterable[PodBinding]) -> PodBinding | None:
        waiting = [
            binding
            for binding in bindings
            if binding.group is not None and not binding.assigned and binding.stop_at is None
        ]
        begun = [
            binding for binding in waiting if any(self.pod(binding, rank) for rank in range(_group(binding).size))
        ]
        for binding in begun:
            pods = [self.pod(binding, rank) for rank in range(_group(binding).size)]
            queued = any(pod is not None and QUEUE_LABEL in (pod["metadata"].get("labels") or {}) for pod in pods)
            if not queued and not all(node_of(pod) for pod in pods):
                return binding
        return None

    def created(self, binding: PodBinding, rank: int, uid: str) -> None:
        """A worker's pod was made."""
        member = _group(binding).members[rank - 1]
        member.uid, member.created_at = uid, self._clock()

    def wait_reason(self, binding: PodBinding, now: float) -> PendingReason | None:
        """Return why a group has not started; None when nothing is wrong, or there is no group."""
        if binding.group is None or binding.assigned:
            return None
        for member in binding.group.members:
            pod = self.pod(binding, member.rank)
            why = pending_reason(pod, now) if pod is not None else None
            if why is not None:
                return why
        group, size = binding.group, binding.group.size
        if binding.not_before > now:
            return _incomplete(
                f"its {size} pods could not all be scheduled at once; they are retried after a pause", None
            )
        first = self._first
        if first is not None and first is not binding and self.pod(binding, 0) is None:
            message = f"waiting for the pods of {names.trial_name(self._name, first.trial.trial_id)} to be scheduled"
            return PendingReason(reason=Reason.WAITS_FOR_GROUP, message=message, remedy="")
        ready = len(self._ready(binding))
        if ready and now - group.waiting_since > MISSING_S:
            return _incomplete(f"{ready} of its {size} pods run; they start together", group.waiting_since)
        return None

    def _ready(self, binding: PodBinding) -> list[int]:
        group, ready = _group(binding), []
        for rank, uid in group.joined.items():
            pod = self.pod(binding, rank)
            if pod is not None and pod["metadata"].get("uid") == uid and not is_leaving(pod, self._work.deleted):
                ready.append(rank)
        return ready

    # -- the end --

    def record(self, binding: PodBinding, now: float) -> Termination | None:
        """Check the workers; return how a group has ended that had not begun."""
        group = binding.group
        if group is None:
            return None
        evidence = []
        for member in group.members:
            ending = self._worker_ending(binding, member, now)
            if ending is not None:
                evidence.append(ending)
        if binding.assigned:
            group.record(evidence, now)
            return None
        if evidence:
            return evidence[0]
        ready = self._ready(binding)
        if not ready:
            group.waiting_since = 0.0
        elif group.waiting_since and now - group.waiting_since >= group.timeout_s and binding.stop_at is None:
            if not group.timed_out:  # several passes may look before the end is committed
                group.timed_out = True
                self._timeouts[binding.trial.trial_id] = self._timeouts.get(binding.trial.trial_id, 0) + 1
            return incomplete(len(ready), group.size, group.timeout_s)
        return None

    def _worker_ending(self, binding: PodBinding, member: Member, now: float) -> Termination | None:
        pod = self.pod(binding, member.rank)
        by_us = self._work.ended_pod
        if pod is None:
            last = self._cache.deleted_pod(member.uid) if member.uid else None
            if last is None:
                # A group that has begun had all its pods: an operator before this one saw them. If it saw one of them
                # fail, that explains why a pod is not there, unless the one that failed is another one.
                current = binding.trial.current
                explained = current.failing is not None and (
                    current.failure_confirmed or not self._others_failed(binding, member)
                )
                unknown = binding.assigned and not member.uid and not explained
                ending = read_termination(None, vanished=True) if unknown else None
            elif binding.assigned:
                ending = read_termination(last, vanished=True, deleted_by_us=by_us(member.uid))
            else:
                member.reset_pod()
                ending = read_termination(last)
                if ending is not None and not ending.counts_as_failure:
                    ending = None
        else:
            uid = pod["metadata"].get("uid", "")
            member.uid = member.uid or uid
            ending = read_termination(pod, deleted_by_us=by_us(uid), gone=presumed_gone(pod, now))
            if ending is None and binding.assigned and pod["metadata"].get("deletionTimestamp") and not by_us(uid):
                target = condition(pod, "DisruptionTarget") or {}
                return deleted_worker(member.rank, str(target.get("reason") or ""))
            # That of a group that has begun is journaled at once: FAILURE_CHECK_DELAY_S leaves the kubelet time, too.
            if ending is not None and not binding.assigned and may_be_explained(member, ending, now):
                return None
        return of_worker(member.rank, ending, begun=binding.assigned) if ending is not None else None

    def _others_failed(self, binding: PodBinding, member: Member) -> bool:
        """Return whether the pod of another worker shows a failure."""
        pods = (self.pod(binding, other.rank) for other in _group(binding).members if other is not member)
        endings = (read_termination(pod) for pod in pods if pod is not None)
        return any(ending is not None and ending.counts_as_failure for ending in endings)

    async def look(self, binding: PodBinding, now: float) -> None:
        """Ask the server about workers: after a failure of any pod, and where only silence tells."""
        group = binding.group
        if group is None:
            return
        if group.failed_at and not group.looked and now >= group.failed_at + FAILURE_CHECK_DELAY_S:
            await self._ask_about_head(binding)
            for member in group.members:
                await self._ask(binding, member, now)
            group.looked = True
            return
        if binding.trial.current.received != group.progress:
            group.progress, group.quiet_since = binding.trial.current.received, now
        for member in group.members:
            pod = self.pod(binding, member.rank)
            unseen = pod is None and not binding.assigned
            patience = MISSING_S if unseen else max(WORKER_CHECK_S, (now - group.quiet_since) / 4)
            known = binding.assigned or member.created_at
            since = max(member.asked_at, member.created_at, group.quiet_since)
            if known and now - since >= patience:
                await self._ask(binding, member, now)

    async def _ask_about_head(self, binding: PodBinding) -> None:
        """A missing head makes its workers fail; the watch may have missed its deletion."""
        pod = self.pod(binding, 0)
        if pod is not None and not await self._work.refresh_pod(pod["metadata"]["name"]):
            self._cache.update_pod(pod, deleted=True)

    def is_confirmed(self, binding: PodBinding) -> bool:
        """Return whether the failure is the worker's own: all pods were checked and the head is not terminating."""
        group, pod = binding.group, self.pod(binding, 0)
        return group is not None and group.looked and pod is not None and not is_leaving(pod, self._work.deleted)

    async def _ask(self, binding: PodBinding, member: Member, now: float) -> None:
        member.asked_at = now
        if await self._work.refresh_pod(self.name_of(binding, member.rank)):
            return
        pod = self.pod(binding, member.rank)
        if pod is not None:
            self._cache.update_pod(pod, deleted=True)
        elif not binding.assigned:
            member.reset_pod()

    async def end_heads(self, bindings: Iterable[PodBinding]) -> None:
        """Ask for the end of heads that have lost a worker.

        After a worker's failure not before that is confirmed: until then a head that is gone explains it.
        """
        for binding in bindings:
            group, current = binding.group, binding.trial.current
            if group is None or group.cause is None or group.reported_at:
                continue
            if current.failing is not None and group.cause.counts_as_failure and not current.failure_confirmed:
                continue
            pod = self.pod(binding, 0)
            if pod is not None and not is_leaving(pod, self._work.deleted):
                await self._work.delete_if_allowed(pod)

    def times(self, bindings: Iterable[PodBinding]) -> list[float]:
        """Return when there will be something to do."""
        found = []
        for binding in bindings:
            group = binding.group
            if group is None:
                continue
            if group.failed_at:
                found.append(group.failed_at + FAILURE_CHECK_DELAY_S)
            if not binding.assigned:
                found += [member.explained_by for member in group.members if member.explained_by]
                if group.waiting_since:
                    found.append(group.waiting_since + group.timeout_s)
        return found


def _incomplete(message: str, since: float | None) -> PendingReason:
    remedy = (
        "make room for all of them at once (lower spec.resources, spec.workers.resources or "
        "spec.maxConcurrentTrials), or queue them with Kueue"
    )
    return PendingReason(reason=Reason.GROUP_INCOMPLETE, message=message, remedy=remedy, since=since)


def _group(binding: PodBinding) -> Group:
    assert binding.group is not None
    return binding.group
