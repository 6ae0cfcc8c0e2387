"""Optuna: its TPE sampler by ask and tell, with its Hyperband pruner or none.

python optuna_study.py hyperband|none
"""

from __future__ import annotations

import math
import sys
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState
from serve import serve


class OptunaPeer:
    """A study."""

    def __init__(self, pruner: str) -> None:
        self._pruner = pruner
        optuna.logging.set_verbosity(optuna.logging.ERROR)

    def begin(self, problem: dict[str, Any]) -> None:
        """Make the study, with the start points in its queue."""
        pruner: Any = optuna.pruners.NopPruner()
        if self._pruner == "hyperband":
            pruner = optuna.pruners.HyperbandPruner(
                min_resource=problem["first_rung"], max_resource=problem["steps"], reduction_factor=3
            )
        self._space = {parameter["name"]: distribution(parameter) for parameter in problem["space"]}
        self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=problem["seed"]), pruner=pruner)
        for point in problem["start_points"]:
            self._study.enqueue_trial(point)
        self._steps = problem["steps"]
        self._trials: dict[str, optuna.Trial] = {}

    def next(self) -> tuple[str, dict[str, Any]]:
        """Return a suggestion."""
        trial = self._study.ask(self._space)
        self._trials[str(trial.number)] = trial
        return str(trial.number), dict(trial.params)

    def report(self, trial: str, step: int, value: float) -> str:
        """Return what the pruner says."""
        known = self._trials[trial]
        known.report(value, step)
        if step == self._steps:
            failed = math.isnan(value)
            self._study.tell(known, None if failed else value, TrialState.FAIL if failed else None)
            return "stop"
        if known.should_prune():
            self._study.tell(known, state=TrialState.PRUNED)
            return "stop"
        return "continue"

    def ended(self, trial: str, decision: str) -> None:
        """Nothing: the study knows."""


def distribution(parameter: dict[str, Any]) -> Any:
    """Return a parameter in Optuna's form."""
    if parameter["kind"] == "choice":
        return CategoricalDistribution(parameter["choices"])
    if parameter["kind"] == "int":
        return IntDistribution(int(parameter["low"]), int(parameter["high"]), log=parameter["log"])
    return FloatDistribution(parameter["low"], parameter["high"], log=parameter["log"])


if __name__ == "__main__":
    serve(OptunaPeer(sys.argv[1]))
