"""SMAC: its multi-fidelity facade (Hyperband with a random forest) by ask and tell.

A config that it asks for with a larger budget continues where its training paused; SMAC itself leaves open whether a
training is resumed. One that it asks for again, with a budget that it has had, gets the value of then at no cost.
Tasks of a single report have one fidelity, and get the facade for hyperparameter optimisation.
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

MAX_KNOWN = 1000
"""So often in a row it may ask for what it knows; then a worker idles until the next report."""


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
        self._asked: dict[str, list[TrialInfo]] = {}  # of each trial, what is not answered yet
        self._values: dict[str, list[float]] = {}  # the reports of each trial
        self._running: set[str] = set()

    def next(self) -> tuple[str, dict[str, Any] | None] | None:
        """Return what the facade asks for, as far as that is to be trained."""
        for name, asked in self._asked.items():
            if asked and name not in self._running:  # it was asked for while it was on its way out
                self._running.add(name)
                return name, None
        for _ in range(MAX_KNOWN):
            info = self._facade.ask()
            if info.config not in self._names:
                name = self._names[info.config] = str(len(self._names))
                self._asked[name], self._values[name] = [info], []
                self._running.add(name)
                return name, dict(info.config)
            name = self._names[info.config]
            self._asked[name].append(info)
            self._answer(name)
            if self._asked[name] and name not in self._running:
                self._running.add(name)
                return name, None
        return None

    def report(self, trial: str, step: int, value: float) -> str:
        """Pause at the highest budget that was asked for."""
        self._values[trial].append(value)
        self._answer(trial)
        if math.isnan(value) or step == self._steps:
            return "stop"
        return "continue" if self._asked[trial] else "pause"

    def ended(self, trial: str, decision: str) -> None:
        """Note that a trial may be resumed."""
        self._running.discard(trial)

    def _answer(self, trial: str) -> None:
        """Tell the facade what is known of a trial that it asked for."""
        values = self._values[trial]
        for info in list(self._asked[trial]):
            needed = min(max(round(info.budget or self._steps), 1), self._steps)
            if values and math.isnan(values[-1]):
                self._facade.tell(info, TrialValue(cost=1e9, status=StatusType.CRASHED), save=False)
            elif len(values) >= needed:
                self._facade.tell(info, TrialValue(cost=values[needed - 1]), save=False)
            else:
                continue
            self._asked[trial].remove(info)


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
