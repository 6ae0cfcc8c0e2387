"""What the engine asks of a search algorithm.

The engine pulls one suggestion at a time, whenever there is room for another trial. A search algorithm is
deterministic: what it suggests is a function of its seed, of how much it has suggested, and of what it was told. Its
state is data.

A trial's story, as a search algorithm is told it: `on_trial_result` for its results, `on_pause` and `on_unpause` in
between, and at the end one of `on_trial_complete` and `on_trial_stopped`. A trial that ended with an error may be
tried once more; then there is another end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trialpod.tune.plug_in_state import PlugIn


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One new trial.

    `tag` is the readable part of the experiment tag ("0_lr=0.0132,layers=2"); `config` is fully resolved.
    """

    trial_id: str
    config: dict[str, Any]
    tag: str


class SearchAlgorithm(PlugIn):
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
        """Learn how a trial ended that came to its own end, to one that the user set for it, or failed.

        Args:
            trial_id: which one.
            result: its last result; None when it reported none.
            error: it failed for good.
        """

    def on_trial_stopped(self, trial_id: str, result: dict[str, Any] | None = None) -> None:
        """Learn that a trial was given up before its end, so that its last result is not its final one.

        By a scheduler that found it too bad, or because the whole experiment ended. By default this is an end like
        any other: `on_trial_complete`.
        """
        self.on_trial_complete(trial_id, result)

    def on_pause(self, trial_id: str) -> None:
        """Learn that a scheduler paused a trial; it may go on later, or never."""

    def on_unpause(self, trial_id: str) -> None:
        """Learn that a paused trial goes on."""

    def adopt(self, suggestion: Suggestion) -> None:
        """Take over a suggestion that was made earlier, by this algorithm with the same arguments.

        Afterwards the algorithm is as if `next_suggestion` had just returned it. Those that would have to compute for
        that take it as it is instead; the default asks for the next suggestion and drops it.
        """
        self.next_suggestion()

    def get_state(self) -> dict[str, Any]:
        """Return the state as JSON data."""
        raise NotImplementedError

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned, on an object made with the same arguments."""
        raise NotImplementedError
