"""The median stopping rule by the rules of Ray Tune 2.60, for results that have to be Ray's.

What differs from the rules of `MedianStoppingRule`: every result is one more, also one that is reported again after a
restart; the last one counts again when the trial completes; NaN among a trial's values takes part in its best; a
trial may be paused again and again while there are too few others.

Invariant: means are those of `statistics.fmean`, which rounds the exact sum once, in whatever order results came.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from statistics import median
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
        self._reported: dict[str, _Reported] = {}
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
            for other, reported in self._reported.items()
            if other != trial_id and reported.results[-1][0] >= time and math.isfinite(mean := reported.mean(time))
        ]
        if len(means) < self._min_samples:
            if not others_wait or not time - self._paused_at.get(trial_id, -math.inf) > self._min_time_slice:
                return CONTINUE, {}
            self._paused_at[trial_id] = time
            return PAUSE, {"rule": "time_slice", "compared": len(means), "needed": self._min_samples}
        better = max if maximize else min
        cutoff = median(means)
        own = self._reported[trial_id]
        best = own.highest if maximize else own.lowest
        if better(cutoff, best) == best:
            return CONTINUE, {}
        self.below[trial_id] = None
        evidence = {"rule": "median", "best": encoded(best), "cutoff": cutoff, "compared": len(means) + 1}
        return (STOP if self._hard_stop else PAUSE), evidence

    def add(self, trial_id: str, time: float, value: float) -> None:
        """Note a result."""
        if trial_id not in self._reported:
            self._reported[trial_id] = _Reported(value)
        self._reported[trial_id].add(time, value, from_time=self._grace_period)

    def get_state(self) -> dict[str, Any]:
        """Return everything as JSON data."""
        return {
            "results": {
                trial_id: [[time, encoded(value)] for time, value in reported.results]
                for trial_id, reported in self._reported.items()
            },
            "paused_at": dict(self._paused_at),
            "below": list(self.below),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self._reported = {}
        for trial_id, results in state["results"].items():
            for time, value in results:
                self.add(trial_id, time, decoded(value))
        self._paused_at = dict(state["paused_at"])
        self.below = dict.fromkeys(state["below"])


class _Reported:
    """What one trial reported; made with its first value."""

    __slots__ = ("_sums", "_times", "_values", "highest", "lowest", "results")

    def __init__(self, first: float) -> None:
        self.results: list[tuple[float, float]] = []  # time and value, as they came
        self.highest = self.lowest = first
        # Of the results that count for the mean, by time:
        self._times: list[float] = []
        self._values: list[float] = []
        self._sums: list[tuple[float, ...]] = [()]  # _sums[i] is the sum of the first i values, as `_plus` returns it

    def add(self, time: float, value: float, *, from_time: float) -> None:
        """Add a result; before `from_time` it is excluded from the mean."""
        self.results.append((time, value))
        self.highest, self.lowest = max(self.highest, value), min(self.lowest, value)
        if time < from_time:
            return
        place = bisect_right(self._times, time)
        self._times.insert(place, time)
        self._values.insert(place, value)
        del self._sums[place + 1 :]  # one that is reported again comes before others
        for each in self._values[place:]:
            self._sums.append(_plus(self._sums[-1], each))

    def mean(self, time: float) -> float:
        """Return the mean of the values up to a time; NaN when there is none, or one is not finite."""
        stop = bisect_right(self._times, time)
        return math.fsum(self._sums[stop]) / stop if stop else math.nan


def _plus(parts: tuple[float, ...], value: float) -> tuple[float, ...]:
    """Return an exact sum plus a value; the sum is kept as floats that do not overlap (Shewchuk 1997).

    Args:
        parts: the sum, smallest part first; NaN alone when it is not finite.
        value: any number.
    """
    if not math.isfinite(value) or (parts and math.isnan(parts[-1])):
        return (math.nan,)
    total = float(value)
    rests = []
    for part in parts:
        greater, less = (total, part) if abs(total) >= abs(part) else (part, total)
        total = greater + less
        if rest := less - (total - greater):
            rests.append(rest)
    return (*rests, total) if math.isfinite(total) else (math.nan,)
