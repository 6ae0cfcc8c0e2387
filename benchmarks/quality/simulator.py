"""The event-driven simulator: trains trials on a virtual clock and lets a tuner decide.

Rules, the same for every tuner:

* There are `workers` GPUs. A GPU costs while a trial is on it, and nothing while it idles.
* The budget is in GPU-seconds. When it is used up everything ends at that moment.
* A trial that starts or resumes occupies its GPU for the overhead before its first step.
* A trial that is told to stop or pause learns of it `latency` reports later: the steps until then are paid for and
  lost. One that resumes continues behind the report at which it was paused.
* What a tuner would return is the trial with the lowest latest report. It is scored by the value that a full training
  of its config gives, without noise.

A run is determined by task, tuner and seed; no wall clock and no global random source is used. The processor time
that deciding takes is measured beside it and decides nothing.
"""

from __future__ import annotations

import heapq
import math
import time
from dataclasses import dataclass, field
from itertools import count

from space import Config
from tasks.task import Curve, Task
from tuners.tuner import Decision, Problem, Tuner

MAX_TRIALS = 20_000
"""A tuner that starts more ends the run with an error: it does not use its budget for training."""


class SimulationError(Exception):
    """A tuner asked for what no tuner may ask for."""


@dataclass(frozen=True)
class Conditions:
    """What a run takes place under.

    Attributes:
        workers: number of GPUs.
        budget: in full trainings of the median config.
        overhead: of a start or resume, as a share of such a training.
        latency: reports until a trial learns of a decision.
    """

    workers: int = 8
    budget: float = 40.0
    overhead: float = 0.01
    latency: int = 1


@dataclass(frozen=True)
class Moment:
    """From this point of the budget on the tuner would return another config.

    Attributes:
        used: GPU-seconds used so far, as a share of the budget.
        final: the value of a full training of the config that would be returned.
        reported: the lowest value that was reported so far.
    """

    used: float
    final: float
    reported: float


@dataclass
class Outcome:
    """What came of one run."""

    moments: list[Moment] = field(default_factory=list)
    used: float = 0.0
    """Share of the budget that was used; less than 1 when the tuner had nothing more to start."""
    wall: float = 0.0
    """Virtual duration, in full trainings of the median config."""
    trials: int = 0
    resumes: int = 0
    completed: int = 0
    waste: float = 0.0
    """Share of the budget that went into overhead and steps that were lost."""
    decide_s: float = 0.0
    """Processor time that the tuner took in this process, in seconds."""

    def at(self, share: float) -> Moment | None:
        """Return the moment that is in effect when this share of the budget is used; None before any report."""
        found = None
        for moment in self.moments:
            if moment.used > share + 1e-12:
                break
            found = moment
        return found


@dataclass
class _Trial:
    config: Config
    curve: Curve
    step: int = 0  # reported
    trained_s: float = 0.0
    latest: float = math.nan
    running: bool = True
    over: bool = False
    final: float | None = None  # looked up when it is first needed


@dataclass
class _Leaving:
    """A trial that was decided to stop or pause, before it learns of it."""

    decision: Decision


