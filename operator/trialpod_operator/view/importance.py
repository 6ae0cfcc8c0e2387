"""How much each parameter matters for a metric, as data for the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trialpod.tune.presentation.importance import MIN_TRIALS
from trialpod.tune.presentation.importance import importance as evaluate

MAX_TRIALS = 1000
"""Maximum number of trials that are evaluated, spread over all of them; more would take seconds."""


def importance(rows: Sequence[tuple[Mapping[str, Any], float]], mode: str) -> dict[str, Any]:
    """Return the importance of parameters, largest first, or the reason why there is none.

    Args:
        rows: the configs, as flat maps of dotted names, and values of the metric.
        mode: "max" or "min".

    Returns:
        ``{"method", "importance": [{"name", "value", "low", "high"}], "trials_used", "remark"}``, or
        ``{"unavailable": reason}``. The interval is of bootstrap resamples, None where there are none.
    """
    try:
        from trialpod_operator.view.optuna_space import plain
    except ModuleNotFoundError:
        return {"unavailable": "it needs the package optuna: pip install 'trialpod[optuna]'"}
    usable = [(config, value) for config, value in rows if math.isfinite(value)]
    if len(usable) < MIN_TRIALS:
        return {"unavailable": f"{len(usable)} trials have a value of the metric; it needs {MIN_TRIALS}"}
    step = max(1, math.ceil(len(usable) / MAX_TRIALS))
    usable = usable[::step]
    spaces = _varying([config for config, _ in usable])
    if not spaces:
        return {"unavailable": "no parameter differs between the trials"}
    configs = [{name: plain(config[name]) for name in spaces} for config, _ in usable]
    try:
        found = evaluate(configs, [value for _, value in usable], spaces, mode)
    except (ValueError, RuntimeError) as error:
        return {"unavailable": f"Optuna cannot evaluate these trials: {error}"}
    return {
        "method": "PED-ANOVA (optuna.importance)",
        "importance": [
            {"name": each.name, "value": each.value, "low": each.low, "high": each.high} for each in found.shares
        ],
        "trials_used": found.trials,
        "remark": found.remark,
    }


def _varying(configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the distributions of the parameters that every trial has and that are not the same in all."""
    from trialpod_operator.view.optuna_space import distributions

    shared = [name for name in configs[0] if all(name in config for config in configs)]
    found = distributions([{name: config[name] for name in shared} for config in configs], [])
    return {name: each for name, each in found.items() if not each.single()}
