"""The median stopping rule: ends a trial whose best value is worse than the median of what the others averaged.

Source: Golovin et al., "Google Vizier: A Service for Black-Box Optimization" (2017), section 3.2.1. At time t the
best value of the trial so far is held against the median, over the other trials that came as far as t, of their
running means from `grace_period` to t.

Invariants:

* Before `grace_period` no trial is stopped or paused, whatever the others do.
* A mean that is not finite (a trial reported NaN or infinity) is excluded from the median.
* Results that a trial reports again, because it continued from an earlier checkpoint, replace those that it had
  reported after that checkpoint: a trial has one result for each time, the latest. Results before `grace_period`
  change nothing that others are compared with.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from statistics import median
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import Horizon
from trialpod.tune.plugins.as_ray import decides_as_ray
from trialpod.tune.plugins.catalogue import algorithm
from trialpod.tune.plugins.phrases import rank_text, text, time_text
from trialpod.tune.schedulers.median_compatible import RayMedian
from trialpod.tune.schedulers.metric_scheduler import (
    MetricScheduler,
    check_at_least,
    check_flag,
    check_same_rules,
    decoded,
    encoded,
)
from trialpod.tune.schedulers.trial_scheduler import ControllerView, TrialView


@algorithm("median_stopping_rule", "medianstopping")
class MedianStoppingRule(MetricScheduler):
    """Stops trials that are worse than the median of the others at the same time."""

    ABOUT = ("stopped below the median", "no rungs are wanted")

    NAME = "median_stopping_rule"
    time_slicing = True

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        grace_period: float = 60.0,
        min_samples_required: int = 3,
        min_time_slice: float = 0,
        hard_stop: bool = True,
        *,
        compatible: bool | None = None,
    ) -> None:
        """Make a scheduler.

        Args:
            time_attr: the result key that measures progress; it must grow.
            metric: the result key to compare; None takes the experiment's.
            mode: "min" or "max"; None takes the experiment's.
            grace_period: no trial is stopped before this, and means are taken from here on, in units of `time_attr`.
            min_samples_required: the rule applies when at least so many other trials came this far.
            min_time_slice: as long as it does not apply, a trial runs at least this long before it makes room for a
                waiting one, in units of `time_attr`.
            hard_stop: False pauses a trial instead of stopping it; it continues when no other waits.
            compatible: decide as Ray Tune does (`median_compatible`); None is True in scripts whose ``ray`` is
                trialpod.

        Raises:
            InvalidInputError: a value cannot be used.
        """
        super().__init__(time_attr, metric, mode)
        check_at_least("grace_period", grace_period, 0)
        check_at_least("min_time_slice", min_time_slice, 0)
        if (
            isinstance(min_samples_required, bool)
            or not isinstance(min_samples_required, int)
            or (min_samples_required < 1)
        ):
            raise InvalidInputError(
                f"min_samples_required must be 1 or more, got {min_samples_required!r}",
                parameter="min_samples_required",
            )
        check_flag("hard_stop", hard_stop)
        self._grace_period = grace_period
        self._min_samples = min_samples_required
        self._min_time_slice = min_time_slice
        self._hard_stop = hard_stop
        self._records: dict[str, _Record] = {}
        self._ray: RayMedian | None = None
        if decides_as_ray(self, compatible):
            self._ray = RayMedian(grace_period, min_samples_required, min_time_slice, hard_stop=hard_stop)

    def on_trial_result(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> str:
        """Return STOP (PAUSE without `hard_stop`) below the median, PAUSE to share time, else CONTINUE."""
        time, value = self._read(result)
        if self._ray is not None:
            return self._as_ray(self._ray, tune_controller, trial, time, value)
        record = self._records.setdefault(trial.trial_id, _Record())
        if time is None or value is None or record.judged:
            return self.CONTINUE
        if time < self._grace_period:
            record.add_early(self._sign * value)
            return self.CONTINUE
        record.add(time, value, self._sign)
        means = [
            mean
            for trial_id, other in self._records.items()
            if trial_id != trial.trial_id
            and other.times
            and other.times[-1] >= time
            and math.isfinite(mean := other.mean(self._grace_period, time))
        ]
        if len(means) < self._min_samples:
            return self._share(tune_controller, record, time, value, len(means))
        cutoff = self._sign * median([self._sign * mean for mean in means])
        best = record.best(self._sign)
        if best is not None and self._sign * best >= self._sign * cutoff:
            return self.CONTINUE
        record.judged = True
        better = sum(1 for mean in means if best is None or self._sign * mean > self._sign * best)
        self._explain(
            "median",
            time,
            value,
            best=None if best is None else encoded(best),
            cutoff=cutoff,
            rank=better + 1,
            compared=len(means) + 1,
        )
        return self.STOP if self._hard_stop else self.PAUSE

    def on_trial_complete(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> None:
        """Record the last value, unless it was recorded when it was reported."""
        time, value = self._read(result)
        if self._ray is not None:
            if time is not None and value is not None:
                self._ray.add(trial.trial_id, time, value)
            return
        record = self._records.setdefault(trial.trial_id, _Record())
        if time is None or value is None or time < self._grace_period:
            return
        if not record.times or record.times[-1] < time:
            record.add(time, value, self._sign)

    def choose_trial_to_run(self, tune_controller: ControllerView) -> TrialView | None:
        """Return the first pending trial, else the first paused one, those below the median last."""
        for trial in tune_controller.pending_trials():
            return trial
        if self._ray is not None:
            paused = {trial.trial_id for trial in tune_controller.paused_trials()}
            return next((trial for trial in tune_controller.get_trials() if trial.trial_id in paused), None)
        last = None
        for trial in tune_controller.paused_trials():
            record = self._records.get(trial.trial_id)
            if record is None or not record.judged:
                return trial
            last = last or trial
        return last

    @classmethod
    def describe_reason(cls, reason: Mapping[str, Any]) -> str:  # noqa: D102
        if reason.get("rule") != "median":
            return super().describe_reason(reason)
        worse = "below" if reason.get("mode") == "max" else "above"
        best = f"its best {reason.get('metric')}={text(reason.get('best'))}{time_text(reason)}"
        cutoff = f"the median {text(reason.get('cutoff'))} of the others"
        return f"{reason.get('scheduler')}: {best} is {worse} {cutoff}{rank_text(reason)}"

    def horizons(self, trial: TrialView) -> list[Horizon]:
        """Return every result from `grace_period` on; none for a trial that was paused for good reason."""
        record = self._records.get(trial.trial_id)
        if record is not None and record.judged:
            return []
        if self._ray is not None and trial.trial_id in self._ray.below:
            return []
        return [Horizon(self.time_attr, float(self._grace_period))]

    def debug_string(self) -> str:
        """Return how many trials fell below the median."""
        if self._ray is not None:
            return f"median_stopping_rule: {len(self._ray.below)} trials below it"
        return f"median_stopping_rule: {sum(record.judged for record in self._records.values())} trials below it"

    def get_state(self) -> dict[str, Any]:
        """Return what each trial reported."""
        return {
            "version": 1,
            "metric": self.metric,
            "mode": self.mode,
            "trials": {
                trial_id: [
                    record.times,
                    [encoded(value) for value in record.values],
                    record.judged,
                    record.last_pause,
                    record.loses_progress,
                    None if record.early_best is None else encoded(record.early_best),
                ]
                for trial_id, record in self._records.items()
            },
            **({} if self._ray is None else {"ray": self._ray.get_state()}),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what each trial reported."""
        check_same_rules(self.NAME, self._ray, state)
        if self._ray is not None:
            self._ray.set_state(state["ray"])
        self.metric, self.mode = state["metric"], state["mode"]
        self._records = {}
        for trial_id, (times, values, judged, last_pause, loses_progress, early) in state["trials"].items():
            record = self._records[trial_id] = _Record()
            for time, value in zip(times, values, strict=True):
                record.add(time, decoded(value), self._sign)
            record.judged, record.last_pause, record.loses_progress = judged, last_pause, loses_progress
            record.early_best = None if early is None else decoded(early)

    def _as_ray(
        self, ray: RayMedian, controller: ControllerView, trial: TrialView, time: float | None, value: float | None
    ) -> str:
        if time is None or value is None:
            return self.CONTINUE
        waits = any(True for each in (controller.pending_trials(), controller.paused_trials()) for _ in each)
        decision, evidence = ray.report(trial.trial_id, time, value, maximize=self.mode == "max", others_wait=waits)
        if decision != self.CONTINUE:
            rule = evidence.pop("rule")
            self._explain(rule, time, value, **evidence)
        return decision

    def _share(
        self, tune_controller: ControllerView, record: _Record, time: float, value: float, compared: int
    ) -> str:
        """Make room for a waiting trial when the slice is over: the rule needs trials that came this far."""
        if record.loses_progress:
            return self.CONTINUE  # without checkpoints a trial that is paused again and again never gets further
        if record.last_pause is not None and not time - record.last_pause > self._min_time_slice:
            return self.CONTINUE
        waiting = (*tune_controller.pending_trials(), *tune_controller.paused_trials())
        if not waiting:
            return self.CONTINUE
        record.last_pause = time
        self._explain("time_slice", time, value, compared=compared, needed=self._min_samples)
        return self.PAUSE


