"""What the tests of stoppers share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from trialpod.tune.stopper.stopper import Stopper


def result(iteration: int, value: Any = None, *, since_restore: int | None = None) -> dict[str, Any]:
    return {
        "training_iteration": iteration,
        "iterations_since_restore": iteration if since_restore is None else since_restore,
        "loss": value,
    }


def first_stop(stopper: Stopper, values: Sequence[Any], trial: str = "a") -> int | None:
    """Return the number of the result at which the trial is stopped."""
    for number, value in enumerate(values, 1):
        if stopper(trial, result(number, value)):
            return number
    return None


def met(stopper: Stopper, trial: str, data: dict[str, Any]) -> bool:
    return any(horizon.attr in data and data[horizon.attr] >= horizon.at for horizon in stopper.horizons(trial))


def reloaded(source: Stopper, target: Stopper) -> Stopper:
    target.set_state(json.loads(json.dumps(source.get_state(), allow_nan=False)))
    return target
