"""Writes the statuses of one experiment's trials: transitions soon, progress seldom, a bounded number at a time."""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
from collections.abc import Mapping
from typing import Any

from trialpod_operator.api.api_errors import ApiError, InvalidObjectError
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster import names
from trialpod_operator.cluster.json_values import merge_patch
from trialpod_operator.cluster.kube import gather_all
from trialpod_operator.cluster.pods.bindings import PodBindings
from trialpod_operator.cluster.pods.pending import PendingReason, summarize
from trialpod_operator.cluster.pods.reading import node_of, own_name
from trialpod_operator.cluster.services import Services
from trialpod_operator.cluster.status.build import is_progress, same_status, trial_status
from trialpod_operator.cluster.status.conditions import is_starting
from trialpod_operator.engine.trial import Trial
from trialpod_operator.experiment.durable import DurableExperiment

logger = logging.getLogger(__name__)

PROGRESS_INTERVAL_S = 30.0
"""Minimum interval between two writes of a running trial's iteration and value."""

PROGRESS_PER_S = 3.0
"""Maximum rate of these writes; those written longest ago go first."""

PROGRESS_BATCH = 16
"""Maximum number of them at a time."""

MIN_RUNNING_FOR_BATCHES = 64
"""With more running trials than this, progress is written in full batches only."""

STATUS_DEBOUNCE_S = 4.0
"""Time for which a trial stays in a state before that is written, so that a quick sequence of states is one write."""

STARTING_DEBOUNCE_S = 10.0
"""The same for a trial whose pod starts as usual; the time of most starts."""

COMMIT_TIMEOUT_S = 5.0
"""Maximum time that statuses wait for what they say to be committed; then they are written later."""

MAX_BATCH = 64
"""Maximum number of statuses in one call: that of the experiment is written in between."""

BATCH_S = 1.0
"""Time in a call after which no more writes begin: an experiment that is closed waits for them."""

MAX_CONCURRENT_WRITES = 4
"""New pods of the same experiment share the room for requests with them."""


