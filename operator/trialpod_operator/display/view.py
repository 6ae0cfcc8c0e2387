"""What a person sees of an experiment: plain data made from the engine's state, for tables, JSON and summaries."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from trialpod_operator.engine.vocabulary import MANIFEST, Vocabulary


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial as a line of a table."""

    trial_id: str
    name: str
    status: str  # PENDING, RUNNING, PAUSED, TERMINATED, ERROR
    config: dict[str, Any]
    path: str  # its directory
    iteration: int
    value: float | None  # of the experiment's metric: the latest finite one, or NaN if none was finite
    run_time_s: float
    attempts: int
    failures: int
    disruptions: int
    error: str  # one line; empty when there is none
    stop_reason: dict[str, Any]  # why it ended before its own end; {"source": "stop_rule", ...}; empty otherwise
    checkpoint: str | None  # path of its newest checkpoint
    checkpoint_iteration: int | None
    last_result: dict[str, Any] = field(default_factory=dict)
    value_iteration: int | None = None  # of the result that had `value`; None = not known, or the last one


@dataclass(frozen=True, slots=True)
class ExperimentView:
    """An experiment at one moment."""

    name: str
    path: str
    metric: str | None
    mode: str  # "max" or "min"
    state: str  # Running, Suspended, Succeeded, Failed, Stopped (by time budget or the user)
    message: str  # one sentence about `state`; may be empty
    total: int | None  # number of trials in all; None when it is open
    counts: dict[str, int]  # by status
    results: int  # results so far, over all trials
    elapsed_s: float  # active time, over all runs of this experiment
    time_budget_s: float | None
    max_concurrent: int | None
    best: TrialRow | None
    rows: list[TrialRow]  # running ones first, then the latest ended; cut to what was asked for
    failures: dict[str, int]  # one-line error -> how many trials ended with it
    trials_per_minute: float | None
    eta_s: float | None
    resources: dict[str, dict[str, float]] = field(default_factory=dict)  # hours, see `accounting.hours`
    vocabulary: Vocabulary = MANIFEST  # the words for remedies
    budget_used_up: tuple[str, float] | None = None  # field of the spec and hours, when that ended the experiment


def best_first(view: ExperimentView) -> list[TrialRow]:
    """Return the rows with the best value of the metric first, those without one last, in their order."""
    if view.metric is None:
        return list(view.rows)
    sign = -1.0 if view.mode == "max" else 1.0

    def key(row: TrialRow) -> tuple[bool, float]:
        missing = row.value is None or math.isnan(row.value)
        return (missing, 0.0 if row.value is None or missing else sign * row.value)

    return sorted(view.rows, key=key)
