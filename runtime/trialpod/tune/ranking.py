"""Which trial of an experiment is best, and in which result: what `ResultGrid` and `ExperimentAnalysis` share.

Nothing is read for the scope "last"; the other scopes read ``result.json`` of every trial.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from trialpod.errors import InvalidInputError, nearest
from trialpod.tune.result import lookup
from trialpod.tune.result_rows import SCOPES, number, read_rows, score

if TYPE_CHECKING:
    from trialpod.tune.backends import TrialOutcome


def check_scope(where: str, scope: object) -> None:
    """Raise InvalidInputError unless `scope` is one of `SCOPES`."""
    if scope in SCOPES:
        return
    guess = nearest(str(scope), SCOPES)
    raise InvalidInputError(
        f"{where}(scope={scope!r}): scope must be one of {', '.join(SCOPES)}"
        + (f" (did you mean {guess!r}?)" if guess else "")
    )


def best_index(
    trials: Iterable[TrialOutcome], metric: str, mode: str, scope: str, *, finite_only: bool
) -> tuple[int | None, bool]:
    """Return the place of the best trial, the first of equals, and whether any trial has reported the metric.

    Args:
        trials: the trials.
        metric: what to compare.
        mode: "max" or "min".
        scope: one of `SCOPES`.
        finite_only: leave out trials whose number is NaN or infinite, and take the latest finite one for the scope
            "last"; otherwise NaN is worse than every number.
    """
    best: tuple[float, int] | None = None
    measured = False
    for index, trial in enumerate(trials):
        values = reported(trial, metric, scope)
        measured = measured or bool(values)
        if finite_only and scope == "last" and values and not math.isfinite(values[0]):
            latest, _ = latest_finite(read_rows(trial.path), metric)
            values = [] if latest is None else [latest]
        value = score(values, scope, mode, finite_only=finite_only)
        if value is None:
            continue
        rank = -math.inf if math.isnan(value) else value if mode == "max" else -value
        if best is None or rank > best[0]:
            best = (rank, index)
    return (best[1] if best is not None else None), measured


def reported(trial: TrialOutcome, metric: str, scope: str) -> list[float]:
    """Return the numbers that a trial reported for a metric, oldest first; for the scope "last" only the last."""
    rows = [trial.last_result or {}] if scope == "last" else read_rows(trial.path)
    numbers = (number(lookup(row, metric)) for row in rows)
    return [value for value in numbers if value is not None]


def latest_finite(rows: Sequence[dict[str, Any]], metric: str) -> tuple[float | None, int | None]:
    """Return the latest finite number that a trial reported for a metric, and the iteration of that result."""
    for row in reversed(rows):
        value = number(lookup(row, metric))
        if value is not None and math.isfinite(value):
            iteration = row.get("training_iteration")
            return value, iteration if isinstance(iteration, int) else None
    return None, None


def best_row(rows: Sequence[dict[str, Any]], metric: str, mode: str) -> dict[str, Any] | None:
    """Return the result in which a metric was best, None when none of them has a number for it."""
    best: tuple[float, dict[str, Any]] | None = None
    for row in rows:
        value = number(lookup(row, metric))
        if value is None or math.isnan(value):
            continue
        rank = value if mode == "max" else -value
        if best is None or rank > best[0]:
            best = (rank, row)
    return best[1] if best is not None else None


def metrics_of(trials: Iterable[TrialOutcome]) -> list[str]:
    """Return the names of all metrics in the last results of the trials."""
    return sorted({name for trial in trials for name in trial.last_result or {} if name != "config"})
