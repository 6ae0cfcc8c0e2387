"""Checks the files of a trial against its history: ``result.json`` has each result that counts once, in order.

Pure: the files come as bytes. The journal is written first, so while a trial continues a file may end before the
journal does; the copy of a file in a bucket may also be newer than that of the journal.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from trialpod.protocol.nested import flatten_row
from trialpod.protocol.values import readable, results_decoder
from trialpod.storage.layout import PROGRESS_FILE, RESULT_FILE
from trialpod_operator.experiment.fsck.findings import Findings

STATIC = ("trial_id", "experiment_id", "experiment_tag", "pid", "hostname", "node_ip", "config")
"""Keys of a line that the parent adds to a result, now or in files of version 1: they tell nothing of the result."""

_AGAIN = "restart the experiment; the lines are regenerated"
_COPY = "put the file back from a copy; a snapshot has replaced these results in the journal"


@dataclass
class TrialResults:
    """What the history says that is in the files of a trial.

    Attributes:
        results: MessagePack of each since the snapshot, in order.
        before: how many there were before.
        offset: where in result.json the first of `results` begins; None when that is not known.
        final: the trial is over and so is the experiment, so nothing will be written any more.
        ended: the trial is over.
        copied: the files are copies, which may be newer or older than the journal's copy.
        last: MessagePack of the last result; b"" when there is none.
    """

    trial_id: str
    results: Sequence[msgspec.Raw]
    before: int
    offset: int | None
    final: bool
    ended: bool
    copied: bool
    last: bytes = b""


def check_results(trial: TrialResults, data: bytes | None, findings: Findings) -> int:
    """Compare ``result.json`` with the history; return how many whole lines it has.

    Args:
        trial: what must be in it.
        data: the file; None if there is none.
        findings: takes what is found.
    """
    name, expected = trial.trial_id, trial.before + len(trial.results)
    if data is None:
        if expected:
            _behind(trial, 0, expected, findings, f"there is no {RESULT_FILE}")
        return 0
    whole, _, torn = data.rpartition(b"\n")
    lines = whole.split(b"\n") if whole else []
    if trial.offset is None:
        skip = min(trial.before, len(lines))
    else:
        skip = data[: trial.offset].count(b"\n")
        if len(data) < trial.offset or skip != trial.before:
            findings.error(
                "results",
                f"{RESULT_FILE} has {skip:,} of the {trial.before:,} results that it had at the latest snapshot",
                name,
                _COPY,
            )
    for number, line in enumerate(lines[:skip], 1):
        if _parsed(line) is None:
            findings.error("results", f"line {number} of {RESULT_FILE} is not a result", name, _COPY)
            return len(lines)
    for number, (line, raw) in enumerate(zip(lines[skip:], trial.results, strict=False), skip + 1):
        problem = _difference(line, results_decoder.decode(raw), name)
        if problem:
            findings.error("results", f"line {number} of {RESULT_FILE} {problem}", name, _AGAIN)
            return len(lines)
    if lines and trial.last and len(lines) == expected and not trial.results:
        problem = _difference(lines[-1], results_decoder.decode(trial.last), name)
        if problem:
            findings.error("results", f"the last line of {RESULT_FILE} {problem}", name, _COPY)
    if torn:
        (findings.error if trial.final else findings.note)(
            "results", f"{RESULT_FILE} ends within a line", name, _AGAIN
        )
    if len(lines) < expected:
        _behind(trial, len(lines), expected, findings, f"{RESULT_FILE} has {len(lines):,} results")
    elif len(lines) > expected:
        counts = f"{RESULT_FILE} has {len(lines):,} results, but the journal has {expected:,}"
        if trial.ended or not trial.copied:
            findings.error("results", counts, name, "results are missing from the journal; put it back from a copy")
        else:
            findings.note("results", f"{counts}: the file was copied later", name)
    return len(lines)


def check_progress(trial: TrialResults, data: bytes | None, results: int, findings: Findings) -> None:
    """Compare the number of rows of ``progress.csv`` with that of ``result.json``, once the trial is over."""
    if not trial.final or (data is None and not results):
        return
    try:
        text = (data or b"").decode("utf-8", errors="replace")
        rows = max(0, sum(1 for _ in csv.reader(io.StringIO(text, newline=""))) - 1)
    except csv.Error as error:
        findings.error("results", f"{PROGRESS_FILE} cannot be read: {error}", trial.trial_id, _AGAIN)
        return
    if rows != results:
        findings.error(
            "results", f"{PROGRESS_FILE} has {rows:,} rows, {RESULT_FILE} {results:,}", trial.trial_id, _AGAIN
        )


def _behind(trial: TrialResults, lines: int, expected: int, findings: Findings, counts: str) -> None:
    what = f"{counts}, but the journal has {expected:,}"
    lost = lines < trial.before
    if lost or trial.final:
        findings.error("results", what, trial.trial_id, _COPY if lost else _AGAIN)
    elif trial.ended:
        findings.warning("results", what, trial.trial_id, _AGAIN)
    else:
        findings.note("results", f"{what}: the rest is not written yet", trial.trial_id)


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _difference(line: bytes, result: Mapping[str, Any], trial_id: str) -> str:
    found = _parsed(line)
    if found is None:
        return "is not a result"
    if found.get("trial_id") != trial_id:
        return f"is of trial {found.get('trial_id')}"
    wanted = flatten_row({key: _plain(value) for key, value in result.items() if key not in STATIC})
    shown = flatten_row({key: value for key, value in found.items() if key not in STATIC})
    if shown.get("done") is True and wanted.get("done") is False:
        del shown["done"], wanted["done"]  # the engine stopped the trial at this result
    for key in sorted(wanted.keys() | shown.keys()):
        if key not in shown:
            return f"lacks {key}"
        if key not in wanted:
            return f"has {key}, which the result has not"
        if not _same(wanted[key], shown[key]):
            return f"has {key}={shown[key]!r:.60}, but the result has {wanted[key]!r:.60}"
    return ""


def _plain(value: Any) -> Any:
    kinds = (bool, int, float, str, bytes, list, tuple, dict, type(None))
    return value if isinstance(value, kinds) else readable(value)


def _same(value: Any, found: Any) -> bool:
    """Return whether `found` is what a result's value is as JSON."""
    value = _plain(value)
    if isinstance(value, float):
        return isinstance(found, (int, float)) and (value == found or (value != value and found != found))
    if value is None or isinstance(value, (bool, int, str)):
        return bool(value == found) and (found is None) == (value is None)
    if isinstance(value, (list, tuple)):
        return (
            isinstance(found, list)
            and len(value) == len(found)
            and all(_same(mine, theirs) for mine, theirs in zip(value, found, strict=True))
        )
    if isinstance(value, dict):
        keys = {key if isinstance(key, str) else _key(key): item for key, item in value.items()}
        return isinstance(found, dict) and keys.keys() == found.keys() and all(_same(keys[k], found[k]) for k in keys)
    return bool(found == repr(value))


def _key(key: Any) -> str:
    return json.dumps(key) if key is None or isinstance(key, (bool, int, float)) else str(key)
