"""Stops the whole experiment when its best values no longer change."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Mapping
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.tune.plugins.catalogue import algorithm
from trialpod.tune.stopper.deviation import deviation, levelled_off, number
from trialpod.tune.stopper.stopper import Stopper


@algorithm("experiment_plateau")
class ExperimentPlateauStopper(Stopper):
    """Stops everything when the `top` best values of all results lie within `std`, `patience` results long.

    Results of all trials count, so a trial waits at every result (the inherited horizon). Results without a finite
    value of the metric are passed over.
    """

    ABOUT = ("the experiment", "the best values have levelled off")

    def __init__(self, metric: str, std: float = 0.001, top: int = 10, mode: str = "min", patience: int = 0) -> None:
        """Make a stopper.

        Args:
            metric: the result key to watch.
            std: the largest standard deviation that is a plateau, in units of the metric.
            top: how many of the best values to look at.
            mode: "min" or "max": which values are the best.
            patience: at how many results in a row the plateau must be seen; 0 stops at the first, as 1 does.

        Raises:
            InvalidInputError: a value cannot be used.
        """
        if not isinstance(metric, str) or not metric:
            raise InvalidInputError(f"metric must be the name of a result key, got {metric!r}", parameter="metric")
        if mode not in ("min", "max"):
            raise InvalidInputError(f"mode must be 'min' or 'max', got {mode!r}", parameter="mode")
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 0:
            raise InvalidInputError(
                f"patience must be a whole number of 0 or more, got {patience!r}", parameter="patience"
            )
        if isinstance(top, bool) or not isinstance(top, int) or top <= 1:
            raise InvalidInputError(f"top must be a whole number of 2 or more, got {top!r}", parameter="top")
        spread = number(std)
        if spread is None or not spread > 0:
            raise InvalidInputError(f"std must be greater than 0, got {std!r}", parameter="std")
        self._metric = metric
        self._std = spread
        self._top = top
        self._sign = 1.0 if mode == "min" else -1.0
        self._patience = patience
        self._iterations = 0
        self._best: list[float] = []  # signed so that smaller is better, ascending

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Take in a result; return True when the experiment has to stop."""
        value = number(result.get(self._metric))
        if value is not None and math.isfinite(value):
            insort(self._best, self._sign * value)
            del self._best[self._top :]
            self._iterations = self._iterations + 1 if self.has_plateaued() else 0
        return self.stop_all()

    def has_plateaued(self) -> bool:
        """Return whether the best values lie close enough together."""
        return len(self._best) == self._top and deviation(self._best) <= self._std

    def stop_all(self) -> bool:
        """Return True when the plateau has lasted long enough."""
        return self.has_plateaued() and self._iterations >= self._patience

    @classmethod
    def describe_reason(cls, reason: Mapping[str, Any]) -> str:  # noqa: D102
        return levelled_off(reason)

    def reason(self) -> dict[str, Any]:
        """Return the deviation of the best values, and the threshold."""
        if not self.stop_all():
            return {}
        return {
            "stopper": "experiment_plateau",
            "metric": self._metric,
            "std": deviation(self._best),
            "threshold": self._std,
            "top": self._top,
            "results": self._iterations,
            "best": self._sign * self._best[0],
        }

    def get_state(self) -> dict[str, Any]:
        """Return the best values and how long they have been a plateau."""
        return {"version": 1, "iterations": self._iterations, "best": list(self._best)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the best values."""
        self._iterations = state["iterations"]
        self._best = [float(value) for value in state["best"]]
