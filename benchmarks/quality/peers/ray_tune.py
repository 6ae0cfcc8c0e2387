"""Ray Tune: its scheduler and searcher classes, called in the order in which its controller calls them.

python ray_tune.py fifo|asha|median random|optuna
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
from ray import tune
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, MedianStoppingRule
from ray.tune.search.optuna import OptunaSearch
from serve import serve

GOAL = {"metric": "value", "mode": "min"}


class _Trial(SimpleNamespace):
    """What schedulers read of a trial."""

    def __hash__(self) -> int:
        return hash(self.trial_id)


class RayPeer:
    """A scheduler and a searcher of Ray."""

    def __init__(self, scheduler: str, search: str) -> None:
        self._names = scheduler, search

    def begin(self, problem: dict[str, Any]) -> None:
        """Make both."""
        scheduler, search = self._names
        first, last = problem["first_rung"], problem["steps"]
        if scheduler == "asha":
            self._scheduler = AsyncHyperBandScheduler(
                time_attr="training_iteration", max_t=last, grace_period=first, reduction_factor=3, **GOAL
            )
        elif scheduler == "median":
            self._scheduler = MedianStoppingRule(time_attr="training_iteration", grace_period=first, **GOAL)
        else:
            self._scheduler = FIFOScheduler()
        space = {parameter["name"]: domain(parameter) for parameter in problem["space"]}
        self._space, self._points = space, list(problem["start_points"])
        self._rng = np.random.RandomState(problem["seed"])
        self._search = None
        if search == "optuna":
            self._search = OptunaSearch(
                space=space, points_to_evaluate=problem["start_points"], seed=problem["seed"], **GOAL
            )
        self._trials: dict[str, Any] = {}
        self._last: dict[str, dict[str, Any]] = {}

    def next(self) -> tuple[str, dict[str, Any]] | None:
        """Return a suggestion."""
        name = f"t{len(self._trials)}"
        if self._search is not None:
            config = self._search.suggest(name)
        elif self._points:
            config = self._points.pop(0)
        else:
            config = {key: each.sample(random_state=self._rng) for key, each in self._space.items()}
        trial = self._trials[name] = _Trial(trial_id=name, config=config, last_result={}, status="RUNNING")
        self._scheduler.on_trial_add(_CONTROLLER, trial)
        return name, config

    def report(self, trial: str, step: int, value: float) -> str:
        """Return what the scheduler says."""
        known = self._trials[trial]
        result = {"value": value, "training_iteration": step, "time_total_s": float(step)}
        known.last_result = result
        decision = self._scheduler.on_trial_result(_CONTROLLER, known, result)
        if self._search is not None:
            self._search.on_trial_result(trial, result)
        if decision == "STOP":
            self._finish(trial)
            return "stop"
        return "continue"

    def ended(self, trial: str, decision: str) -> None:
        """Tell both of a trial that came to its end."""
        if decision == "continue":
            known = self._trials[trial]
            self._scheduler.on_trial_complete(_CONTROLLER, known, known.last_result)
            self._finish(trial)

    def _finish(self, trial: str) -> None:
        if self._search is not None:
            self._search.on_trial_complete(trial, result=self._trials[trial].last_result)


_CONTROLLER: Any = SimpleNamespace(get_trials=list, get_live_trials=list)


def domain(parameter: dict[str, Any]) -> Any:
    """Return a parameter in Ray's form."""
    if parameter["kind"] == "choice":
        return tune.choice(parameter["choices"])
    if parameter["kind"] == "int":
        make = tune.lograndint if parameter["log"] else tune.randint
        return make(int(parameter["low"]), int(parameter["high"]) + 1)
    return (tune.loguniform if parameter["log"] else tune.uniform)(parameter["low"], parameter["high"])


if __name__ == "__main__":
    serve(RayPeer(sys.argv[1], sys.argv[2]))
