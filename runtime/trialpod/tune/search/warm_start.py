"""Reads what earlier experiments found out, for searchers to begin with."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from trialpod.errors import InvalidInputError
from trialpod.protocol.nested import flatten_row
from trialpod.storage.layout import RESULT_FILE

if TYPE_CHECKING:
    from trialpod.storage.base import Storage

logger = logging.getLogger(__name__)

THE_RESULTS = "the results"
"""What messages call trials that are not those of a place."""

_LAST_BYTES = 64 * 1024
"""The last result of a trial is usually in so much of its file's end."""


class LearnsFromPoints(Protocol):
    """What a searcher needs to be warmed up."""

    @property
    def metric(self) -> Any:
        """The metric, or the metrics, that it optimises; None where it does not know yet."""
        ...

    @property
    def open_earlier(self) -> Callable[[str], Storage] | None:
        """What opens an earlier experiment; None for what this process can open."""
        ...

    def add_evaluated_point(self, parameters: dict[str, Any], value: Any, error: bool = False) -> None:
        """Learn from a config that was evaluated elsewhere."""
        ...


class Row(NamedTuple):
    """A trial of an earlier experiment: its config, its last result, and whether it failed."""

    config: dict[str, Any]
    result: dict[str, Any]
    failed: bool = False


def add_experiment(searcher: LearnsFromPoints, location: str | os.PathLike[str], metric: Any = None) -> int:
    """Give a searcher the trials of the experiment at `location`; return how many it could use."""
    return add_rows(searcher, read_experiment(location, searcher.open_earlier), metric, os.fspath(location))


def read_experiment(location: str | os.PathLike[str], opener: Callable[[str], Storage] | None = None) -> list[Row]:
    """Return the trials of the experiment at `location` that have reported, in the order of their folders.

    Args:
        location: its directory or its URI, or what `opener` takes.
        opener: returns the storage of an experiment; None opens what this process can.

    Raises:
        InvalidInputError: there is no experiment.
        StorageError: it cannot be read.
    """
    from trialpod.storage.layout import TRIALPOD_DIR
    from trialpod.tune.location.locations import experiment_location

    text = os.fspath(location)
    storage = experiment_location(text).storage() if opener is None else opener(text)
    sizes = storage.sizes()
    if not any(key.startswith(f"{TRIALPOD_DIR}/") for key in sizes):
        raise InvalidInputError(
            f"warm start: there is no experiment at {text}; give its directory or its URI, s3://bucket/prefix/name",
            parameter="warm_start",
        )
    rows: list[Row] = []
    damaged = []
    for key in sorted(sizes):
        folder, _, name = key.rpartition("/")
        if name == RESULT_FILE and "/" not in folder and sizes[key]:
            row = _last_row(_end_of(storage, key, sizes[key])) or _last_row(storage.read(key))
            if row is not None and isinstance(row.get("config"), dict):
                rows.append(Row(row["config"], row))
            else:
                damaged.append(key)
    if damaged:
        logger.warning(
            "warm start from %s: %d result files are damaged and left out, such as %s",
            text, len(damaged), damaged[0],
        )  # fmt: skip
    return rows


def _end_of(storage: Storage, key: str, size: int) -> bytes:
    return storage.read_range(key, max(0, size - _LAST_BYTES), min(size, _LAST_BYTES))


def add_results(searcher: LearnsFromPoints, results: Any, metric: Any = None) -> int:
    """Give a searcher what `rows_of` takes; return how many trials it could use."""
    return add_rows(searcher, rows_of(results), metric, THE_RESULTS)


def rows_of(results: Any) -> list[Row]:
    """Return the trials of a `ResultGrid`, an `ExperimentAnalysis`, or a list of `Result` or of trials."""
    return [_row_of(each) for each in getattr(results, "trials", results)]


def _row_of(given: Any) -> Row:
    if hasattr(given, "last_result"):  # a trial
        return Row(given.config or {}, flatten_row(given.last_result or {}), failed=given.status == "ERROR")
    return Row(given.config or {}, dict(given.metrics), failed=getattr(given, "error", None) is not None)


def usable_rows(rows: list[Row], metric: Any) -> list[tuple[Row, list[Any]]]:
    """Return the trials that have a number of each metric, or failed, and these values."""
    names = list(metric) if isinstance(metric, (list, tuple)) else [metric]
    found = [(row, [row.result.get(name) for name in names]) for row in rows]
    return [(row, values) for row, values in found if row.failed or all(map(_is_number, values))]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def add_rows(searcher: LearnsFromPoints, rows: list[Row], metric: Any, where: str) -> int:
    """Give a searcher trials, and leave out with a warning what it cannot use; return how many it could.

    Args:
        searcher: the searcher.
        rows: the trials.
        metric: its name there, or the names; None takes the searcher's.
        where: what the trials are of, for messages.

    Raises:
        InvalidInputError: no metric is known.
    """
    metric = metric or searcher.metric
    if not metric:
        raise InvalidInputError(f"warm start from {where}: say which metric counts, by metric=", parameter="metric")
    used = 0
    for row, values in usable_rows(rows, metric):
        further = {"error": True} if row.failed else {}
        try:
            searcher.add_evaluated_point(row.config, values if len(values) > 1 else values[0], **further)
        except InvalidInputError as error:
            logger.debug("warm start from %s leaves a trial out: %s", where, error)
            continue
        used += 1
    if used < len(rows):
        logger.warning(
            "warm start from %s: %d of %d trials have the metric %s and a config of this search space",
            where, used, len(rows), ", ".join(metric) if isinstance(metric, (list, tuple)) else metric,
        )  # fmt: skip
    return used


def _last_row(data: bytes) -> dict[str, Any] | None:
    for line in reversed(data.splitlines()):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue  # a last line that was being written when the trial was killed
        if isinstance(row, dict):
            return flatten_row(row)
    return None
