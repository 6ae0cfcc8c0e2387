"""What is told of an experiment that this operator is kept from writing: once is a takeover, again and again is not.

Owned by the experiment's controller, in the operator's loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from trialpod_operator.cluster.conditions import Problem
from trialpod_operator.experiment.late_objects import FencedError

OPENINGS = 5
"""So often in a row an experiment's journal may be found in pieces: another operator may just be replacing them."""

TAKEN = 3
WITHIN_S = 300.0
"""Two operators that follow each other take an experiment from each other once or twice, and not for so long."""


class Fencing:
    """Counts what the storage refused.

    Args:
        monotonic: seconds, for differences only.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._refused = 0
        self._refusal = ""
        self._taken: deque[tuple[float, str]] = deque(maxlen=TAKEN)

    def refused(self, error: FencedError) -> None:
        """It could not be opened."""
        self._refused += 1
        self._refusal = str(error)

    def opened(self) -> None:
        """It is open."""
        self._refused = 0

    def taken(self, error: BaseException) -> None:
        """It cannot go on as it is open."""
        if isinstance(error, FencedError):
            self._taken.append((self._monotonic(), str(error)))

    def problem(self) -> Problem | None:
        """Return what its status is to say."""
        if self._refused > OPENINGS:
            remedy = "bring back what is missing, or move the rest away, and the experiment begins anew"
            return Problem(reason="JournalDamaged", message=f"{self._refusal}; {remedy}", stalled=True)
        if self.over_in() is not None:
            return Problem(reason="StorageConflict", message=self._taken[-1][1])
        return None

    def over_in(self) -> float | None:
        """Return in how many seconds a conflict counts as over; None when there is none."""
        if len(self._taken) < TAKEN:
            return None
        left = self._taken[0][0] + WITHIN_S - self._monotonic()
        return left if left > 0.0 else None
