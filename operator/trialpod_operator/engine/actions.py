"""What the engine wants done. A shell carries actions out in order; each may be repeated without harm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from trialpod.protocol.messages import DecisionKind
from trialpod_operator.engine.state import State
from trialpod_operator.engine.trial import Trial


@dataclass(frozen=True, slots=True)
class TrialCreated:
    """A trial exists from now on."""

    trial: Trial


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Start a process for the trial's current attempt, with `Engine.controller.resources` of the trial if given."""

    trial: Trial
    attempt: int


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """End the attempt: it learns of the decision with its next answer, and by force if it does not listen."""

    trial: Trial
    attempt: int
    decision: DecisionKind
    reason: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ResultsApplied:
    """These results (flattened, in order) are new and count."""

    trial: Trial
    attempt: int
    results: list[dict[str, Any]]
    """As files and people see them."""

    opened: list[dict[str, Any]] = field(default_factory=list)
    """As the user's algorithms and callbacks see them; empty if that is the same."""


@dataclass(frozen=True, slots=True)
class DecisionMade:
    """A scheduler, stopper or the user decided about a running trial; `reason` is the evidence."""

    trial: Trial
    decision: DecisionKind
    reason: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TrialEnded:
    """The trial is TERMINATED or ERROR."""

    trial: Trial


@dataclass(frozen=True, slots=True)
class TrialRequeued:
    """The trial continues later: paused, retried after a failure or a disruption, or to follow another trial.

    "undone": the checkpoint of another trial that it was to start from is damaged, so it continues as it was before.
    """

    trial: Trial
    why: Literal["paused", "failed", "disrupted", "retry", "exploited", "undone"]
    message: str


@dataclass(frozen=True, slots=True)
class Warned:
    """Something the user should know now; `message` includes the remedy."""

    message: str
    trial: Trial | None = None


@dataclass(frozen=True, slots=True)
class ExperimentFinished:
    """Nothing runs and nothing will, unless the budget is raised."""

    state: str
    message: str
    data: dict[str, Any] = field(default_factory=dict)


Action = (
    TrialCreated
    | StartAttempt
    | StopAttempt
    | ResultsApplied
    | DecisionMade
    | TrialEnded
    | TrialRequeued
    | Warned
    | ExperimentFinished
)


class ActionList:
    """Collects the actions of one call of `Engine.apply`."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._actions: list[Action] = []

    def add(self, action: Action) -> None:
        """Add an action."""
        self._actions.append(action)

    def warn_once(self, key: str, message: Callable[[], str], trial: Trial | None = None) -> None:
        """Warn the user, but only the first time for this `key`; only then is `message` called."""
        if self._state.warn_first(key):
            self.add(Warned(message(), trial))

    def stop_attempt(self, trial: Trial) -> None:
        """End the running attempt, if there is a decision to do so."""
        current = trial.current
        if current.deadline_missed:
            self.add(StopAttempt(trial, trial.attempt, "stop", {"source": "progress_deadline"}))
        elif current.decision is not None:
            self.add(StopAttempt(trial, trial.attempt, current.decision, current.decision_reason))

    def take(self) -> list[Action]:
        """Return what was collected, and begin a new list."""
        actions, self._actions = self._actions, []
        return actions
