"""The pods of one open experiment: what should run, what does, and what ended.

The engine's actions, once committed, say what should run (`Run`). The watch says what does (`Seen`). `reconcile`
compares the two and acts; it may be called at any time and as often as one likes. Names are deterministic, so doing
something again that was done already is refused by the API server, which is harmless.

Invariants:

* A pod is created only for a committed start, and only when its TuneTrial is there to own it.
* An attempt that has asked for its work ends when its pod has ended or is gone: in the cache, and then by the
  server's own word where only the cache's silence says so.
* One that has not asked yet has done nothing; its pod is simply made again.
* Where an attempt has several pods, its run is that of its head; `group_work` keeps the others beside it.

Owned by the event loop; reconciles of one experiment never overlap.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from trialpod.protocol.messages import AssignmentAnswer, AssignmentRequest, AttemptEnd
from trialpod_operator.api.models import TuneExperiment
from trialpod_operator.cluster import names, queues
from trialpod_operator.cluster.capacity import WAITS_AFTER_S, slots
from trialpod_operator.cluster.clearing import Clearing
from trialpod_operator.cluster.endings import Ending, presumed_gone, read_ending
from trialpod_operator.cluster.group_work import GroupWork
from trialpod_operator.cluster.hosted import HostedExperiment
from trialpod_operator.cluster.in_place import InPlace
from trialpod_operator.cluster.pod_reading import seconds
from trialpod_operator.cluster.pod_resources import total_resources
from trialpod_operator.cluster.pod_work import PodWork, Refusals, node_of
from trialpod_operator.cluster.pods import grace_seconds, reuses_pods
from trialpod_operator.cluster.reuse import Reuse, spare
from trialpod_operator.cluster.run import ASK_AGAIN_S, MadeFor, Run, adopt, is_leaving, made_for
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
from trialpod_operator.engine.settings import Settings
from trialpod_operator.engine.trial import Trial
from trialpod_operator.reports.service import Caller, NotReadyError

logger = logging.getLogger(__name__)

SILENT_S = 45.0
"""After so long without a call from an attempt, the API server is asked what its pod is doing."""

MISSING_S = 5.0
"""And after so long about a pod that should be there, and was not seen."""

MOST_CREATED = 24
"""Pods and TuneTrials that are created in one look: another experiment's requests have their turn in between."""

