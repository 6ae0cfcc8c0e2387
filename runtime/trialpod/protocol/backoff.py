"""How long to wait before the next try: exponential, with equal jitter.

The delay before try n+1 is drawn from the upper half of ``min(cap, base * 2**n)``: trials that lost the same server
at the same moment do not come back at the same moment, and none comes back at once (Brooker, "Exponential Backoff
and Jitter", 2015: the variant that keeps a lower bound).
"""

from __future__ import annotations

from collections.abc import Callable


def _uniform() -> float:
    import random

    return random.random()


class Backoff:
    """Counts failures in a row and gives the delay after each.

    Args:
        base_s: upper bound of the first delay, in seconds.
        cap_s: upper bound of any delay, in seconds.
        uniform: gives a number in [0, 1).
    """

    def __init__(self, *, base_s: float = 0.05, cap_s: float = 15.0, uniform: Callable[[], float] = _uniform) -> None:
        self.failures = 0
        self._base_s = base_s
        self._cap_s = cap_s
        self._uniform = uniform

    def failed(self) -> float:
        """Count one more failure and return the seconds to wait."""
        bound = min(self._cap_s, self._base_s * 2.0 ** min(self.failures, 60))
        self.failures += 1
        return bound * (0.5 + 0.5 * self._uniform())

    def succeeded(self) -> None:
        """Start again from the shortest delay."""
        self.failures = 0
