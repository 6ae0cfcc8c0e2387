"""SMAC: its multi-fidelity facade (Hyperband with a random forest) by ask and tell.

A config that it asks for with a larger budget continues where its training paused; SMAC itself leaves open whether a
training is resumed. Tasks of a single report have one fidelity, and get the facade for hyperparameter optimisation.
"""

from __future__ import annotations

import logging
import math
import tempfile
import warnings
from pathlib import Path
from typing import Any

from ConfigSpace import Categorical, Configuration, ConfigurationSpace, Float, Integer
from serve import serve
from smac import HyperparameterOptimizationFacade, MultiFidelityFacade, Scenario
from smac.runhistory import StatusType, TrialInfo, TrialValue


class SmacPeer:
    """One facade."""

    def begin(self, problem: dict[str, Any]) -> None:
        """Make the facade."""
        logging.disable(logging.WARNING)
        warnings.simplefilter("ignore")
        space = ConfigurationSpace(seed=problem["seed"])
        space.add([hyperparameter(parameter) for parameter in problem["space"]])
        steps = problem["steps"]
        multi = steps > 1
        facade: Any = MultiFidelityFacade if multi else HyperparameterOptimizationFacade
        self._folder = tempfile.TemporaryDirectory()
        scenario = Scenario(
            space,
            deterministic=True,
            n_trials=100_000,
            seed=problem["seed"],
            output_directory=Path(self._folder.name),
            **({"min_budget": problem["first_rung"], "max_budget": steps} if multi else {}),
        )
        points = [Configuration(space, values=point) for point in problem["start_points"]]
        self._facade = facade(
            scenario,
            _never_called if multi else _never_called_at_once,
            initial_design=facade.get_initial_design(scenario, n_configs=0, additional_configs=points),
            logging_level=logging.ERROR,
            overwrite=True,
        )
        self._steps = steps
        self._names: dict[Configuration, str] = {}
        self._asked: dict[str, TrialInfo] = {}
        self._waiting: list[TrialInfo] = []
        self._reached: dict[str, int] = {}

    def next(self) -> tuple[str, dict[str, Any] | None] | None:
        """Return what the facade asks for."""
        info = self._facade.ask()
        name = self._names.get(info.config)
        new = name is None
        if name is None:
            name = self._names[info.config] = str(len(self._names))
        self._asked[name] = info
        return name, dict(info.config) if new else None

    def report(self, trial: str, step: int, value: float) -> str:
        """Pause at the budget that was asked for."""
        info = self._asked[trial]
        if math.isnan(value):
            self._facade.tell(info, TrialValue(cost=1e9, status=StatusType.CRASHED), save=False)
            return "stop"
        if step < min(round(info.budget or self._steps), self._steps):
            return "continue"
        self._facade.tell(info, TrialValue(cost=value), save=False)
        return "stop" if step == self._steps else "pause"

    def ended(self, trial: str, decision: str) -> None:
        """Nothing: the facade knows."""


def _never_called(config: Any, seed: int = 0, budget: float = 0.0) -> float:  # noqa: ARG001  # SMAC reads the names
    raise AssertionError("trials are told, not run")


def _never_called_at_once(config: Any, seed: int = 0) -> float:  # noqa: ARG001  # SMAC reads the names
    raise AssertionError("trials are told, not run")


def hyperparameter(parameter: dict[str, Any]) -> Any:
    """Return a parameter in ConfigSpace's form."""
    if parameter["kind"] == "choice":
        return Categorical(parameter["name"], parameter["choices"])
    low, high = parameter["low"], parameter["high"]
    if parameter["kind"] == "int":
        return Integer(parameter["name"], (int(low), int(high)), log=parameter["log"])
    return Float(parameter["name"], (low, high), log=parameter["log"])


if __name__ == "__main__":
    serve(SmacPeer())
