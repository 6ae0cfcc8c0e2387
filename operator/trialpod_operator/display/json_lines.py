"""`--json`: one JSON object per line for each event, for programs.

Every object has `event` and `time` (seconds since the epoch). The last one is `finished`. The output is strict JSON:
NaN and the infinities are the strings "NaN", "Infinity", "-Infinity"; what JSON has no form for is its text.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import msgspec

from trialpod.protocol.values import readable
from trialpod_operator.display.base import LineWriter, TrialOutput
from trialpod_operator.display.events import Event
from trialpod_operator.display.view import ExperimentView, TrialRow
from trialpod_operator.display.words import brief

PROGRESS_S = 10.0


def strict(value: Any) -> Any:
    """Return a value as data that strict JSON can hold."""
    if not isinstance(value, (Mapping, list, tuple)):
        value = readable(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    return brief(value, 200)


def trial_data(row: TrialRow) -> dict[str, Any]:
    """Return a trial as data, its parameters under `params`."""
    return {
        "trial_id": row.trial_id,
        "name": row.name,
        "status": row.status,
        "iteration": row.iteration,
        "value": row.value,
        "params": row.config,
        "checkpoint": row.checkpoint,
        "checkpoint_iteration": row.checkpoint_iteration,
        "path": row.path,
        "run_time_s": row.run_time_s,
        "attempts": row.attempts,
        "failures": row.failures,
        "disruptions": row.disruptions,
        "error": row.error,
        "stop_reason": row.stop_reason,
        **({} if row.evaluation is None else {"repeats": row.evaluation._asdict()}),
    }


def front_data(view: ExperimentView) -> dict[str, Any]:
    """Return the objectives and the Pareto front; nothing for one metric."""
    if not view.objectives:
        return {}
    names = [each.name for each in view.objectives]
    return {
        "metrics": [msgspec.to_builtins(each) for each in view.objectives],
        "pareto_front": [
            {"trial_id": row.trial_id, "values": dict(zip(names, point, strict=True)), "config": row.config}
            for row, point in view.front
        ],
    }


def experiment_data(view: ExperimentView) -> dict[str, Any]:
    """Return an experiment as data, without its trials."""
    return {
        "name": view.name,
        "path": view.path,
        "metric": view.metric,
        "mode": view.mode,
        "state": view.state,
        "message": view.message,
        "total": view.total,
        "counts": view.counts,
        "results": view.results,
        "elapsed_s": view.elapsed_s,
        "best": trial_data(view.best) if view.best else None,
        **front_data(view),
    }


class JsonLinesDisplay:
    """Writes JSON lines.

    Args:
        stream: Where they go.
        now: A monotonic clock, in seconds.
        wall_clock: Seconds since the epoch.
    """

    detail = 0
    rows = 0
    interval_s = PROGRESS_S

    def __init__(
        self,
        stream: TextIO,
        *,
        now: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._out = LineWriter(stream)
        self._now = now
        self._wall_clock = wall_clock
        self._next_progress = now() + PROGRESS_S
        self._results = 0

    def start(self, view: ExperimentView) -> None:
        """Write the experiment's identity."""
        self._results = view.results
        self._write("started", {**experiment_data(view), "max_concurrent": view.max_concurrent})

    def update(self, view: ExperimentView) -> None:
        """Write a `progress` object when one is due and there are new results."""
        now = self._now()
        if now < self._next_progress or view.results == self._results:
            return
        self._next_progress = now + PROGRESS_S
        self._results = view.results
        self._write(
            "progress",
            {
                "counts": view.counts,
                "total": view.total,
                "results": view.results,
                "elapsed_s": view.elapsed_s,
                "trials_per_minute": view.trials_per_minute,
                "eta_s": view.eta_s,
                "best": trial_data(view.best) if view.best else None,
            },
        )

    def event(self, event: Event) -> None:
        """Write an event; its data stands under `data`."""
        body: dict[str, Any] = {"level": event.level, "message": event.message}
        if event.trial_id:
            body |= {"trial_id": event.trial_id, "trial_name": event.trial_name}
        self._write(event.kind, body | {"data": event.data})

    def output(self, output: TrialOutput) -> None:
        """Write what a trial printed."""
        body = {"trial_id": output.trial_id, "trial_name": output.trial_name, "pid": output.pid}
        self._write("output", {**body, "lines": output.lines})

    def finish(self, view: ExperimentView) -> None:
        """Write the outcome."""
        best = view.best
        self._write(
            "finished",
            {
                **experiment_data(view),
                "params": best.config if best else None,
                "checkpoint": best.checkpoint if best else None,
                "failures": [{"message": text, "trials": count} for text, count in _by_count(view.failures)],
            },
        )

    def close(self) -> None:
        """Nothing is held."""

    def _write(self, event: str, body: dict[str, Any]) -> None:
        record = {"event": event, "time": round(self._wall_clock(), 3), **body}
        self._out.line(json.dumps(strict(record), allow_nan=False))


def _by_count(failures: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(failures.items(), key=lambda item: (-item[1], item[0]))
