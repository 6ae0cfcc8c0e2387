"""trialpod itself: the engine that runs experiments, with a scheduler and a searcher of its catalogues.

The simulator plays the shell: it starts the attempts that the engine asks for, reports their results, commits a
checkpoint wherever the trial had to wait for a decision, and reports how they end.
"""

from __future__ import annotations

import inspect
import math
from collections import deque
from typing import Any

import msgspec

from trialpod import tune
from trialpod.protocol.messages import AttemptEnd, CheckpointInfo
from trialpod.protocol.values import metrics_encoder
from trialpod.tune.plugins.catalogue import SCHEDULERS
from trialpod.tune.schedulers import create_scheduler
from trialpod.tune.search import create_searcher, prepare
from trialpod_operator.engine.actions import ExperimentFinished, StartAttempt
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.events import (
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    CapacityObserved,
    ResultsReceived,
    SettingsObserved,
)
from trialpod_operator.engine.settings import Settings
from tuners.tuner import Decision, Problem, Start, Tuner

EPOCH = 1_700_000_000.0
"""The engine counts seconds since 1970; a run begins here."""

REDUCTION_FACTOR = 3
RESOURCES = {"cpu": 1.0, "nvidia.com/gpu": 1.0}


class TrialpodTuner(Tuner):
    """A scheduler and a searcher by their names.

    Args:
        scheduler: a name of `create_scheduler`. The number of steps, the first rung and the reduction factor are
            passed to it as far as it has arguments of these names.
        searcher: a name of `create_searcher`, or "random".
        scheduler_arguments: more arguments of the scheduler.
        searcher_arguments: more arguments of the searcher.
    """

    def __init__(
        self,
        scheduler: str = "fifo",
        searcher: str = "random",
        scheduler_arguments: dict[str, Any] | None = None,
        searcher_arguments: dict[str, Any] | None = None,
    ) -> None:
        self._names = scheduler, searcher
        self._arguments = scheduler_arguments or {}, searcher_arguments or {}

    def make_engine(self, problem: Problem) -> Engine:
        """Make an engine for a problem; it has seen no event."""
        scheduler_name, searcher_name = self._names
        known = inspect.signature(SCHEDULERS.find(scheduler_name)).parameters
        offered = {
            "max_t": problem.steps,
            "grace_period": min(problem.first_rung, problem.steps),
            "reduction_factor": REDUCTION_FACTOR,
        }
        fitting = {name: value for name, value in offered.items() if name in known}
        scheduler = create_scheduler(scheduler_name, **{**fitting, **self._arguments[0]})
        arguments = {"points_to_evaluate": problem.start_points, **self._arguments[1]}
        if searcher_name == "random":
            searcher_name, arguments["seed"] = "variant_generator", problem.seed
        searcher = create_searcher(searcher_name, **arguments)
        search = prepare(
            searcher,
            space={parameter["name"]: _domain(parameter) for parameter in problem.space},
            num_samples=-1,
            metric="value",
            mode="min",
            seed=problem.seed,
        )
        return Engine(search, scheduler)

    def begin(self, problem: Problem) -> None:
        """Make an engine, and let it start its first trials."""
        self._steps = problem.steps
        self._starts: deque[Start] = deque()
        self.engine = self.make_engine(problem)
        self._apply(
            CapacityObserved(slots=problem.workers, resources={"cpu": 8.0, "gpu": float(problem.workers)}), 0.0
        )
        settings = Settings(
            name="quality",
            trainable_name="simulated",
            metric="value",
            mode="min",
            num_samples=-1,
            max_concurrent=problem.workers,
            max_gpu_hours=problem.budget_s / 3600.0,
        )
        self._apply(SettingsObserved(settings=settings), 0.0)

    def next_start(self, now: float) -> Start | None:
        """Return the next attempt that the engine asked for."""
        if not self._starts:
            return None
        start = self._starts.popleft()
        trial = self.engine.state.trials[start.trial]
        self._apply(AttemptStarted(trial_id=start.trial, attempt=trial.attempt, resources=RESOURCES), now)
        return start

    def report(self, trial: str, step: int, value: float, seconds: float, now: float) -> Decision:
        """Send one result, with a checkpoint where the scheduler's horizon is met."""
        known = self.engine.state.trials[trial]
        attempt, first = known.attempt, known.current.received + 1
        result = {
            "value": value,
            "training_iteration": step,
            "time_total_s": seconds,
            "done": step == self._steps,
        }
        committed = []
        if any(result.get(horizon.attr, math.inf) >= horizon.at for horizon in self.engine.horizons(known)):
            index = known.next_checkpoint_index
            committed.append(
                CheckpointInfo(
                    name=f"checkpoint_{index:06}",
                    index=index,
                    iteration=step,
                    metrics={"training_iteration": step},
                    attempt=attempt,
                    time=EPOCH + now,
                )
            )
        raw = msgspec.Raw(metrics_encoder.encode(result))
        self._apply(
            ResultsReceived(trial_id=trial, attempt=attempt, first=first, results=[raw], committed=committed), now
        )
        decision = self.engine.answer(trial, attempt).decision
        if decision == "exploit":
            raise NotImplementedError("schedulers that copy trials cannot be simulated")
        return decision or "continue"

    def ended(self, trial: str, decision: Decision, now: float) -> None:
        """Report the end of the attempt."""
        cause = {"continue": "completed", "stop": "stopped", "pause": "paused"}[decision]
        attempt = self.engine.state.trials[trial].attempt
        self._apply(AttemptEnded(trial_id=trial, attempt=attempt, end=AttemptEnd(cause=cause)), now)

    def _apply(self, event: AnyEvent, now: float) -> None:
        for action in self.engine.apply(event, EPOCH + now):
            if isinstance(action, StartAttempt):
                trial = action.trial
                resumed = trial.checkpoint is not None
                self._starts.append(Start(trial.trial_id, None if resumed else dict(trial.config)))
            elif isinstance(action, ExperimentFinished) and action.state == "Failed":
                raise RuntimeError(f"the experiment failed: {action.message}")


def _domain(parameter: dict[str, Any]) -> Any:
    """Return a parameter in the form of trialpod's search spaces."""
    if parameter["kind"] == "choice":
        return tune.choice(parameter["choices"])
    if parameter["kind"] == "int":
        make = tune.lograndint if parameter["log"] else tune.randint
        return make(int(parameter["low"]), int(parameter["high"]) + 1)
    return (tune.loguniform if parameter["log"] else tune.uniform)(parameter["low"], parameter["high"])
