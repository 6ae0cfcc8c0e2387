"""ASHA: asynchronous successive halving, the stopping variant, decision for decision as Ray Tune's.

Source: Li et al., "A System for Massively Parallel Hyperparameter Tuning" (2018). A bracket has rungs at milestones
``grace_period * reduction_factor ** k``. A trial that reaches a rung is compared with the values recorded there
before it, and stopped when it is below their ``1 - 1/reduction_factor`` quantile.

Invariants, all of them Ray's:

* The first trial at a rung continues, ties continue, NaN continues and is excluded from cutoffs.
* One result fills at most one rung: the highest that it reaches and that the trial has not filled. Rungs that were
  jumped over are filled by later results (unless `stop_last_trials` is off).
* A result at `max_t` stops the trial and is not recorded.

With several objectives a rung orders trials by fronts, and within a front by the room around them (see
`plugins.front_ranking`). A trial stops when more than ``1/reduction_factor`` of those recorded before it are better.
A result that lacks a finite number of an objective is passed over.

Two things differ from Ray on purpose: the state survives a restart, and a trial that is retried, or continues after
its end, keeps its bracket and its rungs.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right, insort
from collections.abc import Sequence
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import EVERY_RESULT, Horizon
from trialpod.tune.plugins.catalogue import algorithm
from trialpod.tune.plugins.front_ranking import FrontRanking
from trialpod.tune.plugins.objectives import Objective, point_of
from trialpod.tune.schedulers.metric_scheduler import MetricScheduler, check_rungs, decoded, encoded, is_number
from trialpod.tune.schedulers.trial_scheduler import ControllerView, TrialView

_MAX_BRACKETS = 100


@algorithm("async_hyperband", "asha", "asynchyperband")
class AsyncHyperBandScheduler(MetricScheduler):
    """Stops a trial at a rung when its value is worse than most values that reached the rung before it."""

    ABOUT = ("stopped at rungs", "the default choice for many trials")

    NAME = "asha"
    several_metrics = True

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 100,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        stop_last_trials: bool = True,
        seed: int = 0,
    ) -> None:
        """Make a scheduler.

        Args:
            time_attr: the result key that measures progress; it must grow.
            metric: the result key to compare; None takes the experiment's.
            mode: "min" or "max"; None takes the experiment's.
            max_t: a trial is stopped when `time_attr` reaches this, in units of `time_attr`.
            grace_period: no trial is stopped before this, in units of `time_attr`.
            reduction_factor: about one in so many trials passes a rung; greater than 1.
            brackets: number of brackets, at most 100; bracket s starts `s` rungs later.
            stop_last_trials: whether `max_t` ends a trial.
            seed: for the choice of a trial's bracket, when there is more than one.

        Raises:
            InvalidInputError: a value cannot be used.
        """
        for name, value in (("max_t", max_t), ("grace_period", grace_period)):
            if not is_number(value) or not 0 < value < math.inf:
                raise InvalidInputError(f"{name} must be a number greater than 0, got {value!r}", parameter=name)
        if max_t < grace_period:
            raise InvalidInputError(
                f"grace_period must not be above max_t, got grace_period={grace_period!r} and max_t={max_t!r}",
                parameter="grace_period",
            )
        if not is_number(reduction_factor) or not 1 < reduction_factor < math.inf:
            raise InvalidInputError(
                f"reduction_factor must be greater than 1, got {reduction_factor!r}", parameter="reduction_factor"
            )
        if isinstance(brackets, bool) or not isinstance(brackets, int) or not 1 <= brackets <= _MAX_BRACKETS:
            raise InvalidInputError(
                f"brackets must be a whole number from 1 to {_MAX_BRACKETS}, got {brackets!r}", parameter="brackets"
            )
        check_rungs(grace_period, max_t, reduction_factor)
        super().__init__(time_attr, metric, mode, seed)
        self._max_t = max_t
        self._stop_last_trials = bool(stop_last_trials)
        self._brackets = [_Bracket(grace_period, max_t, reduction_factor, s) for s in range(brackets)]
        self._trials: dict[str, _Progress] = {}
        self._added = 0
        self._num_stopped = 0
        self.objectives: list[Objective] = []  # none where one metric is compared

    def set_objectives(self, objectives: Sequence[Objective]) -> None:
        """Compare trials by several objectives; the first one stands for all in `metric` and `mode`."""
        self.objectives = list(objectives)
        self.metric, self.mode = objectives[0].name, objectives[0].mode

    def on_trial_add(self, tune_controller: ControllerView, trial: TrialView) -> None:
        """Give the trial a bracket; one that is added again after a failure keeps what it had.

        Raises:
            InvalidInputError: neither the scheduler nor the experiment names a metric and a mode.
        """
        super().on_trial_add(tune_controller, trial)
        if trial.trial_id not in self._trials:
            self._trials[trial.trial_id] = _Progress(self._choose_bracket(), 0)
            self._added += 1

    def on_trial_result(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> str:
        """Return STOP at `max_t` and below the cutoff of a rung, else CONTINUE."""
        time, value = self._read(result)
        point = point_of(self.objectives, result)
        if time is None or value is None or point is None:
            return self.CONTINUE
        if time >= self._max_t and self._stop_last_trials:
            self._reason = {
                "scheduler": "async_hyperband",
                "rule": "max_t",
                "time_attr": self.time_attr,
                "time": time,
                "max_t": self._max_t,
            }
            self._num_stopped += 1
            return self.STOP
        return self.STOP if self._record(trial.trial_id, time, value, point) else self.CONTINUE

    def on_trial_complete(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> None:
        """Record the last value (this is how one at `max_t` gets recorded)."""
        time, value = self._read(result)
        point = point_of(self.objectives, result)
        if time is not None and value is not None and point is not None and trial.trial_id in self._trials:
            stopped, reason = self._num_stopped, self._reason
            self._record(trial.trial_id, time, value, point)
            self._num_stopped, self._reason = stopped, reason

    def horizons(self, trial: TrialView) -> list[Horizon]:
        """Return the lowest milestone that the trial has not filled, or `max_t` when that is lower.

        A rung that was jumped over counts: the next result fills it, so the trial must wait for that one too.
        """
        progress = self._trials.get(trial.trial_id)
        if progress is None:
            return [Horizon("training_iteration", EVERY_RESULT)]
        milestones = self._brackets[progress.bracket].milestones
        open_at = [milestone for rung, milestone in enumerate(milestones) if not progress.filled >> rung & 1]
        if self._stop_last_trials:
            open_at.append(self._max_t)
        return [Horizon(self.time_attr, float(min(open_at)))] if open_at else []

    def debug_string(self) -> str:
        """Return the cutoffs in a line per bracket."""
        lines = [f"async_hyperband: {self._num_stopped} trials stopped"]
        for number, bracket in enumerate(self._brackets):
            cutoffs = [
                f"{milestone:g}: {'none' if (cutoff := bracket.cutoff(rung)) is None else f'{self._sign * cutoff:g}'}"
                for rung, milestone in enumerate(bracket.milestones)
            ]
            lines.append(f"bracket {number}: {' | '.join(cutoffs)}")
        return "\n".join(lines)

    def get_state(self) -> dict[str, Any]:
        """Return the recorded values of every rung and the rungs of every trial."""
        return {
            "version": 1,
            "metric": self.metric,
            "mode": self.mode,
            "added": self._added,
            "stopped": self._num_stopped,
            "brackets": [
                [{"milestone": m, "values": [encoded(v) for v in rung.values], "nan": rung.nan_count,
                  **({"ranking": rung.ranking_state()} if self.objectives else {})}
                 for m, rung in zip(bracket.milestones, bracket.rungs, strict=True)]
                for bracket in self._brackets
            ],
            "trials": {
                trial_id: [progress.bracket, progress.filled]
                for trial_id, progress in self._trials.items()
            },
        }  # fmt: skip

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the rungs.

        Raises:
            InvalidInputError: the state was made with other milestones.
        """
        ours = [bracket.milestones for bracket in self._brackets]
        theirs = [[rung["milestone"] for rung in bracket] for bracket in state["brackets"]]
        if ours != theirs:
            raise InvalidInputError(
                f"the saved state of the asha scheduler has rungs at {theirs}, its parameters give {ours}; "
                "continue with the parameters that the experiment was started with"
            )
        self.metric, self.mode = state["metric"], state["mode"]
        self._added, self._num_stopped = state["added"], state["stopped"]
        for bracket, saved in zip(self._brackets, state["brackets"], strict=True):
            for rung, data in zip(bracket.rungs, saved, strict=True):
                rung.values = [decoded(value) for value in data["values"]]
                rung.nan_count = data["nan"]
                rung.ranking, rung.saved = None, data.get("ranking")
        self._trials = {
            trial_id: _Progress(bracket, filled) for trial_id, (bracket, filled) in state["trials"].items()
        }

    def _record(self, trial_id: str, time: float, value: float, point: list[float]) -> bool:
        """Fill the rung that this result reaches; return whether the trial is below its cutoff."""
        progress = self._trials.get(trial_id)
        if progress is None:
            raise InvalidInputError(f"result of trial {trial_id}, which was never added; call on_trial_add first")
        bracket = self._brackets[progress.bracket]
        number = bracket.reached(time, progress.filled, skip_filled=self._stop_last_trials)
        if number is None:
            return False
        if self.objectives:
            return self._record_point(progress, bracket, number, time, point)
        rung, signed = bracket.rungs[number], self._sign * value
        cutoff = bracket.cutoff(number)
        compared, rank = len(rung.values) + 1, rung.rank(signed)
        rung.add(signed)
        progress.filled |= 1 << number
        if cutoff is None or not signed < cutoff:
            return False
        self._num_stopped += 1
        self._reason = {
            "scheduler": "async_hyperband",
            "rule": "rung",
            "bracket": progress.bracket,
            "time_attr": self.time_attr,
            "rung": bracket.milestones[number],
            "time": time,
            "metric": self.metric,
            "mode": self.mode,
            "value": encoded(value),
            "cutoff": encoded(self._sign * cutoff),
            "rank": rank,
            "compared": compared,
        }
        return True

    def _record_point(
        self, progress: _Progress, bracket: _Bracket, number: int, time: float, point: list[float]
    ) -> bool:
        """Fill a rung with the values of all objectives; return whether too many trials are better."""
        rung = bracket.rungs[number]
        if rung.ranking is None:
            rung.ranking = FrontRanking(self.objectives, rung.saved)
        compared, better = len(rung.ranking), rung.ranking.add(point)
        progress.filled |= 1 << number
        if better <= int(compared / bracket.reduction_factor + 1e-9):
            return False
        self._num_stopped += 1
        values = {each.name: value for each, value in zip(self.objectives, point, strict=True)}
        self._explain(
            "rung",
            time,
            point[0],
            rung=bracket.milestones[number],
            bracket=progress.bracket,
            values=values,
            rank=better + 1,
            compared=compared + 1,
        )
        return True

    def _choose_bracket(self) -> int:
        if len(self._brackets) == 1:
            return 0
        sizes = [len(bracket.milestones) for bracket in self._brackets]
        weights = [math.exp(size - max(sizes)) for size in sizes]
        rng = random.Random(f"bracket/{self._seed}/{self._added}")
        return rng.choices(range(len(sizes)), weights)[0]


