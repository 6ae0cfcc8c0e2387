"""What the pods of one experiment show: which attempts have ended, and why others do not run.

An attempt that fetched its assignment ends when its pod has ended or is gone; where only the cache's silence says so,
the API server is asked first. An attempt that has not fetched it has done nothing: its pod is created again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from trialpod_operator.cluster.cache import Object
from trialpod_operator.cluster.pods import queues
from trialpod_operator.cluster.pods.binding import Run, is_leaving
from trialpod_operator.cluster.pods.experiment_pods import Shared
from trialpod_operator.cluster.pods.pending import Waiting, why_waiting
from trialpod_operator.cluster.pods.pod_work import node_of
from trialpod_operator.cluster.pods.queues import WAITS_AFTER_S
from trialpod_operator.cluster.pods.reading import seconds
from trialpod_operator.cluster.pods.terminated import Ending, presumed_gone, read_ending
from trialpod_operator.engine.events import AttemptEnded, FailureObserved
from trialpod_operator.engine.trial import Trial

AFTER_S = 8.0
EVERY_S = 10.0
"""When a pod has a node and does not begin, its events are looked at so often."""


class Complaints:
    """What is heard of the pods of one experiment that do not begin."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._latest: dict[str, str] = {}  # by pod name: the kubelet's latest warning about it
        self._queue_says = ""  # of the pod that waits first in its queue; the others are behind it
        self._heard_at = 0.0

    def waits(self, now: float) -> list[tuple[Trial, Waiting]]:
        """Return why attempts that should run do not, for those that do not."""
        found = []
        refused = self._shared.work.refusals.why
        for run in self._shared.runs.values():
            if run.given and run.group is None and refused is None:
                continue  # it has begun; and there are thousands
            name = self._shared.pod_name(run)
            pod = self._shared.seen.pod(self._shared.key, name)
            said = self._queue_says if pod and queues.is_held(pod) else self._latest.get(name, "")
            why = why_waiting(pod, now, event=said) if pod and not run.given else None
            if pod is None and refused is not None:
                why = refused
            why = why or self._shared.groups.wait_reason(run, now)
            if why is not None:
                found.append((run.trial, why))
        return found

    async def hear(self, now: float) -> None:
        """Ask for the events of one pod that should have begun: what a volume lacks stands nowhere else.

        Of the pods that wait in a queue, Kueue is asked about the first.
        """
        if now - self._heard_at < EVERY_S:
            return
        begins = [run for run in self._shared.runs.values() if not run.given]
        held = [pod for pod in map(self._shared.own_pod, begins) if pod is not None and waits_in_queue(pod, now)]
        if held:
            self._heard_at = now
            first = min(held, key=lambda pod: (pod["metadata"].get("creationTimestamp"), pod["metadata"]["name"]))
            self._queue_says = await self._shared.work.queue_words(first)
        else:
            self._queue_says = ""
        for run in begins:
            pod = self._shared.own_pod(run)
            if pod is None or run.given or now - run.created_at < AFTER_S or not node_of(pod):
                continue
            self._heard_at = now
            if complaint := await self._shared.work.complaint(pod):
                self._latest = {self._shared.pod_name(run): complaint}
            return
        self._latest = {}


def waits_in_queue(pod: Object, now: float) -> bool:
    """Return whether a pod has been held by its queue for a while."""
    if not queues.is_held(pod):
        return False
    created = seconds(pod["metadata"].get("creationTimestamp"))
    return created is not None and now - created >= WAITS_AFTER_S


logger = logging.getLogger(__name__)

SILENT_S = 45.0
"""After so long without a call from an attempt, the API server is asked what its pod is doing."""

MISSING_S = 5.0
"""And after so long about a pod that should be there, and was not seen."""


