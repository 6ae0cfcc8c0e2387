"""The state of one experiment: trials, queues, and its own fields in groups. Owned by the engine.

Every trial that has not ended is in exactly one queue: `running`, `paused`, `pending` (may start now) or `delayed`
(PENDING as well, but not before its `retry_at`). No operation takes longer when there are more trials.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import AttemptEnd, CheckpointInfo
from trialpod_operator.engine.choices import ActiveExploit, Change, Created
from trialpod_operator.engine.settings import Settings
from trialpod_operator.engine.standings import Standings
from trialpod_operator.engine.trial import PAUSED, PENDING, RUNNING, OpenTrial, Trial

MAX_IMPROVEMENTS = 64
"""Improvements of the best value that are kept."""


class Clock(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The experiment's time, in seconds since the epoch, and how long it was active."""

    now: float = 0.0  # of the latest event
    previous: float = 0.0  # of the event before that one: the experiment was alive then
    active_s: float = 0.0  # neither suspended nor finished nor down, until `active_since`
    active_since: float | None = None

    def advance(self, now: float) -> float:
        """Move to the time of the next event, never backwards, and return it."""
        self.previous = self.now
        self.now = now = max(now, self.now)
        return now

    def active_at(self, now: float) -> float:
        """Return the active time until `now`; it never goes backwards."""
        if self.active_since is None:
            return self.active_s
        return self.active_s + max(0.0, max(now, self.now) - self.active_since)

    def start(self) -> None:
        """Count the active time, unless it is counted already."""
        if self.active_since is None:
            self.active_since = self.now

    def stop(self) -> None:
        """Count no more."""
        self.active_s, self.active_since = self.active_at(self.now), None

    def skip_downtime(self) -> None:
        """Leave out the time since the latest event, in which no process ran the experiment."""
        if self.active_since is not None:
            self.active_s += max(0.0, self.previous - self.active_since)
            self.active_since = self.now


