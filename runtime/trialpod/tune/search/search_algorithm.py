"""What the engine asks of a search algorithm.

The engine pulls one suggestion at a time, whenever there is room for another trial. A search algorithm is
deterministic: all its randomness comes from its seed, and its state is data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One new trial.

    `tag` is the readable part of the experiment tag ("0_lr=0.0132,layers=2"); `config` is fully resolved.
    """

    trial_id: str
    config: dict[str, Any]
    tag: str


class SearchAlgorithm:
    """Base class of what proposes trials."""

    @property
    def total(self) -> int | None:
        """The number of trials that there will be in all, or None when that is open."""
        raise NotImplementedError

    def set_num_samples(self, num_samples: int) -> None:
        """Change how many samples to draw; those already suggested stay."""
        raise NotImplementedError

    def next_suggestion(self) -> Suggestion | None:
        """Return the next trial, or None when there is none now."""
        raise NotImplementedError

    @property
    def finished(self) -> bool:
        """True when no further suggestion will come."""
        raise NotImplementedError

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Learn from an intermediate result."""

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Learn how a trial ended."""

    def get_state(self) -> dict[str, Any]:
        """Return the state as JSON data."""
        raise NotImplementedError

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned, on an object made with the same arguments."""
        raise NotImplementedError
