"""Experiments in the forms that other tools read: CSV, Parquet and Optuna's journal.

A file appears whole or not at all.
"""

from __future__ import annotations

import csv
import io
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialpod.errors import InvalidInputError
from trialpod.protocol.readable import readable
from trialpod.storage.base import storage_error
from trialpod_operator.display.view import TrialRow
from trialpod_operator.display.words import flatten, one_line

if TYPE_CHECKING:
    from trialpod_operator.view.model import ExperimentModel

ROW_KEYS = ("trial_id", "name", "status", "iteration", "run_time_s", "attempts", "failures", "disruptions")
FACTS = frozenset({*ROW_KEYS, "error", "checkpoint", "path"})
RESULT_PREFIX = "result/"
"""What stands before a key of a result where there is a fact of the same name."""


def records(rows: Sequence[TrialRow]) -> list[dict[str, Any]]:
    """Return a flat record of each trial: facts, parameters (``config/lr``) and the keys of its last result.

    A key of a result with the name of a fact is ``result/error``; `trial_id`, which is the same, is there once.
    """
    found = []
    for row in rows:
        record: dict[str, Any] = {key: getattr(row, key) for key in ROW_KEYS}
        record |= {"error": one_line(row.error), "checkpoint": row.checkpoint, "path": row.path}
        record |= {f"config/{key}": value for key, value in flatten(row.config).items()}
        for key, value in row.last_result.items():
            if key != "trial_id":
                record.setdefault(f"{RESULT_PREFIX}{key}" if key in FACTS else key, value)
        found.append(record)
    return found


def results_csv(rows: Sequence[TrialRow]) -> str:
    """Return rows as CSV: one column per fact, parameter (``config/lr``) and key of the last result."""
    listed = records(rows)
    header: dict[str, None] = {}
    for record in listed:
        header.update(dict.fromkeys(record))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(header) or list(ROW_KEYS), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(listed)
    return text.getvalue().rstrip("\n")


def write_csv(rows: Sequence[TrialRow], file: Path) -> None:
    """Write rows as CSV.

    Raises:
        StorageError: the file cannot be written.
    """
    _write_whole(file, lambda path: path.write_text(results_csv(rows) + "\n", encoding="utf-8"))


def write_parquet(rows: Sequence[TrialRow], file: Path) -> None:
    """Write rows as Parquet: the columns of the CSV, each with one type; what has several becomes text.

    Raises:
        StorageError: the file cannot be written.
    """
    import pyarrow as pa
    from pyarrow import parquet

    listed = records(rows)
    names: dict[str, None] = {}
    for record in listed:
        names.update(dict.fromkeys(record))
    columns = {name: _column([record.get(name) for record in listed]) for name in names or dict.fromkeys(ROW_KEYS)}
    table = pa.table(columns)
    _write_whole(file, lambda path: parquet.write_table(table, path))


def _column(values: list[Any]) -> list[Any]:
    """Return values of one type that Parquet has: integers of 64 bits, floats, texts, bools, bytes."""
    plain = [readable(value) for value in values]
    kinds = {type(value) for value in plain if value is not None}
    limit = 2**53 if float in kinds else 2**63  # as a float it would be another number
    if kinds <= {int, float} and all(-limit <= value < limit for value in plain if isinstance(value, int)):
        return [None if value is None else float(value) for value in plain] if float in kinds else plain
    if len(kinds) <= 1 and kinds <= {str, bool, bytes}:
        return plain
    return [None if value is None else str(value) for value in plain]


def write_optuna_journal(model: ExperimentModel, file: Path) -> None:
    """Write an experiment as a study of Optuna's `JournalStorage`, which its dashboard and editors open.

    Raises:
        InvalidInputError: the experiment has no metric.
        StorageError: the file cannot be written.
    """
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.study import StudyDirection

    from trialpod_operator.view.optuna_trials import frozen_trials

    summary = model.summary()
    if summary["metric"] is None:
        raise InvalidInputError(
            f"{model.location.uri} has no metric, which a study of Optuna needs; --csv and --parquet do without one"
        )

    def write(path: Path) -> None:
        path.unlink()
        storage = JournalStorage(JournalFileBackend(str(path)))
        direction = StudyDirection.MAXIMIZE if summary["mode"] == "max" else StudyDirection.MINIMIZE
        study = storage.create_new_study([direction], summary["name"])
        storage.set_study_user_attr(study, "metric", summary["metric"])
        for trial in frozen_trials(model):
            storage.create_new_trial(study, trial)

    _write_whole(file, write)


def _write_whole(file: Path, write: Callable[[Path], object]) -> None:
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        os.close(descriptor)
        temporary = Path(name)
        try:
            write(temporary)
            temporary.chmod(0o644)
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise storage_error(error, "cannot write", file) from error
