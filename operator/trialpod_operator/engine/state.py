"""The state of one experiment: trials, queues and flags. Owned by the engine; `Snapshot` is its stored form.

Every trial that has not ended is in exactly one queue: `running`, `paused`, `pending` (may start now) or `delayed`
(PENDING as well, but not before its `retry_at`). Nothing here takes longer with the number of trials.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from trialpod_operator.engine.changes import Change, Planted
from trialpod_operator.engine.outputs import Created
from trialpod_operator.engine.settings import Settings
from trialpod_operator.engine.trial import PAUSED, PENDING, RUNNING, OpenTrial, Trial


class Flags(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The experiment's own fields beside its trials."""

    slots: int | None = None
    resources: dict[str, float] = {}  # of all trials together, when known
    suspended: bool = False
    stopping: dict[str, Any] | None = None  # why all trials are being stopped
    finished: bool = False
    state: str = "Running"
    message: str = ""
    active_s: float = 0.0  # time spent neither suspended nor finished nor down, until `active_since`
    active_since: float | None = None
    now: float = 0.0  # of the latest event
    last_alive: float = 0.0  # of the latest event before this one
    results: int = 0
    spent: dict[str, float] = {}  # resource-seconds that ended attempts took; see `accounting`
    account: dict[str, dict[str, float]] = {}  # and what came of them, by outcome
    measured: bool = False  # some trial reported the metric at least once
    unmeasured: int = 0  # trials that ended without ever reporting the metric
    sound: bool = False  # the user's code has run: some attempt brought a result, or failed only later
    broken: int = 0  # trials whose code could not be started, while `sound` is False
    retried: str = ""  # the latest request of the user to try failed trials again
    warned: list[str] = []  # keys of the warnings that are given once
    # Of a search algorithm that takes its time (see `starts`):
    asked: bool = False  # for a suggestion, which has not come yet
    heard: bool = False  # it was told something since it was asked last
    resized: bool = False  # another number of samples was set since it was asked last
    dry: bool = False  # it has no suggestion until it is told something
    searched: bool = False  # it will never have another one
    spare: list[Created] = []  # suggestions for which there are no trials yet


class Kinds(msgspec.Struct, kw_only=True, frozen=True):
    """The classes whose states a snapshot holds, each with the one that it wraps."""

    search: str
    scheduler: str
    stopper: str = ""


class Snapshot(msgspec.Struct, kw_only=True):
    """Everything needed to go on, as plain data."""

    version: int
    settings: Settings | None
    flags: Flags
    trials: list[Trial]
    pending: list[str]
    delayed: list[str]
    paused: list[str]
    search: dict[str, Any]
    scheduler: dict[str, Any]
    stopper: dict[str, Any] | None
    kinds: Kinds | None = None  # None: an older version wrote it


