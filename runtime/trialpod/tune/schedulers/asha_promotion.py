"""ASHA as its paper has it: trials pause at rungs, and whenever a slot is free the best paused one is promoted.

Source: Li et al., "A System for Massively Parallel Hyperparameter Tuning" (2018), algorithm 2. Rung k lies at
``grace_period * reduction_factor ** k``, the end at `max_t`. When a place is free, the rungs are searched from the
top for a trial among the best ``1/reduction_factor`` of its rung that was not promoted yet; when there is none, a new
trial starts.

Against the stopping variant (`AsyncHyperBandScheduler`): a trial that is passed over may still be promoted when
others turn out worse, and those that come first pass a rung only once there is something to compare them with. It
needs checkpoints, because trials wait.

Invariants:

* A trial below its next rung continues, whatever the others do.
* A trial that arrives at a rung and would be promoted at once continues without a pause.
* A trial that jumped over rungs counts in all of them, and as promoted from all but the last.
* NaN is never promoted.
* A trial that was lost after its decision to pause comes back to its rung, and pauses there: that is not a promotion.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import EVERY_RESULT, Horizon
from trialpod.tune.plugins.catalogue import algorithm
from trialpod.tune.schedulers.metric_scheduler import (
    MetricScheduler,
    check_above,
    check_rungs,
    comparable,
    decoded,
    encoded,
)
from trialpod.tune.schedulers.trial_scheduler import ControllerView, TrialView


@algorithm("asha_promotion")
class PromotionASHAScheduler(MetricScheduler):
    """Pauses trials at rungs and promotes the best when a place is free."""

    ABOUT = ("paused at rungs, promoted", "many more trials than slots, and checkpoints")

    NAME = "asha_promotion"

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 100,
        grace_period: float = 1,
        reduction_factor: float = 4,
    ) -> None:
        """Make a scheduler.

        Args:
            time_attr: the result key that measures progress; it must grow.
            metric: the result key to compare; None takes the experiment's.
            mode: "min" or "max"; None takes the experiment's.
            max_t: a trial is stopped when `time_attr` reaches this, in units of `time_attr`.
            grace_period: where the first rung lies, in units of `time_attr`.
            reduction_factor: one in so many trials is promoted from a rung; greater than 1.

        Raises:
            InvalidInputError: a value cannot be used.
        """
        super().__init__(time_attr, metric, mode)
        check_above("max_t", max_t, 0)
        check_above("grace_period", grace_period, 0)
        check_above("reduction_factor", reduction_factor, 1)
        if max_t < grace_period:
            raise InvalidInputError(
                f"grace_period must not be above max_t, got grace_period={grace_period!r} and max_t={max_t!r}",
                parameter="grace_period",
            )
        check_rungs(grace_period, max_t, reduction_factor)
        self._max_t = max_t
        self._eta = reduction_factor
        self._milestones: list[float] = []
        milestone: float = grace_period
        while milestone < max_t:
            self._milestones.append(milestone)
            milestone *= reduction_factor
        self._rungs = [_Rung() for _ in self._milestones]
        self._next: dict[str, int] = {}  # trial_id -> the rung that it has to reach next
        self._waiting: dict[str, int] = {}  # trial_id -> the rung at which it is paused
        self._numbers: dict[str, int] = {}  # trial_id -> its number, in order of creation

    def on_trial_add(self, tune_controller: ControllerView, trial: TrialView) -> None:
        """Take the trial in; one that is added again keeps its rungs."""
        super().on_trial_add(tune_controller, trial)
        self._next.setdefault(trial.trial_id, 0)
        self._numbers.setdefault(trial.trial_id, len(self._numbers))
        self._resume(trial.trial_id)

    def on_trial_result(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> str:
        """Return STOP at `max_t`, PAUSE at a rung unless the trial is promoted at once, else CONTINUE.

        Raises:
            InvalidInputError: the trial was never added.
        """
        trial_id = trial.trial_id
        if trial_id not in self._next:
            raise InvalidInputError(f"result of trial {trial_id}, which was never added; call on_trial_add first")
        self._resume(trial_id)
        time, value = self._read(result)
        if time is None or value is None:
            return self.CONTINUE
        reached = bisect_right(self._milestones, time)
        for number in range(self._next[trial_id], reached):
            self._rungs[number].add(self._sign * value, self._numbers[trial_id], trial_id)
            if number < reached - 1 or time >= self._max_t:
                self._rungs[number].promote(trial_id)
        fresh = reached > self._next[trial_id]
        self._next[trial_id] = max(self._next[trial_id], reached)
        if time >= self._max_t:
            self._explain("max_t", time, value, max_t=self._max_t)
            return self.STOP
        number = reached - 1
        if not fresh and not (self._comes_back(trial_id) and number == self._next[trial_id] - 1):
            return self.CONTINUE
        self._waiting[trial_id] = number
        if self._candidate(None) == trial_id:
            self._resume(trial_id)
            return self.CONTINUE
        self._explain("rung", time, value, rung=self._milestones[number], **self._rungs[number].standing(trial_id))
        return self.PAUSE

    def on_trial_complete(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> None:
        """Count the trial no more for promotion; its values stay."""
        self._waiting.pop(trial.trial_id, None)

    def on_trial_remove(self, tune_controller: ControllerView, trial: TrialView) -> None:
        """Count the trial no more for promotion; its values stay."""
        self.on_trial_complete(tune_controller, trial, {})

    def on_trial_error(self, tune_controller: ControllerView, trial: TrialView) -> None:
        """Count the trial no more for promotion, unless it is added again."""
        self.on_trial_complete(tune_controller, trial, {})

    def choose_trial_to_run(self, tune_controller: ControllerView) -> TrialView | None:
        """Return the best trial that may be promoted, from the highest rung; else the first pending one."""
        paused = {trial.trial_id: trial for trial in tune_controller.paused_trials()}
        promoted = self._candidate(set(paused))
        if promoted is not None:
            self._resume(promoted)
            return paused[promoted]
        for trial in tune_controller.pending_trials():
            self._waiting.pop(trial.trial_id, None)  # it was lost before it had paused
            return trial
        return None

    def horizons(self, trial: TrialView) -> list[Horizon]:
        """Return the next rung, or `max_t` above the last."""
        number = self._next.get(trial.trial_id)
        if number is None:
            return [Horizon("training_iteration", EVERY_RESULT)]
        if self._comes_back(trial.trial_id):
            number -= 1
        return [Horizon(self.time_attr, float([*self._milestones, self._max_t][number]))]

    def debug_string(self) -> str:
        """Return how many trials each rung has seen and promoted."""
        rungs = (
            f"{milestone:g}: {rung.count} reached, {rung.promoted_count} promoted"
            for milestone, rung in zip(self._milestones, self._rungs, strict=True)
        )
        return f"{self.NAME}: {' | '.join(rungs)}"

    def get_state(self) -> dict[str, Any]:
        """Return the values of every rung and where every trial is."""
        return {
            "version": 1,
            "metric": self.metric,
            "mode": self.mode,
            "milestones": self._milestones,
            "max_t": self._max_t,
            "rungs": [rung.get_state() for rung in self._rungs],
            "next": self._next,
            "waiting": self._waiting,
            "numbers": self._numbers,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the rungs.

        Raises:
            InvalidInputError: the state was made with other rungs.
        """
        self._check_saved(state, milestones=self._milestones, max_t=self._max_t)
        self.metric, self.mode = state["metric"], state["mode"]
        self._next, self._waiting = dict(state["next"]), dict(state["waiting"])
        self._numbers = dict(state["numbers"])
        for rung, saved in zip(self._rungs, state["rungs"], strict=True):
            rung.set_state(saved)

    def _candidate(self, startable: set[str] | None) -> str | None:
        """Return the trial that deserves the next place, from the highest rung that has one."""
        for number in range(len(self._rungs) - 1, -1, -1):
            rung = self._rungs[number]
            for trial_id in rung.best(int(rung.count / self._eta + 1e-9)):
                if self._waiting.get(trial_id) == number and (startable is None or trial_id in startable):
                    return trial_id
        return None

    def _comes_back(self, trial_id: str) -> bool:
        """Return whether a trial runs that is to pause at a rung where it was before."""
        number = self._next[trial_id] - 1
        return number >= 0 and trial_id not in self._waiting and not self._rungs[number].was_promoted(trial_id)

    def _resume(self, trial_id: str) -> None:
        """Note that a trial that waited at a rung runs on from it."""
        number = self._waiting.pop(trial_id, None)
        if number is not None:
            self._rungs[number].promote(trial_id)


