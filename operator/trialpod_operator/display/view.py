"""What a person sees of an experiment: plain data for tables, JSON and summaries, and how long it still takes."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trialpod.tune.plugins.objectives import Objective
from trialpod_operator.engine.repeats import Evaluation
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
    evaluation: Evaluation | None = None  # of the best trial: what its repeats showed
    value_iteration: int | None = None  # of the result that had `value`; None = not known, or the last one
    silent_s: float = 0.0  # since it was started, or last reported a result or a checkpoint; 0 = it does not run


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
    objectives: list[Objective] = field(default_factory=list)  # of a list of metrics; `metric` is the first
    front: list[tuple[TrialRow, list[float]]] = field(default_factory=list)  # Pareto front with its values
    progress_deadline_s: float | None = None  # maximum time without a report; then an attempt fails
    budget: str = ""  # how a budget that is planned stands, as a phrase
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


ENDED = ("TERMINATED", "ERROR")
"""Statuses of trials that have ended."""

MAX_DURATIONS = 200
"""Maximum number of ended trials, the latest ones, that the duration of the others is estimated from."""
MAX_SIMULATED = 500
"""Maximum number of waiting trials that are placed one by one; more of them fill all slots evenly."""
TOLERANCE = 1.2
"""A trial that has run longer than this many times the longest one so far takes an unknown time."""


@dataclass(frozen=True, slots=True)
class RunningTrial:
    """A trial that runs.

    Attributes:
        age_s: how long it has run.
        limit_s: how long it runs in all when nothing ends it early, from its speed and its limit of iterations; None
            when it has no limit or no result yet.
    """

    age_s: float
    limit_s: float | None = None


def trials_per_minute(ended: int, elapsed_s: float) -> float | None:
    """Return the rate over the whole active time of an experiment; None before a trial has ended."""
    return 60.0 * ended / elapsed_s if ended and elapsed_s > 0 else None


def remaining_s(
    durations: Sequence[float], running: Sequence[RunningTrial], waiting: int, *, early_stopping: bool
) -> float | None:
    """Return the time until the last trial ends; None when nothing is known that tells it.

    Args:
        durations: how long trials ran that have ended, the latest last.
        running: the running trials; as many run at a time from now on.
        waiting: how many have not begun.
        early_stopping: trials may end before their limit of iterations.
    """
    known = sorted(durations[-MAX_DURATIONS:])
    remaining: list[float] = []
    for trial in running:
        left = _remaining_of(trial, known, early_stopping=early_stopping)
        if left is None:
            return None
        remaining.append(left)
    if not waiting:
        return max(remaining, default=None)
    whole = known or [trial.limit_s for trial in running if trial.limit_s is not None]
    if not whole:
        return None
    each = sum(whole) / len(whole)
    return _schedule(remaining or [0.0], waiting, each)


def _remaining_of(trial: RunningTrial, known: Sequence[float], *, early_stopping: bool) -> float | None:
    limit = None if trial.limit_s is None else max(0.0, trial.limit_s - trial.age_s)
    if limit is not None and not (early_stopping and known):
        return limit
    longer = known[bisect_right(known, trial.age_s) :]
    if longer:
        expected = sum(longer) / len(longer) - trial.age_s
        return expected if limit is None else min(expected, limit)
    if limit is not None:
        return limit
    latest = TOLERANCE * known[-1] if known else 0.0
    return latest - trial.age_s if trial.age_s < latest else None


def _schedule(remaining: Sequence[float], waiting: int, each: float) -> float:
    """Return when the last of `waiting` trials ends if each starts in the slot that is free first."""
    slots = list(remaining)
    rounds = max(0, waiting - MAX_SIMULATED) // len(slots)
    slots = [free + rounds * each for free in slots]
    heapq.heapify(slots)
    for _ in range(waiting - rounds * len(slots)):
        heapq.heappush(slots, heapq.heappop(slots) + each)
    return max(slots)