class State:
    """Trials with their queues. Also the view of the experiment that schedulers get."""

    def __init__(self) -> None:
        self.settings: Settings | None = None
        self.flags = Flags()
        self.trials: dict[str, Trial] = {}  # in order of creation
        self.pending: dict[str, Trial] = {}  # may start now, in this order
        self.delayed: dict[str, Trial] = {}  # may start once `retry_at` has come
        self.paused: dict[str, Trial] = {}
        self.running: dict[str, Trial] = {}
        self.counts: dict[str, int] = {}
        self.pins: Counter[tuple[str, str]] = Counter()  # (trial_id, name): checkpoints that others start from
        self.in_use: tuple[dict[str, float], dict[str, float]] | None = None  # kept by `accounting`
        self._ordered: list[Trial] = []
        self._due: list[tuple[float, int, str]] = []  # heap of (retry_at, index, trial_id); may hold outdated entries

    @property
    def reported(self) -> bool:
        """Whether a trial has reported a result or saved a checkpoint: code that had no effect may be corrected."""
        return self.flags.results > 0 or any(trial.next_checkpoint_index for trial in self._ordered)

    def get_trials(self) -> Sequence[Trial]:
        """Return all trials in order of creation; not to be changed."""
        return self._ordered

    def get_trial(self, trial_id: str) -> Trial | None:
        """Return one trial."""
        return self.trials.get(trial_id)

    def pending_trials(self) -> Iterable[Trial]:
        """Return the trials that may start now, first come first."""
        return iter(self.pending.values())

    def paused_trials(self) -> Iterable[Trial]:
        """Return the paused trials, first come first."""
        return iter(self.paused.values())

    def running_trials(self) -> list[Trial]:
        """Return the running trials in order of creation, whatever the order in which they started."""
        return sorted(self.running.values(), key=lambda trial: trial.index)

    @property
    def waiting(self) -> bool:
        """True when some trial is PENDING, be it now or later."""
        return bool(self.pending or self.delayed)

    def add(self, trial: Trial) -> None:
        """Add a new trial at the end of the queue."""
        self.trials[trial.trial_id] = trial
        self._ordered.append(trial)
        self.pending[trial.trial_id] = trial
        self.counts[PENDING] = self.counts.get(PENDING, 0) + 1

    def move(self, trial: Trial, status: str) -> None:
        """Change a trial's status, and with it the queue that it is in."""
        trial_id = trial.trial_id
        if trial.status == RUNNING:
            self.running.pop(trial_id, None)
        elif trial.status == PAUSED:
            self.paused.pop(trial_id, None)
        elif trial.status == PENDING and self.pending.pop(trial_id, None) is None:
            self.delayed.pop(trial_id, None)
        self.counts[trial.status] -= 1
        self.counts[status] = self.counts.get(status, 0) + 1
        trial.status = status
        if status == PENDING:
            if trial.retry_at > self.flags.now:
                self._delay(trial)
            else:
                self.pending[trial_id] = trial
        elif status == PAUSED:
            self.paused[trial_id] = trial
        elif status == RUNNING:
            self.running[trial_id] = trial

    def plant(self, trial: Trial, change: Change | None, planted: Planted | None) -> None:
        """Change which checkpoints of others a trial starts from; those are pinned as long as it does."""
        self._pin(trial, -1)
        trial.change, trial.planted = change, planted
        self._pin(trial, +1)

    def wake(self, now: float) -> None:
        """Queue the trials whose time has come."""
        while self._due and self._due[0][0] <= now:
            retry_at, _, trial_id = heapq.heappop(self._due)
            trial = self.delayed.get(trial_id)
            if trial is not None and trial.retry_at == retry_at:
                del self.delayed[trial_id]
                self.pending[trial_id] = trial

    def next_due(self) -> float | None:
        """Return when the next delayed trial may start, in seconds since the epoch."""
        while self._due:
            retry_at, _, trial_id = self._due[0]
            trial = self.delayed.get(trial_id)
            if trial is not None and trial.retry_at == retry_at:
                return retry_at
            heapq.heappop(self._due)
        return None

    def load(self, snapshot: Snapshot, *, opens_values: bool = False) -> None:
        """Take over what a snapshot holds."""
        self.settings = snapshot.settings
        self.flags = snapshot.flags
        for stored in snapshot.trials:
            trial = OpenTrial.of(stored) if opens_values else stored
            self.trials[trial.trial_id] = trial
            self._ordered.append(trial)
            self.counts[trial.status] = self.counts.get(trial.status, 0) + 1
            if trial.status == RUNNING:
                self.running[trial.trial_id] = trial
            self._pin(trial, +1)
        self.pending = {trial_id: self.trials[trial_id] for trial_id in snapshot.pending}
        self.paused = {trial_id: self.trials[trial_id] for trial_id in snapshot.paused}
        for trial_id in snapshot.delayed:
            self._delay(self.trials[trial_id])

    def _pin(self, trial: Trial, count: int) -> None:
        change, planted = trial.change, trial.planted
        for start in (change.start if change is not None else None, planted.start if planted is not None else None):
            if start is not None:
                self.pins[start.key] += count
                if not self.pins[start.key]:
                    del self.pins[start.key]

    def _delay(self, trial: Trial) -> None:
        self.delayed[trial.trial_id] = trial
        heapq.heappush(self._due, (trial.retry_at, trial.index, trial.trial_id))
