"""Figures about all trials together, updated by each change of one trial, without visiting the others.

Invariant: everything here is what a pass over all trials would find at that moment, and follows from them alone, so
it is in no snapshot. Owned by `State`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Sequence

from trialpod.tune.plugins.objectives import (
    Objective,
    dominates,
    meets_thresholds,
    pareto_front,
    to_minimize,
)
from trialpod_operator.engine.trial import TERMINATED, Trial

MAX_OUTDATED = 64
"""Entries of values that trials no longer have, beside one for each trial; then the order is rebuilt."""


class Standings:
    """Sums over the trials, which of them has the best value, and which are on the Pareto front.

    Attributes:
        failures: of all trials.
        disruptions: of all trials.
        starting: ids of the trials whose attempt was started, and no process runs it yet.
        repeats: the trials that repeat others.
        iterations: of all trials, each as far as it ever came.
        measured: how many trials have a finite value; repeats do not count.
        longest: iterations of the longest trial that came to its own end; repeats do not count.
    """

    def __init__(self) -> None:
        self.failures = 0
        self.disruptions = 0
        self.starting: set[str] = set()
        self.repeats: list[Trial] = []
        self.iterations = 0
        self.measured = 0
        self.longest = 0
        self._sign = 1.0
        self._order: list[tuple[float, int, Trial]] | None = None  # heap; None until the best are asked for
        self._front: dict[str, tuple[tuple[float, ...], Trial]] | None = None  # by trial; None until it is asked for
        self._objectives: Sequence[Objective] = ()  # that it is for

    def add(self, trial: Trial) -> None:
        """Add a trial, new or stored."""
        self.failures += trial.failures
        self.disruptions += trial.disruptions
        self.iterations += trial.max_iteration
        if trial.repeat_of:
            self.repeats.append(trial)
        elif trial.value is not None and math.isfinite(trial.value):
            self.measured += 1
        self.ended(trial)
        self.begun(trial)

    def begun(self, trial: Trial) -> None:
        """A process may run the trial's attempt now."""
        if trial.running and not (trial.current.pid or trial.current.received):
            self.starting.add(trial.trial_id)
        else:
            self.starting.discard(trial.trial_id)

    def progressed(self, trial: Trial, before: int) -> None:
        """The trial came further than `before`, or begins again from there."""
        self.iterations += trial.max_iteration - before

    def ended(self, trial: Trial) -> None:
        """The trial may have come to its own end."""
        if trial.status == TERMINATED and not trial.stopped and not trial.repeat_of:
            self.longest = max(self.longest, trial.iteration)

    def valued(self, trial: Trial, before: float | None) -> None:
        """The trial has another value than `before`."""
        if trial.repeat_of or trial.value is None or not math.isfinite(trial.value):
            return
        if before is None or not math.isfinite(before):
            self.measured += 1
        if self._order is None:
            return
        heapq.heappush(self._order, (-self._sign * trial.value, trial.index, trial))

    def pointed(self, trial: Trial) -> None:
        """The trial has another point, in several objectives."""
        front = self._front
        if front is None:
            return
        before = front.pop(trial.trial_id, None)
        point = to_minimize(self._objectives, trial.point)
        worse = not meets_thresholds(self._objectives, trial.point)
        if before is not None and (worse or not all(a <= b for a, b in zip(point, before[0], strict=True))):
            self._front = None  # what only its old point dominated may be on the front now
            return
        if worse or any(dominates(other, point) for other, _ in front.values()):
            return
        for trial_id in [trial_id for trial_id, (other, _) in front.items() if dominates(point, other)]:
            del front[trial_id]
        front[trial.trial_id] = point, trial

    def front(self, trials: Collection[Trial], objectives: Sequence[Objective]) -> list[Trial]:
        """Return the Pareto front, the best in the first objective first; of equals the earlier one.

        Args:
            trials: all of them.
            objectives: what their points are in.
        """
        if self._front is None or self._objectives != objectives:
            self._objectives = objectives
            pointed = [trial for trial in trials if trial.point]
            found = [pointed[place] for place in pareto_front(objectives, [trial.point for trial in pointed])]
            self._front = {trial.trial_id: (to_minimize(objectives, trial.point), trial) for trial in found}
        order = sorted(self._front.values(), key=lambda each: (each[0], each[1].index))
        return [trial for _, trial in order]

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
