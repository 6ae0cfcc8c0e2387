"""Experiments in the forms that other tools read: CSV, Parquet and Optuna's journal."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from trialpod_operator.display.view import TrialRow
from trialpod_operator.display.words import flatten, one_line

ROW_KEYS = ("trial_id", "name", "status", "iteration", "run_time_s", "attempts", "failures", "disruptions")


def records(rows: Sequence[TrialRow]) -> list[dict[str, Any]]:
    """Return a flat record of each trial: facts, parameters (``config/lr``) and the keys of its last result."""
    found = []
    for row in rows:
        record: dict[str, Any] = {key: getattr(row, key) for key in ROW_KEYS}
        record |= {"error": one_line(row.error), "checkpoint": row.checkpoint, "path": row.path}
        record |= {f"config/{key}": value for key, value in flatten(row.config).items()}
        record |= {key: value for key, value in row.last_result.items() if key not in record}
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
