"""What is known of all trials, as one number for each, although some were trained for one epoch and some for 81.

Values are compared within a rung only: between trials that were trained for equally long. The score of a trial is its
rank among those that reached its highest rung, times the share of all trials that reached that rung. So the best of
the highest rung scores lowest, one that came up and turned out worst there scores as the worst that come up do, and
one that waits at the first rung by its rank there. Trials that came higher without a value at a rung rank before all
that have one there. A trial that has diverged scores 1, one without a value none.

Invariants:

* The view is a function of the events, in their order; nothing in it is random.
* Where the scheduler names rungs, a trial that was stopped counts at the last one that it reached: the iteration of
  its end is not a rung, and may have another unit. Only without such rungs trials are compared by that iteration.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

COMPLETE = math.inf
"""The rung of trials that were trained to their end."""


@dataclass(slots=True)
class Record:
    """One trial.

    Attributes:
        rung: the highest that it reached; None before the first.
        loss: its value there, lower is better.
        diverged: its metric was not finite, or it failed.
        live: it has not ended.
    """

    rung: float | None = None
    loss: float = math.nan
    diverged: bool = False
    live: bool = True


@dataclass(slots=True)
class View:
    """All trials by number."""

    records: dict[int, Record] = field(default_factory=dict)
    _rungs: dict[float, list[float]] = field(default_factory=dict)  # all losses that were seen at a rung, sorted
    _named: bool = False  # the scheduler names rungs

    @property
    def rungs(self) -> list[float]:
        """All rungs that a trial has reached."""
        return sorted(self._rungs)

    @property
    def is_empty(self) -> bool:
        """True while nothing is known of any trial."""
        return not any(record.rung is not None or record.diverged for record in self.records.values())

    def begin(self, number: int) -> None:
        """Add a trial."""
        self.records[number] = Record()

    def reach(self, number: int, rung: float, loss: float) -> None:
        """Note the loss of a trial at a rung; a second one at the same rung replaces nothing."""
        if rung != COMPLETE and not self._named:
            self._named = True
            self._forget_iterations()
        self._place(number, rung, loss)

    def end(self, number: int, *, diverged: bool = False) -> None:
        """Note that a trial has ended."""
        record = self.records[number]
        record.live, record.diverged = False, record.diverged or diverged

    def stop(self, number: int, iteration: int, loss: float) -> None:
        """Note that a trial was given up, and its last loss."""
        if not self._named:
            self._place(number, float(iteration), loss)
        self.end(number, diverged=not math.isfinite(loss))

    def score(self, number: int) -> float | None:
        """Return what a model is to minimise, from 0 to 1; None where nothing is known."""
        return self.scores()[number]

    def scores(self) -> dict[int, float | None]:
        """Return the score of every trial."""
        at = Counter(record.rung for record in self.records.values() if record.rung is not None)
        higher, unseen = 0, {}
        for rung in reversed(self.rungs):
            unseen[rung] = higher - (len(self._rungs[rung]) - at[rung])
            higher += at[rung]
        most = max((len(losses) + unseen[rung] for rung, losses in self._rungs.items()), default=1)
        return {number: self._score(record, unseen, most) for number, record in self.records.items()}

    def best(self, count: int) -> list[int]:
        """Return the best trials: by rung, the highest first, and there by loss."""
        known = [
            (-record.rung, record.loss, number)
            for number, record in self.records.items()
            if record.rung is not None and not record.diverged
        ]
        return [number for _, _, number in sorted(known)[:count]]

    def _place(self, number: int, rung: float, loss: float) -> None:
        record = self.records[number]
        if not math.isfinite(loss):
            record.diverged = True
            return
        record.diverged = False
        if record.rung is not None and record.rung >= rung:
            return
        record.rung, record.loss = rung, loss
        insort(self._rungs.setdefault(rung, []), loss)

    def _forget_iterations(self) -> None:
        for record in self.records.values():
            if record.rung is not None and record.rung != COMPLETE:
                record.rung, record.loss = None, math.nan
        self._rungs = {rung: losses for rung, losses in self._rungs.items() if rung == COMPLETE}

    def _score(self, record: Record, unseen: Mapping[float, int], most: int) -> float | None:
        if record.diverged:
            return 1.0
        if record.rung is None:
            return None
        return (unseen[record.rung] + bisect_left(self._rungs[record.rung], record.loss) + 1) / most
