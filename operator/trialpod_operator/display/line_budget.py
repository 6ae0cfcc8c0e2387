"""How many lines about trials a person is shown: a burst at once, and in the long run so many per second."""

from __future__ import annotations

import time
from collections.abc import Callable

MAX_LINES_PER_S = 100.0
MAX_BURST = 500


class LineBudget:
    """A token bucket of lines.

    Args:
        now: seconds, monotonic.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lines = float(MAX_BURST)
        self._at = now()

    def spend(self, lines: int) -> int:
        """Return how many of so many lines may be shown now, and count them as shown."""
        now = self._now()
        self._lines = min(float(MAX_BURST), self._lines + (now - self._at) * MAX_LINES_PER_S)
        self._at = now
        count = min(lines, int(self._lines))
        self._lines -= count
        return count
