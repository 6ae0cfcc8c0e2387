"""The best value so far as one line of block characters."""

from __future__ import annotations

import math
from collections.abc import Sequence

LEVELS = "▁▂▃▄▅▆▇█"
MAX_SAMPLES = 400
"""Maximum number of values that are kept; above it every other one goes, so that the line keeps its shape."""


class BestSoFar:
    """The best value at each look at an experiment."""

    def __init__(self) -> None:
        self._values: list[float] = []

    def observe(self, value: float | None) -> None:
        """Add the best value of now; None while there is none."""
        if value is None or not math.isfinite(value):
            return
        self._values.append(value)
        if len(self._values) > MAX_SAMPLES:
            self._values = [*self._values[:-1:2], self._values[-1]]

    @property
    def values(self) -> Sequence[float]:
        """What is kept, oldest first."""
        return self._values

    def line(self, width: int) -> str:
        """Return the values in at most `width` characters; empty until the best value has changed once."""
        if width < 2 or len(set(self._values)) < 2:
            return ""
        return sparkline(_resampled(self._values, width))


def sparkline(values: Sequence[float]) -> str:
    """Return one character for each value, the lowest as the lowest block."""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(LEVELS[round((value - low) / span * (len(LEVELS) - 1))] for value in values)


def _resampled(values: Sequence[float], width: int) -> Sequence[float]:
    if len(values) <= width:
        return values
    return [values[(place * (len(values) - 1)) // (width - 1)] for place in range(width)]
