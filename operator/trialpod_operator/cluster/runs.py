"""The pods of one open experiment: what should run, what does, and what ended.

The engine's actions, once committed, say what should run (`Run`). The watch says what does (`Seen`). `reconcile`
compares the two and acts; it may be called at any time and as often as one likes. Names are deterministic, so doing
something again that was done already is refused by the API server, which is harmless.

Invariants:

* A pod is created only for a committed start, and only when its TuneTrial is there to own it.
* An attempt that has asked for its work ends when its pod has ended or is gone: in the cache, and then by the
  server's own word where only the cache's silence says so.
* One that has not asked yet has done nothing; its pod is simply made again.

Owned by the event loop; reconciles of one experiment never overlap.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from trialpod.protocol.messages import AssignmentAnswer, AssignmentRequest, AttemptEnd
from trialpod_operator.api.models import TuneExperiment
from trialpod_operator.cluster import names
from trialpod_operator.cluster.clearing import Clearing
from trialpod_operator.cluster.endings import Ending, presumed_gone, read_ending
from trialpod_operator.cluster.hosted import HostedExperiment
from trialpod_operator.cluster.in_place import InPlace
from trialpod_operator.cluster.pod_reading import seconds
from trialpod_operator.cluster.pod_work import PodWork, Refusals, node_of
from trialpod_operator.cluster.pods import grace_seconds
from trialpod_operator.cluster.run import ASK_AGAIN_S, Run, adopt, is_leaving
from trialpod_operator.cluster.seen import Object, Seen
from trialpod_operator.cluster.waiting import Waiting, why_waiting
from trialpod_operator.engine.actions import (
    Action,
    StartAttempt,
    StopAttempt,
    TrialCreated,
    TrialEnded,
    TrialRequeued,
)
from trialpod_operator.engine.events import AttemptEnded, AttemptStarted, CapacityObserved
from trialpod_operator.engine.trial import Trial
from trialpod_operator.reports.service import Caller, NotReadyError

logger = logging.getLogger(__name__)

AHEAD = 16
"""So many more pods than have a place are created, when the manifest sets no limit."""

SILENT_S = 45.0
"""After so long without a call from an attempt, the API server is asked what its pod is doing."""

MISSING_S = 5.0
"""And after so long about a pod that should be there, and was not seen."""

COMPLAINTS_AFTER_S = 8.0
COMPLAINTS_EVERY_S = 10.0
"""When a pod has a node and does not begin, its events are looked at so often."""


class Runs:
    """Keeps the pods of one experiment as its engine wants them.

    Args:
        key: "namespace/name".
        experiment: returns the manifest that holds now.
        hosted: the experiment's engine.
        work: acts at the API server.
        seen: what the watches have shown.
        clock: seconds since the epoch.
        wake: asks for a reconcile soon.
        on_ending: told of every ending that was read from a pod.
    """

    def __init__(
        self,
        key: str,
        experiment: Callable[[], TuneExperiment],
        hosted: HostedExperiment,
        work: PodWork,
        seen: Seen,
        clock: Callable[[], float],
        wake: Callable[[], None],
        on_ending: Callable[[Trial, Ending], None],
    ) -> None:
        self._key = key
        self._name = key.partition("/")[2]
        self._experiment = experiment
        self._hosted = hosted
        self._work = work
        self._seen = seen
        self._clock = clock
        self._wake = wake
        self._on_ending = on_ending
        self.runs: dict[str, Run] = {}
        self.changed: set[str] = set()  # ids of trials whose TuneTrial has to be looked at
        self._clearing = Clearing(key, work, seen)
        self._in_place = InPlace(clock)
        self._slots: int | None = None
        self._complaints: dict[str, str] = {}  # by pod name: the kubelet's latest warning about it
        self._complaints_at = 0.0
        for trial in hosted.host.engine.state.get_trials():
            item = seen.trial(key, names.trial_name(self._name, trial.trial_id))
            if not trial.ended or (item is not None and (item.get("status") or {}).get("state") != trial.status):
                self.changed.add(trial.trial_id)
        for trial in hosted.host.engine.state.running_trials():
            self.runs[trial.trial_id] = adopt(key, trial, seen, clock())

    # -- for the experiment's controller --

    @property
    def refusals(self) -> Refusals:
        """Why the API server does not take new pods or trials."""
        return self._work.refusals

    @property
    def pods_left(self) -> bool:
        """Whether there are pods whose deletion has not been asked for yet."""
        return self._clearing.pods_left

    def live_attempts(self) -> list[tuple[str, int]]:
        """Return the attempts that a restart of the operator has not ended: those with a pod, or not begun yet.

        One whose pod has ended meanwhile is among them: `reconcile` reads from the pod how.
        """
        return [
            (run.trial.trial_id, run.attempt)
            for run in self.runs.values()
            if not run.given or self._seen.pod(self._key, self._pod_name(run)) is not None
        ]

    def perform(self, action: Action) -> None:
        """Take in a committed action."""
        match action:
            case TrialCreated(trial=trial):
                self.changed.add(trial.trial_id)
            case StartAttempt(trial=trial, attempt=attempt):
                self._start(trial, attempt)
            case StopAttempt(trial=trial, attempt=attempt):
                run = self.runs.get(trial.trial_id)
                if run is not None and run.attempt == attempt and run.stop_at is None:
                    run.stop_at = self._clock() + (self._grace_s if run.given else 0.0)
            case TrialEnded(trial=trial) | TrialRequeued(trial=trial):
                self._end_run(trial)
        self._wake()

    def assign(self, request: AssignmentRequest) -> AssignmentAnswer | Awaitable[AssignmentAnswer]:
        """Give a pod its attempt. One that goes on in place waits for its trial's next one.

        Raises:
            NotReadyError: the start of the attempt is not committed yet.
        """
        trial_id, _, number = request.runner.rpartition("/")
        if not trial_id or not number.isdigit():
            return AssignmentAnswer(reason=f"'{request.runner}' is no runner of this experiment")
        run = self.runs.get(trial_id)
        if run is not None and run.pod_attempt == int(number) and run.trial.running:
            return self._give(run, request)
        if self._in_place.holds(trial_id, int(number)):
            return self._give_later(trial_id, int(number), request)
        return AssignmentAnswer(reason="the trial has no work for this pod any more")

    def permits(self, caller: Caller, trial_id: str) -> str:
        """Return "" if that pod may speak for the trial, else why not.

        Raises:
            NotReadyError: the pod is not known yet.
        """
        pod = self._seen.pod(self._key, caller.pod_name)
        if pod is None:
            if self._seen.vanished(caller.pod_uid) is not None:
                return f"pod {caller.pod_name} was deleted"
            raise NotReadyError(f"pod {caller.pod_name} is not known here yet")
        metadata = pod["metadata"]
        if metadata.get("uid") != caller.pod_uid:
            return f"pod {caller.pod_name} is another one than the caller"
        if (metadata.get("labels") or {}).get(names.TRIAL_ID_LABEL) != trial_id:
            return f"pod {caller.pod_name} does not belong to trial {trial_id}"
        trial = self._seen.trial(self._key, names.trial_name(self._name, trial_id))
        owners = {owner.get("uid") for owner in metadata.get("ownerReferences") or [] if owner.get("controller")}
        if trial is not None and trial["metadata"].get("uid") not in owners:
            return f"pod {caller.pod_name} does not belong to trial {trial_id}"
        return ""

    def waits(self, now: float) -> list[tuple[Trial, Waiting]]:
        """Return why attempts that should run do not, for those that do not."""
        found = []
        for run in self.runs.values():
            name = self._pod_name(run)
            pod = self._seen.pod(self._key, name)
            why = why_waiting(pod, now, event=self._complaints.get(name, "")) if pod and not run.given else None
            if pod is None and self._work.refusals.why is not None:
                why = self._work.refusals.why
            if why is not None:
                found.append((run.trial, why))
        return found

    def pod_of(self, trial: Trial) -> Object | None:
        """Return the pod of a trial's latest attempt, if it is there."""
        run = self.runs.get(trial.trial_id)
        attempt = run.pod_attempt if run is not None else trial.attempt
        return self._seen.pod(self._key, names.pod_name(self._name, trial.trial_id, attempt))

    async def reconcile(self) -> float | None:
        """Bring the pods in line with what should run; return in how many seconds to look again."""
        now = self._clock()
        self._note_endings(now)
        await self._ask_about_silent(now)
        self._stop_overdue(now)
        await self._hear_complaints(now)
        await self._create_missing(now)
        await self._clear_away(now)
        self._observe_capacity()
        return self._next_look(now)

    # -- what should run --

    def _start(self, trial: Trial, attempt: int) -> None:
        trial_id = trial.trial_id
        run = Run(trial, attempt, attempt, resources=trial.resources)
        reserved = self._in_place.take(trial_id, trial.resources)
        if reserved is not None:
            pod = self._seen.pod(self._key, names.pod_name(self._name, trial_id, reserved))
            if pod is not None and not is_leaving(pod, self._work.deleted):
                run.pod_attempt, run.expect_by = reserved, self._clock() + ASK_AGAIN_S
                run.pod_uid = pod["metadata"].get("uid", "")
                self._clearing.keep(pod["metadata"]["name"])
        self.runs[trial_id] = run
        self.changed.add(trial_id)
        self._in_place.started(run)
        self._hosted.trial_started(trial)

    def _end_run(self, trial: Trial) -> None:
        self.changed.add(trial.trial_id)
        run = self.runs.pop(trial.trial_id, None)
        if run is not None:
            self._clearing.part(self._pod_name(run), self._clock())
        if trial.ended:
            self._in_place.ended(trial.trial_id)
            self._hosted.trial_ended(trial)

    def note_reported_end(self, trial_id: str, attempt: int, end: AttemptEnd) -> None:
        """An attempt said how it ended; a pod that goes on in place stays."""
        run = self.runs.get(trial_id)
        if end.asks and run is not None and run.attempt == attempt:
            self._in_place.reserve(run)

    def _give(self, run: Run, request: AssignmentRequest) -> AssignmentAnswer:
        trial = run.trial
        if not run.given:
            run.given = True
            run.expect_by = 0.0
            self._hosted.apply(
                AttemptStarted(
                    trial_id=trial.trial_id,
                    attempt=run.attempt,
                    pid=request.pid,
                    hostname=request.hostname,
                    node_ip=request.node_ip,
                )
            )
            self.changed.add(trial.trial_id)
        self._hosted.last_contact[trial.trial_id] = self._clock()
        assignment = self._hosted.assignment(trial)
        folder = self._hosted.host.files.path(trial).name
        assignment.trial_dir = f"{names.WORK_DIR}/{folder}"
        return AssignmentAnswer(assignment=assignment)

    async def _give_later(self, trial_id: str, pod_attempt: int, request: AssignmentRequest) -> AssignmentAnswer:
        run = await self._in_place.wait(trial_id, pod_attempt)
        if run is None or self.runs.get(trial_id) is not run or not run.trial.running:
            self._hosted.prove()
            return AssignmentAnswer(reason="the trial goes on later, in another pod")
        return self._give(run, request)

    # -- what ended --

    def _note_endings(self, now: float) -> None:
        for run in list(self.runs.values()):
            waits_for_earlier = not run.given and run.pod_attempt != run.attempt
            pod = self._seen.pod(self._key, self._pod_name(run))
            if waits_for_earlier and (now > run.expect_by or pod is None or is_leaving(pod, self._work.deleted)):
                run.make_anew(now)  # it does not come back
            elif pod is None:
                last = self._seen.vanished(run.pod_uid) if run.pod_uid else None
                if last is not None:
                    self._vanished(run, last, now)
            else:
                run.pod_uid = run.pod_uid or pod["metadata"].get("uid", "")
                by_us = pod["metadata"].get("uid") in self._work.deleted
                ending = read_ending(pod, deleted_by_us=by_us, gone=presumed_gone(pod, now))
                if ending is not None:
                    self._ended(run, ending)

    def _vanished(self, run: Run, last: Object, now: float) -> None:
        """A pod was deleted: before its attempt had begun it is made again, else the attempt has ended."""
        if not run.given:
            run.make_anew(now)
            ending = read_ending(last)
            if ending is None or not ending.counts_as_failure:
                return
        else:
            ending = read_ending(last, vanished=True, deleted_by_us=last["metadata"].get("uid") in self._work.deleted)
        if ending is not None:
            self._ended(run, ending)

    def _ended(self, run: Run, ending: Ending) -> None:
        trial = run.trial
        if trial.running and trial.attempt == run.attempt:
            logger.info("attempt %d of %s ended: %s", run.attempt, trial.trial_id, ending.message)
            self._on_ending(trial, ending)
            self._hosted.meter.ended(trial.trial_id, run.attempt, ending.reason, ending.kind)
            end = ending.attempt_end()
            self._hosted.apply(AttemptEnded(trial_id=trial.trial_id, attempt=run.attempt, end=end))

    async def _ask_about_silent(self, now: float) -> None:
        """Ask the server about pods that it may have lost without our hearing of it."""
        for run in list(self.runs.values()):
            heard = max(self._hosted.last_contact.get(run.trial.trial_id, 0.0), run.asked_at, run.created_at)
            pod = self._seen.pod(self._key, self._pod_name(run))
            if not run.given and pod is None and not run.created_at:
                continue
            if now - heard < self._patience_s(run, pod, now):
                continue
            run.asked_at = now
            if await self._work.look_up_pod(self._pod_name(run)):
                continue
            if pod is not None:
                self._seen.take_pod(pod, deleted=True)
            if not run.given:
                run.make_anew(now)
            elif self.runs.get(run.trial.trial_id) is run:
                self._ended(run, _must(read_ending(pod, vanished=True)))
        self._note_endings(now)

    def _patience_s(self, run: Run, pod: Object | None, now: float) -> float:
        if pod is None:
            return MISSING_S
        # Pods may wait in a queue for days, and there may be thousands: the longer, the less often.
        waited = 0.0 if run.given else now - (seconds(pod["metadata"].get("creationTimestamp")) or now)
        return max(SILENT_S, waited / 4)

    async def _hear_complaints(self, now: float) -> None:
        """Ask for the events of one pod that should have begun: what a volume lacks stands nowhere else."""
        if now - self._complaints_at < COMPLAINTS_EVERY_S:
            return
        for run in self.runs.values():
            pod = self._seen.pod(self._key, self._pod_name(run))
            if pod is None or run.given or now - run.created_at < COMPLAINTS_AFTER_S or not node_of(pod):
                continue
            self._complaints_at = now
            if complaint := await self._work.complaint(pod):
                self._complaints = {self._pod_name(run): complaint}
            return
        self._complaints = {}

    # -- making and ending pods --

    def _stop_overdue(self, now: float) -> None:
        for run in list(self.runs.values()):
            if run.stop_at is None or now < run.stop_at:
                continue
            if not run.given:
                cause = "paused" if run.trial.decision == "pause" else "stopped"
                end = AttemptEnd(cause=cause)  # type: ignore[arg-type]  # both are causes
                self._hosted.apply(AttemptEnded(trial_id=run.trial.trial_id, attempt=run.attempt, end=end))

    async def _create_missing(self, now: float) -> None:
        if now < self._work.refusals.until:
            return
        missing = [run for run in self.runs.values() if self._needs_pod(run) and now >= run.not_before]
        trials = self._missing_trials()
        if not missing and not trials:
            return
        # The first alone: where the server refuses it, it would refuse them all.
        if missing and (self._work.refusals.count or len(missing) > 4) and not await self._create(missing.pop(0)):
            return
        waiting = [self._create(run) for run in missing]
        waiting += [self._work.create_trial(trial) for trial in trials if trial.trial_id not in self.runs]
        results = await asyncio.gather(*waiting)
        if all(results):
            self._work.refusals.clear()

    def _needs_pod(self, run: Run) -> bool:
        if run.given or run.created_at or run.expect_by or (run.stop_at is not None):
            return False
        return self._seen.pod(self._key, self._pod_name(run)) is None

    def _missing_trials(self) -> list[Trial]:
        missing = []
        for trial_id in self.changed:
            trial = self._hosted.host.engine.state.trials.get(trial_id)
            if trial is not None and self._seen.trial(self._key, names.trial_name(self._name, trial_id)) is None:
                missing.append(trial)
        return missing

    async def _create(self, run: Run) -> bool:
        """Make the pod of an attempt; return whether it is there."""
        if self.runs.get(run.trial.trial_id) is not run:
            return True
        if run.remade:
            await self._work.look_up_trial(run.trial)  # pods whose owner has gone unseen would go with it at once
        uid = await self._work.create_pod(run.trial, run.attempt, run.resources)
        if uid is None:
            return False
        run.pod_uid, run.created_at = uid, self._clock()
        return True

    async def _clear_away(self, now: float) -> None:
        current = {self._pod_name(run) for run in self.runs.values() if run.stop_at is None or now < run.stop_at}
        stopped = {self._pod_name(run) for run in self.runs.values()} - current

        def stays(pod: Object) -> bool:
            labels = pod["metadata"].get("labels") or {}
            return self._in_place.holds(
                labels.get(names.TRIAL_ID_LABEL, ""), int(labels.get(names.ATTEMPT_LABEL) or "0")
            )

        await self._clearing.clear(now, current, stopped, stays, self._hosted.host.engine.state.trials)

    # -- small parts --

    def _observe_capacity(self) -> None:
        """Without a limit of the user's, run ahead of what has found a place by a few pods only."""
        engine = self._hosted.host.engine
        if engine.state.settings is None or engine.settings.max_concurrent is not None:
            return
        placed = sum(
            1 for run in self.runs.values() if run.given or node_of(self._seen.pod(self._key, self._pod_name(run)))
        )
        slots = placed + AHEAD
        if self._slots is None or slots > self._slots or slots < self._slots - AHEAD:
            self._slots = slots
            self._hosted.apply(CapacityObserved(slots=slots))

    def _next_look(self, looked: float) -> float | None:
        """Return when there is more to do. What was due at this look has been done, or waits for news."""
        times = [at for run in self.runs.values() for at in (run.stop_at, run.expect_by, run.not_before) if at]
        times += self._clearing.times()
        times.append(self._work.refusals.until)
        times = [at for at in times if at > looked]
        if self.runs:
            idle = any(not run.given for run in self.runs.values())
            times.append(looked + (COMPLAINTS_EVERY_S if idle else SILENT_S / 3))
        return max(0.2, min(times) - self._clock()) if times else None

    def _pod_name(self, run: Run) -> str:
        return names.pod_name(self._name, run.trial.trial_id, run.pod_attempt)

    @property
    def _grace_s(self) -> float:
        return grace_seconds(self._experiment().spec)


def _must(ending: Ending | None) -> Ending:
    assert ending is not None
    return ending
