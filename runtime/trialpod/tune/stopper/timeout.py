"""Stops the whole experiment after some time of work.

Time is passed in: the caller calls `observe(now)` before `stop_all`, and sets a timer for
`remaining` seconds. The clock is the experiment's own: it starts with the experiment, so that the import of the
user's module counts, as in Ray; it stops while the experiment is suspended and while no process runs it, and a
restored stopper continues with what was used. In Ray a restored one begins again.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import Horizon
from trialpod.tune.plugins.catalogue import algorithm
from trialpod.tune.plugins.phrases import text
from trialpod.tune.stopper.deviation import number
from trialpod.tune.stopper.stopper import Stopper


@algorithm("timeout")
class TimeoutStopper(Stopper):
    """Stops everything when `timeout` has been used up."""

    ABOUT = ("the experiment", "its time is used up")

    def __init__(self, timeout: float | dt.timedelta) -> None:
        """Make a stopper.

        Args:
            timeout: seconds, or a timedelta.

        Raises:
            InvalidInputError: it is neither, or negative.
        """
        seconds = timeout.total_seconds() if isinstance(timeout, dt.timedelta) else number(timeout)
        if seconds is None or not seconds >= 0:
            raise InvalidInputError(
                f"timeout must be seconds (0 or more) or a timedelta, got {timeout!r}", parameter="timeout"
            )
        self._timeout = seconds
        self._used = 0.0
        self._last: float | None = None

    def observe(self, now: float, *, active: bool = True) -> None:
        """Take in the time.

        Args:
            now: seconds on any clock; steps back are passed over.
            active: False while the experiment is suspended: the time up to the next observation does not count.
        """
        if self._last is not None and now > self._last:
            self._used += now - self._last
        self._last = now if active else None

    @property
    def remaining(self) -> float:
        """Seconds that are left at the latest observation."""
        return max(0.0, self._timeout - self._used)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return False: no trial is stopped on its own."""
        return False

    def stop_all(self) -> bool:
        """Return True when the time is used up."""
        return self._used >= self._timeout

    def horizons(self, trial_id: str) -> list[Horizon]:
        """Return none: a timer stops the experiment, not a result."""
        return []

    @classmethod
    def describe_reason(cls, reason: Mapping[str, Any]) -> str:  # noqa: D102
        return f"the timeout of {text(reason.get('timeout_s'))} s is used up"

    def reason(self) -> dict[str, Any]:
        """Return the time used and the limit, once it is reached."""
        if not self.stop_all():
            return {}
        return {"stopper": "timeout", "used_s": self._used, "timeout_s": self._timeout}

    def get_state(self) -> dict[str, Any]:
        """Return the time used."""
        return {"version": 1, "used_s": self._used}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the time used; the clock starts again at the next observation."""
        self._used = state["used_s"]
        self._last = None
