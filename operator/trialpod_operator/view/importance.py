"""How much each parameter matters for a metric, by Optuna's evaluators."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

MIN_TRIALS = 4
MAX_TRIALS = 1000
"""Maximum number of trials that are evaluated, spread over all of them; more would take seconds."""


def importance(rows: Sequence[tuple[Mapping[str, Any], float]], mode: str) -> dict[str, Any]:
    """Return the importance of parameters, largest first, or the reason why there is none.

    PED-ANOVA (Watanabe, Bansal and Hutter 2023) as Optuna has it: it needs no model and takes milliseconds.

    Args:
        rows: the configs, as flat maps of dotted names, and values of the metric.
        mode: "max" or "min".

    Returns:
        ``{"method", "importance": [{"name", "value"}], "trials_used"}``, or ``{"unavailable": reason}``.
    """
    try:
        import optuna
    except ModuleNotFoundError:
        return {"unavailable": "it needs the package optuna: pip install 'trialpod[optuna]'"}
    from trialpod_operator.view.optuna_space import plain

    usable = [(config, value) for config, value in rows if math.isfinite(value)]
    if len(usable) < MIN_TRIALS:
        return {"unavailable": f"{len(usable)} trials have a value of the metric; it needs {MIN_TRIALS}"}
    step = max(1, math.ceil(len(usable) / MAX_TRIALS))
    usable = usable[::step]
    spaces = _varying([config for config, _ in usable])
    if not spaces:
        return {"unavailable": "no parameter differs between the trials"}
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study = optuna.create_study(direction="maximize" if mode == "max" else "minimize")
            for config, value in usable:
                params = {name: plain(config[name]) for name in spaces}
                trial = optuna.trial.create_trial(params=params, distributions=spaces, value=float(value))
                study.add_trial(trial)
            found = optuna.importance.get_param_importances(
                study, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
            )
    except (ValueError, RuntimeError) as error:
        return {"unavailable": f"Optuna cannot evaluate these trials: {error}"}
    finally:
        optuna.logging.set_verbosity(verbosity)
    listed = sorted(found.items(), key=lambda each: -each[1])
    return {
        "method": "PED-ANOVA (optuna.importance)",
        "importance": [{"name": name, "value": float(value)} for name, value in listed],
        "trials_used": len(usable),
    }


def _varying(configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the distributions of the parameters that every trial has and that are not the same in all."""
    from trialpod_operator.view.optuna_space import distributions

    shared = [name for name in configs[0] if all(name in config for config in configs)]
    found = distributions([{name: config[name] for name in shared} for config in configs], [])
    return {name: each for name, each in found.items() if not each.single()}