class Account(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Resource-seconds that ended attempts used, by outcome; see `accounting`."""

    spent: dict[str, float] = {}
    outcomes: dict[str, dict[str, float]] = {}

    def add_spent(self, seconds: Mapping[str, float]) -> None:
        """Add what an attempt used."""
        _add(self.spent, seconds)

    def add_outcome(self, outcome: str, seconds: Mapping[str, float]) -> None:
        """Add resource-seconds whose outcome is decided."""
        _add(self.outcomes.setdefault(outcome, {}), seconds)


class Ahead(msgspec.Struct, array_like=True, frozen=True):
    """What the running trials have ahead of them, in device-seconds.

    Attributes:
        stretches: of each trial, until it is judged next.
        total: of them all.
        longest: the longest way that any of them has after that.
    """

    stretches: dict[str, float]
    total: float
    longest: float


class BudgetProgress(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the hours used have brought, and whether more are worth it; see `budget_plan`."""

    improvements: list[tuple[float, float, float]] = []  # trial-seconds, GPU-seconds and the new best value
    closing: dict[str, Any] | None = None  # why no trial starts any more
    evaluating: bool = False  # repeats were created: no new config, unless the budget is edited
    ahead: dict[str, Ahead] = {}  # by what is counted
    changes: int = 0  # batches of results and changes of a trial's status since `ahead` was worked out

    def change(self) -> None:
        """Something happened that `ahead` does not know of."""
        self.changes += 1

    def foresee(self, ahead: dict[str, Ahead]) -> None:
        """Replace what running trials have ahead of them."""
        self.ahead, self.changes = ahead, 0

    def improves(self, value: float, sign: float) -> bool:
        """Return whether a value is the best so far."""
        return not (self.improvements and sign * value <= sign * self.improvements[-1][2])

    def improve(self, trial_s: float, gpu_s: float, value: float, sign: float) -> None:
        """Note a value if it is the best so far; of many, the older half is thinned out."""
        history = self.improvements
        if not self.improves(value, sign):
            return
        history.append((trial_s, gpu_s, value))
        if len(history) > MAX_IMPROVEMENTS:
            half = len(history) // 2
            self.improvements = [*history[:half:2], *history[half:]]


class SearchProgress(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is known of a search algorithm whose suggestions come as events (see `starts`)."""

    requested: bool = False  # a suggestion, which has not come yet
    informed: bool = False  # it learned something since the latest request
    samples_changed: bool = False  # the number of samples was changed since the latest request
    idle: bool = False  # it has no suggestion until it learns something
    exhausted: bool = False  # it will never have another one
    queued_suggestions: list[Created] = []  # for which there are no trials yet

    def request(self) -> None:
        """A suggestion is requested."""
        self.requested, self.informed, self.samples_changed = True, False, False

    def cancel(self) -> None:
        """Forget a request of an earlier run, in which suggestions came as events."""
        self.requested = False

    def answer(self, created: Created | None, *, finished: bool, failed: bool) -> None:
        """The answer to the request has come."""
        self.requested = False
        if created is not None:
            self.queued_suggestions.append(created)
        elif not failed:
            # That it has no more may be from before more were asked for.
            self.idle, self.exhausted = not self.informed, finished and not self.samples_changed

    def inform(self) -> None:
        """The algorithm learns something, so it may have a suggestion again."""
        self.informed, self.idle = True, False

    def wake(self) -> None:
        """Time went by, so it may have a suggestion again."""
        self.idle = False

    def resize(self) -> None:
        """The number of samples was changed."""
        self.exhausted, self.samples_changed = False, True

    @property
    def may_request(self) -> bool:
        """True when a request may bring a suggestion."""
        return not (self.requested or self.idle or self.exhausted)


class Flags(msgspec.Struct, kw_only=True, omit_defaults=True):
    """State, flags and counts of the experiment."""

    state: str = "Running"
    message: str = ""
    suspended: bool = False
    stopping: dict[str, Any] | None = None  # why all trials are being stopped
    finished: bool = False
    slots: int | None = None  # maximum number of attempts at a time, as far as capacity goes
    resources: dict[str, float] = {}  # of all trials together, when known
    results: int = 0
    measured: bool = False  # some trial reported the metric at least once
    unmeasured: int = 0  # trials that ended without ever reporting the metric
    user_code_ran: bool = False  # some attempt brought a result, or failed only later
    failed_to_start: int = 0  # trials whose code could not be started, while `user_code_ran` is False
    retry_token: str = ""  # of the user's latest request to retry failed trials
    warned: list[str] = []  # keys of the warnings that are given once


class InUse:
    """What the running attempts have of each resource at this moment.

    The sums are exact, so they do not depend on the order in which attempts begin and end: a replay has the same.

    Attributes:
        amounts: in use, by resource.
        since: the sum of amount times the beginning in seconds since the epoch, by resource.
    """

    def __init__(self) -> None:
        self.amounts: dict[str, float] = {}
        self.since: dict[str, float] = {}
        self._exact: dict[str, tuple[int, Fraction, Fraction]] = {}  # attempts, and the two sums

    def add(self, resources: Mapping[str, float], since: float) -> None:
        """An attempt has had these resources since that time."""
        self._change(resources, Fraction(since), 1)

    def remove(self, resources: Mapping[str, float], since: float) -> None:
        """The attempt that was added with these values has ended."""
        self._change(resources, Fraction(since), -1)

    def _change(self, resources: Mapping[str, float], since: Fraction, sign: int) -> None:
        for name, amount in resources.items():
            number, amounts, beginnings = self._exact.get(name, (0, Fraction(), Fraction()))
            exact = sign * Fraction(amount)
            number, amounts, beginnings = number + sign, amounts + exact, beginnings + exact * since
            if number:
                self._exact[name] = number, amounts, beginnings
                self.amounts[name], self.since[name] = float(amounts), float(beginnings)
            else:
                del self._exact[name], self.amounts[name], self.since[name]


class Changes:
    """Which trials changed their queue, or may have got or lost their checkpoint, since each reader last asked.

    Nothing is kept before the first one asks.

    Attributes:
        pauses: the paused trials, numbered in the order in which they paused.
    """

    def __init__(self) -> None:
        self.pauses: dict[str, int] = {}
        self._count = 0
        self._readers: WeakKeyDictionary[object, dict[str, Trial]] = WeakKeyDictionary()

    def add(self, trial: Trial) -> None:
        """The trial changes."""
        for changed in self._readers.values():
            changed[trial.trial_id] = trial

    def begin_pause(self, trial: Trial) -> None:
        """The trial is the last one in the queue of paused ones."""
        self._count += 1
        self.pauses[trial.trial_id] = self._count

    def end_pause(self, trial: Trial) -> None:
        """The trial leaves it."""
        self.pauses.pop(trial.trial_id, None)

    def take(self, reader: object) -> list[Trial] | None:
        """Return what changed since this reader last asked; None when it has never asked."""
        changed = self._readers.get(reader)
        self._readers[reader] = {}
        return None if changed is None else [*changed.values()]


class State:
    """Trials with their queues, and the experiment's own fields."""

    def __init__(self) -> None:
        self.settings: Settings | None = None
        self.flags = Flags()
        self.clock = Clock()
        self.account = Account()
        self.budget = BudgetProgress()
        self.search_progress = SearchProgress()
        self.trials: dict[str, Trial] = {}  # in order of creation
        self.pending: dict[str, Trial] = {}  # may start now, in this order
        self.delayed: dict[str, Trial] = {}  # may start once `retry_at` has come
        self.paused: dict[str, Trial] = {}
        self.running: dict[str, Trial] = {}
        self.counts: dict[str, int] = {}
        self.pins: Counter[tuple[str, str]] = Counter()  # (trial_id, name): checkpoints that others start from
        self.standings = Standings()
        self.changes = Changes()
        self.in_use: InUse | None = None  # what running attempts have; None until `accounting` needs it
        self._ordered: list[Trial] = []
        self._due: list[tuple[float, int, str]] = []  # heap of (retry_at, index, trial_id); may hold outdated entries

    @property
    def required_settings(self) -> Settings:
        """The current settings; there are some once `SettingsObserved` was applied."""
        if self.settings is None:
            raise InvalidInputError("the experiment has no settings yet: apply SettingsObserved first")
        return self.settings

    @property
    def reported(self) -> bool:
        """Whether a trial has reported a result or saved a checkpoint: code that had no effect may be corrected.

        Results without the metric that the experiment is about are none: nothing can be compared with them.
        """
        settings = self.settings
        needs_metric = settings is not None and settings.metric is not None and settings.strict_metric
        counted = self.flags.measured if needs_metric else self.flags.results > 0
        return counted or any(trial.next_checkpoint_index for trial in self._ordered)

    def get_trials(self) -> Sequence[Trial]:
        """Return all trials in order of creation; not to be changed."""
        return self._ordered

    def running_trials(self) -> list[Trial]:
        """Return the running trials in order of creation, whatever the order in which they started."""
        return sorted(self.running.values(), key=lambda trial: trial.index)

    def current_trial(self, trial_id: str, attempt: int) -> Trial | None:
        """Return the trial if this is its latest attempt and has not ended."""
        trial = self.trials.get(trial_id)
        return trial if trial is not None and trial.running and trial.attempt == attempt else None

    @property
    def waiting(self) -> bool:
        """True when some trial is PENDING, be it now or later."""
        return bool(self.pending or self.delayed)

    @property
    def has_room(self) -> bool:
        """Whether settings and capacity let another attempt start."""
        running, slots, maximum = len(self.running), self.flags.slots, self.required_settings.max_concurrent
        return (not maximum or running < maximum) and (slots is None or running < slots)

    # -- transitions: trials ------------------------------------------------------------------------------------

    def add(self, trial: Trial) -> None:
        """Add a new trial at the end of the queue."""
        self.trials[trial.trial_id] = trial
        self._ordered.append(trial)
        self.pending[trial.trial_id] = trial
        self.changes.add(trial)
        self.counts[PENDING] = self.counts.get(PENDING, 0) + 1
        self.standings.add(trial)

    def move(self, trial: Trial, status: str) -> None:
        """Change a trial's status, and with it the queue that it is in."""
        trial_id = trial.trial_id
        self.budget.change()
        self.changes.add(trial)
        if trial.status == RUNNING:
            self.running.pop(trial_id, None)
            self.standings.starting.discard(trial_id)
        elif trial.status == PAUSED:
            self.paused.pop(trial_id, None)
            self.changes.end_pause(trial)
        elif trial.status == PENDING and self.pending.pop(trial_id, None) is None:
            self.delayed.pop(trial_id, None)
        self.counts[trial.status] -= 1
        self.counts[status] = self.counts.get(status, 0) + 1
        trial.status = status
        if status == PENDING:
            if trial.retry_at > self.clock.now:
                self._delay(trial)
            else:
                self.pending[trial_id] = trial
        elif status == PAUSED:
            self.paused[trial_id] = trial
            self.changes.begin_pause(trial)
        elif status == RUNNING:
            self.running[trial_id] = trial
            self.standings.starting.add(trial_id)
        else:
            self.standings.ended(trial)

    def wake(self) -> None:
        """Queue the trials whose time has come."""
        while self._due and self._due[0][0] <= self.clock.now:
            retry_at, _, trial_id = heapq.heappop(self._due)
            trial = self.delayed.get(trial_id)
            if trial is not None and trial.retry_at == retry_at:
                del self.delayed[trial_id]
                self.pending[trial_id] = trial
                self.changes.add(trial)

    def next_due(self) -> float | None:
        """Return when the next delayed trial may start, in seconds since the epoch."""
        while self._due:
            retry_at, _, trial_id = self._due[0]
            trial = self.delayed.get(trial_id)
            if trial is not None and trial.retry_at == retry_at:
                return retry_at
            heapq.heappop(self._due)
        return None

    # -- transitions: exploits ----------------------------------------------------------------------------------

    def plan_exploit(self, trial: Trial, change: Change) -> None:
        """Let the trial follow another one when its attempt has ended."""
        self._set_exploit(trial, change, trial.active_exploit)

    def apply_exploit(self, trial: Trial) -> Change | None:
        """Put the pending exploit into effect, and return it."""
        change, active = trial.pending_exploit, trial.active_exploit
        if change is None:
            return None
        if change.start is not None:
            active = ActiveExploit(change.source, change.start, trial.params, trial.tag)
            before, trial.max_iteration = trial.max_iteration, change.start.checkpoint.iteration
            self.standings.progressed(trial, before)
        trial.set_config(change.params, change.tag)
        self._set_exploit(trial, None, active)
        return change

    def undo_exploit(self, trial: Trial) -> ActiveExploit | None:
        """Restore what was before the active exploit, whose checkpoint is unusable, and return it."""
        active = trial.active_exploit
        if active is not None:
            trial.params, trial.tag = active.params_before, active.tag_before
            self._set_exploit(trial, None, None)
            holder = self.trials.get(active.start.trial_id)
            if holder is not None:
                self.remove_checkpoints(holder, {active.start.checkpoint.name})
        return active

    def end_exploit(self, trial: Trial) -> None:
        """The trial has a checkpoint of its own, from which it starts from now on."""
        if trial.active_exploit is not None:
            self._set_exploit(trial, trial.pending_exploit, None)

    def drop_exploits(self, trial: Trial, *, keep_active: bool = False) -> None:
        """Forget the pending exploit, and the active one unless it is kept."""
        self._set_exploit(trial, None, trial.active_exploit if keep_active else None)

    def _set_exploit(self, trial: Trial, pending: Change | None, active: ActiveExploit | None) -> None:
        self._pin(trial, -1)
        trial.pending_exploit, trial.active_exploit = pending, active
        self._pin(trial, +1)
        self.changes.add(trial)

    # -- transitions: the experiment ----------------------------------------------------------------------------

    def fail(self, trial: Trial, end: AttemptEnd) -> None:
        """Count a failed attempt of the trial."""
        trial.fail(end)
        self.standings.failures += 1

    def disrupt(self, trial: Trial, now: float) -> None:
        """Count a disrupted attempt of the trial."""
        trial.disrupt(now)
        self.standings.disruptions += 1

    def reopen_trial(self, trial: Trial, *, from_scratch: bool) -> None:
        """Let the user retry an ended trial; its failures are counted again."""
        self.standings.failures -= trial.failures
        before = trial.max_iteration
        trial.reopen(from_scratch=from_scratch)
        self.changes.add(trial)
        self.standings.progressed(trial, before)

    def record_value(self, trial: Trial, number: float, iteration: int | None) -> None:
        """Store a value of the metric."""
        before = trial.value
        trial.record_value(number, iteration)
        if trial.value != before:
            self.standings.valued(trial, before)

    def set_last_result(self, trial: Trial, result: bytes, iteration: int | None) -> None:
        """Store the last result of a batch, and how far the trial came with it."""
        before = trial.max_iteration
        trial.set_last_result(result, iteration)
        self.standings.progressed(trial, before)

    def add_checkpoints(self, trial: Trial, committed: list[CheckpointInfo]) -> bool:
        """Add checkpoints that the trial's attempt committed; return whether any is new."""
        before, bare = trial.max_iteration, not trial.checkpoints
        new = trial.add_checkpoints(committed, self.clock.now)
        if new and bare:
            self.changes.add(trial)
        self.standings.progressed(trial, before)
        return new

    def remove_checkpoints(self, trial: Trial, names: Collection[str]) -> None:
        """Forget checkpoints of the trial that are deleted, or may be."""
        trial.remove_checkpoints(names)
        self.changes.add(trial)

    def release_checkpoints(self, trial: Trial, released: list[str], deleted: list[str]) -> None:
        """Let the trial's attempt delete some checkpoints, and forget those that it has deleted."""
        trial.release_checkpoints(released, deleted)
        if not trial.checkpoints:
            self.changes.add(trial)

    def record_point(self, trial: Trial, point: list[float]) -> None:
        """Store a trial's values of all objectives."""
        if point != trial.point:
            trial.point = point
            self.standings.pointed(trial)

    def set_settings(self, settings: Settings) -> None:
        """Replace the settings."""
        self.settings = settings

    def set_capacity(self, slots: int | None, resources: dict[str, float]) -> None:
        """Replace what all trials together may use."""
        self.flags.slots, self.flags.resources = slots, resources

    def run_user_code(self) -> None:
        """The user's code has run."""
        self.flags.user_code_ran = True

    def count_results(self, number: int) -> None:
        """The user's code reported so many results."""
        self.run_user_code()
        self.flags.results += number
        self.budget.change()

    def measure(self) -> None:
        """A trial reported the metric."""
        self.flags.measured = True

    def count_unmeasured(self) -> int:
        """Count a trial that ended without the metric; return how many did, 0 if any trial reported it."""
        self.flags.unmeasured += 1
        return 0 if self.flags.measured else self.flags.unmeasured

    def count_failed_start(self) -> int:
        """Count a trial whose code could not be started; return how many could not, 0 if any could."""
        if self.flags.user_code_ran:
            return 0
        self.flags.failed_to_start += 1
        return self.flags.failed_to_start

    def take_retry_token(self, token: str) -> bool:
        """Return whether a request to retry is new; one without a token always is."""
        known = bool(token) and token == self.flags.retry_token
        self.flags.retry_token = token or self.flags.retry_token
        return not known

    def warn_first(self, key: str) -> bool:
        """Return True once for each key."""
        first = key not in self.flags.warned
        if first:
            self.flags.warned.append(key)
        return first

    def close(self, reason: dict[str, Any] | None) -> None:
        """No trial starts any more for this reason; None: they do again."""
        self.budget.closing = reason
        if reason is None:
            self.budget.evaluating = False

    def begin_evaluation(self) -> None:
        """The best configs are being repeated: what is left of the budget is for them."""
        self.budget.evaluating = True

    def begin_stopping(self, reason: dict[str, Any]) -> None:
        """All trials are being stopped."""
        self.flags.stopping = reason

    def suspend(self, state: str) -> None:
        """Pause all trials; the active time stops. What is being stopped, or has finished, stays so."""
        flags = self.flags
        flags.suspended = True
        if not (flags.finished or flags.stopping):
            flags.state = state
            self.clock.stop()

    def resume(self, state: str) -> None:
        """End the suspension."""
        self.flags.suspended = False
        if not self.flags.finished:
            self.flags.state = state
            self.clock.start()

    def reopen(self, state: str) -> None:
        """Continue an experiment that has finished or is being stopped, and count its failures again."""
        flags = self.flags
        flags.finished, flags.stopping = False, None
        flags.state, flags.message = state, ""
        flags.unmeasured = flags.failed_to_start = 0
        flags.user_code_ran = False
        if not flags.suspended:
            self.clock.start()

    def finish(self, state: str, message: str) -> None:
        """Nothing runs and nothing will."""
        self.clock.stop()
        self.flags.finished = True
        self.flags.state, self.flags.message = state, message

    def load(self, trials: Iterable[Trial], queues: tuple[list[str], list[str], list[str]], *, opens: bool) -> None:
        """Take over stored trials, with the ids of those in `pending`, `delayed` and `paused`."""
        for stored in trials:
            trial = OpenTrial.of(stored) if opens else stored
            self.trials[trial.trial_id] = trial
            self._ordered.append(trial)
            self.counts[trial.status] = self.counts.get(trial.status, 0) + 1
            if trial.status == RUNNING:
                self.running[trial.trial_id] = trial
            self.standings.add(trial)
            self._pin(trial, +1)
        pending, delayed, paused = queues
        self.pending = {trial_id: self.trials[trial_id] for trial_id in pending}
        self.paused = {trial_id: self.trials[trial_id] for trial_id in paused}
        for trial in self.paused.values():
            self.changes.begin_pause(trial)
        for trial_id in delayed:
            self._delay(self.trials[trial_id])

    # -- inside -------------------------------------------------------------------------------------------------

    def _pin(self, trial: Trial, count: int) -> None:
        pending, active = trial.pending_exploit, trial.active_exploit
        for start in (pending.start if pending is not None else None, active.start if active is not None else None):
            if start is not None:
                self.pins[start.key] += count
                if not self.pins[start.key]:
                    del self.pins[start.key]

    def _delay(self, trial: Trial) -> None:
        self.delayed[trial.trial_id] = trial
        heapq.heappush(self._due, (trial.retry_at, trial.index, trial.trial_id))


def _add(account: dict[str, float], seconds: Mapping[str, float]) -> None:
    for name, amount in seconds.items():
        account[name] = account.get(name, 0.0) + amount
