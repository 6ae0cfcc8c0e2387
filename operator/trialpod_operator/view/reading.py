"""Reads an experiment from its directory without changing anything, and finds the process that runs it, if any."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.storage.base import Storage, storage_error
from trialpod.storage.journal.follower import JournalFollower
from trialpod.storage.layout import JOURNAL_DIR, TRIALPOD_DIR
from trialpod.storage.lock import LockOwner, is_lock_user, lock_users, read_owner
from trialpod.storage.registry import local_folder, normalize_uri, open_storage
from trialpod_operator.display.engine_view import build_row, build_view
from trialpod_operator.display.view import ExperimentView, TrialRow
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.trial import Trial
from trialpod_operator.experiment.replica.journal_copy import JournalCopy
from trialpod_operator.experiment.stored import read_stored
from trialpod_operator.view.recorded_engine import RecordedEngine
from trialpod_operator.view.rerun import rerun_command


class ReadExperiment:
    """The state of an experiment as its journal tells it.

    Args:
        directory: where the journal is.
        uri: where the experiment is, when the directory is a passing copy of its journal.
        fetch: brings that copy up to date.

    Raises:
        InvalidInputError: `directory` holds no experiment.
        JournalError: its journal is damaged, or of a newer version.
    """

    def __init__(self, directory: Path, uri: str = "", fetch: Callable[[], None] = lambda: None) -> None:
        stored = stored_document(directory)
        self.directory = directory
        self.location = uri or str(directory)
        self.name: str = stored.get("name", directory.name)
        # Where it is stored when that is not `directory`.
        # A copied bucket has its checkpoints beside it, so its own URI wins over the recorded one.
        self.storage_uri: str = uri or stored.get("storage", "")
        self._recorded = RecordedEngine(self.name, stored.get("total"))
        self._follower = JournalFollower(directory / TRIALPOD_DIR / JOURNAL_DIR)
        self._fetch = fetch
        self._recorded.apply(self._follower.poll())

    @property
    def engine(self) -> Engine:
        """Its state, as of the last `refresh`."""
        return self._recorded.engine

    def refresh(self) -> None:
        """Take in what has been written since; only that is read.

        Raises:
            JournalError: the journal is damaged.
            StorageError: it cannot be read.
        """
        self._fetch()
        self._recorded.apply(self._follower.poll())

    def path(self, trial: Trial) -> str:
        """Return the directory of a trial, or its URI."""
        return f"{self.location}/{self._recorded.dirname(trial)}"

    def checkpoint_uri(self, trial: Trial) -> str:
        """Return where the trial's checkpoints are, when that is not its directory; else ""."""
        return f"{self.storage_uri}/{self._recorded.dirname(trial)}" if self.storage_uri else ""

    def trial_name(self, trial: Trial) -> str:
        """Return the readable name of a trial."""
        return self._recorded.trial_name(trial)

    def view(self, rows: int | None, now: float) -> ExperimentView:
        """Return the experiment for display, with at most `rows` trials (None = all)."""

        def row(trial: Trial) -> TrialRow:
            return build_row(
                trial,
                path=self.path(trial),
                name=self.trial_name(trial),
                now=now,
                checkpoints=self.checkpoint_uri(trial),
            )

        return build_view(self.engine, self._recorded.settings, path=self.location, now=now, rows=rows, row=row)


def read_view(location: str | Path, *, rows: int | None, storage: Storage | None = None) -> ExperimentView:
    """Return an experiment for display.

    Args:
        location: its directory, or the URI where it is kept ("s3://bucket/prefix/name").
        rows: at most so many trials; None = all.
        storage: that of a URI, when it is open already.
    """
    with reading(location, storage) as experiment:
        return experiment.view(rows, time.time())


@contextlib.contextmanager
def reading(location: str | Path, storage: Storage | None = None) -> Iterator[ReadExperiment]:
    """Yield the experiment in a directory or at a URI.

    Args:
        location: the directory, or the URI.
        storage: that of a URI, when it is open already; None opens it with this process's keys.

    Raises:
        InvalidInputError: there is none.
        StorageError: the storage cannot be read.
    """
    location = normalize_uri(str(location))
    folder = local_folder(location)
    if folder is not None:
        yield ReadExperiment(folder)
        return
    uri = location.rstrip("/")
    storage = open_storage(uri) if storage is None else storage
    with tempfile.TemporaryDirectory(prefix="trialpod-") as copy:
        directory = Path(copy)
        journal = JournalCopy(storage, directory)
        journal.refresh()
        yield ReadExperiment(directory, uri, journal.refresh)


