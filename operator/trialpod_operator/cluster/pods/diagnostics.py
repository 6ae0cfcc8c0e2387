"""What the pods of one experiment show: which attempts have ended, and why others do not run.

An attempt that fetched its assignment ends when its pod has ended or is gone; where only the cache's silence says so,
the API server is asked first. An attempt that has not fetched it has done nothing: its pod is created again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from trialpod_operator.api.api_errors import ApiError
from trialpod_operator.cluster.cache import Object
from trialpod_operator.cluster.kube import gather_all
from trialpod_operator.cluster.pods import queues
from trialpod_operator.cluster.pods.binding import PodBinding, is_leaving
from trialpod_operator.cluster.pods.experiment_pods import ExperimentPods
from trialpod_operator.cluster.pods.pending import PendingReason, pending_reason
from trialpod_operator.cluster.pods.queues import WAITS_AFTER_S
from trialpod_operator.cluster.pods.reading import node_of, own_name, seconds
from trialpod_operator.cluster.pods.terminated import Termination, may_be_explained, presumed_gone, read_termination
from trialpod_operator.engine.events import AttemptEnded, FailureObserved
from trialpod_operator.engine.trial import Trial

logger = logging.getLogger(__name__)

AFTER_S = 8.0
POLL_INTERVAL_S = 10.0
"""Interval at which the events of a pod are read that has a node and does not start."""

ANSWER_TIMEOUT_S = 2.0
"""Maximum time that one pass waits for them, and for Kueue."""


class PodDiagnostics:
    """What is known of the pods of one experiment that do not begin."""

    def __init__(self, experiment_pods: ExperimentPods) -> None:
        self._pods = experiment_pods
        self._latest: dict[str, str] = {}  # by pod name: the kubelet's latest warning about it
        self._queue_says = ""  # of the pod that waits first in its queue; the others come after it
        self._polled_at = 0.0
        self._asked: dict[str, float] = {}  # by pod name: when it was last asked about

    def waits(self, now: float) -> list[tuple[Trial, PendingReason]]:
        """Return why attempts that should run do not, for those that do not."""
        found = []
        refused = self._pods.work.rejections.why
        grouped = self._pods.experiment().spec.workers is not None
        # Others have begun; and there are thousands.
        every = grouped or refused is not None
        for binding in self._pods.bindings.values() if every else self._pods.unassigned():
            if binding.assigned and binding.group is None and refused is None:
                continue
            name = self._pods.pod_name(binding)
            pod = self._pods.cache.pod(self._pods.key, name)
            said = self._queue_says if pod and queues.is_held(pod) else self._latest.get(name, "")
            why = pending_reason(pod, now, event=said) if pod and not binding.assigned else None
            if self._pods.work.objects is not None and pod is not None and not own_name(pod):
                why = self._pods.work.objects.pending_reason(name, now, said)
            if pod is None and refused is not None:
                why = refused
            why = why or self._pods.groups.wait_reason(binding, now)
            if why is not None:
                found.append((binding.trial, why))
        return found

    async def refresh(self, now: float) -> None:
        """Ask for the events of one pod that should have begun: what a volume lacks stands nowhere else.

        Pods take turns. Of those that wait in a queue, Kueue is asked about the first. Only the status needs the
        answers, so a pass continues without those that do not come.
        """
        if now - self._polled_at < POLL_INTERVAL_S:
            return
        begins = [(binding, pod) for binding in self._pods.unassigned() if (pod := self._pods.own_pod(binding))]
        held = [pod for _, pod in begins if waits_in_queue(pod, now)]
        late = {self._pods.pod_name(binding): pod for binding, pod in begins if _is_late(binding, pod, now)}
        if held or late:
            self._polled_at = now
        self._queue_says = self._queue_says if held else ""
        self._asked = {name: self._asked.get(name, 0.0) for name in late}
        self._latest = {name: said for name, said in self._latest.items() if name in late}
        await gather_all(
            *([self._ask(lambda: self._ask_queue(held))] if held else []),
            *([self._ask(lambda: self._ask_events(late, now))] if late else []),
        )

    async def _ask(self, question: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await question()
        except (ApiError, TimeoutError) as error:
            logger.debug("%s: it is not known why pods do not begin: %s", self._pods.key, error)

    async def _ask_queue(self, held: Iterable[Object]) -> None:
        first = min(held, key=lambda pod: (pod["metadata"].get("creationTimestamp"), pod["metadata"]["name"]))
        self._queue_says = await self._pods.work.queue_message(first)

    async def _ask_events(self, late: Mapping[str, Object], now: float) -> None:
        name = min(late, key=lambda each: self._asked[each])
        self._asked[name] = now
        if latest_warning := await self._pods.work.latest_warning(late[name]):
            self._latest[name] = latest_warning


def _is_late(binding: PodBinding, pod: Object, now: float) -> bool:
    """Return whether a pod should have begun: it has a node, or its object has not made it."""
    return not binding.assigned and now - binding.created_at >= AFTER_S and bool(node_of(pod) or not own_name(pod))


def waits_in_queue(pod: Object, now: float) -> bool:
    """Return whether a pod has been held by its queue for a while."""
    if not queues.is_held(pod):
        return False
    created = seconds(pod["metadata"].get("creationTimestamp"))
    return created is not None and now - created >= WAITS_AFTER_S


SILENT_S = 45.0
"""Time without a call from an attempt after which the API server is asked what its pod is doing."""

MISSING_S = 5.0
"""The same for a pod that should exist and was not seen."""


class AttemptEndings:
    """Tells the engine which attempts have ended, from their pods.

    Args:
        experiment_pods: the experiment's attempts.
        on_ending: called with every ending that was read from a pod.
    """

    def __init__(self, experiment_pods: ExperimentPods, on_ending: Callable[[Trial, Termination], None]) -> None:
        self._pods = experiment_pods
        self._on_ending = on_ending

    def record(self, now: float, bindings: Iterable[PodBinding]) -> None:
        """Update what is known from the watched pods of these attempts."""
        for binding in bindings:
            ended = self.record_group(binding, now)
            if ended is not None:
                self._ended(binding, ended)
                continue
            waits_for_earlier = not binding.assigned and binding.in_reused_pod
            pod = self._pods.own_pod(binding)
            if waits_for_earlier and (
                now > binding.expected_by or pod is None or is_leaving(pod, self._pods.work.deleted)
            ):
                binding.reset_pod(now)  # it does not come back
            elif pod is None:
                last = self._pods.cache.deleted_pod(binding.pod_uid) if binding.pod_uid else None
                if last is not None:
                    self._vanished(binding, last, now)
            else:
                if pod is binding.last_alive and "deletionTimestamp" not in pod["metadata"]:
                    continue  # nothing new; and there are thousands
                binding.pod_uid = binding.pod_uid or pod["metadata"].get("uid", "")
                by_us = self._pods.work.ended_pod(pod["metadata"].get("uid", ""))
                gone, orphaned = presumed_gone(pod, now), self._pods.is_orphaned(pod)
                ending = read_termination(pod, deleted_by_us=by_us, gone=gone, orphaned=orphaned)
                binding.last_alive = pod if ending is None else None
                if ending is not None and not may_be_explained(binding, ending, now):
                    self._ended(binding, ending)

    def record_group(self, binding: PodBinding, now: float) -> Termination | None:
        """Check the workers of a binding; return how a group has ended that had not begun.

        A worker's failure is journaled when it is first seen: no completion that comes later can hide it. It is
        confirmed, and counts, when no other pod of the group was found lost.
        """
        ended = self._pods.groups.record(binding, now)
        trial, cause = binding.trial, binding.group.cause if binding.group is not None else None
        if cause is None or not cause.counts_as_failure:
            return ended
        confirmed = self._pods.groups.is_confirmed(binding)
        if trial.current.failing is not None:
            if trial.current.failure_confirmed or not confirmed:
                return ended
        elif trial.current.decision is not None:
            return ended
        if trial.running and trial.attempt == binding.attempt and not trial.completion_reported:
            logger.info("attempt %d of %s fails: %s", binding.attempt, trial.trial_id, cause.message)
            self._pods.changed.add(trial.trial_id)
            self._pods.durable.apply(
                FailureObserved(
                    trial_id=trial.trial_id, attempt=binding.attempt, end=cause.attempt_end(), confirmed=confirmed
                )
            )
        return ended

    def _vanished(self, binding: PodBinding, last: Object, now: float) -> None:
        """A pod was deleted: before its attempt had begun it is recreated, else the attempt has ended."""
        if not binding.assigned:
            binding.reset_pod(now)
            ending = read_termination(last)
            if ending is None or not ending.counts_as_failure:
                return
        else:
            by_us = self._pods.work.ended_pod(last["metadata"].get("uid", ""))
            orphaned = self._pods.is_orphaned(last)
            ending = read_termination(last, vanished=True, deleted_by_us=by_us, orphaned=orphaned)
        if ending is not None:
            self._ended(binding, ending)

    def _ended(self, binding: PodBinding, ending: Termination) -> None:
        trial = binding.trial
        if trial.running and trial.attempt == binding.attempt:
            if binding.group is not None and binding.assigned:
                judged = binding.group.judge_read(ending, self._pods.clock())
                if judged is None:
                    return  # known when its workers have been checked
                ending = judged
            logger.info("attempt %d of %s ended: %s", binding.attempt, trial.trial_id, ending.message)
            self._on_ending(trial, ending)
            self._pods.meter.ended(trial.trial_id, binding.attempt, ending.reason, ending.kind)
            end = ending.attempt_end()
            self._pods.durable.apply(AttemptEnded(trial_id=trial.trial_id, attempt=binding.attempt, end=end))

    def find_silent(self, now: float, bindings: Iterable[PodBinding]) -> list[PodBinding]:
        """Return those of these attempts whose pods the server may have lost without our hearing of it."""
        last_contact = self._pods.durable.last_contact
        found = []
        for binding in bindings:
            contact = max(last_contact.get(binding.trial.trial_id, 0.0), binding.asked_at, binding.created_at)
            if now - contact < MISSING_S:
                continue  # the shortest patience there is
            pod = self._pods.own_pod(binding)
            if not binding.assigned and pod is None and not binding.created_at:
                continue
            if now - contact >= self._patience_s(binding, pod, now):
                found.append(binding)
        return found

    async def ask_about_silent(self, now: float, bindings: list[PodBinding]) -> None:
        """Ask the server about the pods of these attempts."""
        for binding in bindings:
            if not self._pods.is_bound(binding) or not self.find_silent(now, [binding]):
                continue  # it has ended, or was created again, meanwhile
            pod = self._pods.own_pod(binding)
            binding.asked_at = now
            exists = await self._pods.work.refresh_pod(self._pods.pod_name(binding))
            if exists and (not binding.assigned or self._pods.own_pod(binding) is not None):
                continue
            if pod is not None:
                self._pods.cache.update_pod(pod, deleted=True)
            if not binding.assigned:
                binding.reset_pod(now)
            elif self._pods.is_bound(binding):
                self._ended(binding, _required(read_termination(pod, vanished=True)))
        self.record(now, filter(self._pods.is_bound, bindings))

    def _patience_s(self, binding: PodBinding, pod: Object | None, now: float) -> float:
        if pod is None:
            return MISSING_S
        # Pods may wait in a queue for days, and there may be thousands: the longer, the less often.
        waited = 0.0 if binding.assigned else now - (seconds(pod["metadata"].get("creationTimestamp")) or now)
        return max(SILENT_S, waited / 4)


def _required(ending: Termination | None) -> Termination:
    assert ending is not None
    return ending
