"""Writes the statuses of one experiment and its trials, and the events about it: seldom, and only what has changed.

What a status says is committed before it is written. Transitions are written at once, progress every `PROGRESS_S`, so
that a trial costs two status writes in its life unless it is a long one. A write that fails is done again later.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import heapq
import logging
from collections.abc import Mapping
from typing import Any

from trialpod_operator.api.api_errors import ApiError
from trialpod_operator.api.models import TuneExperiment
from trialpod_operator.api.reasons import Reason
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster import names
from trialpod_operator.cluster.annotations import retry_is_pending
from trialpod_operator.cluster.kube import gather_all
from trialpod_operator.cluster.pods.bindings import PodBindings
from trialpod_operator.cluster.pods.pending import PendingReason, summarize
from trialpod_operator.cluster.pods.reading import condition, node_of, seconds
from trialpod_operator.cluster.pods.terminated import Termination
from trialpod_operator.cluster.services import Services
from trialpod_operator.cluster.status.build import experiment_status, same_status, trial_status
from trialpod_operator.cluster.status.conditions import Problem, cut, is_starting
from trialpod_operator.cluster.status.events import MAX_NOTE, KubernetesEvent, TrialEvents, transition_events
from trialpod_operator.engine.actions import Action, TrialEnded, TrialRequeued, Warned
from trialpod_operator.engine.trial import ERROR, Trial
from trialpod_operator.experiment.durable import DurableExperiment

logger = logging.getLogger(__name__)

EXPERIMENT_S = 1.0
"""The experiment's status is written at most this often."""

PROGRESS_S = 15.0
"""So often a running trial's iteration and value are brought up to date, or less often where very many run:"""

PROGRESS_PER_S = 4.0
"""so many of them in a second, those first that were written longest ago."""

PROGRESS_AT_ONCE = 16

SETTLE_S = 4.0
"""A trial that goes from state to state is written down when it has stayed in one for so long, or has ended."""

STARTING_S = 10.0
"""A trial whose pod starts as usual is written down when it runs; the time of most starts."""

COMMIT_S = 5.0
"""So long a status waits for what it says to be committed; then it is written another time."""

LOOK_S = 0.1
"""So long trials' statuses are begun to be written in one look: new pods go before them."""

MOST_AT_ONCE = 64
LEAST_AT_ONCE = 8
"""So many statuses are worked out in one look; the fewer, the fewer of the last ones there was time to write."""

PARALLEL = 8


