"""What people ask about all trials together, kept up to date by each change of one: nobody goes through them all.

Invariant: everything here is what a pass over all trials would find at that moment, and follows from them alone, so
it is in no snapshot. Owned by `State`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection

from trialpod_operator.engine.trial import Trial

MAX_OUTDATED = 64
"""Entries of values that trials no longer have, beside one for each trial; then the order is made again."""


class Standings:
    """Sums over the trials, and which of them has the best value.

    Attributes:
        failures: of all trials.
        disruptions: of all trials.
        starting: ids of the trials whose attempt was started, and no process runs it yet.
        repeats: the trials that repeat others.
    """

    def __init__(self) -> None:
        self.failures = 0
        self.disruptions = 0
        self.starting: set[str] = set()
        self.repeats: list[Trial] = []
        self._sign = 1.0
        self._order: list[tuple[float, int, Trial]] | None = None  # heap; None until somebody asks for the best

    def add(self, trial: Trial) -> None:
        """Take in a trial, new or stored."""
        self.failures += trial.failures
        self.disruptions += trial.disruptions
        if trial.repeat_of:
            self.repeats.append(trial)
        self.begun(trial)

    def begun(self, trial: Trial) -> None:
        """A process may run the trial's attempt now."""
        if trial.running and not (trial.current.pid or trial.current.received):
            self.starting.add(trial.trial_id)
        else:
            self.starting.discard(trial.trial_id)

    def valued(self, trial: Trial) -> None:
        """The trial has another value."""
        if self._order is None or trial.repeat_of or trial.value is None or not math.isfinite(trial.value):
            return
        heapq.heappush(self._order, (-self._sign * trial.value, trial.index, trial))

    def best(self, trials: Collection[Trial], mode: str) -> Trial | None:
        """Return the trial with the best finite value, of equals the earlier one; repeats do not count.

        Args:
            trials: all of them.
            mode: "max" or "min".
        """
        sign = 1.0 if mode == "max" else -1.0
        order = self._order
        if order is None or sign != self._sign or len(order) > 2 * len(trials) + MAX_OUTDATED:
            self._sign = sign
            order = self._order = [
                (-sign * trial.value, trial.index, trial)
                for trial in trials
                if not trial.repeat_of and trial.value is not None and math.isfinite(trial.value)
            ]
            heapq.heapify(order)
        while order:
            value, _, trial = order[0]
            if trial.value is not None and -sign * trial.value == value:
                return trial
            heapq.heappop(order)
        return None
