"""Continue or pause: asynchronous successive halving that never kills a promising trial.

Source: Li et al., "A System for Massively Parallel Hyperparameter Tuning" (2018), algorithm 2, with these changes:

* A trial among the best ``1/reduction_factor`` of its rung continues in the same pod. Every other one saves a
  checkpoint and pauses. Only trials whose metric is NaN or plus infinity are stopped early, and those that cannot
  save a checkpoint, to which the stopping form of ASHA applies.
* When another trial can run, it is, in this order: the best trial that may be promoted, from the highest rung; one
  that was paused at a rung that is skipped since, or not by this scheduler; a new trial. When there is none of
  these, nothing runs, and no trial was trained to its end, the best paused one continues.
* The first rung adapts. The first `calibration` trials pass it whatever their value is. When Kendall's tau between
  that rung and the next shows that the order at the rung predicts little, it is skipped, and the next one is examined
  in the same way. The last rung is never skipped. The bootstrap interval of tau is part of the reason.

Invariants:

* A trial is trained for `max_t`, or until it ends by itself: no schedule of its own (learning rate) ever changes.
* A trial below its next rung continues, whatever the others do.
* A trial that jumped over rungs counts in all of them, and as promoted from all but the last.
* A trial that was lost after the decision to pause it reaches its rung again, and pauses there; it is not promoted.
* The state is JSON; the only random numbers are those of the bootstrap, seeded by `seed` and the rung.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import EVERY_RESULT, Horizon
from trialpod.tune.plugins.catalogue import algorithm
from trialpod.tune.plugins.phrases import rank_text, text, time_text, value_text
from trialpod.tune.result_keys import GPU_SECONDS
from trialpod.tune.schedulers.metric_scheduler import (
    MetricScheduler,
    check_above,
    check_at_least,
    check_flag,
)
from trialpod.tune.schedulers.rung_evidence import Evidence, evidence
from trialpod.tune.schedulers.trial_scheduler import ControllerView, TrialView
from trialpod.tune.schedulers.waiting_trials import Waiting, WaitingTrials, remove

_SECONDS = "time_total_s"
_ITERATIONS = "training_iteration"
_MAX_RUNGS = 64
_SHARE = 27
"""Without a `grace_period` the first rung is this part of `max_t`."""
_LEAST_TAU = 0.25
"""A rung is skipped when tau is below this."""


@algorithm("auto")
class AutoScheduler(MetricScheduler):
    """Continues the best trials, pauses the others, and resumes the best paused one when another trial can run."""

    ABOUT = ("continued among the best, else paused", "trials that save checkpoints, and GPUs that are scarce")

    NAME = "auto"

    saves_at_horizon = True

    filled_rung: float | None = None

    def __init__(
        self,
        time_attr: str = _ITERATIONS,
        metric: str | None = None,
        mode: str | None = None,
        max_t: float | None = None,
        grace_period: float | None = None,
        reduction_factor: float = 3,
        calibration: int = 8,
        stop_not_finite: bool = True,
        seed: int = 0,
    ) -> None:
        """Make a scheduler.

        Args:
            time_attr: the result key that measures what a trial has cost, which must grow: "training_iteration",
                "time_total_s", one of the trial's own; or "gpu_seconds", its seconds times its GPUs.
            metric: the result key to compare; None takes the experiment's.
            mode: "min" or "max"; None takes the experiment's.
            max_t: a full training, in units of `time_attr`: a trial is stopped there. None: trials end by themselves.
            grace_period: the first rung, in units of `time_attr`; None: a 27th of `max_t`, at least 1 iteration.
            reduction_factor: one in so many trials passes a rung; greater than 1.
            calibration: number of trials that pass the first rung whatever their value is, to examine how well it
                predicts the next; 0 = no rung is skipped.
            stop_not_finite: whether a trial whose metric is NaN or plus infinity is stopped at once.
            seed: of the bootstrap.

        Raises:
            InvalidInputError: a value cannot be used.
        """
        super().__init__(time_attr, metric, mode, seed)
        check_above("reduction_factor", reduction_factor, 1)
        check_flag("stop_not_finite", stop_not_finite)
        if isinstance(calibration, bool) or not isinstance(calibration, int) or calibration < 0:
            raise InvalidInputError(
                f"calibration must be a whole number of at least 0, got {calibration!r}", parameter="calibration"
            )
        if 0 < calibration < 4:
            raise InvalidInputError(
                f"calibration={calibration} trials cannot tell whether a rung predicts the next: use 4 or more, or 0 "
                "to skip no rung",
                parameter="calibration",
            )
        if max_t is not None:
            check_above("max_t", max_t, 0)
        if grace_period is not None:
            check_above("grace_period", grace_period, 0)
        if time_attr == _ITERATIONS:
            for name, value in (("max_t", max_t), ("grace_period", grace_period)):
                if value is not None:
                    check_at_least(name, value, 1)
        elif max_t is None and grace_period is None:
            raise InvalidInputError(
                f"auto: time_attr={time_attr!r} needs max_t (a full training) or grace_period (the first rung), in "
                "its units",
                parameter="time_attr",
            )
        if max_t is not None and grace_period is not None and max_t < grace_period:
            raise InvalidInputError(
                f"grace_period must not be above max_t, got grace_period={grace_period!r} and max_t={max_t!r}",
                parameter="grace_period",
            )
        self._max_t = max_t
        self._eta = reduction_factor
        self._calibration = calibration
        self._stop_not_finite = stop_not_finite
        if max_t is not None and math.log(max_t / (grace_period or max_t / _SHARE), reduction_factor) > _MAX_RUNGS:
            raise InvalidInputError(
                f"reduction_factor={reduction_factor!r} makes more than {_MAX_RUNGS} rungs up to max_t={max_t!r}: "
                "use a greater one, such as 3",
                parameter="reduction_factor",
            )
        self._milestones = _milestones(time_attr, max_t, grace_period, reduction_factor)
        self._rungs = [_Rung() for _ in self._milestones]
        self._trials: dict[str, _Place] = {}
        self._below = WaitingTrials(self._turn_below)
        self._first = 0  # the first rung that counts
        self._examined = calibration == 0  # whether the first rung was found to predict the next
        self._skipped: list[dict[str, Any]] = []  # the evidence for each rung that is skipped
        self._completed = 0

    @property
    def first_rung(self) -> float | None:
        """The first rung at which a new trial is judged, in units of `time_attr`."""
        return self._milestones[self._first] if self._first < len(self._milestones) else self._max_t

    # -- what happens to trials -----------------------------------------------------------------------------------

    def on_trial_add(self, tune_controller: ControllerView, trial: TrialView) -> None:
        """Add the trial; one that is added again keeps its rungs."""
        super().on_trial_add(tune_controller, trial)
        place = self._trials.get(trial.trial_id)
        if place is None:
            place = self._trials[trial.trial_id] = _Place(len(self._trials))
        if self.time_attr == GPU_SECONDS:
            place.gpus = max(1.0, _gpus(tune_controller.resources(trial)))
        place.ended = False
        self._promote(trial.trial_id)

    def on_trial_result(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> str:
        """Return STOP at `max_t` and for a value that is not finite, PAUSE at a rung unless it is among the best.

        Raises:
            InvalidInputError: the trial was never added.
        """
        self.filled_rung = None
        trial_id = trial.trial_id
        place = self._trials.get(trial_id)
        if place is None:
            raise InvalidInputError(f"result of trial {trial_id}, which was never added; call on_trial_add first")
        self._promote(trial_id)
        time, value = self._time_of(place, result)
        if value is not None and self._stop_not_finite and not value < math.inf:
            self._leave(trial_id)
            self._explain("not_finite", 0.0 if time is None else time, value)
            return self.STOP
        if time is None or value is None:
            return self.CONTINUE
        reached = self._reached(time)
        complete = self._max_t is not None and time >= self._max_t
        for number in range(place.next, reached):
            self._rungs[number].add(self._sign * value, place.number, trial_id)
            if number < reached - 1 or complete:
                self._rungs[number].promoted.add(trial_id)
        fresh = reached > place.next
        place.next = max(place.next, reached)
        number = reached - 1
        if fresh and number >= self._first:
            self.filled_rung = self._milestones[number]
        if fresh:
            self._examine()
        if complete:
            self._completed += 1
            self._leave(trial_id)
            self._explain("max_t", time, value, max_t=self._max_t)
            return self.STOP
        if not fresh and not (self._comes_back(trial_id) and number == place.next - 1):
            return self.CONTINUE
        return self._judge(trial, place, number, time, value)

    def on_trial_complete(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> None:
        """Count the trial no more for promotion; its values stay."""
        place = self._trials.get(trial.trial_id)
        if place is not None and not place.ended:
            self._completed += 1
            self._leave(trial.trial_id)

    def on_trial_stopped(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> None:
        """Count the trial no more for promotion, and not as trained to its end."""
        self.on_trial_remove(tune_controller, trial)

    def on_trial_remove(self, tune_controller: ControllerView, trial: TrialView) -> None:
        """Count the trial no more for promotion; its values stay."""
        place = self._trials.get(trial.trial_id)
        if place is not None:
            self._leave(trial.trial_id)

    def on_trial_error(self, tune_controller: ControllerView, trial: TrialView) -> None:
        """Count the trial no more for promotion, unless it is added again."""
        self.on_trial_remove(tune_controller, trial)

    def choose_trial_to_run(self, tune_controller: ControllerView) -> TrialView | None:
        """Return the trial to run next, by the rule in the module's docstring."""
        chosen = self._promotable(tune_controller) or self._below_first(tune_controller)
        if chosen is None:
            for trial in tune_controller.pending_trials():
                place = self._trials.get(trial.trial_id)
                if place is not None:
                    self._stop_waiting(place, trial.trial_id)  # it was lost before it had paused
                return trial
            if not self._completed and next(iter(tune_controller.running_trials()), None) is None:
                chosen = self._best_waiting(tune_controller)
        if chosen is None:
            return None
        self._promote(chosen.trial_id)
        return chosen

    def horizons(self, trial: TrialView) -> list[Horizon]:
        """Return the next rung that counts, `max_t` above the last, and a metric that is not finite."""
        place = self._trials.get(trial.trial_id)
        if place is None:
            return [Horizon(_ITERATIONS, EVERY_RESULT)]
        number = place.next
        if self._comes_back(trial.trial_id):
            number -= 1
        number = max(number, self._first)
        found = []
        if number < len(self._milestones):
            found.append(self._horizon(place, self._milestones[number]))
        elif self._max_t is not None:
            found.append(self._horizon(place, self._max_t))
        if self._stop_not_finite and self.metric:
            found.append(Horizon(self.metric, math.inf))  # NaN meets it too
        return found

    # -- messages and files ----------------------------------------------------------------------------------------

    @classmethod
    def describe_reason(cls, reason: Mapping[str, Any]) -> str:  # noqa: D102
        name, rule = reason.get("scheduler"), reason.get("rule")
        if rule == "not_finite":
            return f"{name}: {value_text(reason)}{time_text(reason)} is not finite, so it has diverged"
        if rule != "rung":
            return super().describe_reason(reason)
        place = f"the rung at {text(reason.get('rung'))}"
        words = f"{name}: it reached {place} with {value_text(reason) or 'no value'}{rank_text(reason)}"
        words += f"; the best {text(reason.get('kept'))} continue"
        if not reason.get("checkpoint", True):
            words += ", and it has saved no checkpoint to resume from, so it was stopped instead of paused"
        for each in reason.get("skipped", ()):
            words += (
                f"; rung {text(each['rung'])} predicts rung {text(each['next'])} with tau {text(each['tau'])} "
                f"({text(each['low'])} to {text(each['high'])}, {text(each['trials'])} trials), so it is skipped"
            )
        return words

    def debug_string(self) -> str:
        """Return how many trials each rung has seen and promoted."""
        rungs = [
            f"{milestone:g}: {len(rung.values)} reached, {len(rung.promoted)} promoted"
            + (" (skipped)" if number < self._first else "")
            for number, (milestone, rung) in enumerate(zip(self._milestones, self._rungs, strict=True))
            if rung.values or number <= self._first
        ]
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
            "trials": {trial_id: place.get_state() for trial_id, place in self._trials.items()},
            "first": self._first,
            "examined": self._examined,
            "skipped": [dict(each) for each in self._skipped],
            "completed": self._completed,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the rungs.

        Raises:
            InvalidInputError: the state was made with other rungs.
        """
        self._check_saved(state, milestones=self._milestones, max_t=self._max_t)
        self.metric, self.mode = state["metric"], state["mode"]
        self._first, self._examined, self._completed = state["first"], state["examined"], state["completed"]
        self._skipped = [dict(each) for each in state["skipped"]]
        self._trials = {trial_id: _Place(*saved) for trial_id, saved in state["trials"].items()}
        numbers = {trial_id: place.number for trial_id, place in self._trials.items()}
        for rung, saved in zip(self._rungs, state["rungs"], strict=True):
            rung.set_state(saved, numbers)
        for trial_id, place in self._trials.items():
            if place.waiting >= 0:
                self._rungs[place.waiting].wait(place.number, trial_id)
        self._below = WaitingTrials(self._turn_below)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _judge(self, trial: TrialView, place: _Place, number: int, time: float, value: float) -> str:
        """Decide about a trial that has just reached a rung."""
        trial_id, rung = trial.trial_id, self._rungs[number]
        kept = int(len(rung.values) / self._eta + 1e-9)
        passes = number < self._first or self._is_calibrating(number) or rung.is_among(place.number, trial_id, kept)
        saved = trial.checkpoint is not None
        if not passes and not saved and len(rung.values) < self._eta:
            passes = True  # there is nothing to compare it with, and no way to wait for it
        if passes:
            rung.promoted.add(trial_id)
            return self.CONTINUE
        evidence_of_skips = {"skipped": [dict(each) for each in self._skipped]} if self._skipped else {}
        self._explain(
            "rung",
            time,
            value,
            rung=self._milestones[number],
            rank=rung.rank(place.number, trial_id),
            compared=len(rung.values),
            kept=kept,
            **({} if saved else {"checkpoint": False}),
            **evidence_of_skips,
        )
        if not saved:
            self._leave(trial_id)
            return self.STOP
        place.waiting = number
        rung.wait(place.number, trial_id)
        self._below.touch(trial_id)
        return self.PAUSE

    def _time_of(self, place: _Place, result: Mapping[str, Any]) -> tuple[float | None, float | None]:
        if self.time_attr != GPU_SECONDS:
            return self._read(result)
        time, value = self._read({**result, GPU_SECONDS: result.get(_SECONDS)})
        return (None if time is None else time * place.gpus), value

    def _horizon(self, place: _Place, at: float) -> Horizon:
        if self.time_attr == GPU_SECONDS:
            return Horizon(_SECONDS, float(at) / place.gpus)
        return Horizon(self.time_attr, float(at))

    def _reached(self, time: float) -> int:
        """Return how many milestones lie at or below a time."""
        return next((n for n, at in enumerate(self._milestones) if at > time), len(self._milestones))

    def _is_calibrating(self, number: int) -> bool:
        """Return whether a trial passes this rung so that the rung can be examined."""
        return (
            not self._examined
            and number == self._first
            and number < len(self._milestones) - 1
            and len(self._rungs[number].promoted) < self._calibration
        )

    def _examine(self) -> None:
        """Skip the first rung when enough trials have reached the next, in an order that it did not predict."""
        while not self._examined:
            number = self._first
            if number >= self._last_examined:
                self._examined = True
                return
            here, there = self._rungs[number], self._rungs[number + 1]
            pairs = [(here.raw[trial_id], there.raw[trial_id]) for _, _, trial_id in there.values]
            usable = [pair for pair in pairs if math.isfinite(pair[0]) and math.isfinite(pair[1])]
            if len(usable) < self._calibration:
                return
            found = evidence(usable, random.Random(f"{self._seed}/{number}"))
            if found.tau >= _LEAST_TAU:
                self._examined = True
                return
            self._skip(found)

    def _skip(self, found: Evidence) -> None:
        at, then = self._milestones[self._first], self._milestones[self._first + 1]
        self._skipped.append({"rung": at, "next": then, **found.as_data()})
        for _, _, trial_id in self._rungs[self._first].waiting:
            self._below.touch(trial_id)
        self._first += 1

    @property
    def _last_examined(self) -> int:
        """The first rung that is never skipped: the last one below `max_t`, or where there is none the sixth."""
        return len(self._milestones) - 1 if self._max_t is not None else 5

    def _promotable(self, controller: ControllerView) -> TrialView | None:
        """Return the best trial that may be promoted, from the highest rung that has one."""
        for number in range(len(self._rungs) - 1, self._first - 1, -1):
            rung = self._rungs[number]
            chosen = self._startable(controller, rung, int(len(rung.values) / self._eta + 1e-9))
            if chosen is not None:
                return chosen
        return None

    def _below_first(self, controller: ControllerView) -> TrialView | None:
        """Return the oldest trial that is paused at a rung that is skipped, or at none."""
        self._below.refresh(controller)
        return self._below.first(controller)

    def _turn_below(self, waiting: Waiting) -> tuple[int] | None:
        below = waiting.queue == "paused" and self._trials[waiting.trial.trial_id].waiting < self._first
        return (waiting.number,) if below else None

    def _best_waiting(self, controller: ControllerView) -> TrialView | None:
        """Return the best paused trial of the highest rung."""
        found = (self._startable(controller, rung, len(rung.values)) for rung in reversed(self._rungs))
        return next((trial for trial in found if trial is not None), None)

    @staticmethod
    def _startable(controller: ControllerView, rung: _Rung, most: int) -> TrialView | None:
        """Return the best trial that waits at a rung, is among its best `most`, and can start now."""
        for entry in rung.waiting:
            value, number, trial_id = entry
            if value == math.inf or rung.rank(number, trial_id) > most:
                return None
            trial = controller.get_trial(trial_id)
            if trial is not None and trial.status == "PAUSED" and controller.has_resources_for_trial(trial):
                return trial
        return None

    def _comes_back(self, trial_id: str) -> bool:
        """Return whether a trial runs that is to pause at a rung where it was before."""
        place = self._trials[trial_id]
        number = place.next - 1
        return number >= 0 and place.waiting < 0 and trial_id not in self._rungs[number].promoted

    def _promote(self, trial_id: str) -> None:
        """Record that a trial that waited at a rung continues."""
        place = self._trials[trial_id]
        if place.waiting >= 0:
            self._rungs[place.waiting].promoted.add(trial_id)
            self._stop_waiting(place, trial_id)

    def _leave(self, trial_id: str) -> None:
        place = self._trials[trial_id]
        place.ended = True
        self._stop_waiting(place, trial_id)

    def _stop_waiting(self, place: _Place, trial_id: str) -> None:
        if place.waiting >= 0:
            self._rungs[place.waiting].run_on(place.number, trial_id)
            place.waiting = -1
            self._below.touch(trial_id)


class _Place:
    """Where a trial is.

    Attributes:
        number: of the trial, in order of creation; ties go to the older one.
        next: the rung that it reaches next.
        waiting: the rung at which it is paused; -1 while it is not.
        ended: it has completed, failed or been removed.
        gpus: of the trial, where they count.
    """

    __slots__ = ("ended", "gpus", "next", "number", "waiting")

    def __init__(
        self, number: int, next_rung: int = 0, waiting: int = -1, ended: bool = False, gpus: float = 1.0
    ) -> None:
        self.number, self.next, self.waiting, self.ended, self.gpus = number, next_rung, waiting, ended, gpus

    def get_state(self) -> list[Any]:
        return [self.number, self.next, self.waiting, self.ended, self.gpus]


class _Rung:
    """The values of one rung, best first, and the trials that wait there, best first, or were promoted from it."""

    def __init__(self) -> None:
        self.values: list[tuple[float, int, str]] = []  # (-value, number of the trial, trial_id), sorted
        self.waiting: list[tuple[float, int, str]] = []
        self.raw: dict[str, float] = {}
        self.promoted: set[str] = set()

    def add(self, value: float, number: int, trial_id: str) -> None:
        self.raw[trial_id] = value
        insort(self.values, self._entry(number, trial_id))

    def wait(self, number: int, trial_id: str) -> None:
        """A trial waits here."""
        insort(self.waiting, self._entry(number, trial_id))

    def run_on(self, number: int, trial_id: str) -> None:
        """A trial waits no more."""
        remove(self.waiting, self._entry(number, trial_id))

    def rank(self, number: int, trial_id: str) -> int:
        """Return the rank of a trial among those that reached the rung, 1 being the best."""
        return bisect_left(self.values, self._entry(number, trial_id)) + 1

    def is_among(self, number: int, trial_id: str, most: int) -> bool:
        """Return whether a trial is among the best `most`, with a value that is worth something."""
        return self.rank(number, trial_id) <= most and math.isfinite(self.raw[trial_id])

    def get_state(self) -> dict[str, Any]:
        return {
            "values": [[trial_id, _encoded(self.raw[trial_id])] for _, _, trial_id in self.values],
            "promoted": sorted(self.promoted),
        }

    def set_state(self, state: dict[str, Any], numbers: Mapping[str, int]) -> None:
        self.raw = {trial_id: float(value) for trial_id, value in state["values"]}
        self.values = [self._entry(numbers[trial_id], trial_id) for trial_id in self.raw]
        self.promoted = set(state["promoted"])
        self.waiting = []

    def _entry(self, number: int, trial_id: str) -> tuple[float, int, str]:
        value = self.raw[trial_id]
        return (-value if math.isfinite(value) else math.inf, number, trial_id)


def _milestones(time_attr: str, max_t: float | None, grace_period: float | None, eta: float) -> list[float]:
    """Return the rungs, in ascending order; those of whole iterations are whole."""
    whole = time_attr == _ITERATIONS
    if max_t is None:
        at = 1.0 if grace_period is None else float(grace_period)
        found = [at * eta**k for k in range(_MAX_RUNGS) if at * eta**k < 1e15]
    elif grace_period is None:
        count = math.floor(math.log(_SHARE) / math.log(eta) + 1e-9)
        found = [max_t / eta**k for k in range(max(count, 1), 0, -1)]
    else:
        found, at = [], float(grace_period)
        while at < max_t:
            found.append(at)
            at *= eta
    if whole:
        rounded = {float(max(1, round(at))) for at in found}
        found = sorted(at for at in rounded if max_t is None or at < max_t)
    return found


def _gpus(resources: Mapping[str, float]) -> float:
    devices = ((name.rpartition("/")[2], amount) for name, amount in resources.items())
    return sum(amount for device, amount in devices if device == "gpu" or device.startswith(("gpu.", "mig-")))


def _encoded(value: float) -> float | str:
    return value if math.isfinite(value) else repr(value)
