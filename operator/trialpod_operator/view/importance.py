"""How much each parameter matters for a metric, by Optuna's evaluators."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from trialpod.protocol.readable import real_number

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
    usable = [(config, value) for config, value in rows if math.isfinite(value)]
    if len(usable) < MIN_TRIALS:
        return {"unavailable": f"{len(usable)} trials have a value of the metric; it needs {MIN_TRIALS}"}
    step = max(1, math.ceil(len(usable) / MAX_TRIALS))
    usable = usable[::step]
    spaces = distributions([config for config, _ in usable], varying=True)
    if not spaces:
        return {"unavailable": "no parameter differs between the trials"}
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study = optuna.create_study(direction="maximize" if mode == "max" else "minimize")
            for config, value in usable:
                params = {name: _plain(config[name]) for name in spaces}
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


def distributions(configs: Sequence[Mapping[str, Any]], *, varying: bool) -> dict[str, Any]:
    """Return Optuna's distributions that hold the values of these configs, of the parameters that all of them have.

    Args:
        configs: flat maps.
        varying: leave out the parameters that do not differ.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    names = [name for name in configs[0] if all(name in config for config in configs)] if configs else []
    found: dict[str, Any] = {}
    for name in names:
        values = [_plain(config[name]) for config in configs]
        different = list(dict.fromkeys((type(value), value) for value in values))
        if varying and len(different) < 2:
            continue
        if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            found[name] = IntDistribution(min(values), max(values))
        elif all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
            if not all(map(math.isfinite, values)):
                continue
            low, high = float(min(values)), float(max(values))
            found[name] = FloatDistribution(low, high, log=low > 0 and high / low > 100)
        else:
            found[name] = CategoricalDistribution(list(dict.fromkeys(values)))
    return found


def _plain(value: Any) -> Any:
    """Return a value as Optuna stores it: None, a bool, a number or a text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    number = real_number(value)
    return number if number is not None else str(value)
