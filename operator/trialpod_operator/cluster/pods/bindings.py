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

import logging
from collections.abc import Callable, Collection

import msgspec

from trialpod.protocol.messages import AttemptEnd
from trialpod_operator.api.models import TuneExperiment, TuneExperimentSpec
from trialpod_operator.cluster import names
from trialpod_operator.cluster.cache import Object, Seen
from trialpod_operator.cluster.hosted import HostedExperiment
from trialpod_operator.cluster.pods import queues
from trialpod_operator.cluster.pods.assignments import Assignments
from trialpod_operator.cluster.pods.binding import ASK_AGAIN_S, Run, adopt, is_leaving
from trialpod_operator.cluster.pods.build import grace_seconds, reuses_pods, spec_digest
from trialpod_operator.cluster.pods.creation import PodCreation
from trialpod_operator.cluster.pods.diagnostics import EVERY_S, SILENT_S, AttemptEndings, Complaints, waits_in_queue
from trialpod_operator.cluster.pods.experiment_pods import Shared
from trialpod_operator.cluster.pods.garbage_collector import Clearing
from trialpod_operator.cluster.pods.group_work import GroupWork
from trialpod_operator.cluster.pods.pending import Waiting
from trialpod_operator.cluster.pods.pod_work import PodWork, Refusals, node_of
from trialpod_operator.cluster.pods.queues import slots
from trialpod_operator.cluster.pods.reuse import InPlace, Reuse, spare
from trialpod_operator.cluster.pods.terminated import Ending
from trialpod_operator.engine.actions import (
    Action,
    StartAttempt,
    StopAttempt,
    TrialCreated,
    TrialEnded,
    TrialRequeued,
)
from trialpod_operator.engine.events import AttemptEnded, CapacityObserved
from trialpod_operator.engine.settings import Settings
from trialpod_operator.engine.trial import Trial
from trialpod_operator.reports.service import NotReadyError

logger = logging.getLogger(__name__)


