"""Results as HTML for a notebook. Every value is escaped; nothing is loaded from elsewhere."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from trialpod.tune.results import flattened, latest_numbers, lookup

if TYPE_CHECKING:
    from trialpod.tune.outcomes import ExperimentOutcome

MAX_ROWS = 20
MAX_PARAMETERS = 10


def experiment_html(outcome: ExperimentOutcome) -> str:
    """Return the best trials of an experiment as a table, the best first; at most `MAX_ROWS` of them."""
    metric = outcome.metric
    trials = list(outcome.trials)
    values: list[float | None] = [None] * len(trials)
    if metric:
        values = latest_numbers(trials, metric)
        order = sorted(range(len(trials)), key=lambda place: _rank(values[place], outcome.mode or "max"))
        trials, values = [trials[place] for place in order], [values[place] for place in order]
    names = _varying([flattened(trial.config or {}) for trial in trials])[:MAX_PARAMETERS]
    heads = ["Trial", "State", *([metric] if metric else []), "Iteration", *names]
    rows = []
    for trial, number in zip(trials[:MAX_ROWS], values, strict=False):
        config, last = flattened(trial.config or {}), trial.last_result or {}
        value = [_text(lookup(last, metric) if number is None else number)] if metric else []
        rows.append(
            [trial.name, trial.status, *value, _text(last.get("training_iteration"))]
            + [_text(config.get(name)) for name in names]
        )
    failed = sum(trial.status == "ERROR" for trial in trials)
    more = f"; the first {MAX_ROWS} are shown" if len(trials) > MAX_ROWS else ""
    words = f"{len(trials)} trials{f', {failed} failed' if failed else ''}{more}. {outcome.uri or outcome.path}"
    return f"<div><p>{escape(words)}</p>{_table(heads, rows)}</div>"


def result_html(metrics: Mapping[str, Any], config: Mapping[str, Any] | None, error: object, path: str) -> str:
    """Return the config and the last metrics of one trial as two tables."""
    shown = {name: value for name, value in metrics.items() if name != "config" and not name.startswith("config/")}
    problem = f"<p><strong>Failed:</strong> {escape(str(error).splitlines()[0])}</p>" if error else ""
    parameters = _table(
        ["Parameter", "Value"], [[name, _text(value)] for name, value in flattened(config or {}).items()]
    )
    reported = _table(["Metric", "Last value"], [[name, _text(value)] for name, value in shown.items()])
    return f"<div><p>{escape(path)}</p>{problem}{parameters}{reported}</div>"


def _rank(value: float | None, mode: str) -> float:
    if value is None or math.isnan(value):
        return math.inf
    return -value if mode == "max" else value


def _varying(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the parameters that differ between trials; of a single trial all."""
    names = list(dict.fromkeys(name for config in configs for name in config))
    if len(configs) < 2:
        return names
    return [name for name in names if len({json.dumps(config.get(name), default=str) for config in configs}) > 1]


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
