"""The engine in a decider: it decides about events, and replays what was decided before.

Invariants: given the same code, snapshot, records and events it chooses the same, up to what the user's own code
does. It does no I/O; what it decides about is journaled by the engine that follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trialpod.protocol.messages import Horizon
from trialpod.tune.plugins.state import StateNotKeptError
from trialpod_operator.decider.errors import error_text
from trialpod_operator.engine.actions import Action, Warned
from trialpod_operator.engine.choices import Choices
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.events import AttemptEnded, ResultsReceived, SuggestionReady
from trialpod_operator.experiment.background_search import BackgroundSearcher
from trialpod_operator.experiment.decisions.messages import Item, View
from trialpod_operator.experiment.plan import ExperimentPlan
from trialpod_operator.experiment.records import Record


class DecidingEngine:
    """Decides about one experiment.

    Args:
        plan: with the user's own algorithms.
        deliver: takes a suggestion; called in the search algorithm's thread.
        position: of the journal, at the snapshot.
        snapshot: of an earlier decider's engine.
        threaded: False has `search.work` called by its owner instead of a thread.
        on_error: called with each error of the user's code, for a log.
        describe: says what such an error is, for the experiment's end.

    Attributes:
        position: of the journal, up to which it knows the experiment.
        choices: for the events of the latest `decide`.
        keeps_state: False when the state could not be stored at the latest `snapshot`.
    """

    def __init__(
        self,
        plan: ExperimentPlan,
        deliver: Callable[[SuggestionReady], None],
        position: int = 0,
        snapshot: bytes | None = None,
        *,
        threaded: bool = True,
        on_error: Callable[[BaseException], object] = lambda _error: None,
        describe: Callable[[BaseException], str] = error_text,
    ) -> None:
        self.search = BackgroundSearcher(
            plan.search, deliver, threaded, opens_values=plan.opens_values, encode_params=plan.encode_params
        )
        self.engine = Engine(
            self.search,
            plan.scheduler,
            plan.stopper,
            opens_values=plan.opens_values,
            encode_params=plan.encode_params,
        )
        self.engine.controller.resources_of = plan.resources_for
        self.engine.log_errors(on_error, describe)
        self.search.on_error, self.search.describe = on_error, describe
        self._stopper = plan.stopper
        if snapshot is not None:
            self.engine.restore(snapshot)
        self.position = position
        self.keeps_state = True
        self._warnings: list[str] = []
        self._warned: set[str] = set()
        self._touched: set[str] = set()  # trials whose horizons may have changed

    def replay(self, record: Record) -> None:
        """Take in what was decided before."""
        self.engine.apply(record.event, record.now, record.choices or Choices())
        self.position += 1

    def decide(self, items: Iterable[Item], begin: Callable[[], None] = lambda: None) -> list[Choices]:
        """Take in records, and decide about events.

        Args:
            items: what follows.
            begin: called before each of them.
        """
        chosen = []
        for item in items:
            begin()
            if item.decided:
                self.replay(item.record)
                continue
            event = item.record.event
            self._record(self.engine.apply(event, item.record.now))
            choices = self.engine.choices
            chosen.append(choices)
            self.position += 1
            if isinstance(event, ResultsReceived | AttemptEnded):
                self._touched.add(event.trial_id)
            self._touched.update(choices.started)
            self._touched.update(command.trial_id for command in choices.commands)
        return chosen

    def release(self, snapshot_wait_s: float | None = None) -> bytes | None:
        """Have the search algorithm work on what it learned; return the engine's state where it is wanted.

        An algorithm that always has a suggestion to make is idle only before it is released.

        Args:
            snapshot_wait_s: as in `snapshot`; None = the state is not wanted.
        """
        if snapshot_wait_s is None or not self.search.is_idle:
            self.search.release()
            return None if snapshot_wait_s is None else self.snapshot(snapshot_wait_s)
        found = self.snapshot()
        self.search.release()
        return found

    def horizons(self, *, of_all: bool = False) -> dict[str, list[Horizon]]:
        """Return the horizons of running trials: those that may have changed since the last call, or of all."""
        engine, touched = self.engine, self._touched
        self._touched = set()
        running = [trial for trial in engine.state.running_trials() if of_all or trial.trial_id in touched]
        return {trial.trial_id: engine.horizons(trial) for trial in running}

    def view(self) -> View:
        """Return what the engine that follows cannot know by itself."""
        left = getattr(self._stopper, "remaining", None)
        clock = self.engine.state.clock
        return View(
            total=self.search.total,
            wakeup=clock.now + left if left is not None and clock.active_since is not None else None,
            stops_early=self.engine.stops_early,
            saves_at_horizon=self.engine.scheduler.saves_at_horizon,
            search_ended=self.engine.search_exhausted,
        )

    def snapshot(self, wait_s: float = 0.0) -> bytes | None:
        """Return the engine's state; None while the search algorithm is being called, or where it cannot be stored.

        Args:
            wait_s: maximum time to wait for what the search algorithm learns; it never waits for a suggestion.
        """
        if not self.search.quiesce(wait_s):
            return None
        self.keeps_state = True
        try:
            return self.engine.snapshot()
        except StateNotKeptError as error:
            self.keeps_state = False
            self._warn(f"{error}; its state is rebuilt from the journal when its decider is recreated")
            return None

    def warnings(self) -> list[str]:
        """Return the warnings since the last call, each one once."""
        found, self._warnings = self._warnings, []
        return found

    def _record(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Warned) and action.trial is None:
                self._warn(action.message)

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            self._warnings.append(message)