class _Record:
    """The results of one trial, by time."""

    __slots__ = ("bests", "early_best", "judged", "last_pause", "loses_progress", "sums", "times", "values")

    def __init__(self) -> None:
        self.times: list[float] = []
        self.values: list[float] = []
        self.sums: list[float] = [0.0]  # sums[i] is the sum of the first i values
        self.bests: list[float | None] = [None]  # bests[i] is the best of the first i values; greater is better
        self.early_best: float | None = None  # before the grace period; greater is better
        self.judged = False  # found below the median
        self.last_pause: float | None = None
        self.loses_progress = False  # came back from a pause without what it had learned

    def add(self, time: float, value: float, sign: float) -> None:
        if self.times and time <= self.times[-1]:
            back = time < self.times[-1]
            keep = bisect_left(self.times, time)
            del self.times[keep:], self.values[keep:], self.sums[keep + 1 :], self.bests[keep + 1 :]
            self.loses_progress = self.loses_progress or (back and self.last_pause is not None)
        self.times.append(time)
        self.values.append(value)
        self.sums.append(self.sums[-1] + value)
        self.bests.append(_better(self.bests[-1], sign * value))

    def add_early(self, signed: float) -> None:
        self.early_best = _better(self.early_best, signed)

    def mean(self, start: float, end: float) -> float:
        first, stop = bisect_left(self.times, start), bisect_right(self.times, end)
        if first >= stop:
            return math.nan
        total = self.sums[stop] - self.sums[first]
        if first and not math.isfinite(total):  # a value before `start` hides what came after it
            total = sum(self.values[first:stop])
        return total / (stop - first)

    def best(self, sign: float) -> float | None:
        best = self.bests[-1] if self.early_best is None else _better(self.bests[-1], self.early_best)
        return None if best is None else sign * best


def _better(best: float | None, signed: float) -> float | None:
    """Return the greater one; NaN is ignored."""
    return signed if not math.isnan(signed) and (best is None or signed > best) else best
