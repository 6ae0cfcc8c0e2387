"""The median stopping rule by the rules of Ray Tune 2.60, for results that have to be Ray's.

What differs from the rules of `MedianStoppingRule`: every result is one more, also one that is reported again after a
restart; the last one counts again when the trial completes; NaN among a trial's values takes part in its best; a
trial may be paused again and again while there are too few others.
"""

from __future__ import annotations

import math
from statistics import fmean, median
from typing import Any

from trialpod.tune.schedulers.metric_scheduler import decoded, encoded

CONTINUE, PAUSE, STOP = "CONTINUE", "PAUSE", "STOP"


class RayMedian:
    """What every trial reported.

    Args:
        grace_period: no trial is judged before it, and means begin there.
        min_samples: how many others there must be.
        min_time_slice: how long a trial runs at least before it makes room.
        hard_stop: whether a trial below the median is stopped.
    """

    def __init__(self, grace_period: float, min_samples: int, min_time_slice: float, *, hard_stop: bool) -> None:
        self._grace_period, self._min_samples = grace_period, min_samples
        self._min_time_slice, self._hard_stop = min_time_slice, hard_stop
        self._results: dict[str, list[tuple[float, float]]] = {}
        self._paused_at: dict[str, float] = {}
        self.below: dict[str, None] = {}
        """The trials that fell below the median."""

    def report(
        self, trial_id: str, time: float, value: float, *, maximize: bool, others_wait: bool
    ) -> tuple[str, dict[str, Any]]:
        """Take a result; return the decision and its evidence."""
        if trial_id in self.below:
            return CONTINUE, {}
        self.add(trial_id, time, value)
        if time < self._grace_period:
            return CONTINUE, {}
        means = [
            mean
            for other, results in self._results.items()
            if other != trial_id and results[-1][0] >= time and math.isfinite(mean := self._mean(results, time))
        ]
        if len(means) < self._min_samples:
            if not others_wait or not time - self._paused_at.get(trial_id, -math.inf) > self._min_time_slice:
                return CONTINUE, {}
            self._paused_at[trial_id] = time
            return PAUSE, {"rule": "time_slice", "compared": len(means), "needed": self._min_samples}
        better = max if maximize else min
        cutoff = median(means)
        best = better([each for _, each in self._results[trial_id]])
        if better(cutoff, best) == best:
            return CONTINUE, {}
        self.below[trial_id] = None
        evidence = {"rule": "median", "best": encoded(best), "cutoff": cutoff, "compared": len(means) + 1}
        return (STOP if self._hard_stop else PAUSE), evidence

    def add(self, trial_id: str, time: float, value: float) -> None:
        """Note a result."""
        self._results.setdefault(trial_id, []).append((time, value))

    def get_state(self) -> dict[str, Any]:
        """Return everything as JSON data."""
        return {
            "results": {
                trial_id: [[time, encoded(value)] for time, value in results]
                for trial_id, results in self._results.items()
            },
            "paused_at": dict(self._paused_at),
            "below": list(self.below),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self._results = {
            trial_id: [(time, decoded(value)) for time, value in results]
            for trial_id, results in state["results"].items()
        }
        self._paused_at = dict(state["paused_at"])
        self.below = dict.fromkeys(state["below"])

    def _mean(self, results: list[tuple[float, float]], time: float) -> float:
        values = [value for at, value in results if self._grace_period <= at <= time]
        return fmean(values) if values else math.nan