class StatusWriter:
    """The one writer of an experiment's statuses.

    Args:
        key: "namespace/name".
        services: what all experiments share.
    """

    def __init__(self, key: str, services: Services) -> None:
        self.trainable_differs = False  # from the one that trials run
        self._key = key
        self._namespace, self._name = key.split("/")
        self._services = services
        self._status: dict[str, Any] = {}  # as the API server has it, for all that is known
        self._generation = 0
        self._written_at = 0.0
        self._progress_at = 0.0
        self._at_once = MOST_AT_ONCE
        self._told: dict[str, float] = {}  # of running trials: trial_id -> when their progress was written
        self._waits: dict[str, str] = {}  # trial_id -> why its pod does not run, as it was written
        self._moving: dict[str, float] = {}  # trial_id -> since when its new state waits to be written
        self._events: list[KubernetesEvent] = []
        self._trial_events = TrialEvents()
        self._item: Mapping[str, Any] = {}
        self._endings: dict[str, Termination] = {}  # by trial_id, until the engine has taken them in

    def observe(self, item: Mapping[str, Any]) -> None:
        """Take in the object as it was last seen."""
        self._item = item
        self._generation = int(item["metadata"].get("generation", 0))
        self._status = dict(item.get("status") or {})

    def note_action(self, action: Action) -> None:
        """Take in a committed action, for the events."""
        if isinstance(action, TrialRequeued) and action.why == "disrupted":
            self._disrupted(action.trial, action.message)
        if isinstance(action, Warned) and action.trial is not None and action.trial.current.silence_warned:
            self._add(KubernetesEvent("Warning", Reason.NO_PROGRESS, cut(action.message, MAX_NOTE)))
        if isinstance(action, TrialEnded) and action.trial.status == ERROR:
            name = names.trial_name(self._name, action.trial.trial_id)
            self._add(self._trial_events.failed(name, action.trial.error))
        if isinstance(action, Warned) and action.trial is None:
            self._add(KubernetesEvent("Warning", Reason.NOTICE, cut(action.message, MAX_NOTE)))

    def note_change(self, message: str) -> None:
        """Take in what was changed of the spec, "" for nothing, for the events."""
        if message:
            self._add(KubernetesEvent("Normal", Reason.SPEC_CHANGED, cut(message, MAX_NOTE)))

    def note_code(self, message: str) -> None:
        """Take in that the code in a ConfigMap was changed, for the events."""
        self._add(KubernetesEvent("Warning", Reason.CODE_CHANGED, cut(message, MAX_NOTE)))

    def note_retry(self, count: int, *, has_failed: bool) -> None:
        """Take in that failed trials were to be tried again, for the events.

        Args:
            count: how many are.
            has_failed: there are failed ones that are not.
        """
        if count:
            trials = "1 failed trial is" if count == 1 else f"{count} failed trials are"
            self._add(KubernetesEvent("Normal", Reason.RETRYING, f"{trials} tried again, as asked for"))
            return
        why = "the budget is used up, or the trials named have not failed" if has_failed else "no trial has failed"
        self._add(KubernetesEvent("Warning", Reason.NOTHING_TO_RETRY, f"nothing is tried again: {why}"))

    def note_ending(self, trial: Trial, ending: Termination) -> None:
        """Take in how a pod ended, for the events."""
        self._endings[trial.trial_id] = ending

    def _disrupted(self, trial: Trial, message: str) -> None:
        """The cluster ended an attempt: by the attempt's own word, or as its pod tells."""
        name = names.trial_name(self._name, trial.trial_id)
        ending = self._endings.pop(trial.trial_id, None)
        reason = ending.reason if ending is not None else Reason.PREEMPTED
        target = self._disruption_target(trial)
        if ending is None and target:
            reason = str(target.get("reason") or reason)
            message = f"{target.get('message') or reason}: {message}"
        self._add(self._trial_events.disrupted(name, reason, message, self._services.clock()))

    def _disruption_target(self, trial: Trial) -> Mapping[str, Any]:
        """Return why the cluster ends a pod of the trial, empty when it does not."""
        for pod in self._services.cache.pods(self._key):
            if (pod["metadata"].get("labels") or {}).get(names.TRIAL_ID_LABEL) == trial.trial_id:
                target = condition(pod, "DisruptionTarget") or {}
                if target.get("status") == "True":
                    return target
        return {}

    @property
    def has_begun(self) -> bool:
        """Whether the object says that its experiment has begun: its journal was in the storage then."""
        return bool(self._status.get("startTime"))

    def finished_as_observed(self, item: Mapping[str, Any]) -> bool:
        """Return whether the status says that the experiment is over, for the spec as it is now."""
        status = item.get("status") or {}
        if retry_is_pending(item):
            return False
        return bool(status.get("completionTime")) and status.get("observedGeneration") == item["metadata"].get(
            "generation"
        )

    def completed_at(self, item: Mapping[str, Any]) -> float | None:
        """Return when the experiment ended, in seconds since the epoch."""
        return seconds((item.get("status") or {}).get("completionTime"))

    async def write(
        self,
        experiment: TuneExperiment | None,
        durable: DurableExperiment | None,
        bindings: PodBindings | None,
        problem: Problem | None,
        *,
        refused: bool = False,
    ) -> float | None:
        """Write what has changed; return in how many seconds there will be more to write.

        Args:
            experiment: what the spec asks for, as far as it can be read.
            durable: the experiment while it is open.
            bindings: its attempts and their pods.
            problem: why it does not go on.
            refused: the problem is in the spec itself: it is not tried again before that changes.
        """
        now = self._services.clock()
        if durable is None and problem is None:
            return None  # finished, and written down as such
        if durable is not None and bindings is not None:
            all_written = await self._write_trials(durable, bindings, now, LOOK_S)
        else:
            all_written = True
        if durable is not None and durable.engine.finished and not durable.files_stored and problem is None:
            return EXPERIMENT_S  # it is over, and says so once its files are stored
        if now - self._written_at < EXPERIMENT_S and problem is None:
            return EXPERIMENT_S - (now - self._written_at) if all_written else 0.0
        await self._write_experiment(experiment, durable, bindings, problem, now, refused=refused)
        await self._post()
        if not all_written:
            return 0.0
        if bindings is not None and bindings.changed:
            return SETTLE_S / 2
        if bindings is None or not bindings.under_way:
            return None
        return PROGRESS_S if len(bindings.under_way) <= PROGRESS_AT_ONCE else PROGRESS_AT_ONCE / PROGRESS_PER_S

    async def write_final(
        self, experiment: TuneExperiment, durable: DurableExperiment, bindings: PodBindings
    ) -> bool:
        """Write everything now; return whether nothing is left to write."""
        now = self._services.clock()
        await self._write_trials(durable, bindings, now)
        if bindings.changed:
            return False
        await self._write_experiment(experiment, durable, bindings, None, now)
        await self._post()
        return True

    async def _write_experiment(
        self,
        experiment: TuneExperiment | None,
        durable: DurableExperiment | None,
        bindings: PodBindings | None,
        problem: Problem | None,
        now: float,
        *,
        refused: bool = False,
    ) -> None:
        waits = bindings.waits(now) if bindings is not None else []
        named = [(names.trial_name(self._name, trial.trial_id), why) for trial, why in waits]
        if problem is None and durable is not None and durable.storage_problem:
            denied = durable.keys_refused
            reason = Reason.REFUSED if denied else Reason.STORAGE_UNAVAILABLE
            problem = Problem(reason=reason, message=durable.storage_problem, stalled=denied)
        elif problem is None and bindings is not None and (why := bindings.rejections.why) is not None:
            problem = _refusal(why) if not _has_started(durable) else None
        engine = durable.engine if durable is not None else None
        remote = durable.plan.remote if durable is not None else None
        status = experiment_status(
            engine,
            name=self._name,
            generation=self._generation if durable is not None or refused else self._not_gone_on,
            now=now,
            previous=self._status,
            waiting=summarize(named, now, self._status.get("waiting")),
            problem=problem,
            storage_uri=remote.uri if remote is not None else self._status.get("storageUri"),
            seed=durable.plan.document.get("seed") if durable is not None else self._status.get("seed"),
            uri_of=durable.checkpoint_uri if durable is not None else None,
            differs=self.trainable_differs,
        )
        changed = durable is not None and not same_status(self._status, status)
        if durable is not None and changed and not await durable.wait_committed(COMMIT_S):
            if problem is None:
                return  # nothing is said that is not committed
            status = experiment_status(
                None, name=self._name, generation=self._not_gone_on, now=now, previous=self._status, problem=problem
            )
            durable = None
        if durable is None:  # what an earlier look found stays, until the engine says something else
            status = {**{key: value for key, value in self._status.items() if key not in status}, **status}
        if same_status(self._status, status):
            return
        patched = await self._services.kube.patch(
            paths.experiments(self._namespace),
            self._name,
            {"status": merge_patch(self._status, status)},
            subresource="status",
        )
        self._events += transition_events(self._status, status)
        self._status = status
        self._written_at = now
        # Gone without a watch having told: the next look lets go of it.
        self._services.cache.update_experiment(patched or self._item, deleted=patched is None)
        if patched is None:
            self._services.enqueue(self._key)

    @property
    def _not_gone_on(self) -> int:
        """The generation that is told of an experiment that is to go on and cannot now.

        One that was over before its spec changed would be over for the new spec, too, if that were told as observed.
        """
        if self._status.get("completionTime"):
            return int(self._status.get("observedGeneration") or self._generation)
        return self._generation

    def _progressed(self, bindings: PodBindings, now: float) -> set[str]:
        """Return the running trials whose progress is to be written now."""
        room = int(min(PROGRESS_AT_ONCE, (now - self._progress_at) * PROGRESS_PER_S))
        if room < 1:
            return set()
        self._progress_at = now
        self._told = {trial_id: self._told.get(trial_id, now) for trial_id in bindings.under_way}
        old = [(told, trial_id) for trial_id, told in self._told.items() if now - told >= PROGRESS_S]
        found = {trial_id for _, trial_id in heapq.nsmallest(room, old)}
        self._told |= dict.fromkeys(found, now)
        return found

    async def _write_trials(
        self, durable: DurableExperiment, bindings: PodBindings, now: float, within_s: float | None = None
    ) -> bool:
        """Write the trials' statuses; return False if time was up before all were written.

        Args:
            durable: the experiment.
            bindings: its attempts and their pods.
            now: seconds since the epoch.
            within_s: so long writing is begun; None: until all are written.
        """
        state = durable.engine.state
        due = {trial_id for trial_id in bindings.changed if trial_id in state.trials}
        due |= self._progressed(bindings, now)
        waits = {trial.trial_id: why for trial, why in bindings.waits(now)}
        reasons = {trial_id: why.reason for trial_id, why in waits.items()}
        changed = {
            trial_id
            for trial_id in {*reasons, *self._waits}
            if reasons.get(trial_id) != self._waits.get(trial_id) and trial_id in bindings.under_way
        }
        self._waits = reasons
        bindings.changed.update(changed)
        due |= changed
        if not due:
            return True
        plans, at_once = [], self._at_once
        for trial_id in sorted(due):
            trial = state.trials[trial_id]
            item = self._services.cache.trial(self._key, names.trial_name(self._name, trial_id))
            if item is None:
                continue  # it is made first
            moving = not trial.ended and trial_id not in waits
            settle_s = STARTING_S if is_starting(trial) else SETTLE_S
            if moving and now - self._moving.setdefault(trial_id, now) < settle_s:
                continue
            since = self._moving.pop(trial_id, now)
            bindings.changed.discard(trial_id)
            status = self._trial_status(trial, item, durable, bindings, waits.get(trial_id), now)
            if not same_status(item.get("status"), status):
                plans.append((trial_id, item, status, since))
                if within_s is not None and len(plans) >= at_once:
                    break  # the others are still among the changed ones
        if not plans:
            return True
        if not await durable.wait_committed(COMMIT_S):
            bindings.changed.update(trial_id for trial_id, *_ in plans)
            return True
        room = asyncio.Semaphore(PARALLEL)
        late: list[str] = []
        began = self._services.clock()

        async def write(trial_id: str, item: Mapping[str, Any], status: dict[str, Any], since: float) -> None:
            async with room:
                if within_s is not None and self._services.clock() - began > within_s:
                    late.append(trial_id)
                    bindings.changed.add(trial_id)
                    self._moving[trial_id] = since
                    return
                try:
                    patched = await self._services.kube.patch(
                        paths.trials(self._namespace),
                        item["metadata"]["name"],
                        {"status": merge_patch(item.get("status") or {}, status)},
                        subresource="status",
                    )
                except ApiError:
                    bindings.changed.add(trial_id)
                    raise
                self._services.cache.update_trial(patched or item, deleted=patched is None)
                if patched is None:  # gone without a watch having told; it is made again
                    bindings.changed.add(trial_id)

        await gather_all(*(write(*plan) for plan in plans))
        self._at_once = min(MOST_AT_ONCE, max(LEAST_AT_ONCE, 2 * (len(plans) - len(late))))
        return not late and len(plans) < at_once

    def _trial_status(
        self,
        trial: Trial,
        item: Mapping[str, Any],
        durable: DurableExperiment,
        bindings: PodBindings,
        waiting: PendingReason | None,
        now: float,
    ) -> dict[str, Any]:
        pod = bindings.pod_of(trial)
        name = names.trial_name(self._name, trial.trial_id)
        return trial_status(
            trial,
            durable.engine.state.required_settings,
            now,
            generation=int(item["metadata"].get("generation", 1)),
            previous=item.get("status"),
            pod_name=pod["metadata"]["name"] if pod is not None else None,
            node_name=node_of(pod) or None,
            waiting=summarize([(name, waiting)], now, (item.get("status") or {}).get("waiting"))
            if waiting is not None
            else None,
            storage_uri=durable.checkpoint_uri(trial),
        )

    # -- events --

    def _add(self, event: KubernetesEvent | None) -> None:
        if event is not None:
            self._events.append(event)

    async def _post(self) -> None:
        """Post the events that have come up; one that the server refuses is dropped, it is only a convenience."""
        events, self._events = self._events, []
        for event in events:
            try:
                await self._services.kube.create(paths.events(self._namespace), self._event(event))
            except ApiError as error:
                logger.info("the event %s of %s could not be posted: %s", event.reason, self._key, error)

    def _event(self, event: KubernetesEvent) -> dict[str, Any]:
        metadata = self._item["metadata"]
        now = dt.datetime.fromtimestamp(self._services.clock(), dt.UTC)
        stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        reference = {
            "apiVersion": names.API_VERSION,
            "kind": names.EXPERIMENT_KIND,
            "namespace": self._namespace,
            "name": self._name,
            "uid": metadata.get("uid"),
            "resourceVersion": metadata.get("resourceVersion"),
        }
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{self._name}.", "namespace": self._namespace},
            "involvedObject": reference,
            "type": event.type,
            "reason": str(event.reason),
            "message": event.message,
            "source": {"component": "trialpod"},
            "reportingComponent": "trialpod.dev/operator",
            "reportingInstance": self._services.options.identity,
            "action": str(event.reason),
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "count": 1,
        }


def _has_started(durable: DurableExperiment | None) -> bool:
    """Return whether some attempt of the experiment has run."""
    return durable is not None and durable.engine.state.flags.user_code_ran


def _refusal(why: PendingReason) -> Problem | None:
    return Problem(reason=why.reason, message=why.text, stalled=True) if why.severity == "stuck" else None


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch that makes `after` out of `before`: what differs, and None for what is no longer there.

    A list is replaced as a whole. Values that are None cannot be written by a merge patch; there must be none.
    """
    patch: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            if nested := merge_patch(old, value):
                patch[key] = nested
        elif key not in before or old != value:
            patch[key] = value
    return patch
