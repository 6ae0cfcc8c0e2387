"""What chooses: the algorithms, or in a replay the record of what they chose when the event was first applied.

One `Chooser` serves one call of `Engine.apply`, and all choices made in it are in `made`. A replay asks the
algorithms as often as they were asked, so that they reach the recorded state, and takes the recorded choices in place
of theirs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from trialpod_operator.engine.algorithms import Algorithms
from trialpod_operator.engine.choices import Choices, Command, Created, Repeat, Verdict
from trialpod_operator.engine.state import State
from trialpod_operator.engine.trial import Trial


class Chooser(ABC):
    """Makes the choices of one call of `Engine.apply`.

    Attributes:
        made: what was chosen so far.
        replaying: the choices come from a record.
        judges: a result may lead to a decision, whatever the algorithms say of themselves.
    """

    __slots__ = ("_algorithms", "_searches", "_state", "_step", "made")
    replaying = False
    judges = False

    def __init__(self, state: State, algorithms: Algorithms) -> None:
        self._state = state
        self._algorithms = algorithms
        self._step = 0  # how often commands were to be carried out
        self._searches = 0  # how often a new trial was searched for
        self.made = Choices()

    @abstractmethod
    def verdict(self, trial: Trial, consulted: Verdict | None) -> Verdict | None:
        """Return the decision on the trial's latest result; `consulted` is what the algorithms say of it."""

    @abstractmethod
    def stop_all(self, number: int, consulted: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return why the experiment ends at this result of an attempt (0 = at no result); None if it does not."""

    @abstractmethod
    def commands(self, *, rest: bool = False) -> list[Command]:
        """Return what is to be carried out at this step; `rest`: everything, as this is the last one."""

    @abstractmethod
    def carried_out(self, command: Command, *, changed: bool) -> None:
        """A command was carried out, and changed something or did not."""

    def new_trial(self) -> Created | None:
        """Return what becomes the next trial, or request it where that takes time; None if there is none now."""
        self._searches += 1
        created = self._find_new()
        if created is not None:
            self.made.created.append(created)
        return created

    @abstractmethod
    def _find_new(self) -> Created | None:
        """Return the next suggestion, or None."""

    @abstractmethod
    def hold_back(self, consulted: bool) -> bool:
        """Return whether the budget allows no new trial from now on in this call; `consulted`: what the plan says."""

    @property
    def held(self) -> bool:
        """True when the budget allowed no new trial in this call."""
        return bool(self.made.held)

    @abstractmethod
    def repeat(self, consulted: list[Repeat]) -> list[Repeat]:
        """Return the repeats that are created now; `consulted`: those that are missing."""

    @abstractmethod
    def close(self, consulted: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return why no trial starts any more; None if that is not so."""

    @abstractmethod
    def start(self, chosen: Trial | None) -> str | None:
        """Return the id of the trial that starts next; `chosen` is the scheduler's choice."""

    @abstractmethod
    def reopen(self, *, possible: bool) -> bool:
        """Return whether an edit reopens the experiment; `possible`: the search has more to suggest."""

    @abstractmethod
    def failure(self, *, last: bool = False) -> dict[str, Any] | None:
        """Return once why an algorithm's error ends the experiment; `last`: nothing else will come."""

    def end_pass(self) -> None:
        """A paused trial was given up, so that others may start: another pass begins."""
        self.made.passes.append((len(self.made.created), len(self.made.started)))


class LiveChooser(Chooser):
    """The algorithms choose."""

    __slots__ = ()

    def verdict(self, trial: Trial, consulted: Verdict | None) -> Verdict | None:
        """Return what the algorithms say."""
        if consulted is not None:
            self.made.verdicts.append(consulted)
        return consulted

    def stop_all(self, number: int, consulted: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return what the stopper says."""
        if consulted is not None:
            self.made.stop_all, self.made.stop_all_at = consulted, number
        return consulted

    def commands(self, *, rest: bool = False) -> list[Command]:
        """Return what the scheduler has queued."""
        self._step += 1
        controller = self._algorithms.controller
        queue = controller.queue
        if queue:
            controller.queue = []
        return queue

    def carried_out(self, command: Command, *, changed: bool) -> None:
        """Record what changed something."""
        if changed:
            command.step = self._step
            self.made.commands.append(command)

    def _find_new(self) -> Created | None:
        progress, algorithms = self._state.search_progress, self._algorithms
        if progress.queued_suggestions:
            created: Created | None = progress.queued_suggestions.pop(0)
        elif algorithms.defers_search:
            if progress.may_request:
                self.made.requested = self._searches
                progress.request()
                algorithms.request_suggestion()
            return None
        else:
            progress.cancel()
            created = algorithms.next_suggestion()
        if created is None:
            return None
        if created.trial_id in self._state.trials:
            algorithms.fail(f"{algorithms.search_name} suggested trial {created.trial_id} twice")
            return None
        return msgspec.structs.replace(created, search=self._searches)

    def hold_back(self, consulted: bool) -> bool:
        """Return what the plan says."""
        if consulted and not self.made.held:
            self.made.held = self._searches + 1
        return self.held

    def repeat(self, consulted: list[Repeat]) -> list[Repeat]:
        """Return all of them."""
        self.made.repeats += consulted
        return consulted

    def close(self, consulted: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return what the plan says."""
        if consulted is not None:
            self.made.closing = consulted
        return consulted

    def start(self, chosen: Trial | None) -> str | None:
        """Return the scheduler's choice, unless an algorithm has failed."""
        if chosen is None or self._algorithms.failure is not None:
            return None
        self.made.started.append(chosen.trial_id)
        return chosen.trial_id

    def reopen(self, *, possible: bool) -> bool:
        """Reopen when it is possible."""
        self.made.reopened = possible
        return possible

    def failure(self, *, last: bool = False) -> dict[str, Any] | None:
        """Return the first error of an algorithm."""
        if self.made.failure is None:
            self.made.failure = self._algorithms.failure
            return self.made.failure
        return None


class ReplayingChooser(Chooser):
    """The record chooses."""

    __slots__ = ("_recorded", "_skips", "judges")
    replaying = True

    def __init__(self, state: State, algorithms: Algorithms, recorded: Choices) -> None:
        super().__init__(state, algorithms)
        self._recorded = recorded
        self.judges = bool(recorded.verdicts or recorded.commands or recorded.stop_all)
        self._skips = False  # passes that are recorded
        self.made.held = recorded.held

    def verdict(self, trial: Trial, consulted: Verdict | None) -> Verdict | None:
        """Return the recorded decision on this result."""
        for verdict in self._recorded.verdicts:
            if verdict.trial_id == trial.trial_id and verdict.number == trial.current.received:
                self.made.verdicts.append(verdict)
                return verdict
        return None

    def stop_all(self, number: int, consulted: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the recorded reason at its result."""
        reason = self._recorded.stop_all if self._recorded.stop_all_at == number else None
        if reason is not None:
            self.made.stop_all, self.made.stop_all_at = reason, number
        return reason

    def commands(self, *, rest: bool = False) -> list[Command]:
        """Return what is recorded up to this step; what the scheduler has queued is dropped."""
        self._step += 1
        self._algorithms.controller.queue = []
        ahead = self._recorded.commands[len(self.made.commands) :]
        return [command for command in ahead if rest or command.step <= self._step]

    def carried_out(self, command: Command, *, changed: bool) -> None:
        """Record it again."""
        self.made.commands.append(command)

    def _find_new(self) -> Created | None:
        progress, done = self._state.search_progress, len(self.made.created)
        if self.lacks_trial and self._recorded.created[done].search <= self._searches:
            created = self._recorded.created[done]
            if progress.queued_suggestions and progress.queued_suggestions[0].trial_id == created.trial_id:
                progress.queued_suggestions.pop(0)
            else:
                self._algorithms.adopt(created)
            return created
        if self._recorded.requested == self._searches:
            self.repeat_request()
        elif not self._algorithms.defers_search and not progress.requested:
            self._algorithms.ask(self._algorithms.search.next_suggestion)
        return None

    def hold_back(self, consulted: bool) -> bool:
        """Return what is recorded."""
        return self.held and self._searches + 1 >= self.made.held

    def repeat(self, consulted: list[Repeat]) -> list[Repeat]:
        """Return those that are recorded, once."""
        ahead = self._recorded.repeats[len(self.made.repeats) :]
        self.made.repeats += ahead
        return ahead

    def close(self, consulted: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return what is recorded."""
        self.made.closing = self._recorded.closing
        return self.made.closing

    def start(self, chosen: Trial | None) -> str | None:
        """Return the next trial that is recorded for this pass."""
        done = len(self.made.started)
        if done >= self._until[1]:
            return None
        trial_id = self._recorded.started[done]
        self.made.started.append(trial_id)
        return trial_id

    def reopen(self, *, possible: bool) -> bool:
        """Reopen where that is recorded: today's search may have more to suggest, or less."""
        self.made.reopened = self._recorded.reopened
        return self._recorded.reopened

    def failure(self, *, last: bool = False) -> dict[str, Any] | None:
        """Return the recorded error where an algorithm fails, or at last."""
        recorded = self._recorded.failure
        if recorded is None or self.made.failure is not None or not (last or self._algorithms.failure is not None):
            return None
        self.made.failure = recorded
        return recorded

    # -- what is recorded, and changed algorithms have not led to -------------------------------------------------

    @property
    def in_last_pass(self) -> bool:
        """True when no recorded pass follows."""
        return self._skips or len(self.made.passes) >= len(self._recorded.passes)

    def skip_passes(self) -> bool:
        """Go to the last pass; return False if it is reached already."""
        skipped, self._skips = not self.in_last_pass, True
        return skipped

    @property
    def lacks_trial(self) -> bool:
        """True when another recorded trial must be created in this pass."""
        return len(self.made.created) < self._until[0]

    def skip_searches(self) -> None:
        """Let the next search find the next recorded trial, if changed algorithms have not searched as often."""
        self._searches = max(self._searches, self._recorded.created[len(self.made.created)].search - 1)

    @property
    def lacks_request(self) -> bool:
        """True when a recorded request was not sent."""
        return bool(self._recorded.requested) and not self.made.requested

    def repeat_request(self) -> None:
        """Send the recorded request."""
        self.made.requested = self._recorded.requested
        self._state.search_progress.request()
        self._algorithms.request_suggestion()

    @property
    def _until(self) -> tuple[int, int]:
        """How many trials are created and started until the end of this pass."""
        if self.in_last_pass:
            return len(self._recorded.created), len(self._recorded.started)
        return self._recorded.passes[len(self.made.passes)]
