"""The table of trials that progress reporters print: which trials, which columns, and their text.

Pure functions over trials, results and column names; whatever a trial reports becomes one line without control
characters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from trialpod.protocol.values import number, real_number
from trialpod.tune.results import lookup
from trialpod.tune.trial import Trial

STATUSES = (Trial.RUNNING, Trial.PAUSED, Trial.PENDING, Trial.TERMINATED, Trial.ERROR)
_GAP = "  "

Rows = list[list[str]]


def counts_line(trials: Sequence[Trial], total: int | None) -> str:
    """Return ``Number of trials: 12/40 (2 RUNNING, 10 TERMINATED)``."""
    counts = dict.fromkeys(STATUSES, 0)
    for trial in trials:
        counts[trial.status] = counts.get(trial.status, 0) + 1
    shown = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    number = f"{len(trials)}/{total}" if total else str(len(trials))
    return f"Number of trials: {number}" + (f" ({shown})" if shown else "")


def best_of(
    trials: Sequence[Trial], metric: str | None, mode: str | None, known: dict[str, float | None] | None = None
) -> tuple[Trial, float] | None:
    """Return the trial whose last result is best, and its value."""
    known = {} if known is None else known
    best: tuple[Trial, float] | None = None
    for trial in trials if metric and mode else ():
        if trial.trial_id in known:
            value = known[trial.trial_id]
        else:
            value = _value(trial, metric or "")
            if trial.is_finished():
                known[trial.trial_id] = value
        if value is not None and (best is None or (value > best[1] if mode == "max" else value < best[1])):
            best = (trial, value)
    return best


def chosen(
    trials: Sequence[Trial], limit: int | None, *, metric: str | None, mode: str | None, by_metric: bool
) -> list[Trial]:
    """Return the trials to show: those that run first and the latest of the others, or the best ones."""
    if by_metric and metric:
        sign = -1.0 if mode == "max" else 1.0
        values = {trial.trial_id: _value(trial, metric) for trial in trials}
        ranked = sorted(trials, key=lambda t: math.inf if (value := values[t.trial_id]) is None else sign * value)
    else:
        order = {status: place for place, status in enumerate(STATUSES)}
        newest_first = [*reversed(trials)]
        ranked = sorted(newest_first, key=lambda t: order.get(t.status, len(order)))
    return ranked[:limit]


def columns_of(
    trials: Sequence[Trial], metrics: Mapping[str, str], parameters: Mapping[str, str] | None, infer: int
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the columns for metrics and for parameters, as names with titles."""
    results = [trial.last_result for trial in trials]
    wanted = {name: title for name, title in metrics.items() if any(lookup(r, name) is not None for r in results)}
    for result in results:
        for name, value in result.items():
            if infer > 0 and name not in _AUTOMATIC and name not in wanted and _is_number(value):
                wanted[name] = name
                infer -= 1
    if parameters is not None:
        return wanted, dict(parameters)
    configs = [trial.evaluated_params for trial in trials]
    names = list(dict.fromkeys(name for config in configs for name in config))
    varying = [name for name in names if len({repr(config.get(name)) for config in configs}) > 1]
    return wanted, {name: name for name in (varying if len(configs) > 1 else names)}


def rows_of(trials: Sequence[Trial], metrics: Mapping[str, str], parameters: Mapping[str, str], longest: int) -> Rows:
    """Return the table's cells, the titles first; no cell is longer than `longest` characters."""
    title = ["Trial name", "status", *parameters.values(), *metrics.values()]
    table = [[_cell(text, longest) for text in title]]
    for trial in trials:
        config, result = trial.evaluated_params, trial.last_result
        cells = [trial.name, trial.status, *(config.get(name, "") for name in parameters)]
        cells += ["" if (value := lookup(result, name)) is None else value for name in metrics]
        # A trial's name tells it apart by its end.
        table.append([_tail(trial.name, 2 * longest), *(_cell(cell, longest) for cell in cells[1:])])
    return table


def error_rows(trials: Sequence[Trial], limit: int | None) -> Rows:
    """Return the table of trials that failed, the titles first; only the titles when none did."""
    failed = [trial for trial in trials if trial.num_failures or trial.status == Trial.ERROR][:limit]
    table = [["Trial name", "# failures", "error file"]]
    table += [[trial.name, str(max(trial.num_failures, 1)), trial.error_file or ""] for trial in failed]
    return table


def as_text(rows: Rows) -> str:
    """Return a table as lines, its columns aligned."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = [_GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], _GAP.join("-" * width for width in widths), *lines[1:]])


def as_html(rows: Rows) -> str:
    """Return a table as HTML."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


_AUTOMATIC = frozenset(
    {
        "config",
        "date",
        "done",
        "episodes_total",
        "experiment_tag",
        "hostname",
        "iterations_since_restore",
        "node_ip",
        "pid",
        "time_since_restore",
        "time_this_iter_s",
        "time_total_s",
        "timestamp",
        "timesteps_since_restore",
        "timesteps_total",
        "training_iteration",
        "trial_id",
    }
)


def _is_number(value: object) -> bool:
    return real_number(value) is not None


def _value(trial: Trial, metric: str) -> float | None:
    value = number(lookup(trial.last_result, metric))
    return None if value is None or math.isnan(value) else float(value)


def _cell(value: Any, longest: int) -> str:
    found = number(value)
    text = f"{found:.6g}" if isinstance(found, float) else str(value)
    text = "".join(char if char.isprintable() else " " for char in text)
    return text if len(text) <= longest else text[: max(longest - 3, 1)] + "..."


def _tail(text: str, longest: int) -> str:
    return text if len(text) <= longest else "..." + text[-max(longest - 3, 1) :]
