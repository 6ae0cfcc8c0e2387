"""Stops a trial whose metric no longer moves."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import Horizon
from trialpod.tune.plugins.catalogue import algorithm
from trialpod.tune.stopper.deviation import decoded, deviation, encoded, levelled_off, number
from trialpod.tune.stopper.result_count import ResultCount
from trialpod.tune.stopper.stopper import Stopper


@algorithm("trial_plateau")
class TrialPlateauStopper(Stopper):
    """Stops a trial when the standard deviation of its last results falls below a threshold.

    A result without the metric, or with NaN, is a result: while it is among the last ones the trial continues.
    """

    ABOUT = ("a trial", "its metric has levelled off")

    def __init__(
        self,
        metric: str,
        std: float = 0.01,
        num_results: int = 4,
        grace_period: int = 4,
        metric_threshold: float | None = None,
        mode: str | None = None,
    ) -> None:
        """Make a stopper.

        Args:
            metric: the result key to watch.
            std: the trial is stopped below this standard deviation, in units of the metric.
            num_results: over how many of the latest results.
            grace_period: the number of results before which no trial is stopped.
            metric_threshold: stop only at or beyond this value; needs `mode`.
            mode: "min" or "max": which side of `metric_threshold` is beyond it.

        Raises:
            InvalidInputError: a value cannot be used.
        """
        if not isinstance(metric, str) or not metric:
            raise InvalidInputError(f"metric must be the name of a result key, got {metric!r}", parameter="metric")
        if not (number(std) or 0) > 0:
            raise InvalidInputError(f"std must be greater than 0, got {std!r}", parameter="std")
        for name, value in (("num_results", num_results), ("grace_period", grace_period)):
            if isinstance(value, bool) or not isinstance(value, int) or value < (name == "num_results"):
                least = 1 if name == "num_results" else 0
                raise InvalidInputError(
                    f"{name} must be a whole number of {least} or more, got {value!r}", parameter=name
                )
        if metric_threshold is not None and number(metric_threshold) is None:
            raise InvalidInputError(
                f"metric_threshold must be a number, got {metric_threshold!r}", parameter="metric_threshold"
            )
        if mode not in (None, "min", "max"):
            raise InvalidInputError(f"mode must be 'min' or 'max', got {mode!r}", parameter="mode")
        if metric_threshold is not None and mode is None:
            raise InvalidInputError("metric_threshold needs mode to be 'min' or 'max'", parameter="metric_threshold")
        self._metric = metric
        self._std = float(std)
        self._num_results = num_results
        self._grace_period = grace_period
        self._metric_threshold = metric_threshold
        self._mode = mode
        self._count = ResultCount()
        self._latest: dict[str, deque[float | None]] = {}
        self._reason: dict[str, Any] = {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Take in a result; return True when the latest ones are a plateau."""
        value = number(result.get(self._metric))
        latest = self._latest.setdefault(trial_id, deque(maxlen=self._num_results))
        latest.append(value)
        count = self._count.add(trial_id)
        if count < self._grace_period or len(latest) < self._num_results:
            return False
        if self._metric_threshold is not None and value is not None:
            if self._mode == "min" and value > self._metric_threshold:
                return False
            if self._mode == "max" and value < self._metric_threshold:
                return False
        spread = deviation(latest)
        if not spread < self._std:
            return False
        self._reason = {
            "stopper": "trial_plateau",
            "metric": self._metric,
            "std": spread,
            "threshold": self._std,
            "num_results": self._num_results,
            "results": count,
            "value": value,
        }
        return True

    def stop_all(self) -> bool:
        """Return False: only trials are stopped."""
        return False

    def on_attempt_start(self, trial_id: str) -> None:
        """Called before the first result of each attempt: makes the horizon exact."""
        self._count.on_attempt_start(trial_id)

    def on_trial_end(self, trial_id: str) -> None:
        """Called when the trial has ended for good: frees what is kept of it."""
        self._count.forget(trial_id)
        self._latest.pop(trial_id, None)

    def horizons(self, trial_id: str) -> list[Horizon]:
        """Return the first result that could stop the trial; from there on, every result."""
        return self._count.horizons(trial_id, max(self._num_results, self._grace_period))

    @classmethod
    def describe_reason(cls, reason: Mapping[str, Any]) -> str:  # noqa: D102
        return levelled_off(reason)

    def reason(self) -> dict[str, Any]:
        """Return the deviation and the threshold of the latest True."""
        return dict(self._reason)

    def get_state(self) -> dict[str, Any]:
        """Return the latest values of each trial."""
        return {
            "version": 1,
            "counts": self._count.get_state(),
            "latest": {trial_id: encoded(values) for trial_id, values in self._latest.items()},
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the latest values."""
        self._count.set_state(state["counts"])
        self._latest = {
            trial_id: deque(decoded(values), maxlen=self._num_results) for trial_id, values in state["latest"].items()
        }