class Simulation:
    """One run.

    Args:
        task: what is tuned.
        tuner: decides.
        seed: selects the start points and is given to the tuner.
        conditions: workers, budget and overhead.
    """

    def __init__(self, task: Task, tuner: Tuner, seed: int, conditions: Conditions | None = None) -> None:
        self._task, self._tuner, self._seed = task, tuner, seed
        self.conditions = conditions or Conditions()
        unit = task.reference.full_training_s
        self._unit = unit
        self.budget_s = self.conditions.budget * unit
        self._overhead_s = self.conditions.overhead * unit
        self.now = 0.0
        self.used_s = 0.0
        self._lost_s = 0.0
        self._trials: dict[str, _Trial] = {}
        self._events: list[tuple[float, int, str, _Leaving | None]] = []
        self._numbers = count()
        self._returned: str | None = None
        self._lowest = math.inf
        self._outcome = Outcome()

    def run(self) -> Outcome:
        """Simulate until the budget is used up or nothing is left to do.

        Raises:
            SimulationError: the tuner resumed an unknown trial, or started more than `MAX_TRIALS`.
        """
        task, conditions = self._task, self.conditions
        problem = Problem(
            [parameter.as_data() for parameter in task.space],
            task.steps,
            task.first_rung,
            task.start_points(self._seed),
            self._seed,
            conditions.workers,
            self.budget_s,
        )
        began = time.process_time()
        training = 0.0  # of processor time: looking up curves does not count as deciding
        self._tuner.begin(problem)
        training += self._fill()
        while self._events:
            end = self._events[0][0]
            cost = len(self._events) * (end - self.now)
            if self.used_s + cost >= self.budget_s:
                self.now += (self.budget_s - self.used_s) / len(self._events)
                self.used_s = self.budget_s
                break
            _, _, trial_id, leaving = heapq.heappop(self._events)
            self.used_s += cost
            self.now = end
            if leaving is not None:
                self._release(trial_id, leaving.decision)
            else:
                self._finish_step(trial_id)
            training += self._fill()
        outcome = self._outcome
        outcome.decide_s = time.process_time() - began - training
        outcome.used = self.used_s / self.budget_s
        outcome.wall = self.now / self._unit
        outcome.trials = len(self._trials)
        outcome.waste = self._lost_s / self.budget_s
        return outcome

    def _fill(self) -> float:
        """Start trials on all free workers; return the processor time that looking up their curves took."""
        took = 0.0
        while len(self._events) < self.conditions.workers:
            start = self._tuner.next_start(self.now)
            if start is None:
                break
            trial = self._trials.get(start.trial)
            if trial is None:
                if start.config is None:
                    raise SimulationError(f"trial {start.trial} was resumed and never started")
                if len(self._trials) >= MAX_TRIALS:
                    raise SimulationError(f"more than {MAX_TRIALS} trials were started")
                before = time.process_time()
                trial = self._trials[start.trial] = _Trial(start.config, self._task.curve(start.config))
                took += time.process_time() - before
            elif trial.running or trial.over:
                raise SimulationError(f"trial {start.trial} was resumed while it ran, or after its end")
            else:
                trial.running = True
                self._outcome.resumes += 1
            self._lost_s += self._overhead_s
            self._schedule(start.trial, self._overhead_s + trial.curve.seconds[trial.step])
        return took

    def _schedule(self, trial_id: str, seconds: float, leaving: _Leaving | None = None) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), trial_id, leaving))

    def _finish_step(self, trial_id: str) -> None:
        trial, task = self._trials[trial_id], self._task
        trial.trained_s += trial.curve.seconds[trial.step]
        trial.latest = trial.curve.values[trial.step]
        trial.step += 1
        self._record(trial_id, trial)
        decision = self._tuner.report(trial_id, trial.step, trial.latest, trial.trained_s, self.now)
        if trial.step == task.steps:
            self._outcome.completed += 1
            self._release(trial_id, "stop" if decision == "stop" else "continue")
        elif decision == "continue":
            self._schedule(trial_id, trial.curve.seconds[trial.step])
        else:
            rest = sum(trial.curve.seconds[trial.step : trial.step + self.conditions.latency])
            if rest:
                self._lost_s += rest
                self._schedule(trial_id, rest, _Leaving(decision))
            else:
                self._release(trial_id, decision)

    def _release(self, trial_id: str, decision: Decision) -> None:
        trial = self._trials[trial_id]
        trial.running = False
        trial.over = decision != "pause" or trial.step == self._task.steps
        self._tuner.ended(trial_id, decision, self.now)

    def _record(self, trial_id: str, trial: _Trial) -> None:
        """Note a moment when the config that would be returned, or the lowest report, has changed."""
        if math.isfinite(trial.latest):
            self._lowest = min(self._lowest, trial.latest)
        best = min(
            (
                (each.latest, number, name)
                for number, (name, each) in enumerate(self._trials.items())
                if each.step and math.isfinite(each.latest)
            ),
            default=None,
        )
        if best is None:
            return
        moments = self._outcome.moments
        if best[2] != self._returned or not moments or moments[-1].reported > self._lowest:
            self._returned = best[2]
            chosen = self._trials[best[2]]
            if chosen.final is None:
                chosen.final = self._task.final(chosen.config)
            moments.append(Moment(self.used_s / self.budget_s, chosen.final, self._lowest))
