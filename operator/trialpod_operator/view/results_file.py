"""Reads single metrics out of a trial's ``result.json``, without decoding what else stands in its lines."""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from trialpod.protocol.nested import find, flatten_row
from trialpod.protocol.readable import real_number
from trialpod.tune.result_keys import TIME_TOTAL_S, TRAINING_ITERATION

Point = tuple[float, float, float]
"""Iteration, seconds that the trial had run, value."""

SAMPLE_BYTES = 2048
"""What is read for a line of a sample; longer lines have none."""

_NAMES = {"iteration": TRAINING_ITERATION, "time": TIME_TOTAL_S}


@lru_cache(maxsize=32)
def _decoder(metric: str) -> msgspec.json.Decoder[Any]:
    names = _NAMES | {"value": metric}
    if metric in (TRAINING_ITERATION, TIME_TOTAL_S):
        del names["value"]
    fields = [(field, Any, None) for field in names]
    group = metric.partition("/")[0]
    if group != metric and group not in names.values():
        names["group"] = group  # the dict that the metric may have been reported in
        fields.append(("group", Any, None))
    return msgspec.json.Decoder(msgspec.defstruct("Line", fields, rename=names, gc=False))


@lru_cache(maxsize=32)
def _number_decoder(metric: str) -> msgspec.json.Decoder[Any]:
    fields = [("iteration", int), ("time", float), ("value", float)]
    return msgspec.json.Decoder(msgspec.defstruct("Numbers", fields, rename=_NAMES | {"value": metric}, gc=False))


def read_columns(data: bytes, metric: str, limit: int) -> tuple[list[float], list[float], list[float]] | None:
    """Return iterations, times and values of a ``result.json`` whose lines all have the three as finite numbers.

    Half of the time of `read_points`, which does for every other file.

    Args:
        data: its content.
        metric: of the values.
        limit: the first so many lines.
    """
    if metric in (TRAINING_ITERATION, TIME_TOTAL_S):
        return None
    try:
        lines = _number_decoder(metric).decode_lines(data[: data.rfind(b"\n") + 1])[:limit]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return [line.iteration for line in lines], [line.time for line in lines], [line.value for line in lines]


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
    if "group" not in decoder.type.__struct_fields__:
        return [_point(line.iteration, line.time, getattr(line, name), at) for at, line in enumerate(lines)]
    group = metric.partition("/")[0]
    return [
        _point(
            line.iteration,
            line.time,
            find({metric: line.value} if line.value is not None else {group: line.group}, metric),
            at,
        )
        for at, line in enumerate(lines)
    ]


def sample_points(path: Path, metric: str, count: int) -> list[Point]:
    """Return points of about `count` lines at equal distances, without reading what is between them.

    Args:
        path: a ``result.json``.
        metric: of the values.
        count: how many lines, 2 or more.
    """
    lines = []
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        for at in range(count):
            start = max(0, size - SAMPLE_BYTES) * at // (count - 1)
            part = os.pread(file.fileno(), SAMPLE_BYTES, start)
            begin = part.find(b"\n") + 1 if start else 0  # a line that begins before is left out
            end = part.find(b"\n", begin)
            if end > 0:
                lines.append(part[begin:end])
    points = read_points(b"\n".join([*dict.fromkeys(lines), b""]), metric)
    return [point for point in points if point is not None]


def point_of(result: dict[str, Any], metric: str, number: int) -> Point | None:
    """Return the point of a result; `number` of it within its trial, from 0 on."""
    return _point(result.get(TRAINING_ITERATION), result.get(TIME_TOTAL_S), result.get(metric), number)


def _slow_point(line: bytes, metric: str) -> Point | None:
    try:
        result = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return point_of(flatten_row(result), metric, 0) if isinstance(result, dict) else None


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
