"""Reads single metrics out of a trial's ``result.json``, without decoding what else stands in its lines."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import msgspec

from trialpod.protocol.readable import real_number
from trialpod.tune.result_keys import TIME_TOTAL_S, TRAINING_ITERATION

Point = tuple[float, float, float]
"""Iteration, seconds that the trial had run, value."""


@lru_cache(maxsize=32)
def _decoder(metric: str) -> msgspec.json.Decoder[Any]:
    fields = [("iteration", Any, None), ("time", Any, None), ("value", Any, None)]
    names = {"iteration": TRAINING_ITERATION, "time": TIME_TOTAL_S, "value": metric}
    if metric in (TRAINING_ITERATION, TIME_TOTAL_S):
        del names["value"]
        fields.pop()
    return msgspec.json.Decoder(msgspec.defstruct("Line", fields, rename=names, gc=False))


def read_points(data: bytes, metric: str) -> list[Point | None]:
    """Return a point for each whole line of a ``result.json``; None for one without a number under `metric`."""
    data = data[: data.rfind(b"\n") + 1]
    decoder = _decoder(metric)
    try:
        lines = decoder.decode_lines(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # NaN and the infinities, which are not JSON, or a damaged line: that one alone is left out.
        return [_slow_point(line, metric) for line in data.splitlines()]
    name = {TRAINING_ITERATION: "iteration", TIME_TOTAL_S: "time"}.get(metric, "value")
    return [_point(line.iteration, line.time, getattr(line, name), at) for at, line in enumerate(lines)]


def point_of(result: dict[str, Any], metric: str, number: int) -> Point | None:
    """Return the point of a result; `number` of it within its trial, from 0 on."""
    return _point(result.get(TRAINING_ITERATION), result.get(TIME_TOTAL_S), result.get(metric), number)


def _slow_point(line: bytes, metric: str) -> Point | None:
    try:
        result = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return point_of(result, metric, 0) if isinstance(result, dict) else None


def _point(iteration: Any, time: Any, value: Any, number: int) -> Point | None:
    found = value if value.__class__ is float else real_number(value)
    if found is None:
        return None
    x = iteration if iteration.__class__ is int else number + 1
    return float(x), float(time) if isinstance(time, (int, float)) else 0.0, _float(found)


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
