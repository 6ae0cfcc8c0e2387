"""An experiment in a cluster as people see it: the same views and events as of a local one, made from the resources.

Pure functions of a TuneExperiment and its TuneTrials. What the resources do not say is absent: the number of results
is taken to be the sum of iterations.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.tune.plugins.objectives import Objective, parse_objectives
from trialpod_operator.api.reasons import Reason
from trialpod_operator.cluster.annotations import retry_is_pending
from trialpod_operator.display.view import (
    ENDED,
    ExperimentView,
    RunningTrial,
    TrialRow,
    remaining_s,
    trials_per_minute,
)
from trialpod_operator.display.words import duration
from trialpod_operator.engine.repeats import Evaluation

Json = dict[str, Any]
_COUNTS = {
    "PENDING": "pending",
    "RUNNING": "running",
    "PAUSED": "paused",
    "TERMINATED": "terminated",
    "ERROR": "error",
}


def condition(item: Mapping[str, Any], kind: str) -> Json:
    """Return a condition of a resource; empty when there is none."""
    found = ((item.get("status") or {}).get("conditions")) or ()
    return next((dict(each) for each in found if each.get("type") == kind), {})


def is_true(item: Mapping[str, Any], kind: str) -> bool:
    """Return whether a condition holds."""
    return condition(item, kind).get("status") == "True"


def finished(item: Mapping[str, Any]) -> bool:
    """Return whether an experiment has ended, well or badly, and is not to try failed trials again."""
    return not retry_is_pending(item) and (is_true(item, "Succeeded") or is_true(item, "Failed"))


def seconds(text: Any) -> float:
    """Return a time of the API server in seconds since the epoch; 0 for what is none."""
    try:
        return dt.datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0


def state_of(item: Mapping[str, Any]) -> str:
    """Return the state of an experiment in one word, as a local run calls it; Waiting and Stalled are a cluster's."""
    if is_true(item, "Failed"):
        return "Failed"
    if is_true(item, "Succeeded"):
        return "Stopped" if condition(item, "Succeeded").get("reason") == "Stopped" else "Succeeded"
    if is_true(item, "Stalled"):
        return "Stalled"
    if condition(item, "Suspended"):
        return "Suspended"
    return "Waiting" if condition(item, "Ready").get("status") != "True" else "Running"


def view_of(
    item: Mapping[str, Any], trials: Iterable[Mapping[str, Any]], *, now: float, rows: int | None
) -> ExperimentView:
    """Return the experiment at `now` (seconds since the epoch), with at most `rows` trials (None = all)."""
    spec, status = item.get("spec") or {}, item.get("status") or {}
    listed = list(trials)
    all_rows = {str(trial["metadata"]["name"]): row_of(trial, now) for trial in listed}
    counts = status.get("trials") or {}
    best = status.get("best") or {}
    failures: dict[str, int] = {}
    for row in all_rows.values():
        if row.status == "ERROR":
            failures[row.error] = failures.get(row.error, 0) + 1
    started = seconds(status.get("startTime"))
    ended = seconds(status.get("completionTime"))
    state = state_of(item)
    elapsed_s = max(0.0, (ended or now) - started) if started else 0.0
    total = counts.get("total")
    left = None if total is None else total - counts.get("done", 0)
    budget = spec.get("timeBudget")
    objectives = _objectives(spec.get("metrics"))
    by_state = {state: int(counts.get(key, 0)) for state, key in _COUNTS.items()}
    return ExperimentView(
        name=str(item["metadata"]["name"]),
        path=str(
            status.get("storageUri") or f"{(spec.get('storage') or {}).get('uri', '?')}/{item['metadata']['name']}"
        ),
        metric=objectives[0].name if objectives else spec.get("metric"),
        mode=objectives[0].mode if objectives else str(spec.get("mode") or "max"),
        objectives=objectives,
        front=_front(status.get("paretoFront") or (), objectives, all_rows),
        state=state,
        message="" if state in ("Running", "Succeeded") else str(status.get("message") or ""),
        total=total,
        counts=by_state,
        results=sum(row.iteration for row in all_rows.values()),
        elapsed_s=elapsed_s,
        time_budget_s=_budget_seconds(budget),
        max_concurrent=spec.get("maxConcurrentTrials"),
        best=_best(best, all_rows),
        rows=_shown(list(all_rows.values()), listed, rows),
        failures=failures,
        trials_per_minute=trials_per_minute(int(counts.get("done", 0)), elapsed_s),
        eta_s=_eta_s(spec, all_rows.values(), left) if left and state == "Running" else None,
        budget=str((status.get("budget") or {}).get("message") or ""),
        resources={
            str(name): {str(part): _number(hours) or 0.0 for part, hours in (parts or {}).items()}
            for name, parts in (status.get("resources") or {}).items()
        },
    )


