"""Phrases of which schedulers and stoppers make sentences about their decisions, from the evidence as data.

Wherever evidence has a ``rank``, 1 is the best, and ``compared`` is how many were ranked, the trial itself among
them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Reason = Mapping[str, Any]

_NOT_EVIDENCE = ("source", "scheduler", "stopper", "rule", "source_trial", "from", "from_iteration", "checkpoint")


def text(value: Any) -> str:
    """Return a value with four digits at most."""
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    return str(value)


def value_text(reason: Reason) -> str:
    """Return "loss=0.91", "" where no value is known."""
    if reason.get("value") is None:
        return ""
    return f"{reason.get('metric', 'value')}={text(reason['value'])}"


def time_text(reason: Reason) -> str:
    """Return " at training_iteration 3", "" where no time is known."""
    attribute = reason.get("time_attr", "training_iteration")
    return f" at {attribute} {text(reason['time'])}" if reason.get("time") is not None else ""


def rank_text(reason: Reason) -> str:
    """Return " (rank 3 of 9)", "" where nothing was ranked."""
    if "rank" not in reason or "compared" not in reason:
        return ""
    return f" (rank {reason['rank']} of {reason['compared']})"


def evidence_text(reason: Reason, before: str = "; ") -> str:
    """Return all evidence as ``key=value``, after `before`; "" where there is none."""
    items = [f"{key}={text(value)}" for key, value in reason.items() if key not in _NOT_EVIDENCE]
    return before + ", ".join(items) if items else ""
