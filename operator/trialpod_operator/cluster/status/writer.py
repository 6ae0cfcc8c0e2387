"""Writes the status of one experiment, and has those of its trials and its events written: only what has changed.

What a status says is committed before it is written. Transitions are written at once, progress seldom, so that a
trial costs two status writes in its life unless it is a long one. A write that fails is done again later. Its owner
calls `write` and `write_final` one after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trialpod_operator.api.reasons import Reason
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster import names
from trialpod_operator.cluster.annotations import retry_is_pending
from trialpod_operator.cluster.json_values import merge_patch
from trialpod_operator.cluster.pods.bindings import PodBindings
from trialpod_operator.cluster.pods.pending import PendingReason, summarize
from trialpod_operator.cluster.pods.reading import seconds
from trialpod_operator.cluster.services import Services
from trialpod_operator.cluster.status.build import experiment_status, same_status
from trialpod_operator.cluster.status.conditions import Problem
from trialpod_operator.cluster.status.recorder import EventRecorder
from trialpod_operator.cluster.status.trial_writer import MAX_BATCH, STATUS_DEBOUNCE_S, TrialStatusWriter
from trialpod_operator.experiment.durable import DurableExperiment

logger = logging.getLogger(__name__)

EXPERIMENT_INTERVAL_S = 1.0
"""Minimum interval between two writes of the experiment's status."""

MAX_EXPERIMENT_INTERVAL_S = 3.0
UNHURRIED = 32
"""The interval is a second for each `UNHURRIED` attempts in progress, within these bounds: where many trials begin
and end in a second, each write says less of what is new."""

COMMIT_TIMEOUT_S = 5.0
"""Maximum time that a status waits for what it says to be committed; then it is written later."""


@dataclass(frozen=True)
class Finding:
    """What a reconcile pass has found, for the status.

    Attributes:
        generation: of the object that it looked at.
        problem: why the experiment does not continue.
        refused: the problem is in the spec itself: it is not retried before that changes.
    """

    generation: int
    problem: Problem | None = None
    refused: bool = False


