"""Small names of Ray Tune with nowhere else to be."""

from __future__ import annotations

import json
from typing import Any

UNRESOLVED_SEARCH_SPACE = (
    "{par} of {cls} has to be resolved before the search: it still has search-space objects in it"
)
UNDEFINED_SEARCH_SPACE = "{cls} has no search space; give it one, or param_space to the Tuner"
UNDEFINED_METRIC_MODE = "{cls} has no metric or mode ({metric}, {mode}); give it both, or TuneConfig"


def function(func: Any) -> Any:
    """Return the function: nothing has to be marked any more."""
    return func


def durable(trainable: Any) -> Any:
    """Return the Trainable: every one's checkpoints are in the experiment's storage."""
    return trainable


def pretty_print(result: dict[str, Any], exclude: set[str] | None = None) -> str:
    """Return a result as indented text, without the config and empty values."""
    left_out = {"config", *(exclude or ())}
    shown = {key: value for key, value in result.items() if key not in left_out and value is not None}
    return json.dumps(shown, indent=2, default=str)
