"""One experiment as a state machine: ``apply(event, now)`` changes the state and returns actions.

Invariants:

* Deterministic: the same settings, seeds and events give the same actions. The only clock is `now`.
* A trial has at most one attempt at a time; attempts are numbered 1, 2, 3, ... An event about any other attempt than
  the latest, or about one that has ended, changes nothing.
* Every result counts once: numbers already received are skipped, a gap is refused.
* What the engine chooses (suggestions, starts, verdicts) is in `outputs` after each call; given back as `recorded`
  it makes a replay choose the same (see `trialpod_operator.engine.outputs`).
* Only failures count against `max_failures`. Failures and disruptions are retried at once, and with back-off while a
  trial comes no further.
* An error that search algorithm, scheduler or stopper raise ends the experiment with that message; it never leaves
  `apply`, which would take the operator down at every restart anew.
* What `apply` refuses (InvalidInputError, ValidationError) has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import msgspec

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import Horizon, ReportAnswer
from trialpod.protocol.readable import readable
from trialpod.protocol.values import ResultReader, params_encoder
from trialpod.tune.plugins.goal import introduce_scheduler
from trialpod.tune.plugins.state import References, referring_to, restore_state, stored_state
from trialpod.tune.schedulers.fifo import FIFOScheduler
from trialpod.tune.schedulers.trial_scheduler import TrialScheduler
from trialpod.tune.search.search_algorithm import SearchAlgorithm
from trialpod.tune.stopper.stopper import Stopper
from trialpod_operator.engine import attempts, outcome, progress, results, starts
from trialpod_operator.engine.actions import Action, StopAttempt, Warned
from trialpod_operator.engine.controller import Controller
from trialpod_operator.engine.events import (
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    CapacityObserved,
    CheckpointDamaged,
    CheckpointsChanged,
    FailureObserved,
    Recovered,
    ResultsReceived,
    ResumeRequested,
    RetryRequested,
    SettingsObserved,
    StopRequested,
    SuggestionReady,
    SuspendRequested,
    TimerFired,
)
from trialpod_operator.engine.outputs import Outputs
from trialpod_operator.engine.settings import Settings
from trialpod_operator.engine.state import Kinds, Snapshot, State
from trialpod_operator.engine.state_versions import check_kinds, check_versions, kind_of
from trialpod_operator.engine.trial import Trial

SNAPSHOT_VERSION = 1
_CONTROLLER = "controller"

P = ParamSpec("P")
T = TypeVar("T")


class _Version(msgspec.Struct):
    version: int


class Engine:
    """Decides everything about one experiment.

    Args:
        search: proposes trials.
        scheduler: decides which trials go on; FIFO by default.
        stopper: ends trials or the experiment by their results; none by default.
        opens_values: algorithms see the user's objects themselves, in configs and results: this is the user's own
            process. Else they see `OpaqueValue` in their place, and nothing is unpickled.
        encode_params: encodes configs.
    """

    def __init__(
        self,
        search: SearchAlgorithm,
        scheduler: TrialScheduler | None = None,
        stopper: Stopper | None = None,
        *,
        opens_values: bool = False,
        encode_params: Callable[[Any], bytes] = params_encoder.encode,
    ) -> None:
        self.opens_values = opens_values
        self.encode_params = encode_params
        self.result_reader = ResultReader()
        self.search = search
        self.scheduler = scheduler or FIFOScheduler()
        self.stopper = stopper
        self.state = State()
        self.outputs = Outputs()
        self.silent = stopper is None and type(self.scheduler) is FIFOScheduler
        """No result leads to a decision."""
        listens = type(search).on_trial_result is not SearchAlgorithm.on_trial_result
        self.search_listens = bool(getattr(search, "listens", listens))
        self.defers = bool(getattr(search, "defers", False))
        """Suggestions come later, as `SuggestionReady`: `search` has `request` and `answered` (see `starts`)."""
        self.keeps_one_pending = self.scheduler.time_slicing
        """The scheduler gives a trial's place to another one that waits, so there must always be one."""
        self.wanted_pending = 0 if self.defers else self.scheduler.pending_trials
        """How many trials the scheduler is to know of before they start."""
        # Hooks that only some stoppers have.
        self._observe_time: Callable[..., None] | None = getattr(stopper, "observe", None)
        self.on_attempt_start: Callable[[str], None] | None = getattr(stopper, "on_attempt_start", None)
        self.on_trial_end: Callable[[str], None] | None = getattr(stopper, "on_trial_end", None)
        self.controller = Controller(self)
        self.resources_of: Callable[[dict[str, Any]], dict[str, float]] = lambda _config: {}
        """What a trial with this config is given, as long as the scheduler has not changed that."""
        self.notice = ""
        """A warning about what is to run, given once when the experiment starts."""
        self.silence_due: float | None = None
        """When to look next for attempts that report nothing; not later than the first that is due. None: at once."""
        self.looks = 0
        """How often a new trial was looked for in this call of `apply`."""
        self.limits: tuple[int, int] | None = None
        """In a replay: how many trials were created and started when a paused one was given up; None: none was."""
        self._recorded: Outputs | None = None
        self._actions: list[Action] = []
        self._breakdown: dict[str, Any] | None = None

    # -- what a shell calls -------------------------------------------------------------------------------------

    def apply(self, event: AnyEvent, now: float, recorded: Outputs | None = None) -> list[Action]:
        """Take in one event and return what to do.

        Args:
            event: what happened.
            now: seconds since the epoch. A clock that went backwards is held at the latest time seen.
            recorded: in a replay, what was chosen when the event was first applied.

        Raises:
            InvalidInputError: new settings change more than the budget fields, or contradict the scheduler's.
            msgspec.ValidationError: a result is not a MessagePack map.
        """
        fresh = results.NewResults([], [])
        if isinstance(event, ResultsReceived):
            fresh = results.decode_new(self, event)
        elif isinstance(event, SettingsObserved):
            self._check(event.settings)
        flags = self.state.flags
        flags.last_alive = flags.now
        flags.now = now = max(now, flags.now)
        self.outputs = Outputs()
        self.looks = 0
        self._recorded = recorded
        self._breakdown = None
        self._actions = []
        self.controller.begin()
        self.state.wake(now)
        if not isinstance(event, Recovered):
            self._tell_time(now)
        if isinstance(event, ResultsReceived):
            if fresh.shown:
                results.receive(self, event, fresh, now)
        else:
            self._dispatch(event, now)
        self.controller.carry_out(now)
        if self.state.settings is not None:
            self._settle(now)
        return self._actions

    def next_wakeup(self) -> float | None:
        """Return when `TimerFired` must be applied at the latest, in seconds since the epoch; None = not at all."""
        flags = self.state.flags
        due = None if flags.suspended or flags.stopping or flags.finished else self.state.next_due()
        deadline = outcome.deadline(self)
        if self.silence_due is not None:
            deadline = self.silence_due if deadline is None else min(deadline, self.silence_due)
        if due is None or deadline is None:
            return deadline if due is None else due
        return min(due, deadline)

    def received(self, trial_id: str, attempt: int) -> int | None:
        """Return how many results of the attempt are known; None when the attempt is superseded."""
        trial = self.state.trials.get(trial_id)
        return None if trial is None or trial.attempt != attempt or trial.lost else trial.received

    def answer(self, trial_id: str, attempt: int) -> ReportAnswer:
        """Return what the attempt is to know now; the caller fills in `durable`."""
        trial = self.state.trials.get(trial_id)
        if trial is None or trial.attempt != attempt or trial.lost:
            return ReportAnswer(superseded=True)
        if not trial.running:
            # Said its last word already, and says it again because the answer was lost.
            return ReportAnswer(received=trial.received, decision="stop")
        decision = trial.decision
        if decision == "exploit" and trial.change is not None and trial.change.start is None:
            decision = "pause"  # it goes on from its own state, which is to be saved
        return ReportAnswer(
            received=trial.received, horizons=self.horizons(trial), decision=decision, deletable=list(trial.released)
        )

    def horizons(self, trial: Trial) -> list[Horizon]:
        """Return where the trial must next wait for a decision.

        Also while the experiment is suspended: what an attempt reports until it pauses is judged, and it may not go
        on behind a result that ends it.
        """
        if trial.failing is not None:
            return []  # it is about to be ended, and must not wait for a decision meanwhile
        if trial.completion_told or (trial.decision is not None and not results.suspending(trial)):
            return []
        horizons = self.ask(self.scheduler.horizons, trial)
        if self.stopper is not None and horizons is not None:
            more = self.ask(self.stopper.horizons, trial.trial_id)
            horizons = None if more is None else [*horizons, *more]
        return [Horizon()] if horizons is None else horizons

    @property
    def finished(self) -> bool:
        """True when nothing runs and nothing will unless the budget is raised."""
        return self.state.flags.finished

    def active_s(self, now: float) -> float:
        """Return the active time of the experiment so far, in seconds; it never goes backwards."""
        flags = self.state.flags
        if flags.active_since is None:
            return flags.active_s
        return flags.active_s + max(0.0, max(now, flags.now) - flags.active_since)

    def snapshot(self) -> bytes:
        """Return the whole state as MessagePack.

        Raises:
            StateNotKeptError: a scheduler, search algorithm or stopper of the user has a state that cannot be stored.
        """
        state = self.state
        with referring_to(self._references):
            return msgspec.msgpack.encode(
                Snapshot(
                    version=SNAPSHOT_VERSION,
                    settings=state.settings,
                    flags=state.flags,
                    trials=list(state.trials.values()),
                    pending=list(state.pending),
                    delayed=list(state.delayed),
                    paused=list(state.paused),
                    search=stored_state(self.search),
                    scheduler=stored_state(self.scheduler),
                    stopper=stored_state(self.stopper) if self.stopper is not None else None,
                    kinds=self._kinds,
                ),
                enc_hook=readable,
            )

    def restore(self, data: bytes, *, by_record: bool = False) -> None:
        """Take over a snapshot, on an engine that was made with the same algorithms and has seen no event.

        Args:
            data: what `snapshot` returned.
            by_record: the algorithms of this engine only stand in for those that decided.

        Raises:
            InvalidInputError: it is of a newer version or of other algorithms, or none at all.
        """
        try:
            version = msgspec.msgpack.decode(data, type=_Version).version
            snapshot = msgspec.msgpack.decode(data, type=Snapshot) if version <= SNAPSHOT_VERSION else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidInputError(
                f"the snapshot's state of the experiment cannot be read ({error}): it is damaged, or another "
                "program's; put the experiment back from a copy"
            ) from error
        if snapshot is None:
            raise InvalidInputError(
                f"this experiment was written by a newer trialpod (snapshot version {version}, this one "
                f"reads up to {SNAPSHOT_VERSION}); nothing was changed; upgrade trialpod to open it"
            )
        check_versions(
            (self.search, snapshot.search), (self.scheduler, snapshot.scheduler), (self.stopper, snapshot.stopper)
        )
        kinds = self._kinds
        if not by_record:
            check_kinds(snapshot.kinds, kinds)
        self.state.load(snapshot, opens_values=self.opens_values)
        if snapshot.settings is not None:
            self._introduce(snapshot.settings)
            self.search.set_num_samples(snapshot.settings.num_samples)
        with referring_to(self._references):
            self._load(self.search, snapshot.search)
            if snapshot.flags.asked:
                starts.ask_again(self)
            self._load(self.scheduler, snapshot.scheduler)
            # Another stopper begins without the history of the one before it: stop rules may change.
            same = by_record or snapshot.kinds is None or snapshot.kinds.stopper == kinds.stopper
            if self.stopper is not None and snapshot.stopper is not None and same:
                self._load(self.stopper, snapshot.stopper)
        self._tell_time(self.state.flags.now)

    @property
    def _kinds(self) -> Kinds:
        return Kinds(search=kind_of(self.search), scheduler=kind_of(self.scheduler), stopper=kind_of(self.stopper))

    @staticmethod
    def _load(owner: Any, state: dict[str, Any]) -> None:
        try:
            restore_state(owner, state)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, InvalidInputError):
                raise
            raise InvalidInputError(
                f"the stored state does not fit {kind_of(owner)} ({type(error).__name__}: {error}); the experiment "
                "was started with another search algorithm, scheduler or stopper, or with another version of it. Use "
                "the same one, or another name for a new experiment"
            ) from error

    # -- for the engine's own modules ---------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """The current settings; there are some once `SettingsObserved` was applied."""
        if self.state.settings is None:
            raise InvalidInputError("the experiment has no settings yet: apply SettingsObserved first")
        return self.state.settings

    @property
    def breakdown(self) -> dict[str, Any] | None:
        """The error of an algorithm during this event."""
        return self._breakdown

    @property
    def recorded(self) -> Outputs | None:
        """What was chosen when this event was first applied; None outside of a replay."""
        return self._recorded

    def do(self, action: Action) -> None:
        """Add an action to those that `apply` returns."""
        self._actions.append(action)

    def stop_all(self, reason: dict[str, Any], now: float) -> None:
        """Stop every trial that has not ended, and create no more."""
        outcome.stop_all(self, reason, now)

    def warn_once(self, key: str, message: Callable[[], str], trial: Trial | None = None) -> None:
        """Warn the user, but only the first time for this `key`; only then is `message` called."""
        if key not in self.state.flags.warned:
            self.state.flags.warned.append(key)
            self.do(Warned(message(), trial))

    def ask(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Call a method of search algorithm, scheduler or stopper; when it raises, the experiment ends."""
        try:
            return method(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - it ends the experiment with its message, see `_settle`
            owner = type(getattr(method, "__self__", method)).__name__
            name = getattr(method, "__name__", "")
            self.break_down(f"{owner}.{name} raised {type(error).__name__}: {error}")
            return None

    def tell(self, method: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a method by which the search algorithm learns something."""
        if self.defers:
            self.state.flags.heard, self.state.flags.dry = True, False
        self.ask(method, *args, **kwargs)

    def break_down(self, message: str) -> None:
        """End the experiment, because an algorithm broke its contract; the first message counts."""
        if self._breakdown is None:
            self._breakdown = {"source": "algorithm", "message": message}

    # -- inside ---------------------------------------------------------------------------------------------------

    @property
    def _references(self) -> References:
        """What a user's scheduler may hold on to, which is not part of its state."""

        def name_of(thing: object) -> str | None:
            if thing is self.controller:
                return _CONTROLLER
            return f"trial {thing.trial_id}" if isinstance(thing, Trial) else None

        def find(name: str) -> Any:
            return self.controller if name == _CONTROLLER else self.state.trials.get(name.removeprefix("trial "))

        return References(name_of, find)

    def _dispatch(self, event: AnyEvent, now: float) -> None:
        match event:
            case AttemptStarted():
                attempts.started(self, event)
            case AttemptEnded():
                attempts.ended(self, event, now)
            case FailureObserved():
                attempts.failure_observed(self, event)
            case CheckpointsChanged():
                attempts.checkpoints_changed(self, event)
            case CheckpointDamaged():
                attempts.checkpoint_damaged(self, event)
            case SettingsObserved():
                self._observe(event.settings, now)
            case CapacityObserved():
                self.state.flags.slots, self.state.flags.resources = event.slots, event.resources
            case TimerFired():
                self.state.flags.dry = False
            case SuggestionReady():
                starts.suggested(self, event)
            case StopRequested(trial_id=None):
                outcome.stop_all(self, {"source": "user"}, now)
            case StopRequested(trial_id=trial_id):
                attempts.stop_one(self, str(trial_id), {"source": "user"}, now)
            case SuspendRequested():
                outcome.suspend(self, now)
            case ResumeRequested():
                outcome.resume(self, now)
            case RetryRequested():
                outcome.retry_errors(self, event, now)
            case Recovered():
                outcome.recover(self, event, now)

    def _check(self, settings: Settings) -> None:
        old = self.state.settings
        if old is None:
            self._introduce(settings)
            return
        changed = settings.fixed_differences(old)
        if changed:
            raise InvalidInputError(
                f"{', '.join(changed)} of an experiment that has already started cannot change "
                f"(only the budget can: more samples, concurrency, time, retries); use another name for a new one"
            )

    def _introduce(self, settings: Settings) -> None:
        introduce_scheduler(self.scheduler, settings.metric, settings.mode if settings.metric else None)

    def _observe(self, settings: Settings, now: float) -> None:
        old = self.state.settings
        self.state.settings = settings
        self.silence_due = None
        if old is None and not self.state.flags.suspended:
            self.state.flags.active_since = now
        if old is None or old.num_samples != settings.num_samples:
            self.state.flags.searched, self.state.flags.resized = False, True
            self.tell(self.search.set_num_samples, settings.num_samples)
        if old is None and self.notice:
            self.do(Warned(self.notice))
        if old is not None:
            outcome.reopen(self, settings != old, now)

    def _tell_time(self, now: float) -> None:
        if self._observe_time is not None:
            # The experiment's own clock: it stands still while nothing may run, and nobody was there.
            self.ask(self._observe_time, self.active_s(now))

    def _settle(self, now: float) -> None:
        progress.enforce(self, now)
        outcome.enforce_budgets(self, now)
        if self._observe_time is not None or self._recorded is not None:
            results.stop_everything(self, 0, now)
        while True:
            outputs, recorded = self.outputs, self._recorded
            passes = recorded.passes if recorded is not None else []
            self.limits = passes[len(outputs.passes)] if len(outputs.passes) < len(passes) else None
            starts.fill(self, now)
            self._fall_over(self._breakdown, now)
            self.controller.carry_out(now)
            if not outcome.finish_or_unblock(self, now):
                break
            outputs.passes.append((len(outputs.created), len(outputs.started)))
        if self.limits is not None:
            self.limits = None
            starts.fill(self, now)
        if self._recorded is not None and self.outputs.breakdown is None:
            self._fall_over(self._recorded.breakdown, now)
            outcome.finish_or_unblock(self, now)

    def _fall_over(self, reason: dict[str, Any] | None, now: float) -> None:
        if self._recorded is not None and self._recorded.breakdown is None:
            return
        if reason is not None and self.outputs.breakdown is None:
            reason = self._recorded.breakdown if self._recorded is not None else reason
            self.outputs.breakdown = reason
            self.stop_all(reason or {}, now)

    def stop_attempt(self, trial: Trial) -> None:
        """Ask for the end of the running attempt, by the decision that the trial holds."""
        if trial.overdue:
            self.do(StopAttempt(trial, trial.attempt, "stop", {"source": "progress_deadline"}))
        elif trial.decision is not None:
            self.do(StopAttempt(trial, trial.attempt, trial.decision, trial.decision_reason))