def row_of(trial: Mapping[str, Any], now: float) -> TrialRow:
    """Return a TuneTrial as a line of a table."""
    spec, status = trial.get("spec") or {}, trial.get("status") or {}
    state = str(status.get("state") or "PENDING")
    checkpoint = status.get("checkpoint") or {}
    path = str(status.get("storageUri") or "")
    started, ended = seconds(status.get("startTime")), seconds(status.get("completionTime"))
    # An attempt counts as started when its process runs.
    attempts = int(status.get("attempt") or 0)
    if state == "PENDING" and (status.get("waiting") or condition(trial, "Ready").get("reason") == Reason.STARTING):
        attempts = max(0, attempts - 1)
    decision = status.get("lastDecision") or {}
    stopped = state == "TERMINATED" and decision.get("kind") == "stop"
    return TrialRow(
        trial_id=str(spec.get("trialId") or trial["metadata"]["name"]),
        name=str(trial["metadata"]["name"]),
        status=state,
        config=dict(status.get("params") or spec.get("params") or {}),
        path=path,
        iteration=int(status.get("iteration") or 0),
        value=_number(status.get("value")),
        run_time_s=max(0.0, (ended or now) - started) if started else 0.0,
        attempts=attempts,
        failures=int(status.get("failures") or 0),
        disruptions=int(status.get("disruptions") or 0),
        error=str(status.get("message") or "") if state == "ERROR" else "",
        stop_reason={"source": decision.get("reason", "unknown"), **(decision.get("data") or {})} if stopped else {},
        checkpoint=f"{path}/{checkpoint['name']}" if checkpoint.get("name") else None,
        checkpoint_iteration=checkpoint.get("iteration"),
    )


def ago(time: float, now: float) -> str:
    """Return how long ago something was, in words."""
    return f"{duration(max(0.0, now - time))} ago" if time else "at an unknown time"


def _budget_seconds(budget: Any) -> float | None:
    from trialpod_operator.api.duration import parse_duration

    try:
        return None if budget is None else parse_duration(budget)
    except InvalidInputError:  # the conditions say so
        return None


def _objectives(metrics: Any) -> list[Objective]:
    try:
        return parse_objectives(metrics) if metrics else []
    except InvalidInputError:  # the conditions say so
        return []


def _evaluation(repeats: Mapping[str, Any] | None) -> Evaluation | None:
    mean = None if repeats is None else _number(repeats.get("mean"))
    if repeats is None or mean is None:
        return None
    return Evaluation(mean, _number(repeats.get("spread")), int(repeats.get("number") or 0))


def _front(
    listed: Iterable[Mapping[str, Any]], objectives: Sequence[Objective], rows: Mapping[str, TrialRow]
) -> list[tuple[TrialRow, list[float]]]:
    found = []
    for each in listed:
        row = rows.get(str(each.get("trial")))
        point = [_number((each.get("values") or {}).get(objective.name)) for objective in objectives]
        if row is not None and None not in point:
            found.append((row, [value for value in point if value is not None]))
    return found


def _best(best: Mapping[str, Any], rows: Mapping[str, TrialRow]) -> TrialRow | None:
    if not best:
        return None
    known = rows.get(str(best.get("trial")))
    return TrialRow(
        trial_id=str(best.get("trialId")),
        name=str(best.get("trial")),
        status=known.status if known else "RUNNING",
        config=dict(best.get("params") or (known.config if known else {})),
        path=known.path if known else "",
        iteration=int(best.get("iteration") or 0),
        value=_number(best.get("value")),
        evaluation=_evaluation(best.get("repeats")),
        run_time_s=known.run_time_s if known else 0.0,
        attempts=known.attempts if known else 1,
        failures=known.failures if known else 0,
        disruptions=known.disruptions if known else 0,
        error="",
        stop_reason=known.stop_reason if known else {},
        checkpoint=best.get("checkpoint"),
        checkpoint_iteration=known.checkpoint_iteration if known else None,
    )


def _shown(rows: list[TrialRow], trials: list[Mapping[str, Any]], limit: int | None) -> list[TrialRow]:
    if limit is None:
        return rows
    ended_at = {
        str(trial["metadata"]["name"]): seconds((trial.get("status") or {}).get("completionTime")) for trial in trials
    }
    running = [row for row in rows if row.status == "RUNNING"]
    ended = sorted((row for row in rows if row.status in ENDED), key=lambda row: -ended_at[row.name])
    waiting = [row for row in rows if row.status not in (*ENDED, "RUNNING")]
    return [*running, *ended, *waiting][:limit]


def _eta_s(spec: Mapping[str, Any], rows: Iterable[TrialRow], left: int) -> float | None:
    """Return how long `left` trials, the running ones among them, still take; None when that is not known."""
    listed = list(rows)
    stop = spec.get("stop") or {}
    last_iteration = _number(stop.get("training_iteration"))
    running = [
        RunningTrial(
            row.run_time_s,
            row.run_time_s * last_iteration / row.iteration if last_iteration and row.iteration else None,
        )
        for row in listed
        if row.status == "RUNNING"
    ]
    return remaining_s(
        [row.run_time_s for row in listed if row.status == "TERMINATED"],
        running,
        max(0, left - len(running)),
        early_stopping=bool(spec.get("scheduler") or spec.get("stoppers") or len(stop) > 1),
    )


def _number(text: Any) -> float | None:
    try:
        return None if text is None else float(text)
    except (TypeError, ValueError):
        return math.nan
