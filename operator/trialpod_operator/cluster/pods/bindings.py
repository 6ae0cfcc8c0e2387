"""The pods of one open experiment: what should run, what does, and what ended.

The engine's committed actions say what should run (`PodBinding`), the cache says what does (`ObjectCache`).
`reconcile` compares the two and acts; it may be called at any time. Names are deterministic, so the API server
refuses to create an object twice, which is harmless.

Invariants:

* A pod is created only for a committed start, and only when its TuneTrial is there to own it.
* An attempt that has requested its assignment ends when its pod has ended or is gone: as the cache shows, and, if the
  pod is only missing in the cache, as the API server confirms.
* One that has not requested it has done nothing; its pod is simply recreated.
* Where an attempt has several pods, its binding is that of its head, the pod of rank 0; `group_work` handles the
  others.

Owned by the event loop; reconciles of one experiment never overlap.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterable

import msgspec

from trialpod.protocol.messages import AttemptEnd
from trialpod_operator.api.models import TuneExperiment, TuneExperimentSpec
from trialpod_operator.cluster import names
from trialpod_operator.cluster.cache import Object, ObjectCache
from trialpod_operator.cluster.metrics.instruments import ExperimentMeter
from trialpod_operator.cluster.pods import queues
from trialpod_operator.cluster.pods.assignments import Assignments
from trialpod_operator.cluster.pods.attention import Look
from trialpod_operator.cluster.pods.binding import (
    NEXT_ASSIGNMENT_TIMEOUT_S,
    PodBinding,
    adopt,
    attempt_label,
    is_leaving,
)
from trialpod_operator.cluster.pods.build import grace_seconds, reuses_pods, spec_digest
from trialpod_operator.cluster.pods.creation import PodCreation
from trialpod_operator.cluster.pods.diagnostics import (
    POLL_INTERVAL_S,
    SILENT_S,
    AttemptEndings,
    PodDiagnostics,
    waits_in_queue,
)
from trialpod_operator.cluster.pods.experiment_pods import ExperimentPods
from trialpod_operator.cluster.pods.garbage_collector import PodGarbageCollector
from trialpod_operator.cluster.pods.group_work import GroupWork
from trialpod_operator.cluster.pods.pending import PendingReason
from trialpod_operator.cluster.pods.pod_work import PodWork, Rejections
from trialpod_operator.cluster.pods.queues import slots
from trialpod_operator.cluster.pods.reading import node_of
from trialpod_operator.cluster.pods.reuse import IdlePods, InPlaceReservations, max_idle_pods
from trialpod_operator.cluster.pods.sigterm import judge_sigterm
from trialpod_operator.cluster.pods.terminated import Termination, blame_beside
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
from trialpod_operator.experiment.durable import DurableExperiment, NotReadyError

logger = logging.getLogger(__name__)

SLICE = 250
"""Number of attempts that a pass visits before it yields to other experiments."""

COMMIT_TIMEOUT_S = 1.0
"""Maximum time that one pass waits for the storage before it ends the heads of groups that have failed."""


class PodBindings:
    """Keeps the pods of one experiment in line with its engine.

    Args:
        key, experiment, durable, meter, work, cache, clock, enqueue: as in `ExperimentPods`.
        on_ending: called with every ending that was read from a pod.
    """

    def __init__(
        self,
        key: str,
        experiment: Callable[[], TuneExperiment],
        durable: DurableExperiment,
        meter: ExperimentMeter,
        work: PodWork,
        cache: ObjectCache,
        clock: Callable[[], float],
        enqueue: Callable[[], None],
        on_ending: Callable[[Trial, Termination], None],
    ) -> None:
        self._pods = ExperimentPods(
            key,
            experiment,
            durable,
            meter,
            work,
            cache,
            clock,
            enqueue,
            GroupWork(key, cache, work, clock),
            InPlaceReservations(clock),
        )
        self._collector = PodGarbageCollector(key, work, cache, clock, self._collect_again)
        self._endings = AttemptEndings(self._pods, on_ending)
        self._creation = PodCreation(self._pods)
        self._diagnostics = PodDiagnostics(self._pods)
        self.assignments = Assignments(self._pods)
        self._digested: TuneExperimentSpec | None = None
        self._digest = ""  # of that spec
        self._queued = False  # a webhook has put the pods into a queue
        self._placed: set[str] = set()  # ids of the trials whose attempts have a node, or their work
        self._take_over()

    def _take_over(self) -> None:
        """Find the pods of the attempts that were in progress."""
        pods = self._pods
        state = pods.durable.engine.state
        for trial in state.running_trials():
            binding = adopt(pods.key, trial, pods.cache, pods.clock())
            pods.bind(binding)
            if pods.work.objects is not None and binding.assigned:
                pods.work.objects.resume(pods.pod_name(binding), trial.current.hostname)
            self._make_group(binding)
        if reuses_pods(pods.experiment().spec):
            pods.idle_pods = IdlePods(
                pods.key,
                pods.cache,
                pods.work,
                pods.clock,
                pods.enqueue,
                lambda name: self._collector.expect_exit(name, pods.clock()),
            )
            pods.idle_pods.adopt(pods.bindings.values())
            for binding in list(pods.bindings.values()):
                waits = not binding.assigned and not binding.expected_by and pods.own_pod(binding) is None
                if waits and pods.idle_pods.take(binding):
                    pods.bind(binding)

    def compare_trials(self) -> None:
        """Have those TuneTrials written that do not show how their trials ended; to be called once all are known."""
        pods = self._pods
        for trial in pods.durable.engine.state.get_trials():
            item = pods.cache.trial(pods.key, names.trial_name(pods.name, trial.trial_id))
            if not trial.ended or item is None or (item.get("status") or {}).get("state") != trial.status:
                pods.changed.add(trial.trial_id)

    def _collect_again(self) -> None:
        self._pods.attention.remove_by(self._pods.clock())
        self._pods.enqueue()

    # -- for the experiment's controller --

    async def close(self) -> None:
        """End the background work."""
        await self._creation.close()
        await self._collector.close()

    @property
    def rejections(self) -> Rejections:
        """Why the API server does not take new pods or trials."""
        return self._pods.work.rejections

    @property
    def pods_left(self) -> bool:
        """Whether there are pods whose deletion has not been asked for yet."""
        return self._collector.pods_left

    def live_attempts(self) -> list[tuple[str, int]]:
        """Return the attempts that a restart of the operator has not ended: those with a pod, or not begun yet.

        One whose pod has ended meanwhile is among them: `reconcile` reads from the pod how.
        """
        return [
            (binding.trial.trial_id, binding.attempt)
            for binding in self._pods.bindings.values()
            if not binding.assigned or self._pods.own_pod(binding) is not None
        ]

    @property
    def changed(self) -> set[str]:
        """Ids of trials whose TuneTrial has to be written; the reader removes them."""
        return self._pods.changed

    def trial_changed(self, trial_id: str) -> None:
        """A TuneTrial was edited or deleted by another client."""
        self._pods.changed.add(trial_id)
        self._pods.attention.add(trial_id)

    def pod_changed(self, trial_id: str, name: str) -> None:
        """A pod with a trial's label was made, changed or deleted."""
        attention, binding = self._pods.attention, self._pods.bindings.get(trial_id)
        if binding is None or self._pods.pod_name(binding) != name:
            self._record_removal(name)
        if binding is not None:
            attention.add(trial_id)

    def _record_removal(self, name: str) -> None:
        """Have a pod without an attempt removed; one that leaves takes what it printed along."""
        now, pod = self._pods.clock(), self._pods.cache.pod(self._pods.key, name)
        self._collector.note(name)
        if pod is not None and pod["metadata"].get("deletionTimestamp"):
            self._pods.attention.remove_by(now)
        else:
            self._pods.attention.record_removal(now, len(self._pods.bindings))

    @property
    def in_progress(self) -> Collection[str]:
        """Ids of the trials that have an attempt which should have a pod."""
        return self._pods.bindings.keys()

    def waits(self, now: float) -> list[tuple[Trial, PendingReason]]:
        """Return why attempts that should run do not, for those that do not."""
        return self._diagnostics.waits(now)

    def perform(self, action: Action) -> None:
        """Handle a committed action."""
        match action:
            case TrialCreated(trial=trial):
                self._pods.changed.add(trial.trial_id)
                self._pods.attention.add(trial.trial_id)
            case StartAttempt(trial=trial, attempt=attempt):
                self._start(trial, attempt)
            case StopAttempt(trial=trial, attempt=attempt):
                binding = self._pods.bindings.get(trial.trial_id)
                if binding is not None and binding.attempt == attempt and binding.stop_at is None:
                    hangs = not binding.assigned or trial.current.deadline_missed  # and will not end by itself
                    binding.stop_at = self._pods.clock() + (0.0 if hangs else self._grace_s)
                    self._pods.attention.add(trial.trial_id)
                    self._pods.changed.add(trial.trial_id)
                    if hangs:
                        self._record_removal(self._pods.pod_name(binding))
            case TrialEnded(trial=trial) | TrialRequeued(trial=trial):
                self._end_run(trial)
            case _:
                return  # results, for one: there is nothing to do for a pod
        self._pods.enqueue()

    @property
    def waiting_since(self) -> float | None:
        """Since when the attempt waits that waits longest to take up its work; None when none does."""
        return min(
            (binding.trial.current.started_at for binding in self._pods.bindings.values() if not binding.assigned),
            default=None,
        )

    def pod_of(self, trial: Trial) -> Object | None:
        """Return the pod of a trial's latest attempt, if it exists."""
        binding = self._pods.bindings.get(trial.trial_id)
        if binding is not None:
            return self._pods.own_pod(binding)
        return self._pods.cache.pod(self._pods.key, names.pod_name(self._pods.name, trial.trial_id, trial.attempt))

    async def reconcile(self) -> float | None:
        """Bring the pods in line with what should run; return in how many seconds to come back."""
        now, attention = self._pods.clock(), self._pods.attention
        # Attempts that are objects of another kind: what their pods show counts together with the object.
        if self._pods.work.objects is not None:
            await self._pods.work.objects.refresh(now)
        look = attention.take(self._pods.bindings, now, every=self._needs_sweep())
        try:
            await self._advance(now, look)
        except BaseException:
            attention.sweep_by(now)  # what was noted may not have been done
            raise
        return self._next_pass(now, look)

    async def _advance(self, now: float, look: Look) -> None:
        # Ends first: a freed slot is used in this pass.
        await _in_slices(look, lambda bindings: self._endings.record(now, bindings))
        # Attempts that have not called for a while may have ended without an event: ask the API server.
        silent: list[PodBinding] = []
        await _in_slices(look, lambda bindings: silent.extend(self._endings.find_silent(now, bindings)))
        if silent:
            await self._endings.ask_about_silent(now, silent)
        # Start groups whose pods all wait, end those that lost one.
        await self._reconcile_groups(now)
        # End attempts that were to stop before they began; running ones are stopped by deleting their pods, below.
        await _in_slices(look, lambda bindings: self._stop_overdue(now, bindings))
        # Delete pending pods of an earlier image or template, before pods are created from the corrected one.
        await self._replace_outdated(look)
        # Give idle pods their next attempts, before pods are created for these.
        await self._serve_idle(now)
        # Ask for the events of a pod that does not start, for the status.
        await self._diagnostics.refresh(now)
        # Begin to create what is missing; its names keep it from being created twice.
        self._creation.begin(now, look)
        # Delete what no attempt needs, logs first; new pods do not wait for that.
        if look.removes:
            await self._collect_garbage(now, every=look.sweeps)
        # Tell the engine how many attempts the cluster takes.
        await _in_slices(look, self._find_placed)
        if self._pods.durable.engine.state.settings is not None:
            self._tell_capacity(self._pods.durable.engine.state.required_settings)

    # -- what should run --

    def _start(self, trial: Trial, attempt: int) -> None:
        trial_id = trial.trial_id
        binding = PodBinding(trial, attempt, attempt, resources=trial.resources)
        self._make_group(binding)
        reserved = self._pods.in_place.take(trial_id, trial.resources)
        if reserved is not None and binding.group is None:
            pod = self._pods.cache.pod(self._pods.key, names.pod_name(self._pods.name, trial_id, reserved))
            if pod is not None and not is_leaving(pod, self._pods.work.deleted):
                binding.pod_attempt, binding.expected_by = reserved, self._pods.clock() + NEXT_ASSIGNMENT_TIMEOUT_S
                binding.pod_uid = pod["metadata"].get("uid", "")
                self._collector.keep(pod["metadata"]["name"])
        elif self._pods.idle_pods is not None and self._pods.idle_pods.take(binding):
            self._collector.keep(self._pods.pod_name(binding))
        self._pods.bind(binding)
        self._pods.changed.add(trial_id)
        self._pods.in_place.started(binding)

    def _end_run(self, trial: Trial) -> None:
        self._pods.changed.add(trial.trial_id)
        binding = self._pods.unbind(trial.trial_id)
        self._placed.discard(trial.trial_id)
        if binding is not None:
            self._collector.expect_exit(
                self._pods.pod_name(binding), self._pods.clock(), self._pods.groups.names(binding)
            )
            self._record_removal(self._pods.pod_name(binding))
            if binding.group is not None:
                binding.group.release()
        if trial.ended:
            self._pods.in_place.ended(trial.trial_id)
            self._pods.groups.ended(trial.trial_id)

    def record_reported_end(self, trial_id: str, attempt: int, end: AttemptEnd) -> AttemptEnd:
        """An attempt said how it ended; return how it did. A pod that continues in place stays.

        Raises:
            NotReadyError: it failed, and its workers have to be checked first; or its object; or its pod may still
                show why it got a SIGTERM.
        """
        binding = self._pods.bindings.get(trial_id)
        if binding is None or binding.attempt != attempt:
            return end
        end = self._judge_sigterm(binding, end)
        if self._pods.work.objects is not None:
            judged = self._pods.work.objects.judge_report(self._pods.pod_name(binding), end)
            if judged is None:
                self._pods.enqueue()
                raise NotReadyError("the object of the attempt is being checked")
            return msgspec.structs.replace(judged, asks=False)
        if binding.group is None:
            if end.asks and not (self._pods.idle_pods is not None and self._pods.idle_pods.expect(binding)):
                self._pods.in_place.reserve(binding)
            pod = self._pods.own_pod(binding)
            return end if pod is None else blame_beside(pod, end)
        now = self._pods.clock()
        self._endings.record_group(binding, now)
        judged = binding.group.judge_report(end, now, failing=binding.trial.current.failing is not None)
        if judged is None:
            self._pods.enqueue()
            raise NotReadyError("the other pods of the attempt are being checked")
        return msgspec.structs.replace(judged, asks=False)

    def _judge_sigterm(self, binding: PodBinding, end: AttemptEnd) -> AttemptEnd:
        name = self._pods.pod_name(binding)
        objects = self._pods.work.objects
        pod = objects.primary(name) if objects is not None else self._pods.own_pod(binding)
        if pod is None or self._pods.work.ended_pod((self._pods.own_pod(binding) or pod)["metadata"].get("uid", "")):
            return end
        judged = judge_sigterm(binding, pod, end, self._pods.clock())
        if judged is None:
            raise NotReadyError("the attempt's pod may still show why it was asked to end")
        return judged

    # -- pods that run one trial after the other --

    async def _serve_idle(self, now: float) -> None:
        if self._pods.idle_pods is None:
            return
        engine = self._pods.durable.engine

        def needed() -> int | None:
            # What is decided and not carried out yet may need any of them.
            ready = self._pods.durable.is_committed and engine.state.settings is not None
            return max_idle_pods(engine, len(self._pods.bindings)) if ready else None

        await self._pods.idle_pods.serve(now, self._pods.bindings, engine.state.trials, needed)

    # -- groups --

    def _make_group(self, binding: PodBinding) -> None:
        workers = self._pods.experiment().spec.workers
        if workers is not None:
            self._pods.groups.make(binding, workers.replicas, workers.start_timeout_seconds)

    async def _reconcile_groups(self, now: float) -> None:
        if self._pods.experiment().spec.workers is None:
            return
        for binding in list(self._pods.bindings.values()):
            await self._pods.groups.look(binding, now)
        self._endings.record(now, list(self._pods.bindings.values()))
        for binding in list(self._pods.bindings.values()):
            self.assignments.begin_group(binding)
        # A confirmed failure is durable before its head is ended: the next operator finds one or the other.
        failed = any(binding.trial.current.failure_confirmed for binding in self._pods.bindings.values())
        if not failed or await self._pods.durable.wait_committed(COMMIT_TIMEOUT_S):
            await self._pods.groups.end_heads(list(self._pods.bindings.values()))
        else:
            self._pods.enqueue()

    # -- creating and ending pods --

    def _stop_overdue(self, now: float, bindings: Iterable[PodBinding]) -> None:
        for binding in bindings:
            if binding.stop_at is None or now < binding.stop_at:
                continue
            if not binding.assigned and self._pods.is_bound(binding):
                cause = "paused" if binding.trial.current.decision == "pause" else "stopped"
                end = AttemptEnd(cause=cause)  # type: ignore[arg-type]  # both are causes
                self._pods.durable.apply(
                    AttemptEnded(trial_id=binding.trial.trial_id, attempt=binding.attempt, end=end)
                )

    async def _replace_outdated(self, look: Look) -> None:
        """Delete pods that do not run yet and were created from an earlier image, template or resources.

        Their attempts have done nothing yet, and get pods from the current manifest: a corrected image helps at once.
        """
        spec = self._pods.experiment().spec
        if spec is not self._digested:
            self._digested, self._digest = spec, spec_digest(spec)
        for binding in look.bindings:
            if binding.assigned or binding.in_reused_pod or binding.stop_at is not None:
                continue
            group = binding.group is not None
            known = (self._pods.cache.pod(self._pods.key, name) for name in self._pods.groups.names(binding))
            pods = [pod for pod in (self._pods.own_pod(binding), *(known if group else ())) if pod is not None]
            if not any(self._is_outdated(pod) for pod in pods):
                continue
            if group:  # its pods belong together: all are those of another attempt
                words = "spec.image, spec.resources or spec.template was changed before it began"
                end = AttemptEnd(cause="preempted", error=words)
                self._pods.durable.apply(
                    AttemptEnded(trial_id=binding.trial.trial_id, attempt=binding.attempt, end=end)
                )
            for pod in pods:
                if not is_leaving(pod, self._pods.work.deleted):
                    await self._pods.work.delete_if_allowed(pod, 0)

    def _is_outdated(self, pod: Object) -> bool:
        made_from = (pod["metadata"].get("annotations") or {}).get(names.SPEC_ANNOTATION, self._digest)
        waits = (pod.get("status") or {}).get("phase") in (None, "", "Pending") and not queues.is_held(pod)
        return made_from != self._digest and waits and not is_leaving(pod, self._pods.work.deleted)

    async def _collect_garbage(self, now: float, *, every: bool) -> None:
        current, stopped = set[str](), set[str]()
        for binding in self._pods.bindings.values():
            continues = binding.stop_at is None or now < binding.stop_at
            which = current if continues else stopped
            which.add(self._pods.pod_name(binding))
            if binding.group is not None:
                which |= self._pods.groups.names(binding)

        def stays(pod: Object) -> bool:
            if self._pods.idle_pods is not None and self._pods.idle_pods.is_reserved(pod):
                return True
            labels = pod["metadata"].get("labels") or {}
            return self._pods.in_place.is_reserved(labels.get(names.TRIAL_ID_LABEL, ""), attempt_label(pod))

        trials = self._pods.durable.engine.state.trials
        await self._collector.collect(now, current, stopped, stays, trials, every=every)

    # -- small parts --

    def _needs_sweep(self) -> bool:
        """Return whether each pass looks at all attempts: what happens to one concerns others."""
        spec = self._pods.experiment().spec
        return (
            spec is not self._digested
            or spec.workers is not None
            or self._pods.idle_pods is not None
            or self._pods.work.objects is not None
            or self._queued
            or bool(queues.queue_of(spec.template))
        )

    def _find_placed(self, bindings: Iterable[PodBinding]) -> None:
        """Count the attempts that have a node, or their work already; find out whether pods are in a queue."""
        for binding in bindings:
            if not self._pods.is_bound(binding):
                continue  # it has ended in this pass
            trial_id, pod = binding.trial.trial_id, self._pods.own_pod(binding)
            if binding.assigned or node_of(pod):
                self._placed.add(trial_id)
            else:
                self._placed.discard(trial_id)
            self._queued = self._queued or (pod is not None and bool(queues.queue_of(pod)))

    def _tell_capacity(self, settings: Settings) -> None:
        spec = self._pods.experiment().spec
        if self._queued or spec.workers is not None or queues.queue_of(spec.template):
            self.observe_capacity(settings)  # what waits in a queue counts too
            return
        known = self._pods.durable.engine.state.flags.slots
        found = slots(known, len(self._placed), settings.max_concurrent)
        if found is not None:
            self._pods.durable.apply(CapacityObserved(slots=found))

    def observe_capacity(self, settings: Settings) -> None:
        """Say how many attempts may be in progress; before settings are applied, as they will be."""
        now, spec = self._pods.clock(), self._pods.experiment().spec
        pods, placed, queued = [], 0, bool(queues.queue_of(spec.template))
        for binding in self._pods.bindings.values():
            pod = self._pods.own_pod(binding)
            placed += binding.assigned or bool(node_of(pod))
            if pod is not None:
                pods.append(pod)
                queued = queued or bool(queues.queue_of(pod))
        self._queued = queued
        known = self._pods.durable.engine.state.flags.slots
        found = slots(
            known,
            placed,
            settings.max_concurrent,
            queued=queued,
            waits=queued and any(waits_in_queue(pod, now) for pod in pods),
            grouped=spec.workers is not None,
        )
        if found is not None:
            self._pods.durable.apply(CapacityObserved(slots=found))

    def _next_pass(self, began: float, look: Look) -> float | None:
        """Return in how many seconds something is due. What was due in this pass is done, or waits for an event."""
        bindings = look.bindings
        times = [
            at
            for binding in bindings
            for at in (binding.stop_at, binding.expected_by, binding.explained_by, binding.not_before)
            if at
        ]
        attention = self._pods.attention
        if look.removes:
            for at in self._collector.times():
                if at > began:
                    attention.remove_by(at)
        if look.sweeps:
            times += self._pods.groups.times(bindings)
            times += self._pods.idle_pods.times() if self._pods.idle_pods is not None else []
        times.append(self._pods.work.rejections.until)
        times = [at for at in times if at > began]
        if bindings and (look.sweeps or not attention.has_sweep):
            times.append(began + (POLL_INTERVAL_S if self._pods.unassigned() else SILENT_S / 3))
        for at in times:
            attention.sweep_by(at)
        return max(0.2, attention.due_at - self._pods.clock()) if attention.due_at < math.inf else None

    @property
    def _grace_s(self) -> float:
        return grace_seconds(self._pods.experiment().spec)


async def _in_slices(look: Look, work: Callable[[list[PodBinding]], None]) -> None:
    """Do this with all attempts that a pass looks at, some at a time: other experiments get their turn in between."""
    bindings = look.bindings
    for start in range(0, len(bindings), SLICE):
        work(bindings[start : start + SLICE])
        if start + SLICE < len(bindings):
            await asyncio.sleep(0)
