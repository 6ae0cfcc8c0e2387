"""How much each parameter matters for a metric, by PED-ANOVA of Optuna, and how far few trials can tell it.

PED-ANOVA (Watanabe, Bansal and Hutter 2023) needs no model and takes milliseconds. It is computed again for bootstrap
resamples of the trials (Efron 1979): where the trials are few, shares and the order of parameters change with them.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

MIN_TRIALS = 4
MAX_RESAMPLED_TRIALS = 200
"""Of more trials no resamples are evaluated: the interval is narrow, and they would take seconds."""

RESAMPLES = 20
SURE = 0.9
"""A ranking is called rough below this share of resamples in which the same parameter comes first."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one parameter explains.

    Attributes:
        name: of the parameter.
        value: its share, 0 to 1.
        low: the second smallest of the resamples; None: there are no resamples.
        high: the second largest of them.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Importance:
    """The shares of all parameters.

    Attributes:
        shares: the largest first.
        trials: how many were evaluated.
        first: the share of resamples in which the first parameter comes first; None: there are no resamples.
    """

    shares: list[Share]
    trials: int
    first: float | None

    @property
    def remark(self) -> str:
        """How sure the ranking is, in a sentence; "" where there is nothing to say."""
        if self.first is None or len(self.shares) < 2:
            return ""
        share = f"{self.shares[0].name} comes first in {self.first:.0%} of {RESAMPLES} resamples"
        return f"{self.trials} trials: {'rough; ' if self.first < SURE else ''}{share}"


def importance(
    configs: Sequence[Mapping[str, Any]], values: Sequence[float], spaces: Mapping[str, BaseDistribution], mode: str
) -> Importance:
    """Return the importance of parameters.

    Args:
        configs: a value of each parameter of `spaces`, for each trial.
        values: the metric, of the same trials; finite.
        spaces: the parameters.
        mode: "max" or "min".

    Raises:
        ModuleNotFoundError: optuna is not installed.
        ValueError: Optuna cannot evaluate these trials.
        RuntimeError: the same.
    """
    import optuna

    trials = [
        optuna.trial.create_trial(params=dict(config), distributions=dict(spaces), value=float(value))
        for config, value in zip(configs, values, strict=True)
    ]
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = _evaluated(trials, mode)
            resamples = list(_resamples(trials, mode)) if len(trials) <= MAX_RESAMPLED_TRIALS else []
    finally:
        optuna.logging.set_verbosity(verbosity)
    ranked = sorted(found, key=lambda name: -found[name])
    if not resamples:
        return Importance([Share(name, found[name]) for name in ranked], len(trials), None)
    shares = []
    for name in ranked:
        each = sorted(resample[name] for resample in resamples)
        at = min(1, len(each) - 1)
        # The estimate itself may lie outside: a resample has fewer different trials.
        shares.append(Share(name, found[name], min(each[at], found[name]), max(each[-1 - at], found[name])))
    wins = sum(max(resample, key=lambda name: resample[name]) == ranked[0] for resample in resamples)
    return Importance(shares, len(trials), wins / len(resamples))


def _resamples(trials: Sequence[FrozenTrial], mode: str) -> list[dict[str, float]]:
    pick = random.Random(0)  # the same trials, the same answer
    found = []
    for _ in range(RESAMPLES):
        chosen = pick.choices(trials, k=len(trials))
        try:
            found.append(_evaluated(chosen, mode))
        except (ValueError, RuntimeError):
            continue  # so few different trials that Optuna cannot evaluate them
    return found


def _evaluated(trials: Sequence[FrozenTrial], mode: str) -> dict[str, float]:
    import optuna

    study = optuna.create_study(
        direction="maximize" if mode == "max" else "minimize", storage=optuna.storages.InMemoryStorage()
    )
    study.add_trials(trials)
    return optuna.importance.get_param_importances(study, evaluator=optuna.importance.PedAnovaImportanceEvaluator())