class StatusWriter:
    """The one writer of an experiment's statuses. Owned by the event loop.

    Attributes:
        trainable_differs: the spec names another Trainable than trials run.
        events: what is reported beside the status.

    Args:
        key: "namespace/name".
        services: what all experiments share.
    """

    def __init__(self, key: str, services: Services) -> None:
        self.trainable_differs = False
        self._key = key
        self._namespace, self._name = key.split("/")
        self._services = services
        self._status: dict[str, Any] = {}  # as the API server has it, for all that is known
        self._written_at = 0.0
        self._trials = TrialStatusWriter(key, services)
        self.events = EventRecorder(key, services)
        self._item: Mapping[str, Any] = {}

    def observe(self, item: Mapping[str, Any]) -> None:
        """Take in the object as it was last seen."""
        self._item = item
        self._status = dict(item.get("status") or {})

    @property
    def has_begun(self) -> bool:
        """Whether the object says that its experiment has begun: its journal was in the storage then."""
        return bool(self._status.get("startTime"))

    @property
    def stored_at(self) -> str:
        """Where the object says that its experiment is stored; "" = it does not say."""
        return str(self._status.get("storageUri") or "")

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
        self, durable: DurableExperiment | None, bindings: PodBindings | None, finding: Finding
    ) -> float | None:
        """Write what has changed; return in how many seconds there will be more to write.

        Args:
            durable: the experiment while it is open.
            bindings: its attempts and their pods.
            finding: of the latest pass.
        """
        now, problem = self._services.clock(), finding.problem
        if durable is None and problem is None:
            return None  # finished, and written down as such
        if durable is not None and bindings is not None:
            all_written = await self._trials.write(durable, bindings, now, MAX_BATCH)
        else:
            all_written = True
        if durable is not None and durable.engine.finished and problem is None:
            # It is over, and says so once its files are stored and the statuses of its trials say the same: a trial
            # may have ended while these were being written.
            if not durable.files_stored:
                return EXPERIMENT_INTERVAL_S
            if bindings is not None and self._trials.is_behind(bindings):
                return STATUS_DEBOUNCE_S / 2
        left_s = self._written_at + interval_s(len(bindings.in_progress) if bindings is not None else 0) - now
        if left_s > 0 and problem is None:
            return left_s if all_written else 0.0
        await self._write_experiment(durable, bindings, finding, now)
        await self.events.post(self._item)
        if not all_written:
            return 0.0
        if bindings is not None and bindings.changed:
            return STATUS_DEBOUNCE_S / 2
        if bindings is None or not bindings.in_progress:
            return None
        return self._trials.next_progress_s(len(bindings.in_progress))

    async def write_final(self, durable: DurableExperiment, bindings: PodBindings, finding: Finding) -> bool:
        """Write everything now; return whether nothing is left to write."""
        now = self._services.clock()
        await self._trials.write(durable, bindings, now)
        if bindings.changed:
            return False
        await self._write_experiment(durable, bindings, finding, now)
        await self.events.post(self._item)
        return True

    async def _write_experiment(
        self,
        durable: DurableExperiment | None,
        bindings: PodBindings | None,
        finding: Finding,
        now: float,
    ) -> None:
        problem = finding.problem
        waits = bindings.waits(now) if bindings is not None else []
        named = [(names.trial_name(self._name, trial.trial_id), why) for trial, why in waits]
        if problem is None and durable is not None and durable.storage_problem:
            denied = durable.keys_refused
            reason = Reason.REFUSED if denied else Reason.STORAGE_UNAVAILABLE
            problem = Problem(reason=reason, message=durable.storage_problem, stalled=denied)
        elif problem is None and bindings is not None and (why := bindings.rejections.why) is not None:
            problem = _refusal(why) if not _has_started(durable) else None
        engine = durable.engine if durable is not None else None
        unresumed = self._unresumed_generation(finding.generation)
        remote = durable.plan.remote if durable is not None else None
        status = experiment_status(
            engine,
            name=self._name,
            generation=finding.generation if durable is not None or finding.refused else unresumed,
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
        if durable is not None and changed and not await durable.wait_committed(COMMIT_TIMEOUT_S):
            if problem is None:
                return  # nothing is said that is not committed
            status = experiment_status(
                None,
                name=self._name,
                generation=unresumed,
                now=now,
                previous=self._status,
                problem=problem,
            )
            durable = None
        if durable is None:  # what an earlier look found stays, until the engine says something else
            status = {**{key: value for key, value in self._status.items() if key not in status}, **status}
        if same_status(self._status, status):
            return
        before = self._status  # a pass may observe what is written here before that is answered
        patched = await self._services.kube.patch(
            paths.experiments(self._namespace),
            self._name,
            {"status": merge_patch(before, status)},
            subresource="status",
        )
        self.events.record_transition(before, status, resumed=durable is not None and durable.resumed)
        self._status = status
        self._written_at = now
        # Deleted without a watch event: the next pass releases it.
        self._services.cache.update_experiment(patched or self._item, deleted=patched is None)
        if patched is None:
            self._services.enqueue(self._key)

    def _unresumed_generation(self, generation: int) -> int:
        """The observed generation of an experiment that is to continue and cannot now.

        One that was over before its spec changed would be over for the new spec, too, if that were reported as
        observed.
        """
        if self._status.get("completionTime"):
            return int(self._status.get("observedGeneration") or generation)
        return generation


def interval_s(attempts: int) -> float:
    """Return the minimum interval between two writes of the status of an experiment with so many in progress."""
    return min(MAX_EXPERIMENT_INTERVAL_S, max(EXPERIMENT_INTERVAL_S, attempts / UNHURRIED))


def _has_started(durable: DurableExperiment | None) -> bool:
    """Return whether some attempt of the experiment has run."""
    return durable is not None and durable.engine.state.flags.user_code_ran


def _refusal(why: PendingReason) -> Problem | None:
    return Problem(reason=why.reason, message=why.text, stalled=True) if why.severity == "stuck" else None
