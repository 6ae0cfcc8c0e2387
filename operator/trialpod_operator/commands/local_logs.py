"""`trialpod logs` of a trial on this machine or in a bucket: its log.txt, with the output of all its attempts."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

from trialpod.errors import InvalidInputError, TrialpodError
from trialpod.storage.base import KeyMissingError
from trialpod.storage.layout import LOG_FILE
from trialpod.storage.registry import local_folder, open_storage
from trialpod_operator.commands.explain import find
from trialpod_operator.local.reading import reading
from trialpod_operator.local.running import activity

POLL_INTERVAL_S = 0.5
STATE_INTERVAL_S = 2.0
"""How often the journal is read for whether the trial has ended."""
BLOCK = 1 << 16


def run(place: str, trial: str, options: argparse.Namespace) -> int:
    """Print the log of a trial of the experiment at a place."""
    if options.rank:
        raise InvalidInputError(f"--rank {options.rank}: a trial has one process here; ranks are pods of a cluster")
    if options.tail is not None and options.tail < 0:
        raise InvalidInputError(f"--tail {options.tail}: must be 0 or more")
    with reading(place) as experiment:
        known = list(experiment.engine.state.trials.values())
        if not trial and len(known) != 1:
            raise InvalidInputError(
                f"{place} has {len(known)} trials; name one by its number or id, such as: trialpod logs {place} 0"
            )
        found = find(experiment, trial) if trial else known[0]
        path, trial_id, ended = experiment.path(found), found.trial_id, found.ended
    if local_folder(place) is None:
        try:
            folder, _, name = path.rpartition("/")
            data = open_storage(folder).read(f"{name}/{LOG_FILE}")
        except KeyMissingError:
            raise _nothing(trial_id, ended=ended) from None
        return write(data.splitlines(keepends=True), sys.stdout.buffer, options.tail)
    log = Path(path, LOG_FILE)
    if options.follow:
        return follow(log, sys.stdout.buffer, lambda: _is_over(place, trial_id))
    try:
        if not log.stat().st_size:
            raise _nothing(trial_id, ended=ended)
        with log.open("rb") as lines:
            return write(lines, sys.stdout.buffer, options.tail)
    except FileNotFoundError:
        raise _nothing(trial_id, ended=ended) from None


def write(lines: Iterable[bytes], out: IO[bytes], tail: int | None) -> int:
    """Write lines, or the last of them, with an end of line after the last one."""
    last = b"\n"
    for line in lines if tail is None else deque(lines, maxlen=tail):
        out.write(line)
        last = line
    if not last.endswith(b"\n"):
        out.write(b"\n")
    out.flush()
    return 0


def follow(
    log: Path,
    out: IO[bytes],
    is_over: Callable[[], bool],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Write a log as it grows, until the trial has ended or nobody runs it.

    Args:
        log: the file; it need not be there yet.
        out: where to.
        is_over: whether nothing comes any more.
        clock: seconds, monotonic.
        sleep: waits some seconds.
    """
    offset = 0
    asked_at = clock() - STATE_INTERVAL_S
    while True:
        over = False
        if clock() - asked_at >= STATE_INTERVAL_S:
            over, asked_at = is_over(), clock()
        offset = _copy(log, offset, out)
        if over:
            return 0
        sleep(POLL_INTERVAL_S)


def _copy(log: Path, offset: int, out: IO[bytes]) -> int:
    """Write what is in the file from an offset on; return its end."""
    try:
        with log.open("rb") as file:
            if os.fstat(file.fileno()).st_size < offset:  # emptied: a retry from scratch
                offset = 0
            file.seek(offset)
            while data := file.read(BLOCK):
                out.write(data)
                offset += len(data)
    except FileNotFoundError:
        return 0
    out.flush()
    return offset


def _is_over(place: str, trial_id: str) -> bool:
    runs = activity(Path(place)).runs
    with reading(place) as experiment:
        trial = experiment.engine.state.trials.get(trial_id)
        return not runs or trial is None or trial.ended


def _nothing(trial_id: str, *, ended: bool) -> TrialpodError:
    what = "it printed nothing" if ended else "it has not started yet, or has printed nothing; -f waits for it"
    return TrialpodError(f"there is no output of {trial_id}: {what}")
