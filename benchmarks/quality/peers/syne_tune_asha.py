"""Syne Tune: its ASHA with random search, kernel densities (BOHB), BORE or conformal quantile regression (CQR).

    python syne_tune_asha.py random|kde|bore|cqr

A NaN cannot be given to its models; such a trial counts as failed.
"""

from __future__ import annotations

import logging
import math
import sys
import warnings
from datetime import datetime
from typing import Any

from serve import serve
from syne_tune.backend.trial_status import Trial
from syne_tune.config_space import choice, lograndint, loguniform, randint, uniform
from syne_tune.optimizer.baselines import ASHA, ASHABORE, ASHACQR, BOHB

KINDS = {"random": ASHA, "kde": BOHB, "bore": ASHABORE, "cqr": ASHACQR}
BEGINNING = datetime(2024, 1, 1)


class SyneTunePeer:
    """One of its multi-fidelity schedulers."""

    def __init__(self, kind: str) -> None:
        self._make: Any = KINDS[kind]
        logging.disable(logging.WARNING)
        warnings.simplefilter("ignore")

    def begin(self, problem: dict[str, Any]) -> None:
        """Make the scheduler."""
        self._scheduler = self._make(
            config_space={parameter["name"]: domain(parameter) for parameter in problem["space"]},
            metric="value",
            time_attr="epoch",
            max_t=problem["steps"],
            grace_period=problem["first_rung"],
            reduction_factor=3,
            do_minimize=True,
            random_seed=problem["seed"],
            points_to_evaluate=problem["start_points"],
        )
        self._trials: list[Trial] = []
        self._last: dict[str, dict[str, Any]] = {}

    def next(self) -> tuple[str, dict[str, Any]] | None:
        """Return a suggestion."""
        suggestion = self._scheduler.suggest()
        if suggestion is None:
            return None
        number = len(self._trials)
        trial = Trial(trial_id=number, config=suggestion.config, creation_time=BEGINNING)
        self._trials.append(trial)
        self._scheduler.on_trial_add(trial)
        return str(number), dict(suggestion.config)

    def report(self, trial: str, step: int, value: float) -> str:
        """Return what the scheduler says."""
        known = self._trials[int(trial)]
        if math.isnan(value):
            self._scheduler.on_trial_error(known)
            return "stop"
        result = self._last[trial] = {"value": value, "epoch": step}
        decision = self._scheduler.on_trial_result(known, result)
        if decision == "CONTINUE":
            return "continue"
        if decision == "PAUSE":
            return "pause"
        self._scheduler.on_trial_remove(known)
        return "stop"

    def ended(self, trial: str, decision: str) -> None:
        """Tell the scheduler of a trial that came to its end."""
        if decision == "continue":
            self._scheduler.on_trial_complete(self._trials[int(trial)], self._last[trial])


def domain(parameter: dict[str, Any]) -> Any:
    """Return a parameter in Syne Tune's form, whose integers include the upper bound."""
    if parameter["kind"] == "choice":
        return choice(parameter["choices"])
    low, high = parameter["low"], parameter["high"]
    if parameter["kind"] == "int":
        return (lograndint if parameter["log"] else randint)(int(low), int(high))
    return (loguniform if parameter["log"] else uniform)(low, high)


if __name__ == "__main__":
    serve(SyneTunePeer(sys.argv[1]))