class AttemptEndings:
    """Tells the engine which attempts have ended, from their pods.

    Args:
        shared: the experiment's attempts.
        on_ending: told of every ending that was read from a pod.
    """

    def __init__(self, shared: Shared, on_ending: Callable[[Trial, Ending], None]) -> None:
        self._shared = shared
        self._on_ending = on_ending

    def note(self, now: float) -> None:
        """Take in what the watches have shown of the pods."""
        for run in list(self._shared.runs.values()):
            ended = self.note_group(run, now)
            if ended is not None:
                self._ended(run, ended)
                continue
            waits_for_earlier = not run.given and run.takes_over
            pod = self._shared.own_pod(run)
            if waits_for_earlier and (
                now > run.expect_by or pod is None or is_leaving(pod, self._shared.work.deleted)
            ):
                run.make_anew(now)  # it does not come back
            elif pod is None:
                last = self._shared.seen.vanished(run.pod_uid) if run.pod_uid else None
                if last is not None:
                    self._vanished(run, last, now)
            else:
                if pod is run.alive and "deletionTimestamp" not in pod["metadata"]:
                    continue  # nothing new; and there are thousands
                run.pod_uid = run.pod_uid or pod["metadata"].get("uid", "")
                by_us = pod["metadata"].get("uid") in self._shared.work.deleted
                ending = read_ending(pod, deleted_by_us=by_us, gone=presumed_gone(pod, now))
                run.alive = pod if ending is None else None
                if ending is not None:
                    self._ended(run, ending)

    def note_group(self, run: Run, now: float) -> Ending | None:
        """Look at the workers of a run; return how a group has ended that had not begun.

        A worker's failure is journaled when it is first seen: no completion that comes later can hide it.
        """
        ended = self._shared.groups.note(run, now)
        trial, cause = run.trial, run.group.cause if run.group is not None else None
        if cause is None or not cause.counts_as_failure or trial.failing is not None or trial.decision is not None:
            return ended
        if trial.running and trial.attempt == run.attempt and not trial.completion_told:
            logger.info("attempt %d of %s fails: %s", run.attempt, trial.trial_id, cause.message)
            end = cause.attempt_end()
            self._shared.changed.add(trial.trial_id)
            self._shared.hosted.apply(FailureObserved(trial_id=trial.trial_id, attempt=run.attempt, end=end))
        return ended

    def _vanished(self, run: Run, last: Object, now: float) -> None:
        """A pod was deleted: before its attempt had begun it is made again, else the attempt has ended."""
        if not run.given:
            run.make_anew(now)
            ending = read_ending(last)
            if ending is None or not ending.counts_as_failure:
                return
        else:
            ending = read_ending(
                last, vanished=True, deleted_by_us=last["metadata"].get("uid") in self._shared.work.deleted
            )
        if ending is not None:
            self._ended(run, ending)

    def _ended(self, run: Run, ending: Ending) -> None:
        trial = run.trial
        if trial.running and trial.attempt == run.attempt:
            if run.group is not None and run.given:
                judged = run.group.judge_read(ending, self._shared.clock())
                if judged is None:
                    return  # known when its workers have been looked at
                ending = judged
            logger.info("attempt %d of %s ended: %s", run.attempt, trial.trial_id, ending.message)
            self._on_ending(trial, ending)
            self._shared.hosted.meter.ended(trial.trial_id, run.attempt, ending.reason, ending.kind)
            end = ending.attempt_end()
            self._shared.hosted.apply(AttemptEnded(trial_id=trial.trial_id, attempt=run.attempt, end=end))

    async def ask_about_silent(self, now: float) -> None:
        """Ask the server about pods that it may have lost without our hearing of it."""
        asked = False
        last_contact = self._shared.hosted.last_contact
        for run in list(self._shared.runs.values()):
            heard = max(last_contact.get(run.trial.trial_id, 0.0), run.asked_at, run.created_at)
            if now - heard < MISSING_S:
                continue  # the least that anybody's patience lasts
            pod = self._shared.own_pod(run)
            if not run.given and pod is None and not run.created_at:
                continue
            if now - heard < self._patience_s(run, pod, now):
                continue
            run.asked_at = now
            asked = True
            if await self._shared.work.look_up_pod(self._shared.pod_name(run)):
                continue
            if pod is not None:
                self._shared.seen.take_pod(pod, deleted=True)
            if not run.given:
                run.make_anew(now)
            elif self._shared.runs.get(run.trial.trial_id) is run:
                self._ended(run, _must(read_ending(pod, vanished=True)))
        if asked:
            self.note(now)

    def _patience_s(self, run: Run, pod: Object | None, now: float) -> float:
        if pod is None:
            return MISSING_S
        # Pods may wait in a queue for days, and there may be thousands: the longer, the less often.
        waited = 0.0 if run.given else now - (seconds(pod["metadata"].get("creationTimestamp")) or now)
        return max(SILENT_S, waited / 4)


def _must(ending: Ending | None) -> Ending:
    assert ending is not None
    return ending