class Runs:
    """Keeps the pods of one experiment as its engine wants them.

    Args:
        key, experiment, hosted, work, seen, clock, wake: as in `Shared`.
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
        self._shared = Shared(
            key, experiment, hosted, work, seen, clock, wake, GroupWork(key, seen, work, clock), InPlace(clock)
        )
        self._clearing = Clearing(key, work, seen)
        self._endings = AttemptEndings(self._shared, on_ending)
        self._creation = PodCreation(self._shared)
        self._complaints = Complaints(self._shared)
        self.assignments = Assignments(self._shared)
        self._digested: TuneExperimentSpec | None = None
        self._digest = ""  # of that spec
        self._take_over()

    def _take_over(self) -> None:
        """Find the pods of the attempts that were under way."""
        shared = self._shared
        state = shared.hosted.host.engine.state
        for trial in state.get_trials():
            item = shared.seen.trial(shared.key, names.trial_name(shared.name, trial.trial_id))
            if not trial.ended or item is None or (item.get("status") or {}).get("state") != trial.status:
                shared.changed.add(trial.trial_id)
        for trial in state.running_trials():
            run = shared.runs[trial.trial_id] = adopt(shared.key, trial, shared.seen, shared.clock())
            self._make_group(run)
        if reuses_pods(shared.experiment().spec):
            shared.reuse = Reuse(
                shared.key,
                shared.seen,
                shared.work,
                shared.clock,
                shared.wake,
                lambda name: self._clearing.part(name, shared.clock()),
            )
            shared.reuse.adopt(shared.runs.values())
            for run in shared.runs.values():
                if not run.given and not run.expect_by and shared.own_pod(run) is None:
                    shared.reuse.take(run)

    # -- for the experiment's controller --

    @property
    def refusals(self) -> Refusals:
        """Why the API server does not take new pods or trials."""
        return self._shared.work.refusals

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
            for run in self._shared.runs.values()
            if not run.given or self._shared.own_pod(run) is not None
        ]

    @property
    def changed(self) -> set[str]:
        """Ids of trials whose TuneTrial has to be looked at; whoever has done so takes them out."""
        return self._shared.changed

    @property
    def under_way(self) -> Collection[str]:
        """Ids of the trials that have an attempt which should have a pod."""
        return self._shared.runs.keys()

    def waits(self, now: float) -> list[tuple[Trial, Waiting]]:
        """Return why attempts that should run do not, for those that do not."""
        return self._complaints.waits(now)

    def perform(self, action: Action) -> None:
        """Take in a committed action."""
        match action:
            case TrialCreated(trial=trial):
                self._shared.changed.add(trial.trial_id)
            case StartAttempt(trial=trial, attempt=attempt):
                self._start(trial, attempt)
            case StopAttempt(trial=trial, attempt=attempt):
                run = self._shared.runs.get(trial.trial_id)
                if run is not None and run.attempt == attempt and run.stop_at is None:
                    hangs = not run.given or trial.overdue  # and will not end by itself
                    run.stop_at = self._shared.clock() + (0.0 if hangs else self._grace_s)
                    self._shared.changed.add(trial.trial_id)
            case TrialEnded(trial=trial) | TrialRequeued(trial=trial):
                self._end_run(trial)
        self._shared.wake()

    @property
    def waiting_since(self) -> float | None:
        """Since when the attempt waits that waits longest to take up its work; None when none does."""
        return min((run.trial.started_at for run in self._shared.runs.values() if not run.given), default=None)

    def pod_of(self, trial: Trial) -> Object | None:
        """Return the pod of a trial's latest attempt, if it is there."""
        run = self._shared.runs.get(trial.trial_id)
        if run is not None:
            return self._shared.own_pod(run)
        return self._shared.seen.pod(
            self._shared.key, names.pod_name(self._shared.name, trial.trial_id, trial.attempt)
        )

    async def reconcile(self) -> float | None:
        """Bring the pods in line with what should run; return in how many seconds to look again."""
        now = self._shared.clock()
        self._endings.note(now)
        await self._endings.ask_about_silent(now)
        await self._keep_groups(now)
        self._stop_overdue(now)
        await self._replace_outdated()
        await self._serve_idle(now)
        await self._complaints.hear(now)
        await self._creation.create_missing(now)
        await self._clear_away(now)
        if self._shared.hosted.host.engine.state.settings is not None:
            self.observe_capacity(self._shared.hosted.host.engine.settings)
        return self._next_look(now)

    # -- what should run --

    def _start(self, trial: Trial, attempt: int) -> None:
        trial_id = trial.trial_id
        run = Run(trial, attempt, attempt, resources=trial.resources)
        self._make_group(run)
        reserved = self._shared.in_place.take(trial_id, trial.resources)
        if reserved is not None and run.group is None:
            pod = self._shared.seen.pod(self._shared.key, names.pod_name(self._shared.name, trial_id, reserved))
            if pod is not None and not is_leaving(pod, self._shared.work.deleted):
                run.pod_attempt, run.expect_by = reserved, self._shared.clock() + ASK_AGAIN_S
                run.pod_uid = pod["metadata"].get("uid", "")
                self._clearing.keep(pod["metadata"]["name"])
        elif self._shared.reuse is not None and self._shared.reuse.take(run):
            self._clearing.keep(self._shared.pod_name(run))
        self._shared.runs[trial_id] = run
        self._shared.changed.add(trial_id)
        self._shared.in_place.started(run)
        self._shared.hosted.trial_started(trial)

    def _end_run(self, trial: Trial) -> None:
        self._shared.changed.add(trial.trial_id)
        run = self._shared.runs.pop(trial.trial_id, None)
        if run is not None:
            self._clearing.part(self._shared.pod_name(run), self._shared.clock(), self._shared.groups.names(run))
            if run.group is not None:
                run.group.release()
        if trial.ended:
            self._shared.in_place.ended(trial.trial_id)
            self._shared.hosted.trial_ended(trial)

    def note_reported_end(self, trial_id: str, attempt: int, end: AttemptEnd) -> AttemptEnd:
        """An attempt said how it ended; return how it did. A pod that goes on in place stays.

        Raises:
            NotReadyError: it failed, and its workers have to be looked at first.
        """
        run = self._shared.runs.get(trial_id)
        if run is None or run.attempt != attempt:
            return end
        if run.group is None:
            if end.asks and not (self._shared.reuse is not None and self._shared.reuse.expect(run)):
                self._shared.in_place.reserve(run)
            return end
        now = self._shared.clock()
        self._endings.note_group(run, now)
        judged = run.group.judge_told(end, now, failing=run.trial.failing is not None)
        if judged is None:
            self._shared.wake()
            raise NotReadyError("the other pods of the attempt are being looked at")
        return msgspec.structs.replace(judged, asks=False)

    # -- pods that run one trial after the other --

    async def _serve_idle(self, now: float) -> None:
        if self._shared.reuse is None:
            return
        engine = self._shared.hosted.host.engine

        def needed() -> int | None:
            # What is decided and not carried out yet may need any of them.
            settled = self._shared.hosted.committed_now and engine.state.settings is not None
            return spare(engine, len(self._shared.runs)) if settled else None

        await self._shared.reuse.serve(now, self._shared.runs, engine.state.trials, needed)

    # -- groups --

    def _make_group(self, run: Run) -> None:
        workers = self._shared.experiment().spec.workers
        if workers is not None:
            self._shared.groups.make(run, workers.replicas, workers.start_timeout_seconds)

    async def _keep_groups(self, now: float) -> None:
        if all(run.group is None for run in self._shared.runs.values()):
            return
        for run in list(self._shared.runs.values()):
            await self._shared.groups.look(run, now)
        self._endings.note(now)
        for run in list(self._shared.runs.values()):
            self.assignments.begin_group(run)
        await self._shared.groups.end_heads(list(self._shared.runs.values()))

    # -- making and ending pods --

    def _stop_overdue(self, now: float) -> None:
        for run in list(self._shared.runs.values()):
            if run.stop_at is None or now < run.stop_at:
                continue
            if not run.given:
                cause = "paused" if run.trial.decision == "pause" else "stopped"
                end = AttemptEnd(cause=cause)  # type: ignore[arg-type]  # both are causes
                self._shared.hosted.apply(AttemptEnded(trial_id=run.trial.trial_id, attempt=run.attempt, end=end))

    async def _replace_outdated(self) -> None:
        """Delete pods that wait on their nodes and were made from an earlier image, template or resources.

        Their attempts have done nothing yet, and get pods as the manifest is now: a corrected image helps at once.
        """
        spec = self._shared.experiment().spec
        if spec is not self._digested:
            self._digested, self._digest = spec, spec_digest(spec)
        for run in list(self._shared.runs.values()):
            if run.given or run.takes_over or run.stop_at is not None:
                continue
            group = run.group is not None
            known = (self._shared.seen.pod(self._shared.key, name) for name in self._shared.groups.names(run))
            pods = [pod for pod in (self._shared.own_pod(run), *(known if group else ())) if pod is not None]
            if not any(self._is_outdated(pod) for pod in pods):
                continue
            if group:  # its pods belong together: all are those of another attempt
                words = "spec.image, spec.resources or spec.template was changed before it began"
                end = AttemptEnd(cause="preempted", error=words)
                self._shared.hosted.apply(AttemptEnded(trial_id=run.trial.trial_id, attempt=run.attempt, end=end))
            for pod in pods:
                if not is_leaving(pod, self._shared.work.deleted):
                    await self._shared.work.delete_pod(pod, 0)

    def _is_outdated(self, pod: Object) -> bool:
        made_from = (pod["metadata"].get("annotations") or {}).get(names.SPEC_ANNOTATION, self._digest)
        waits = (pod.get("status") or {}).get("phase") in (None, "", "Pending") and not queues.is_held(pod)
        return made_from != self._digest and waits and not is_leaving(pod, self._shared.work.deleted)

    async def _clear_away(self, now: float) -> None:
        current, stopped = set[str](), set[str]()
        for run in self._shared.runs.values():
            goes_on = run.stop_at is None or now < run.stop_at
            which = current if goes_on else stopped
            which.add(self._shared.pod_name(run))
            if run.group is not None:
                which |= self._shared.groups.names(run)

        def stays(pod: Object) -> bool:
            if self._shared.reuse is not None and self._shared.reuse.holds(pod):
                return True
            labels = pod["metadata"].get("labels") or {}
            return self._shared.in_place.holds(
                labels.get(names.TRIAL_ID_LABEL, ""), int(labels.get(names.ATTEMPT_LABEL) or "0")
            )

        await self._clearing.clear(now, current, stopped, stays, self._shared.hosted.host.engine.state.trials)

    # -- small parts --

    def observe_capacity(self, settings: Settings) -> None:
        """Say how many attempts may be under way; before settings are applied, as they will be."""
        now, spec = self._shared.clock(), self._shared.experiment().spec
        pods, placed, queued = [], 0, bool(queues.queue_of(spec.template))
        for run in self._shared.runs.values():
            pod = self._shared.own_pod(run)
            placed += run.given or bool(node_of(pod))
            if pod is not None:
                pods.append(pod)
                queued = queued or bool(queues.queue_of(pod))
        known = self._shared.hosted.host.engine.state.flags.slots
        found = slots(
            known,
            placed,
            settings.max_concurrent,
            queued=queued,
            waits=queued and any(waits_in_queue(pod, now) for pod in pods),
            grouped=spec.workers is not None,
        )
        if found is not None:
            self._shared.hosted.apply(CapacityObserved(slots=found))

    def _next_look(self, looked: float) -> float | None:
        """Return when there is more to do. What was due at this look has been done, or waits for news."""
        times = [
            at for run in self._shared.runs.values() for at in (run.stop_at, run.expect_by, run.not_before) if at
        ]
        times += self._clearing.times()
        times += self._shared.groups.times(self._shared.runs.values())
        times += self._shared.reuse.times() if self._shared.reuse is not None else []
        times.append(self._shared.work.refusals.until)
        times = [at for at in times if at > looked]
        if self._shared.runs:
            idle = any(not run.given for run in self._shared.runs.values())
            times.append(looked + (EVERY_S if idle else SILENT_S / 3))
        if self._creation.more and self._shared.work.refusals.why is None:
            return 0.0
        return max(0.2, min(times) - self._shared.clock()) if times else None

    @property
    def _grace_s(self) -> float:
        return grace_seconds(self._shared.experiment().spec)
