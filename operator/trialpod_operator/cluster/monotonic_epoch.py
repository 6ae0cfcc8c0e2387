"""A clock that is never set back.

What an operator waits for is due after so many seconds of its clock. When that is set back, what has been waited for
would take as much longer.
"""

from __future__ import annotations

from collections.abc import Callable


def steady(clock: Callable[[], float]) -> Callable[[], float]:
    """Return a clock that goes on from where it was when the one given is set back.

    Args:
        clock: seconds since the epoch.
    """
    ahead_s, latest = 0.0, clock()

    def read() -> float:
        nonlocal ahead_s, latest
        now = clock() + ahead_s
        if now < latest:
            ahead_s += latest - now
            now = latest
        latest = now
        return now

    return read
