"""Which trial is the best: the one rule for every display, status and summary."""

from __future__ import annotations

import math

from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.trial import Trial


def best_trial(engine: Engine) -> Trial | None:
    """Return the trial whose latest finite value of the metric is the best; the earliest of equals."""
    settings = engine.state.settings
    if settings is None or settings.metric is None:
        return None
    sign = 1.0 if settings.mode == "max" else -1.0
    best: Trial | None = None
    best_value = -math.inf
    for trial in engine.state.trials.values():
        if trial.value is not None and math.isfinite(trial.value) and sign * trial.value > best_value:
            best, best_value = trial, sign * trial.value
    return best