def is_experiment(path: Path) -> bool:
    """Return whether a directory holds an experiment; one that this process may not look into does not."""
    return os.path.isdir(path / TRIALPOD_DIR)  # Path.is_dir raises PermissionError


def experiments_below(folder: Path) -> list[Path]:
    """Return the directories in a folder that hold experiments, by name.

    Raises:
        StorageError: the folder cannot be listed.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise storage_error(error, "cannot list", folder) from error
    return [folder / name for name in names if is_experiment(folder / name)]


def stored_document(directory: Path) -> dict[str, Any]:
    """Return what is stored of an experiment beside its journal.

    Raises:
        InvalidInputError: the directory holds none.
    """
    stored = read_stored(directory)
    if stored is not None:
        return stored
    if not directory.exists():
        raise InvalidInputError(f"{directory} does not exist")
    below = [child.name for child in experiments_below(directory)] if directory.is_dir() else []
    if below:
        shown = ", ".join(below[:10]) + (f" and {len(below) - 10} more" if len(below) > 10 else "")
        raise InvalidInputError(
            f"{directory} is not an experiment, but has some in it: {shown}; name one, e.g. {directory / below[0]}"
        )
    raise InvalidInputError(
        f"{directory} is not an experiment (it has no {TRIALPOD_DIR} folder); give the directory that "
        "`trialpod run` printed"
    )


RUNNING = "Running"
INTERRUPTED = "Interrupted"
"""The state of an experiment that has work left and no process that does it."""


@dataclass(frozen=True, slots=True)
class Activity:
    """The processes of an experiment's directory.

    Attributes:
        holder: the process that took its lock last; None when none did.
        runs: whether that process still runs it.
        orphans: processes that it started and that still run although it has ended.
        known: whether this machine can tell; it cannot of an experiment in a bucket.
    """

    holder: LockOwner | None
    runs: bool
    orphans: tuple[int, ...] = ()
    known: bool = True

    @property
    def command(self) -> str:
        """The command line that runs it again as it ran last, for people; empty when it is not known."""
        return rerun_command(self.holder)

    @property
    def retry_command(self) -> str:
        """The same, and what has failed is retried; empty when `trialpod run` did not run it."""
        return rerun_command(self.holder, ["--retry-failed"])

    @property
    def other_host(self) -> str:
        """The host that ran it last, when that is another one; nothing is known of its processes."""
        host = self.holder.host if self.holder is not None else ""
        return "" if host == socket.gethostname() else host


def activity(directory: Path, *, orphans: bool = True) -> Activity:
    """Return the process that runs the experiment in a directory.

    Args:
        directory: the experiment's.
        orphans: look for them too, if that process has ended: at every descriptor of every process.
    """
    holder = read_owner(directory)
    runs = holder is not None and holder.host == socket.gethostname() and is_lock_user(directory, holder.pid)
    return Activity(holder, runs, tuple(lock_users(directory)) if orphans and not runs else ())


def live_view(location: str, *, rows: int | None, orphans: bool = True) -> tuple[ExperimentView, Activity]:
    """Return an experiment as it is: one with work left that no process runs is interrupted.

    Args:
        location: its directory, or the URI where it is kept, of which this machine has no processes.
        rows: at most so many trials; None = all.
        orphans: as for `activity`.
    """
    found = activity_at(location, orphans=orphans)
    with reading(location) as experiment:
        return current_view(experiment, found, rows, time.time()), found


def activity_at(location: str, *, orphans: bool = True) -> Activity:
    """Return the process that runs an experiment.

    Call it before reading: otherwise an experiment that ends in between looks interrupted.
    """
    folder = local_folder(location)
    return Activity(None, runs=False, known=False) if folder is None else activity(folder, orphans=orphans)


def current_view(experiment: ReadExperiment, found: Activity, rows: int | None, now: float) -> ExperimentView:
    """Return what is recorded of an experiment, corrected by what this machine's processes say.

    Args:
        experiment: what is recorded.
        found: the process that runs it, asked for before it was read.
        rows: at most so many trials; None = all.
        now: in seconds since the epoch. The time of an interrupted experiment ends with its latest record.
    """
    view = experiment.view(rows, now)
    if view.state != RUNNING or found.runs or found.other_host or not found.known:
        return view
    view = experiment.view(rows, experiment.engine.state.clock.now)
    counts = dict(view.counts)
    counts["PENDING"] = counts.get("PENDING", 0) + counts.get("RUNNING", 0)
    counts["RUNNING"] = 0
    changed = [dataclasses.replace(row, status="PENDING") if row.status == "RUNNING" else row for row in view.rows]
    message = "no process runs it"
    return dataclasses.replace(view, state=INTERRUPTED, message=message, counts=counts, rows=changed, eta_s=None)