class TrialStatusWriter:
    """The one writer of the statuses of an experiment's trials. Owned by the event loop.

    Args:
        key: "namespace/name".
        services: what all experiments share.
    """

    def __init__(self, key: str, services: Services) -> None:
        self._key = key
        self._namespace, self._name = key.split("/")
        self._services = services
        self._progress_at = 0.0
        self._progress_written: dict[str, float] = {}  # of running trials, by trial_id
        self._waits: dict[str, str] = {}  # trial_id -> why its pod does not run, as it was written
        self._moving: dict[str, float] = {}  # trial_id -> since when its new state waits to be written
        self._refused: set[str] = set()  # trials with a status that the API server does not accept

    def _progressed(self, bindings: PodBindings, now: float) -> set[str]:
        """Return the running trials whose progress is to be written now."""
        room = int(min(PROGRESS_BATCH, (now - self._progress_at) * PROGRESS_PER_S))
        # Of many there are always enough that are due, and to find them takes a look at all.
        if room < (1 if len(bindings.in_progress) <= MIN_RUNNING_FOR_BATCHES else PROGRESS_BATCH):
            return set()
        self._progress_at = now
        self._progress_written = {
            trial_id: self._progress_written.get(trial_id, now) for trial_id in bindings.in_progress
        }
        old = [(at, trial_id) for trial_id, at in self._progress_written.items() if now - at >= PROGRESS_INTERVAL_S]
        found = {trial_id for _, trial_id in heapq.nsmallest(room, old)}
        self._progress_written |= dict.fromkeys(found, now)
        return found

    async def write(
        self, durable: DurableExperiment, bindings: PodBindings, now: float, most: int | None = None
    ) -> bool:
        """Write the trials' statuses; return False if more can be written at once.

        Args:
            durable: the experiment.
            bindings: its attempts and their pods.
            now: seconds since the epoch.
            most: how many; None = all.
        """
        state = durable.engine.state
        due = {trial_id for trial_id in bindings.changed if trial_id in state.trials}
        progressed = self._progressed(bindings, now)
        due |= progressed
        waits = {trial.trial_id: why for trial, why in bindings.waits(now)}
        reasons = {trial_id: why.reason for trial_id, why in waits.items()}
        changed = {
            trial_id
            for trial_id in {*reasons, *self._waits}
            if reasons.get(trial_id) != self._waits.get(trial_id) and trial_id in bindings.in_progress
        }
        self._waits = reasons
        bindings.changed.update(changed)
        due |= changed
        if not due:
            return True
        batch: list[str] = []
        for trial_id in sorted(due):
            trial = state.trials[trial_id]
            if self._services.cache.trial(self._key, names.trial_name(self._name, trial_id)) is None:
                continue  # it is made first
            moving = not trial.ended and trial_id not in waits and trial_id in bindings.changed
            debounce_s = STARTING_DEBOUNCE_S if is_starting(trial) else STATUS_DEBOUNCE_S
            if moving and now - self._moving.setdefault(trial_id, now) < debounce_s:
                continue
            self._moving.pop(trial_id, None)
            bindings.changed.discard(trial_id)
            batch.append(trial_id)
            if len(batch) == most:
                break  # the others are still among the changed ones
        room = asyncio.Semaphore(MAX_CONCURRENT_WRITES)
        ends_at = now + BATCH_S if most is not None else math.inf
        proceeds = True  # else each of them would wait for a server that is late

        async def write_one(trial_id: str) -> None:
            nonlocal proceeds
            async with room:
                proceeds = proceeds and self._services.clock() < ends_at
                if not proceeds:
                    bindings.changed.add(trial_id)
                    return
                why, seldom = waits.get(trial_id), trial_id not in progressed
                try:
                    is_committed = await self._write_one(
                        state.trials[trial_id], durable, bindings, why, now, seldom=seldom
                    )
                except ApiError as error:
                    proceeds = proceeds and not error.temporary
                    bindings.changed.add(trial_id)
                    raise
                if not is_committed:
                    proceeds = False
                    bindings.changed.add(trial_id)

        await gather_all(*map(write_one, batch))
        return not proceeds or len(batch) != most

    async def _write_one(
        self,
        trial: Trial,
        durable: DurableExperiment,
        bindings: PodBindings,
        waiting: PendingReason | None,
        now: float,
        *,
        seldom: bool,
    ) -> bool:
        """Write the status of a trial, if it has changed; return False if what it says is not committed in time.

        Where `seldom`, progress alone is not written: an operator that has just started does not know when it was.
        """
        trial_id = trial.trial_id
        item = self._services.cache.trial(self._key, names.trial_name(self._name, trial_id))
        if item is None:
            bindings.changed.add(trial_id)  # deleted meanwhile
            return True
        before = item.get("status")
        status = self._trial_status(trial, item, durable, bindings, waiting, now)
        if same_status(before, status) or (seldom and trial.running and is_progress(before, status)):
            return True
        self._progress_written[trial_id] = now  # it shows its progress, too
        if not await durable.wait_committed(COMMIT_TIMEOUT_S):
            return False
        try:
            patched = await self._services.kube.patch(
                paths.trials(self._namespace),
                item["metadata"]["name"],
                {"status": merge_patch(before or {}, status)},
                subresource="status",
            )
        except InvalidObjectError as error:  # as it would be again; the other statuses do not wait for it
            if trial_id not in self._refused:
                self._refused.add(trial_id)
                logger.warning("the status of a TuneTrial stays as it is: %s", error)
            return True
        self._services.cache.update_trial(patched or item, deleted=patched is None)
        if patched is None:  # deleted without a watch event; a pass recreates it
            bindings.trial_changed(trial_id)
            self._services.enqueue(self._key)
        return True

    def is_behind(self, bindings: PodBindings) -> bool:
        """Return whether a trial's end is still to be written, where there is a TuneTrial for it."""
        if bindings.in_progress:
            return True
        changed = [names.trial_name(self._name, trial_id) for trial_id in bindings.changed]
        return any(self._services.cache.trial(self._key, name) is not None for name in changed)

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
            pod_name=own_name(pod) or None if pod is not None else None,
            node_name=node_of(pod) or None,
            waiting=summarize([(name, waiting)], now, (item.get("status") or {}).get("waiting"))
            if waiting is not None
            else None,
            storage_uri=durable.checkpoint_uri(trial),
        )

    def next_progress_s(self, running: int) -> float:
        """Return in how many seconds the progress of that many running trials is due."""
        return PROGRESS_INTERVAL_S if running <= PROGRESS_BATCH else PROGRESS_BATCH / PROGRESS_PER_S
