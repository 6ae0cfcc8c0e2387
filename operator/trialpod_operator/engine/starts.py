"""Which trials start: new ones from the search algorithm, pending and paused ones as the scheduler chooses.

A search algorithm that takes its time (`Algorithms.defers_search`) is asked for one suggestion at a time, by
`request`. Until that comes, as `SuggestionReady`, no other trial starts than those that are pending, as if everything
waited; but results are judged and answered meanwhile. Such an algorithm has, beside the methods of `SearchAlgorithm`:

* ``request()``: a suggestion is wanted, made of what the algorithm learned before this call;
* ``on_answer(created, error)``: the engine has it. In a replay this comes without anything being computed.
"""

from __future__ import annotations

from trialpod_operator.engine.actions import ActionList, StartAttempt, TrialCreated
from trialpod_operator.engine.algorithms import Algorithms
from trialpod_operator.engine.budget_plan import BudgetPlan
from trialpod_operator.engine.chooser import Chooser, ReplayingChooser
from trialpod_operator.engine.commands import Commands
from trialpod_operator.engine.events import SuggestionReady
from trialpod_operator.engine.repeats import Repeats
from trialpod_operator.engine.state import State
from trialpod_operator.engine.trial import RUNNING, OpenTrial, Trial


class Starts:
    """Creates and starts trials."""

    def __init__(
        self,
        state: State,
        algorithms: Algorithms,
        actions: ActionList,
        commands: Commands,
        plan: BudgetPlan,
        repeats: Repeats,
    ) -> None:
        self._repeats = repeats
        self._plan = plan
        self._state = state
        self._algorithms = algorithms
        self._actions = actions
        self._commands = commands

    def suggested(self, event: SuggestionReady) -> None:
        """Handle the answer of a slow search algorithm."""
        self._state.search_progress.answer(event.created, finished=event.finished, failed=bool(event.error))
        self._algorithms.deliver_answer(event.created, event.error)

    def fill(self, chooser: Chooser, now: float) -> None:
        """Start trials as long as there is room and there are some to start."""
        state, flags = self._state, self._state.flags
        if flags.suspended or flags.stopping or flags.finished:
            return
        # 1. Start what the scheduler chooses among those that wait; a new one where none does.
        while state.has_room:
            if not state.pending:
                self._create_allowed(chooser, now)
                if state.search_progress.requested and not state.pending:
                    break
            self._create_wanted(chooser, now)
            trial = self._choose(chooser, now)
            if trial is None:
                break
            self._start(trial, now)
        # 2. Create what the scheduler wants to know of before there is room for it.
        self._create_wanted(chooser, now)
        if self._algorithms.keeps_one_pending and not state.waiting:
            self._create_allowed(chooser, now)
        # 3. In a replay under changed algorithms: what is recorded and has not come of these steps.
        if isinstance(chooser, ReplayingChooser):
            self._complete(chooser, now)

    def _complete(self, chooser: ReplayingChooser, now: float) -> None:
        if chooser.in_last_pass:
            self._commands.carry_out(chooser, now, rest=True)
        while chooser.lacks_trial:
            self._create_recorded(chooser, now)
        while (trial := self._next_start(chooser, None, now)) is not None:
            self._start(trial, now)
        if chooser.in_last_pass and chooser.lacks_request:
            chooser.repeat_request()

    def _create_wanted(self, chooser: Chooser, now: float) -> None:
        """Create the trials that the scheduler is to know of before they start."""
        pending = self._state.pending
        while 0 < len(pending) < self._algorithms.wanted_pending:
            before = len(pending)
            self._create_allowed(chooser, now)
            if len(pending) == before:
                break

    def _create_allowed(self, chooser: Chooser, now: float) -> None:
        """Create the next trial unless the budget has no room for another one."""
        if not chooser.hold_back(self._plan.holds_back_new(now)):
            self._create(chooser, now)

    def _create(self, chooser: Chooser, now: float) -> None:
        """Create the next trial, or request one where that takes time; neither when there is none to be had."""
        created = chooser.new_trial()
        if created is None:
            return
        kind = OpenTrial if self._algorithms.opens_values else Trial
        trial = kind(
            trial_id=created.trial_id,
            index=len(self._state.trials),
            tag=created.tag,
            params=created.params,
            created_at=now,
        )
        self._state.add(trial)
        self._algorithms.add_trial(trial)
        self._commands.carry_out(chooser, now)
        self._actions.add(TrialCreated(trial))

    def _choose(self, chooser: Chooser, now: float) -> Trial | None:
        """Return the trial that starts next; None when none is to start now."""
        state, algorithms = self._state, self._algorithms
        if state.required_settings.repeats is not None:
            repeat = next((trial for trial in state.pending.values() if trial.repeat_of), None)
            if repeat is not None:
                return self._next_start(chooser, repeat, now)
        view = algorithms.ask(algorithms.scheduler.choose_trial_to_run, algorithms.controller)
        self._commands.carry_out(chooser, now)
        chosen = None if view is None else state.pending.get(view.trial_id) or state.paused.get(view.trial_id)
        idle = not state.running and not state.delayed
        if chosen is None and idle and state.pending and algorithms.failure is None:
            # Nothing else will ever happen, so the scheduler will have no second chance to choose.
            name = type(algorithms.scheduler).__name__
            self._actions.warn_once(
                "choice", lambda: f"{name} started no trial although some wait and none runs; one was started"
            )
            chosen = next(iter(state.pending.values()))
        ended = chooser.held or state.budget.closing is not None or algorithms.search_exhausted
        if chosen is None and idle and not state.pending and ended:
            chosen = self._plan.winner()
        return self._next_start(chooser, chosen, now)

    def _next_start(self, chooser: Chooser, chosen: Trial | None, now: float) -> Trial | None:
        trial_id = chooser.start(chosen)
        if trial_id is None:
            return None
        if isinstance(chooser, ReplayingChooser):
            if trial_id not in self._state.trials:
                self._repeats.create(chooser, now)
            while trial_id not in self._state.trials and chooser.lacks_trial:
                self._create_recorded(chooser, now)
        return self._state.trials[trial_id]

    def _create_recorded(self, chooser: ReplayingChooser, now: float) -> None:
        """Create the next recorded trial, even if changed algorithms have not been asked as often."""
        chooser.skip_searches()
        self._create(chooser, now)

    def _start(self, trial: Trial, now: float) -> None:
        self._state.move(trial, RUNNING)
        if trial.search_paused:
            self._algorithms.inform_search(self._algorithms.search.on_unpause, trial.trial_id)
        trial.start_attempt(now)
        self._algorithms.start_attempt(trial)
        self._actions.add(StartAttempt(trial, trial.attempt))
