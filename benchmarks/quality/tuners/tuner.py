"""What the simulator asks of a tuner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, Literal

from space import Config

Decision = Literal["continue", "stop", "pause"]


@dataclass(frozen=True)
class Problem:
    """What a tuner may know of a task before it begins.

    Attributes:
        space: the parameters as data (`space.Parameter.as_data`).
        steps: number of reports of a full training.
        first_rung: where early stopping may begin, in steps.
        start_points: configs to try first.
        seed: of the tuner's own randomness.
        workers: how many trials run at once.
        budget_s: GPU-seconds in all, start-up overhead included.
    """

    space: list[dict[str, Any]]
    steps: int
    first_rung: int
    start_points: list[Config]
    seed: int
    workers: int
    budget_s: float

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return asdict(self)


@dataclass(frozen=True)
class Start:
    """A trial takes a free worker: a new one when `config` is given, else a paused one continues."""

    trial: str
    config: Config | None = None


class Tuner(ABC):
    """Decides; the simulator trains. Values are minimised. `now` is virtual time in seconds since the run's start."""

    @abstractmethod
    def begin(self, problem: Problem) -> None:
        """Forget everything and begin with a task."""

    @abstractmethod
    def next_start(self, now: float) -> Start | None:
        """A worker is free: return what starts on it, None to leave it idle until something else happens."""

    @abstractmethod
    def report(self, trial: str, step: int, value: float, seconds: float, now: float) -> Decision:
        """Take a report; `seconds` is the trial's training time so far. Not called for a step that was reported."""

    @abstractmethod
    def ended(self, trial: str, decision: Decision, now: float) -> None:
        """A trial left its worker: stopped or paused as decided, or ("continue") after its last step."""
