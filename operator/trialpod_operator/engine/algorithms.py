"""Search algorithm, scheduler and stopper of one experiment, called so that an error of theirs ends the experiment.

Such an error never leaves `Engine.apply`, which would stop the operator again at every restart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import Horizon
from trialpod.protocol.readable import storable
from trialpod.protocol.values import OpaqueValue, opaque_decoder, open_leniently
from trialpod.tune.plugins.goal import introduce_scheduler
from trialpod.tune.plugins.state import References
from trialpod.tune.result import Metrics
from trialpod.tune.results import flattened
from trialpod.tune.schedulers.fifo import FIFOScheduler
from trialpod.tune.schedulers.trial_scheduler import TrialScheduler, learns_of_own_stops
from trialpod.tune.search.search_algorithm import SearchAlgorithm, Suggestion
from trialpod.tune.stopper.stopper import Stopper
from trialpod_operator.engine.choices import Created, is_early_stop
from trialpod_operator.engine.controller import Controller
from trialpod_operator.engine.settings import Settings
from trialpod_operator.engine.state import State
from trialpod_operator.engine.trial import Trial

_CONTROLLER = "controller"

P = ParamSpec("P")
T = TypeVar("T")


class Algorithms:
    """Calls the algorithms of one experiment.

    Attributes:
        failure: the first error during the current call of `Engine.apply`, as a reason for the experiment's end.
        on_error: called with each error of an algorithm, for a log.
        describe: says what an error is, in the words of the experiment's end.
        never_decide: no result leads to a decision.
        search_listens: the search algorithm learns from results before the last one.
        defers_search: suggestions come later, as `SuggestionReady`; see `starts`.
        keeps_one_pending: the scheduler gives a trial's place to another one, so there must always be one that waits.
        wanted_pending: how many trials the scheduler is to know of before they start.
        observes_time: the stopper looks at the experiment's active time.
    """

    def __init__(
        self,
        state: State,
        search: SearchAlgorithm,
        scheduler: TrialScheduler | None,
        stopper: Stopper | None,
        *,
        opens_values: bool,
        encode_params: Callable[[Any], bytes],
    ) -> None:
        self._state = state
        self.search = search
        self.scheduler = scheduler or FIFOScheduler()
        self.stopper = stopper
        self.opens_values = opens_values
        self._encode_params = encode_params
        self.controller = Controller(state, encode_params, self.scheduler_reason)
        self.failure: dict[str, Any] | None = None
        self.on_error: Callable[[BaseException], object] = lambda _error: None
        self.describe: Callable[[BaseException], str] = lambda error: f"{type(error).__name__}: {error}"
        self.never_decide = stopper is None and type(self.scheduler) is FIFOScheduler
        listens = type(search).on_trial_result is not SearchAlgorithm.on_trial_result
        self.search_listens = bool(getattr(search, "listens", listens))
        self._shows_config = bool(getattr(getattr(search, "search", search), "shows_config", False))
        self.defers_search = bool(getattr(search, "defers", False))
        self.keeps_one_pending = self.scheduler.time_slicing
        self.wanted_pending = 0 if self.defers_search else self.scheduler.pending_trials
        self._stopper_sees_config = bool(getattr(stopper, "sees_config", False))
        # Hooks that only some stoppers have.
        self._observe_time: Callable[..., None] | None = getattr(stopper, "observe", None)
        self.observes_time = self._observe_time is not None
        self._on_attempt_start: Callable[[str], None] | None = getattr(stopper, "on_attempt_start", None)
        self._on_trial_end: Callable[[str], None] | None = getattr(stopper, "on_trial_end", None)

    def introduce(self, settings: Settings) -> None:
        """The scheduler learns what is optimised, or refuses it (InvalidInputError)."""
        introduce_scheduler(
            self.scheduler, settings.metric, settings.mode if settings.metric else None, settings.objectives
        )

    def begin(self) -> None:
        """Another event is applied."""
        self.failure = None
        self.controller.queue = []

    def ask(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Call a method of an algorithm; return None when it raises, which ends the experiment."""
        try:
            return method(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - it ends the experiment with its message
            self.on_error(error)
            owner = type(getattr(method, "__self__", method)).__name__
            name = getattr(method, "__name__", "")
            self.fail(f"{owner}.{name} raised {self.describe(error)}")
            return None

    def fail(self, message: str) -> None:
        """End the experiment, because an algorithm broke its contract; the first message counts."""
        if self.failure is None:
            self.failure = {"source": "algorithm", "message": message}

    def references(self) -> References:
        """Return what a user's scheduler may refer to, which is not part of its state."""

        def name_of(thing: object) -> str | None:
            if thing is self.controller:
                return _CONTROLLER
            return f"trial {thing.trial_id}" if isinstance(thing, Trial) else None

        def find(name: str) -> Any:
            return self.controller if name == _CONTROLLER else self._state.trials.get(name.removeprefix("trial "))

        return References(name_of, find)

    # -- search algorithm ---------------------------------------------------------------------------------------

    def inform_search(self, method: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a method by which the search algorithm learns something."""
        if self.defers_search:
            self._state.search_progress.inform()
        self.ask(method, *args, **kwargs)

    def report_to_search(self, trial: Trial, result: dict[str, Any]) -> None:
        """The search algorithm learns of a result."""
        self.inform_search(self.search.on_trial_result, trial.trial_id, self._with_config(trial, result))

    def _with_config(self, trial: Trial, result: dict[str, Any]) -> dict[str, Any]:
        """Return a result as the search algorithm wants it: those of users may look for what Ray's results have."""
        if not self._shows_config:
            return result
        return {**result, "trial_id": trial.trial_id, **flattened(trial.config, "config/")}

    def reach_rung(self, trial: Trial, result: dict[str, Any]) -> None:
        """The search learns of the rung that the trial reached with its latest result, if it reached one."""
        if trial.repeat_of:
            return
        rung = getattr(self.scheduler, "filled_rung", None)
        tell: Any = None if rung is None else getattr(self.search, "on_trial_rung", None)
        if tell is not None:
            self.inform_search(tell, trial.trial_id, rung, result)

    @property
    def search_name(self) -> str:
        """The name of the search algorithm's class."""
        return type(getattr(self.search, "search", self.search)).__name__

    @property
    def search_exhausted(self) -> bool:
        """Whether no further suggestion will come, as far as that is known."""
        progress = self._state.search_progress
        if self.defers_search:
            return progress.exhausted and not progress.queued_suggestions
        return self.search.finished

    def next_suggestion(self) -> Created | None:
        """Return the next suggestion of a search algorithm that makes it at once."""
        suggestion = self.ask(self.search.next_suggestion)
        params = self.encode(suggestion.config) if suggestion is not None else None
        if suggestion is None or params is None:
            return None
        return Created(suggestion.trial_id, suggestion.tag, params)

    def request_suggestion(self) -> None:
        """Request the suggestion of one that makes it later, again after a restart."""
        request: Any = getattr(self.search, "request", None)
        if request is not None:
            self.ask(request)

    def deliver_answer(self, created: Created | None, error: str) -> None:
        """Let the search algorithm know that its suggestion has arrived."""
        on_answer: Any = getattr(self.search, "on_answer", None)
        if on_answer is not None:
            self.ask(on_answer, created, error)
        elif created is not None:
            self.adopt(created)
        if error:
            self.fail(error)

    def adopt(self, created: Created) -> None:
        """Have the search algorithm take over a recorded suggestion."""
        self.ask(adopt, self.search, created, opens_values=self.opens_values)

    # -- scheduler ----------------------------------------------------------------------------------------------

    def encode(self, config: Any) -> bytes | None:
        """Encode a config; return None when it cannot be stored, which ends the experiment."""
        return self.ask(self._encode_params, config)

    def scheduler_reason(self) -> dict[str, Any]:
        """Return why the scheduler decided what it decided last."""
        return self._evidence(self.scheduler.reason)

    def add_trial(self, trial: Trial) -> None:
        """The scheduler learns of a trial, or that it waits again."""
        if trial.repeat_of:
            return
        self.ask(self.scheduler.on_trial_add, self.controller, trial)

    def remove_trial(self, trial: Trial) -> None:
        """The scheduler learns that a trial that does not run is stopped, and the search that it was given up."""
        if trial.repeat_of:
            return
        self.ask(self.scheduler.on_trial_remove, self.controller, trial)
        self.give_up_trial(trial)

    def stop_by_command(self, trial: Trial) -> None:
        """The scheduler stops another trial than the one that reported: it learns of that if it wants to."""
        if not trial.repeat_of and learns_of_own_stops(self.scheduler):
            if trial.running:
                self.ask(self.scheduler.on_trial_complete, self.controller, trial, trial.last_result or {})
            else:
                self.ask(self.scheduler.on_trial_remove, self.controller, trial)
        self.give_up_trial(trial)

    def give_up_trial(self, trial: Trial) -> None:
        """The search learns that the trial ends before its own end."""
        if trial.repeat_of:
            return
        last = self._with_config(trial, trial.last_result) if trial.last_result else None
        self.inform_search(self.search.on_trial_stopped, trial.trial_id, last)

    def fail_attempt(self, trial: Trial) -> None:
        """The scheduler learns that an attempt failed."""
        if trial.repeat_of:
            return
        self.ask(self.scheduler.on_trial_error, self.controller, trial)

    def fail_trial(self, trial: Trial) -> None:
        """Scheduler and search learn that a trial failed for good."""
        if trial.repeat_of:
            return
        self.fail_attempt(trial)
        self.inform_search(self.search.on_trial_complete, trial.trial_id, error=True)

    def complete_trial(
        self, trial: Trial, result: dict[str, Any], stop_reason: dict[str, Any] | None, *, by_scheduler: bool = False
    ) -> None:
        """Scheduler and search learn that a trial completed, or was stopped for a reason."""
        if trial.repeat_of:
            return
        early = stop_reason is not None and is_early_stop(stop_reason)
        if not by_scheduler or learns_of_own_stops(self.scheduler):
            inform = self.scheduler.on_trial_complete
            if early and not by_scheduler:
                inform = getattr(self.scheduler, "on_trial_stopped", inform)
            self.ask(inform, self.controller, trial, result)
        method = self.search.on_trial_stopped if early else self.search.on_trial_complete
        self.inform_search(method, trial.trial_id, self._with_config(trial, result))

    # -- stopper ------------------------------------------------------------------------------------------------

    def judge_by_stopper(self, trial: Trial, result: dict[str, Any]) -> dict[str, Any] | None:
        """Return why the stopper stops the trial; None if it does not."""
        stopper = self.stopper
        if stopper is None:
            return None
        if self._stopper_sees_config:
            result = Metrics({**result, **trial.attempt_fields, "config": trial.config})
        if self.ask(stopper.__call__, trial.trial_id, result):
            return {"source": "stopper", **self._evidence(stopper.reason)}
        return None

    def stop_all_by_stopper(self) -> dict[str, Any] | None:
        """Return why the stopper ends the experiment; None if it does not."""
        stopper = self.stopper
        if stopper is not None and self.ask(stopper.stop_all):
            return {"source": "stopper", **self._evidence(stopper.reason)}
        return None

    def observe_time(self) -> None:
        """Tell the stopper the experiment's own time: it stops while nothing may run, or no process runs."""
        if self._observe_time is not None:
            clock = self._state.clock
            self.ask(self._observe_time, clock.active_at(clock.now))

    def start_attempt(self, trial: Trial) -> None:
        """The stopper learns that an attempt starts."""
        if self._on_attempt_start is not None:
            self.ask(self._on_attempt_start, trial.trial_id)

    def end_trial(self, trial: Trial) -> None:
        """The stopper learns that a trial ended."""
        if self._on_trial_end is not None:
            self.ask(self._on_trial_end, trial.trial_id)

    def _evidence(self, reason: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what an algorithm says of its latest decision, as a record can hold it."""
        return {key: storable(value) for key, value in (self.ask(reason) or {}).items()}

    # -- both ---------------------------------------------------------------------------------------------------

    def horizons(self, trial: Trial) -> list[Horizon]:
        """Return the results at which scheduler or stopper must be asked about the trial."""
        if trial.repeat_of:
            return self._repeat_horizons(trial)
        horizons = self.ask(self.scheduler.horizons, trial)
        if self.stopper is not None and horizons is not None:
            more = self.ask(self.stopper.horizons, trial.trial_id)
            horizons = None if more is None else [*horizons, *more]
        return [Horizon()] if horizons is None else horizons

    def _repeat_horizons(self, trial: Trial) -> list[Horizon]:
        found = [Horizon(at=float(trial.ends_at))] if trial.ends_at else []
        more = self.ask(self.stopper.horizons, trial.trial_id) if self.stopper is not None else []
        return [Horizon()] if more is None else [*found, *more]


def adopt(search: SearchAlgorithm, created: Created, *, opens_values: bool = False) -> None:
    """Have a search algorithm take over a suggestion that it made earlier.

    One with objects of the user's that cannot be opened here, or that the algorithm does not recognise, is made
    again.
    """
    closed = opaque_decoder.decode(created.params)
    config = open_leniently(created.params) if opens_values else closed
    if not _has_opaque(config):
        try:
            search.adopt(Suggestion(trial_id=created.trial_id, config=config, tag=created.tag))
            return
        except InvalidInputError:
            if not _has_opaque(closed):
                raise
    search.next_suggestion()


def _has_opaque(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_opaque(item) for item in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(_has_opaque(item) for item in value)
    return isinstance(value, OpaqueValue)