ASHAScheduler = AsyncHyperBandScheduler


class _Progress:
    """Where a trial is: its bracket, and a bit for each rung that it filled."""

    __slots__ = ("bracket", "filled")

    def __init__(self, bracket: int, filled: int) -> None:
        self.bracket = bracket
        self.filled = filled


class _Rung:
    """The values recorded at one milestone, sorted; greater is better."""

    __slots__ = ("nan_count", "ranking", "saved", "values")

    def __init__(self) -> None:
        self.values: list[float] = []
        self.nan_count = 0
        self.ranking: FrontRanking | None = None  # with several objectives, in place of values
        self.saved: dict[str, Any] | None = None  # its state, before it is made again

    def add(self, value: float) -> None:
        if math.isnan(value):
            self.nan_count += 1
        else:
            insort(self.values, value)

    def ranking_state(self) -> dict[str, Any] | None:
        """Return the state of the ranking; None when no trial with several objectives has come here."""
        return self.saved if self.ranking is None else self.ranking.get_state()

    def rank(self, value: float) -> int:
        """Return the place that `value` takes among the recorded ones, 1 being the best."""
        return len(self.values) - bisect_right(self.values, value) + 1


class _Bracket:
    """Rungs in ascending order of their milestones."""

    def __init__(self, grace_period: float, max_t: float, reduction_factor: float, s: int) -> None:
        count = int(math.log(max_t / grace_period) / math.log(reduction_factor) - s + 1)
        self.milestones = [grace_period * reduction_factor ** (k + s) for k in range(count)]
        self.rungs = [_Rung() for _ in self.milestones]
        self.reduction_factor = reduction_factor
        self._quantile = (1 - 1 / reduction_factor) * 100 / 100  # Ray's way over percent, rounding included

    def reached(self, time: float, filled: int, *, skip_filled: bool) -> int | None:
        """Return the highest rung at or below `time` that is not filled."""
        for number in range(bisect_right(self.milestones, time) - 1, -1, -1):
            if not filled >> number & 1:
                return number
            if not skip_filled:
                return None
        return None

    def cutoff(self, number: int) -> float | None:
        """Return the quantile of the values of a rung, interpolated linearly; None when there are none."""
        values = self.rungs[number].values
        if not values:
            return None
        position = self._quantile * (len(values) - 1)
        low = min(math.floor(position), len(values) - 1)
        high = min(low + 1, len(values) - 1)
        part = position - low
        below, above = values[low], values[high]
        if part == 0 or below == above:
            return below
        # Interpolating from the nearer end is what NumPy does; a tie must not be lost to rounding.
        step = above - below
        return below + step * part if part < 0.5 else above - step * (1 - part)