class _Rung:
    """The values of one rung, best first, and the trials promoted from it."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, str]] = []  # (-value, number of the trial, trial_id), sorted
        self._raw: dict[str, float] = {}
        self._promoted: set[str] = set()

    @property
    def count(self) -> int:
        return len(self._entries)

    def was_promoted(self, trial_id: str) -> bool:
        return trial_id in self._promoted

    @property
    def promoted_count(self) -> int:
        return len(self._promoted)

    def add(self, value: float, number: int, trial_id: str) -> None:
        self._raw[trial_id] = value
        insort(self._entries, (-comparable(value), number, trial_id))

    def promote(self, trial_id: str) -> None:
        self._promoted.add(trial_id)

    def best(self, most: int) -> list[str]:
        """Return those of the best `most` that are not NaN and were not promoted, best first."""
        return [
            trial_id
            for _, _, trial_id in self._entries[:most]
            if trial_id not in self._promoted and not math.isnan(self._raw[trial_id])
        ]

    def standing(self, trial_id: str) -> dict[str, int]:
        """Return the rank of a trial among those that reached the rung."""
        rank = next(index for index, entry in enumerate(self._entries, 1) if entry[2] == trial_id)
        return {"rank": rank, "compared": len(self._entries)}

    def get_state(self) -> dict[str, Any]:
        return {
            "values": [[trial_id, number, encoded(self._raw[trial_id])] for _, number, trial_id in self._entries],
            "promoted": sorted(self._promoted),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self._entries, self._raw = [], {}
        for trial_id, number, value in state["values"]:
            self.add(decoded(value), number, trial_id)
        self._promoted = set(state["promoted"])
