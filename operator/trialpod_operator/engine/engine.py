"""One experiment as a state machine: ``apply(event, now)`` changes the state and returns actions.

Invariants:

* Deterministic: the same settings, seeds and events give the same actions. The only clock is `now`.
* A trial has at most one attempt at a time; attempts are numbered 1, 2, 3, ... An event about any other attempt than
  the latest, or about one that has ended, changes nothing.
* Every result counts once: numbers already received are skipped, a batch after a gap is ignored.
* What the engine chooses (suggestions, starts, verdicts) is in `choices` after each call; given back as `recorded`
  it makes a replay choose the same (see `trialpod_operator.engine.chooser`).
* Only failures count against `max_failures`. Failures and disruptions are retried at once, and with back-off while a
  trial makes no progress.
* An error that search algorithm, scheduler or stopper raise ends the experiment with that message; it never leaves
  `apply`, which would stop the operator again at every restart.
* What `apply` refuses (InvalidInputError, ValidationError) has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import Horizon, ReportAnswer
from trialpod.protocol.values import params_encoder
from trialpod.tune.schedulers.trial_scheduler import TrialScheduler
from trialpod.tune.search.search_algorithm import SearchAlgorithm
from trialpod.tune.stopper.stopper import Stopper
from trialpod_operator.engine import snapshot
from trialpod_operator.engine.actions import Action, ActionList, Warned
from trialpod_operator.engine.algorithms import Algorithms
from trialpod_operator.engine.attempts import Attempts
from trialpod_operator.engine.budget_plan import BudgetPlan
from trialpod_operator.engine.choices import Choices
from trialpod_operator.engine.chooser import Chooser, LiveChooser, ReplayingChooser
from trialpod_operator.engine.commands import Commands
from trialpod_operator.engine.endings import Endings
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
from trialpod_operator.engine.lifecycle import Lifecycle
from trialpod_operator.engine.progress import ProgressDeadline
from trialpod_operator.engine.repeats import Repeats
from trialpod_operator.engine.results import NewResults, Results
from trialpod_operator.engine.settings import Settings
from trialpod_operator.engine.starts import Starts
from trialpod_operator.engine.state import State
from trialpod_operator.engine.trial import Trial

_NO_RESULTS = NewResults([], [])


class Engine:
    """Decides everything about one experiment.

    Args:
        search: proposes trials.
        scheduler: decides which trials continue; FIFO by default.
        stopper: ends trials or the experiment by their results; none by default.
        opens_values: algorithms see the user's objects themselves, in configs and results: this is the user's own
            process. Else they see `OpaqueValue` in their place, and nothing is unpickled.
        encode_params: encodes configs.

    Attributes:
        state: trials, queues and the experiment's own fields; to be read only.
        choices: what was chosen in the latest call of `apply`.
        controller: the experiment as schedulers see it.
        plan: what the budget suffices for; to be asked only.
        notice: a warning about what is to run, given once when the experiment starts.
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
        self.state = state = State()
        self.choices = Choices()
        self.notice = ""
        self._algorithms = algorithms = Algorithms(
            state, search, scheduler, stopper, opens_values=opens_values, encode_params=encode_params
        )
        self.search, self.scheduler = algorithms.search, algorithms.scheduler
        self.controller = algorithms.controller
        self._actions = actions = ActionList(state)
        self._deadline = deadline = ProgressDeadline(state, actions)
        self._endings = endings = Endings(state, algorithms, actions)
        self._commands = commands = Commands(state, algorithms, actions, endings)
        plan = self.plan = BudgetPlan(state, algorithms, actions)
        self.controller.admits = plan.admits
        repeats = Repeats(state, algorithms, actions)
        self._results = results = Results(state, algorithms, actions, endings, commands, deadline, plan)
        self._attempts = attempts = Attempts(state, algorithms, actions, endings, results, deadline)
        self._starts = Starts(state, algorithms, actions, commands, plan, repeats)
        self._lifecycle = Lifecycle(state, algorithms, actions, endings, attempts, deadline, plan, repeats)

    # -- events in, actions out -----------------------------------------------------------------------------------

    def apply(self, event: AnyEvent, now: float, recorded: Choices | None = None) -> list[Action]:
        """Apply one event and return what to do.

        Args:
            event: what happened.
            now: seconds since the epoch. A clock that went backwards is held at the latest time seen.
            recorded: in a replay, what was chosen when the event was first applied.

        Raises:
            InvalidInputError: new settings change what is fixed once an experiment has started, or contradict the
                scheduler's.
            msgspec.ValidationError: a result is not a MessagePack map.
        """
        # 1. Refuse what cannot be applied, before anything changes.
        fresh = _NO_RESULTS
        if isinstance(event, ResultsReceived):
            fresh = self._results.decode_new(event)
        elif isinstance(event, SettingsObserved):
            self._check_settings(event.settings)

        # 2. Move the clock, and queue the trials whose back-off is over.
        chooser = self._begin(recorded)
        now = self.state.clock.advance(now)
        self.state.wake()
        if not isinstance(event, Recovered):
            self._algorithms.observe_time()

        # 3. Take in the event, and carry out what the scheduler decided about other trials meanwhile.
        if not isinstance(event, ResultsReceived):
            self._dispatch(event, chooser, now)
        elif fresh.shown:
            self._results.receive(event, fresh, chooser, now)
        self._commands.carry_out(chooser, now)

        # 4. Enforce deadlines and budgets, start trials where there is room, and finish when nothing is left.
        if self.state.settings is not None:
            self._enforce_limits(chooser, now)
            self._start_or_finish(chooser, now)
        return self._actions.take()

    def check(self, event: AnyEvent) -> None:
        """Refuse what `apply` would refuse now; raises as it does."""
        if isinstance(event, ResultsReceived):
            self._results.decode_new(event)
        elif isinstance(event, SettingsObserved):
            self._check_settings(event.settings)

    def _begin(self, recorded: Choices | None) -> Chooser:
        state, algorithms = self.state, self._algorithms
        algorithms.begin()
        self._actions.take()
        chooser: Chooser
        if recorded is None:
            chooser = LiveChooser(state, algorithms)
        else:
            chooser = ReplayingChooser(state, algorithms, recorded)
        self.choices = chooser.made
        return chooser

    def _dispatch(self, event: AnyEvent, chooser: Chooser, now: float) -> None:
        match event:
            case AttemptStarted():
                self._attempts.started(event)
            case AttemptEnded():
                self._attempts.ended(event, now)
            case FailureObserved():
                self._attempts.failure_observed(event)
            case CheckpointsChanged():
                self._attempts.checkpoints_changed(event)
            case CheckpointDamaged():
                self._attempts.checkpoint_damaged(event)
            case SettingsObserved():
                self._observe_settings(event.settings, chooser, now)
            case CapacityObserved():
                self.state.set_capacity(event.slots, event.resources)
            case TimerFired():
                self.state.search_progress.wake()
            case SuggestionReady():
                self._starts.suggested(event)
            case StopRequested(trial_id=None):
                self._endings.stop_all({"source": "user"}, now)
            case StopRequested(trial_id=trial_id):
                self._endings.stop_trial(str(trial_id), {"source": "user"}, now)
            case SuspendRequested():
                self._lifecycle.suspend(now)
            case ResumeRequested():
                self._lifecycle.resume()
            case RetryRequested():
                self._lifecycle.retry_errors(event, now)
            case Recovered():
                self._lifecycle.recover(event)

    def _enforce_limits(self, chooser: Chooser, now: float) -> None:
        self._deadline.enforce(now)
        self._lifecycle.enforce_budgets(chooser, now)
        if self._algorithms.observes_time or chooser.replaying:
            self._results.stop_experiment_if_due(0, chooser, now)

    def _start_or_finish(self, chooser: Chooser, now: float) -> None:
        """Start trials; when nothing runs, give up paused trials one by one, as others may start in their place."""
        while True:
            self._starts.fill(chooser, now)
            self._end_on_failure(chooser.failure(), now)
            self._commands.carry_out(chooser, now)
            if not self._lifecycle.finish_or_unblock(chooser, now):
                break
            chooser.end_pass()
        if isinstance(chooser, ReplayingChooser):
            # What is recorded, and changed algorithms have not led to.
            if chooser.skip_passes():
                self._starts.fill(chooser, now)
            self._end_on_failure(chooser.failure(last=True), now)
            self._lifecycle.finish_or_unblock(chooser, now)

    def _end_on_failure(self, reason: dict[str, Any] | None, now: float) -> None:
        if reason is not None:
            self._endings.stop_all(reason, now)

    # -- settings -------------------------------------------------------------------------------------------------

    def _check_settings(self, settings: Settings) -> None:
        old = self.state.settings
        if old is None:
            self._algorithms.introduce(settings)
            return
        changed = settings.fixed_differences(old)
        if changed:
            raise InvalidInputError(
                f"{', '.join(changed)} of an experiment that has already started cannot change "
                f"(only the budget can: more samples, concurrency, time, retries); use another name for a new one"
            )

    def _observe_settings(self, settings: Settings, chooser: Chooser, now: float) -> None:
        old = self.state.settings
        self.state.set_settings(settings)
        self._deadline.reset()
        if old is None and not self.state.flags.suspended:
            self.state.clock.start()
        if old is None or old.num_samples != settings.num_samples:
            self.state.search_progress.resize()
            self._algorithms.inform_search(self.search.set_num_samples, settings.num_samples)
        if old is None and self.notice:
            self._actions.add(Warned(self.notice))
        if old is not None:
            self._lifecycle.reopen_after_edit(chooser, now, changed=settings != old)

    # -- what attempts and shells are to know -----------------------------------------------------------------------

    def next_wakeup(self) -> float | None:
        """Return when `TimerFired` must be applied at the latest, in seconds since the epoch; None = not at all."""
        flags = self.state.flags
        delayed = None if flags.suspended or flags.stopping or flags.finished else self.state.next_due()
        due = (delayed, self._lifecycle.budget_end(), self._deadline.due)
        return min((time for time in due if time is not None), default=None)

    def received(self, trial_id: str, attempt: int) -> int | None:
        """Return how many results of the attempt are known; None when the attempt is superseded."""
        trial = self.state.trials.get(trial_id)
        return None if trial is None or trial.attempt != attempt or trial.current.lost else trial.current.received

    def answer(self, trial_id: str, attempt: int) -> ReportAnswer:
        """Return what the attempt is to know now; the caller fills in `durable`."""
        trial = self.state.trials.get(trial_id)
        if trial is None or trial.attempt != attempt or trial.current.lost:
            return ReportAnswer(superseded=True)
        current = trial.current
        if not trial.running:
            # It reports its end again, because the answer was lost.
            return ReportAnswer(received=current.received, decision="stop")
        decision = current.decision
        if decision == "exploit" and trial.pending_exploit is not None and trial.pending_exploit.start is None:
            decision = "pause"  # it continues from its own state, which is to be saved
        return ReportAnswer(
            received=current.received,
            horizons=self.horizons(trial),
            decision=decision,
            deletable=list(current.released),
        )

    def horizons(self, trial: Trial) -> list[Horizon]:
        """Return where the trial must next wait for a decision.

        Also while the experiment is suspended: what an attempt reports until it pauses is judged, and it may not
        continue after a result that ends it. None once it is about to end.
        """
        if trial.current.failing is not None or trial.judged:
            return []
        return self._algorithms.horizons(trial)

    @property
    def finished(self) -> bool:
        """True when nothing runs and nothing will unless the budget is raised."""
        return self.state.flags.finished

    @property
    def stops_early(self) -> bool:
        """True when results may lead to a decision."""
        return not self._algorithms.never_decide

    @property
    def total(self) -> int | None:
        """The number of trials in all, repeats included as far as there are any; None when that is open."""
        total = self.search.total
        rules = self.state.settings.repeats if self.state.settings is not None else None
        if total is None or rules is None:
            return total
        return total + sum(bool(trial.repeat_of) for trial in self.state.get_trials())

    def log_errors(self, log: Callable[[BaseException], object], describe: Callable[[BaseException], str]) -> None:
        """Have each error of an algorithm given to `log`, and named in `describe`'s words."""
        self._algorithms.on_error, self._algorithms.describe = log, describe

    @property
    def search_exhausted(self) -> bool:
        """Whether no further suggestion will come, as far as that is known."""
        return self._algorithms.search_exhausted

    # -- snapshots ------------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Return the whole state as MessagePack.

        Raises:
            StateNotKeptError: a scheduler, search algorithm or stopper of the user has a state that cannot be stored.
        """
        return snapshot.encode_snapshot(self.state, self._algorithms)

    def restore(self, data: bytes, *, by_record: bool = False) -> None:
        """Take over a snapshot, on an engine that was made with the same algorithms and has seen no event.

        Args:
            data: what `snapshot` returned.
            by_record: the algorithms of this engine only stand in for those that decided.

        Raises:
            InvalidInputError: it is of a newer version or of other algorithms, or none at all.
        """
        snapshot.restore(snapshot.decode_snapshot(data), self.state, self._algorithms, by_record=by_record)