TOGETHER_S = 20.0
"""So long a pod's question waits for the other pods of its group; then it is to ask again."""

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
        self._more_to_create = False
        self._clearing = Clearing(key, work, seen)
        self._in_place = InPlace(clock)
        self._groups = GroupWork(key, seen, work, clock)
        self._complaints: dict[str, str] = {}  # by pod name: the kubelet's latest warning about it
        self._queue_says = ""  # of the pod that waits first in its queue; the others are behind it
        self._complaints_at = 0.0
        for trial in hosted.host.engine.state.get_trials():
            item = seen.trial(key, names.trial_name(self._name, trial.trial_id))
            if not trial.ended or (item is not None and (item.get("status") or {}).get("state") != trial.status):
                self.changed.add(trial.trial_id)
        for trial in hosted.host.engine.state.running_trials():
            run = self.runs[trial.trial_id] = adopt(key, trial, seen, clock())
            self._make_group(run)
        self._reuse: Reuse | None = None
        if reuses_pods(experiment().spec):
            self._reuse = Reuse(key, seen, work, clock, wake, lambda name: self._clearing.part(name, clock()))
            self._reuse.adopt(self.runs.values())
            for run in self.runs.values():
                if not run.given and not run.expect_by and self._own_pod(run) is None:
                    self._reuse.take(run)

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
        which = trial_id, int(number)
        run = self.runs.get(trial_id)
        if self._reuse is not None:
            run = next((each for each in self.runs.values() if each.made_for == which), None)
            current = run if run is not None and run.trial.running and run.trial.attempt == run.attempt else None
            stays = self._in_place.holds(*which)  # a pod of an operator that reused none
            if request.afresh and not stays and (current is None or not self._reuse.is_bound(current)):
                return self._give_in_turn(self._reuse, which, current, request)
        if run is not None and run.made_for == which and run.trial.running:
            return self._give(run, request) if run.group is None or run.given else self._give_together(run, request)
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
            run = self.runs.get(trial_id)
            if run is not None and not run.given and self._seen.vanished(caller.pod_uid) is None:
                # Nobody has asked for the attempt yet: the caller may be the pod made anew, which is not seen yet.
                raise NotReadyError(f"pod {caller.pod_name} is not known here yet")
            return f"pod {caller.pod_name} is another one than the caller"
        which = made_for(pod)
        run = self.runs.get(trial_id)
        has_it = which is not None and run is not None and run.given and run.made_for == which
        if not has_it and (metadata.get("labels") or {}).get(names.TRIAL_ID_LABEL) != trial_id:
            return f"pod {caller.pod_name} does not belong to trial {trial_id}"
        return self._owned_by(pod, which[0] if which is not None else trial_id)

    def admits(self, caller: Caller, trial_id: str, attempt: int) -> str:
        """Return "" if that pod may ask for work as the one that was made for the attempt, else why not.

        Raises:
            NotReadyError: the pod is not known yet.
        """
        pod = self._seen.pod(self._key, caller.pod_name)
        which = made_for(pod) if pod is not None else None
        if pod is None or which is None or pod["metadata"].get("uid") != caller.pod_uid:
            return self.permits(caller, trial_id)
        if which != (trial_id, attempt):
            return f"pod {caller.pod_name} was made for attempt {which[1]} of trial {which[0]}"
        return self._owned_by(pod, trial_id)

    def _owned_by(self, pod: Object, trial_id: str) -> str:
        """Return "" if a trial owns the pod, else why that matters."""
        metadata = pod["metadata"]
        trial = self._seen.trial(self._key, names.trial_name(self._name, trial_id))
        owners = {owner.get("uid") for owner in metadata.get("ownerReferences") or [] if owner.get("controller")}
        if trial is not None and trial["metadata"].get("uid") not in owners:
            return f"pod {metadata['name']} does not belong to trial {trial_id}"
        return ""

    def waits(self, now: float) -> list[tuple[Trial, Waiting]]:
        """Return why attempts that should run do not, for those that do not."""
        found = []
        for run in self.runs.values():
            name = self._pod_name(run)
            pod = self._seen.pod(self._key, name)
            said = self._queue_says if pod and queues.is_held(pod) else self._complaints.get(name, "")
            why = why_waiting(pod, now, event=said) if pod and not run.given else None
            if pod is None and self._work.refusals.why is not None:
                why = self._work.refusals.why
            why = why or self._groups.wait_reason(run, now)
            if why is not None:
                found.append((run.trial, why))
        return found

    @property
    def waiting_since(self) -> float | None:
        """Since when the attempt waits that waits longest to take up its work; None when none does."""
        return min((run.trial.started_at for run in self.runs.values() if not run.given), default=None)

    def pod_of(self, trial: Trial) -> Object | None:
        """Return the pod of a trial's latest attempt, if it is there."""
        run = self.runs.get(trial.trial_id)
        if run is not None:
            return self._own_pod(run)
        return self._seen.pod(self._key, names.pod_name(self._name, trial.trial_id, trial.attempt))

    async def reconcile(self) -> float | None:
        """Bring the pods in line with what should run; return in how many seconds to look again."""
        now = self._clock()
        self._note_endings(now)
        await self._ask_about_silent(now)
        await self._keep_groups(now)
        self._stop_overdue(now)
        await self._serve_idle(now)
        await self._hear_complaints(now)
        await self._create_missing(now)
        await self._clear_away(now)
        if self._hosted.host.engine.state.settings is not None:
            self.observe_capacity(self._hosted.host.engine.settings)
        return self._next_look(now)

    # -- what should run --

    def _start(self, trial: Trial, attempt: int) -> None:
        trial_id = trial.trial_id
        run = Run(trial, attempt, attempt, resources=trial.resources)
        self._make_group(run)
        reserved = self._in_place.take(trial_id, trial.resources)
        if reserved is not None and run.group is None:
            pod = self._seen.pod(self._key, names.pod_name(self._name, trial_id, reserved))
            if pod is not None and not is_leaving(pod, self._work.deleted):
                run.pod_attempt, run.expect_by = reserved, self._clock() + ASK_AGAIN_S
                run.pod_uid = pod["metadata"].get("uid", "")
                self._clearing.keep(pod["metadata"]["name"])
        elif self._reuse is not None and self._reuse.take(run):
            self._clearing.keep(self._pod_name(run))
        self.runs[trial_id] = run
        self.changed.add(trial_id)
        self._in_place.started(run)
        self._hosted.trial_started(trial)

    def _end_run(self, trial: Trial) -> None:
        self.changed.add(trial.trial_id)
        run = self.runs.pop(trial.trial_id, None)
        if run is not None:
            self._clearing.part(self._pod_name(run), self._clock(), self._groups.names(run))
            if run.group is not None:
                run.group.release()
        if trial.ended:
            self._in_place.ended(trial.trial_id)
            self._hosted.trial_ended(trial)

    def note_reported_end(self, trial_id: str, attempt: int, end: AttemptEnd) -> AttemptEnd:
        """An attempt said how it ended; return how it did. A pod that goes on in place stays.

        Raises:
            NotReadyError: it failed, and its workers have to be looked at first.
        """
        run = self.runs.get(trial_id)
        if run is None or run.attempt != attempt:
            return end
        if run.group is None:
            if end.asks and not (self._reuse is not None and self._reuse.expect(run)):
                self._in_place.reserve(run)
            return end
        now = self._clock()
        self._groups.note(run, now)
        judged = run.group.judge_told(end, now)
        if judged is None:
            self._wake()
            raise NotReadyError("the other pods of the attempt are being looked at")
        return msgspec.structs.replace(judged, asks=False)

    def _give(self, run: Run, request: AssignmentRequest) -> AssignmentAnswer:
        trial = run.trial
        if request.rank and (run.group is None or request.rank > run.group.replicas):
            return AssignmentAnswer(reason=f"the trial has no worker {request.rank}")
        if run.group is not None and not self._groups.address(run):
            raise NotReadyError("the address of the trial's head is not known yet")
        if not run.given:
            run.given = True
            run.expect_by = 0.0
            if self._reuse is not None:
                self._reuse.began(run)
            self._hosted.apply(
                AttemptStarted(
                    trial_id=trial.trial_id,
                    attempt=run.attempt,
                    pid=request.pid,
                    hostname=request.hostname,
                    node_ip=request.node_ip,
                    resources=self._resources(run),
                    place=names.runner_id(*run.made_for) if run.takes_over else "",
                )
            )
            self.changed.add(trial.trial_id)
        else:
            # The pod may have told another operator, which has gone on from here, that the attempt is over.
            self._hosted.prove()
        if not request.rank:
            self._hosted.last_contact[trial.trial_id] = self._clock()
        assignment = self._hosted.assignment(trial)
        assignment.reuse = self._reuse is not None and request.afresh
        if run.group is not None:
            assignment.rank, assignment.world_size = request.rank, run.group.size
            assignment.master_addr = self._groups.address(run)
        folder = self._hosted.host.files.path(trial).name
        assignment.trial_dir = f"{names.WORK_DIR}/{folder}"
        return AssignmentAnswer(assignment=assignment)

    def _resources(self, run: Run) -> dict[str, float]:
        """Return what the run's pods take, for the account: as they are, since templates and defaults shape them."""
        if run.takes_over:
            pod = self._own_pod(run)
            return total_resources([pod]) if pod is not None else {}
        labels = {names.TRIAL_ID_LABEL: run.trial.trial_id, names.ATTEMPT_LABEL: str(run.pod_attempt)}
        pods = [
            pod
            for pod in self._seen.pods(self._key)
            if labels.items() <= (pod["metadata"].get("labels") or {}).items()
        ]
        if pods:
            return total_resources(pods)
        return dict(run.resources or self._hosted.plan.resources_for(run.trial.config))

    async def _give_later(self, trial_id: str, pod_attempt: int, request: AssignmentRequest) -> AssignmentAnswer:
        run = await self._in_place.wait(trial_id, pod_attempt)
        if run is None or self.runs.get(trial_id) is not run or not run.trial.running:
            self._hosted.prove()
            return AssignmentAnswer(reason="the trial goes on later, in another pod")
        return self._give(run, request)

    # -- pods that run one trial after the other --

    async def _give_in_turn(
        self, reuse: Reuse, which: MadeFor, run: Run | None, request: AssignmentRequest
    ) -> AssignmentAnswer:
        run = await reuse.ask(which, run)
        if run is None:
            self._hosted.prove()
            return AssignmentAnswer(reason="there is no more work for this pod")
        current = self.runs.get(run.trial.trial_id) is run and run.trial.running
        if not current or run.trial.attempt != run.attempt or run.made_for != which:
            raise NotReadyError("the pod's next trial is another one now")
        return self._give(run, request)

    async def _serve_idle(self, now: float) -> None:
        if self._reuse is None:
            return
        engine = self._hosted.host.engine

        def needed() -> int | None:
            # What is decided and not carried out yet may need any of them.
            settled = self._hosted.committed_now and engine.state.settings is not None
            return spare(engine, len(self.runs)) if settled else None

        await self._reuse.serve(now, self.runs, engine.state.trials, needed)

    # -- groups --

    def _make_group(self, run: Run) -> None:
        workers = self._experiment().spec.workers
        if workers is not None:
            self._groups.make(run, workers.replicas, workers.start_timeout_seconds)

    async def _give_together(self, run: Run, request: AssignmentRequest) -> AssignmentAnswer:
        """Give a pod of a group its work when all of them have asked."""
        group = run.group
        pod = self._groups.pod(run, request.rank)
        if group is None or pod is None:
            raise NotReadyError("the pod is not known here yet")
        group.join(request, pod["metadata"].get("uid", ""), self._clock())
        if not self._begin_group(run):
            self._wake()  # its timeout counts from now
            await group.wait(TOGETHER_S)
        if self.runs.get(run.trial.trial_id) is not run or not run.trial.running:
            self._hosted.prove()
            return AssignmentAnswer(reason="the attempt was over before all pods of the trial ran")
        committed = self._hosted.committed()  # here, not of whoever has taken over meanwhile
        if committed is not None:
            await committed
        if not run.given:
            raise NotReadyError("other pods of the trial do not run yet")
        return self._give(run, request)

    def _begin_group(self, run: Run) -> bool:
        """Begin the attempt of a group if all its pods are there."""
        group = run.group
        if group is None or run.given or run.stop_at is not None or not self._groups.is_complete(run):
            return False
        assert group.head_request is not None
        self._give(run, group.head_request)
        self._groups.began(run)
        return True

    async def _keep_groups(self, now: float) -> None:
        for run in list(self.runs.values()):
            await self._groups.look(run, now)
        self._note_endings(now)
        for run in list(self.runs.values()):
            self._begin_group(run)
        await self._groups.end_heads(list(self.runs.values()))

    # -- what ended --

    def _note_endings(self, now: float) -> None:
        for run in list(self.runs.values()):
            ended = self._groups.note(run, now)
            if ended is not None:
                self._ended(run, ended)
                continue
            waits_for_earlier = not run.given and run.takes_over
            pod = self._seen.pod(self._key, self._pod_name(run))
            if waits_for_earlier and (now > run.expect_by or pod is None or is_leaving(pod, self._work.deleted)):
                run.make_anew(now)  # it does not come back
            elif pod is None:
                last = self._seen.vanished(run.pod_uid) if run.pod_uid else None
                if last is not None:
                    self._vanished(run, last, now)
            else:
                if pod is run.alive and "deletionTimestamp" not in pod["metadata"]:
                    continue  # nothing new; and there are thousands
                run.pod_uid = run.pod_uid or pod["metadata"].get("uid", "")
                by_us = pod["metadata"].get("uid") in self._work.deleted
                ending = read_ending(pod, deleted_by_us=by_us, gone=presumed_gone(pod, now))
                run.alive = pod if ending is None else None
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
            if run.group is not None and run.given:
                judged = run.group.judge_read(ending, self._clock())
                if judged is None:
                    return  # known when its workers have been looked at
                ending = judged
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
        """Ask for the events of one pod that should have begun: what a volume lacks stands nowhere else.

        Of the pods that wait in a queue, Kueue is asked about the first.
        """
        if now - self._complaints_at < COMPLAINTS_EVERY_S:
            return
        held = [
            pod for pod in map(self._own_pod, self.runs.values()) if pod is not None and _waits_in_queue(pod, now)
        ]
        if held:
            self._complaints_at = now
            first = min(held, key=lambda pod: (pod["metadata"].get("creationTimestamp"), pod["metadata"]["name"]))
            self._queue_says = await self._work.queue_words(first)
        else:
            self._queue_says = ""
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
        self._more_to_create = False
        if now < self._work.refusals.until:
            return
        missing = [run for run in self.runs.values() if self._needs_pod(run) and now >= run.not_before]
        first = self._groups.first_in_line(self.runs.values())
        if first is None:
            first = next((run for run in missing if run.group is not None), None)
        late = {run.trial.trial_id for run in missing if run.group is not None and run is not first}
        missing = [run for run in missing if run.trial.trial_id not in late]
        without = {run.trial.trial_id for run in self.runs.values() if not run.pod_trial} - late  # their pods wait
        trials = [each for each in self._missing_trials() if each.trial_id not in without]
        if not missing and not trials:
            return
        # The first alone: where the server refuses it, it would refuse them all.
        if missing and (self._work.refusals.count or len(missing) > 4) and not await self._create(missing.pop(0)):
            return
        self._more_to_create = len(missing) + len(trials) > MOST_CREATED
        waiting = [self._create(run) for run in missing[:MOST_CREATED]]
        waiting += [self._work.create_trial(trial) for trial in trials[: max(0, MOST_CREATED - len(waiting))]]
        results = await asyncio.gather(*waiting)
        if all(results):
            self._work.refusals.clear()

    def _needs_pod(self, run: Run) -> bool:
        return self._needs_head(run) or bool(self._groups.missing(run))

    def _needs_head(self, run: Run) -> bool:
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
        if self._needs_head(run):
            uid = await self._work.create_pod(run.trial, run.attempt, run.resources)
            if uid is None:
                return False
            run.pod_uid, run.created_at = uid, self._clock()
        ranks = self._groups.missing(run)
        uids = await asyncio.gather(*(self._create_worker(run, rank) for rank in ranks))
        return all(uids)

    async def _create_worker(self, run: Run, rank: int) -> bool:
        uid = await self._work.create_pod(run.trial, run.attempt, run.resources, rank)
        if uid is not None:
            self._groups.created(run, rank, uid)
        return uid is not None

    async def _clear_away(self, now: float) -> None:
        current, stopped = set[str](), set[str]()
        for run in self.runs.values():
            goes_on = run.stop_at is None or now < run.stop_at
            (current if goes_on else stopped).update({self._pod_name(run)} | self._groups.names(run))

        def stays(pod: Object) -> bool:
            if self._reuse is not None and self._reuse.holds(pod):
                return True
            labels = pod["metadata"].get("labels") or {}
            return self._in_place.holds(
                labels.get(names.TRIAL_ID_LABEL, ""), int(labels.get(names.ATTEMPT_LABEL) or "0")
            )

        await self._clearing.clear(now, current, stopped, stays, self._hosted.host.engine.state.trials)

    # -- small parts --

    def observe_capacity(self, settings: Settings) -> None:
        """Say how many attempts may be under way; before settings are applied, as they will be."""
        pods = [(run, self._own_pod(run)) for run in self.runs.values()]
        now, spec = self._clock(), self._experiment().spec
        known = self._hosted.host.engine.state.flags.slots
        found = slots(
            known,
            sum(1 for run, pod in pods if run.given or node_of(pod)),
            settings.max_concurrent,
            queued=bool(queues.queue_of(spec.template)) or any(pod and queues.queue_of(pod) for _, pod in pods),
            waits=any(pod is not None and _waits_in_queue(pod, now) for _, pod in pods),
            grouped=spec.workers is not None,
        )
        if found is not None:
            self._hosted.apply(CapacityObserved(slots=found))

    def _next_look(self, looked: float) -> float | None:
        """Return when there is more to do. What was due at this look has been done, or waits for news."""
        times = [at for run in self.runs.values() for at in (run.stop_at, run.expect_by, run.not_before) if at]
        times += self._clearing.times()
        times += self._groups.times(self.runs.values())
        times += self._reuse.times() if self._reuse is not None else []
        times.append(self._work.refusals.until)
        times = [at for at in times if at > looked]
        if self.runs:
            idle = any(not run.given for run in self.runs.values())
            times.append(looked + (COMPLAINTS_EVERY_S if idle else SILENT_S / 3))
        if self._more_to_create and self._work.refusals.why is None:
            return 0.0
        return max(0.2, min(times) - self._clock()) if times else None

    def _own_pod(self, run: Run) -> Object | None:
        return self._seen.pod(self._key, self._pod_name(run))

    def _pod_name(self, run: Run) -> str:
        return names.pod_name(self._name, *run.made_for)

    @property
    def _grace_s(self) -> float:
        return grace_seconds(self._experiment().spec)


def _waits_in_queue(pod: Object, now: float) -> bool:
    created = seconds(pod["metadata"].get("creationTimestamp"))
    return queues.is_held(pod) and created is not None and now - created >= WAITS_AFTER_S


def _must(ending: Ending | None) -> Ending:
    assert ending is not None
    return ending
