"""Stops a trial after a number of results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import Horizon
from trialpod.tune.plugins.catalogue import algorithm
from trialpod.tune.plugins.phrases import text
from trialpod.tune.stopper.result_count import ResultCount
from trialpod.tune.stopper.stopper import Stopper


@algorithm("maximum_iteration")
class MaximumIterationStopper(Stopper):
    """Stops each trial at its `max_iter`-th result.

    As in Ray, results are counted, not read off ``training_iteration``: what a trial repeats after a failure counts
    again. Use ``stop={"training_iteration": n}`` where that is not wanted; it also never needs an answer.
    """

    ABOUT = ("a trial", "it has reported so many results")

    def __init__(self, max_iter: int) -> None:
        if isinstance(max_iter, bool) or not isinstance(max_iter, int) or max_iter < 1:
            raise InvalidInputError(
                f"max_iter must be a whole number of 1 or more, got {max_iter!r}", parameter="max_iter"
            )
        self._max_iter = max_iter
        self._count = ResultCount()
        self._reason: dict[str, Any] = {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Count the result; return True from the `max_iter`-th on."""
        count = self._count.add(trial_id)
        if count < self._max_iter:
            return False
        self._reason = {"stopper": "maximum_iteration", "results": count, "max_iter": self._max_iter}
        return True

    def stop_all(self) -> bool:
        """Return False: only trials are stopped."""
        return False

    def on_attempt_start(self, trial_id: str) -> None:
        """Called before the first result of each attempt: makes the horizon exact."""
        self._count.on_attempt_start(trial_id)

    def on_trial_end(self, trial_id: str) -> None:
        """Called when the trial has ended for good: frees its count."""
        self._count.forget(trial_id)

    def horizons(self, trial_id: str) -> list[Horizon]:
        """Return the `max_iter`-th result, as far as it can be foreseen."""
        return self._count.horizons(trial_id, self._max_iter)

    @classmethod
    def describe_reason(cls, reason: Mapping[str, Any]) -> str:  # noqa: D102
        return f"it reported {text(reason.get('max_iter'))} results, as many as the stopper allows"

    def reason(self) -> dict[str, Any]:
        """Return the count and the limit of the latest True."""
        return dict(self._reason)

    def get_state(self) -> dict[str, Any]:
        """Return the counts."""
        return {"version": 1, "counts": self._count.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the counts."""
        self._count.set_state(state["counts"])
