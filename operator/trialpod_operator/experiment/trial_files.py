"""The files of the trials that the operator's side writes: params.json, result.json, progress.csv, error.txt.

A TensorBoard event file is one of them when the package google-crc32c is installed.

They follow from the journal: results go to the journal first and to these files right after. After a crash the files
are cut back to where they were at the latest snapshot and written again from the journal's records, so no line is
ever missing or there twice. Where the files may be in a storage and not here, those that continue are fetched before:
`absent` says which, and `arrived` continues them. Until then what is to be added to them is kept here, and no
snapshot replaces the records that it follows from. Files that the records begin are begun then, too: opening a
thousand takes longer than replaying what is in them.

Results that cannot be written end no experiment: what is due stays buffered and is retried, a directory that
was removed is created again, and `warn` is called once per trial.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from trialpod.compat.activation import under_ray
from trialpod.errors import StorageError
from trialpod.protocol.values import open_leniently
from trialpod.storage.base import storage_error
from trialpod.storage.layout import ERROR_FILE, EVENT_FILE_PREFIX, PARAMS_FILE, RESULT_FILE, trial_dirname
from trialpod.storage.tensorboard import EventEncoder, crc32c, file_name
from trialpod.storage.trial_log import EventFile, TrialLog
from trialpod.tune.schedulers.trial_scheduler import TrialScheduler
from trialpod_operator.engine.trial import TERMINATED, Trial

Offsets = dict[str, int]

SLICE = 16
"""Number of trials whose files are written at a time: about 2 ms of CPU."""


class _Batch(NamedTuple):
    """Results of one report, and the static part of their lines."""

    static: dict[str, Any]
    results: list[dict[str, Any]]


class _Failure(NamedTuple):
    """A failure as ``error.txt`` has it; the head distinguishes it from the others."""

    number: int
    head: str
    text: str


class TrialFiles:
    """Keeps one `TrialLog` for each trial that has not ended. Owned by the experiment's `JournaledEngine`.

    Args:
        directory: the experiment's.
        trainable_name: for the names of the trials' directories.
        warn: takes a trial's id, and what is wrong with its files, in one sentence.
        host: for the names of event files; with `fetch` they name no host, as the trials move from one to another.
        fetch: brings files that are not here, by their paths in `directory`, from where they are kept; None where all
            of them are here.
    """

    def __init__(
        self,
        directory: Path,
        trainable_name: str,
        warn: Callable[[str, str], None] = lambda _id, _message: None,
        host: str = "",
        fetch: Callable[[list[str]], None] | None = None,
    ) -> None:
        self._directory = directory
        self._trainable_name = trainable_name
        self._warn = warn
        # A process on another host, where the records begin the files again, replaces the one in the storage.
        self._host = "trialpod" if fetch is not None else host or socket.gethostname()
        self._fetch = fetch
        self._warned: set[str] = set()
        self._logs: dict[str, TrialLog] = {}
        self._paths: dict[str, Path] = {}  # of those
        self._dirty: set[str] = set()
        self._unopened: dict[str, tuple[Trial, list[_Batch]]] = {}  # results of trials whose files are not open
        self._absent: dict[str, Trial] = {}  # trials whose files are not here yet
        self._failures: dict[str, list[_Failure]] = {}  # of those, to be added when they are
        self._incomplete: dict[str, Trial] = {}  # trials that have ended, and whose last lines are not written yet
        self._completed: list[Trial] = []  # those of them whose lines are written now
        self.dirnames: dict[str, str] = {}
        self.resumed: dict[str, Offsets] = {}  # where files that are not open continue

    def path(self, trial: Trial) -> Path:
        """Return the directory of a trial."""
        name = self.dirnames.get(trial.trial_id)
        return self._directory / (name or plain_dirname(self._trainable_name, trial))

    def create(self, trial: Trial, *, replayed: bool = False) -> None:
        """Make the directory of a new trial, with its parameters in it: without them it does not start.

        Args:
            trial: the new one.
            replayed: it was new when its record was written.

        Raises:
            StorageError: they cannot be written. On a full disk a run so ends before every trial has failed on it.
        """
        if replayed and self._fetch is not None:
            self._absent[trial.trial_id] = trial
            return
        self._open(trial)
        if under_ray():  # there from the start, as in Ray
            path = self.path(trial) / RESULT_FILE
            try:
                path.touch()
            except OSError as error:
                raise storage_error(error, "cannot write", path) from error

    def resume(self, trials: Iterable[Trial]) -> None:
        """Continue the files of trials that have not ended, as they were at the latest snapshot.

        Raises:
            StorageError: they cannot be read or written.
        """
        for trial in trials:
            if self._fetch is not None:
                self._absent[trial.trial_id] = trial
            else:
                self._open(trial)

    def absent(self) -> dict[str, list[str]]:
        """Return the files that are to be fetched, of each trial whose files are not open yet: maybe none.

        They are paths in the directory.
        """
        return {trial_id: self._needed(trial) for trial_id, trial in self._absent.items()}

    def waiting(self) -> set[str]:
        """Return the trials of which something waits for their files to be here: results, failures, or their end."""
        return self._absent.keys() & self._unopened.keys()

    def arrived(self, trial_ids: Iterable[str]) -> list[Trial]:
        """Continue files that were fetched; return the trials that have ended meanwhile."""
        ended = []
        for trial_id in trial_ids:
            trial = self._absent.pop(trial_id, None)
            if trial is None:
                continue
            self._unopened.setdefault(trial_id, (trial, []))
            self._open_now(trial_id, fetched=True)
            if trial.ended:
                self.ended(trial)
                ended.append(trial)
        return ended

    def attempt_started(self, trial: Trial) -> None:
        """Continue with another process: its pid and host stand in the lines from now on."""
        log = self._logs.get(trial.trial_id)
        if log is not None:
            try:
                log.update_static(static_fields(trial))
            except StorageError:
                self._dirty.add(trial.trial_id)
                self._flushed(trial.trial_id, log)

    def append(self, trial: Trial, results: list[dict[str, Any]]) -> None:
        """Add results to the trial's files; buffered until `flush`."""
        self._dirty.add(trial.trial_id)
        log = self._logs.get(trial.trial_id)
        if log is None:
            waiting = self._unopened.setdefault(trial.trial_id, (trial, []))[1]
            waiting.append(_Batch(static_fields(trial), results))
            self._open_now(trial.trial_id)
            return
        try:
            log.append(results, trial.nested)
        except StorageError as error:
            self._complain(trial.trial_id, error)

    def failed(self, trial: Trial) -> None:
        """Add the trial's latest failure to those that are written down; one that is there is replaced."""
        number = max(1, trial.failures)
        head = f"Failure # {number} (occurred at "
        moment = datetime.fromtimestamp(trial.decisions[-1].time if trial.decision_log else trial.ended_at)
        text = f"{head}{moment:%Y-%m-%d_%H-%M-%S}, attempt {trial.attempt})\n{trial.traceback or trial.error}\n"
        failure = _Failure(number, head, text)
        if trial.trial_id in self._absent or trial.trial_id in self._failures:
            self._unopened.setdefault(trial.trial_id, (trial, []))
            self._failures.setdefault(trial.trial_id, []).append(failure)
        else:
            self._add_failure(trial, failure)

    def ended(self, trial: Trial) -> None:
        """Complete the files of a trial; where they cannot be written now, `completed` tells when they are."""
        if trial.trial_id in self._absent:
            self._unopened.setdefault(trial.trial_id, (trial, []))
            return
        self._incomplete[trial.trial_id] = trial
        if not self._open_now(trial.trial_id):
            return
        log = self._logs.get(trial.trial_id)
        if log is not None and not self._flushed(trial.trial_id, log):
            self._dirty.add(trial.trial_id)
        else:
            del self._incomplete[trial.trial_id]
            if log is not None and trial.may_be_retried:
                self.resumed[trial.trial_id] = log.offsets()  # its user may have it retried
            self._dirty.discard(trial.trial_id)
            self._logs.pop(trial.trial_id, None)
            self._paths.pop(trial.trial_id, None)

    @property
    def incomplete(self) -> bool:
        """Whether files of trials that have ended lack lines, or `completed` has yet to return some."""
        return bool(self._incomplete or self._completed)

    def completed(self) -> list[Trial]:
        """Return the trials whose files were completed by a flush after their end; each once."""
        found, self._completed = self._completed, []
        return found

    def flush(self) -> None:
        """Write what is buffered to the operating system."""
        for _ in self.flush_in_slices():
            pass

    def flush_in_slices(self) -> Iterator[None]:
        """Do so with a few trials at a time: between two of the slices, results may come and trials may end."""
        for trial_id in list(self._unopened):
            self._open_now(trial_id)
        for number, trial_id in enumerate(list(self._dirty), 1):
            if self._flushed(trial_id, self._logs.get(trial_id)):
                self._dirty.discard(trial_id)
                self._complete_late(trial_id)
            if number % SLICE == 0:
                yield

    def _complete_late(self, trial_id: str) -> None:
        trial = self._incomplete.pop(trial_id, None)
        if trial is not None and trial.ended:  # else its user has had it retried
            self.ended(trial)
            if trial_id not in self._incomplete:
                self._completed.append(trial)

    def offsets(self) -> dict[str, Offsets]:
        """Return the lengths of the files of trials that may continue, after flushing them.

        Raises:
            StorageError: not everything could be written, so the journal must be kept.
        """
        for trial_id in list(self._unopened):
            if not self._open_now(trial_id):
                raise StorageError(f"the files of trial {trial_id} cannot be read at the moment")
        return self.resumed | {trial_id: log.offsets() for trial_id, log in self._logs.items()}

    def close(self) -> None:
        """Flush and close all files."""
        self.flush()
        self._logs.clear()
        self._dirty.clear()

    def _open_now(self, trial_id: str, *, fetched: bool = False) -> bool:
        """Write results that wait for their files; return whether none wait any more."""
        trial, waiting = self._unopened.get(trial_id, (None, []))
        if trial is None:
            return True
        if trial_id in self._absent:
            return False
        try:
            log = self._open(trial, fetched=fetched)
        except StorageError as error:
            self._complain(trial_id, error)
            return False
        del self._unopened[trial_id]
        self._dirty.add(trial_id)
        for batch in waiting:
            self._add(log, batch, trial)
        self._add(log, _Batch(static_fields(trial), []), trial)
        for failure in self._failures.pop(trial_id, []):
            self._add_failure(trial, failure)
        return True

    def _add(self, log: TrialLog, batch: _Batch, trial: Trial) -> None:
        try:
            log.update_static(batch.static)
        except StorageError as error:
            self._complain(trial.trial_id, error)
        try:
            log.append(batch.results, trial.nested)
        except StorageError as error:  # they stay in its buffer
            self._complain(trial.trial_id, error)

    def _add_failure(self, trial: Trial, failure: _Failure) -> None:
        path, text = self.path(trial), failure.text
        try:
            path.mkdir(parents=True, exist_ok=True)
            if failure.number > 1:
                with contextlib.suppress(FileNotFoundError):
                    before = (path / ERROR_FILE).read_text(errors="replace")
                    text = before.partition(failure.head)[0] + text
            (path / ERROR_FILE).write_text(text, errors="backslashreplace")
        except OSError as error:
            self._complain(trial.trial_id, storage_error(error, "cannot write", path / ERROR_FILE, len(text)))

    def _needed(self, trial: Trial) -> list[str]:
        """Return the files without which a trial's cannot continue where they were."""
        names = [name for name, length in self.resumed.get(trial.trial_id, {}).items() if length]
        names += [PARAMS_FILE] if names else []
        names += [ERROR_FILE] if trial.failures else []
        return [f"{self.path(trial).name}/{name}" for name in names]

    def _flushed(self, trial_id: str, log: TrialLog | None) -> bool:
        """Flush the files of a trial; return whether all is written."""
        if log is None:
            return True
        try:
            try:
                log.flush()
            except StorageError:
                folder = self._paths[trial_id]
                if folder.exists():
                    raise
                self._complain(
                    trial_id, StorageError(f"{folder} was removed while its trial ran; it is created again")
                )
                folder.mkdir(parents=True, exist_ok=True)
                log.flush()
        except OSError as error:
            self._complain(trial_id, storage_error(error, "cannot make the folder", self._paths[trial_id]))
            return False
        except StorageError as error:
            self._complain(trial_id, error)
            return False
        return True

    def _complain(self, trial_id: str, error: StorageError) -> None:
        if trial_id not in self._warned:
            self._warned.add(trial_id)
            self._warn(trial_id, str(error))

    def _open(self, trial: Trial, *, fetched: bool = False) -> TrialLog:
        path = self.path(trial)
        if self._fetch is not None and not fetched:
            self._fetch(self._needed(trial))
        offsets = self.resumed.get(trial.trial_id, {})
        log = TrialLog.resume(path, static_fields(trial), offsets, self._event_file(trial, path, offsets))
        self.resumed.pop(trial.trial_id, None)
        self._logs[trial.trial_id] = log
        self._paths[trial.trial_id] = path
        if log.is_replacing:
            self._dirty.add(trial.trial_id)
        for warning in log.warnings:
            self._warn(trial.trial_id, warning)
        return log

    @cached_property
    def _encoder(self) -> EventEncoder | None:
        checksum = crc32c()
        return EventEncoder(checksum) if checksum is not None else None

    def _event_file(self, trial: Trial, path: Path, offsets: Offsets) -> EventFile | None:
        if self._encoder is None:
            return None
        name = next((name for name in offsets if name.startswith(EVENT_FILE_PREFIX)), None)
        if name is None:
            name = file_name(trial.created_at, self._host)
            self._remove_other_event_files(trial, path, name)
        return EventFile(name, trial.created_at, self._encoder)

    def _remove_other_event_files(self, trial: Trial, path: Path, name: str) -> None:
        """Remove what this trial wrote before a crash on another machine: all of it is written again."""
        ours = file_name(trial.created_at, "").removesuffix("localhost")
        try:
            for other in os.listdir(path):
                if other.startswith(ours) and other != name:
                    os.unlink(path / other)
        except FileNotFoundError:
            return
        except OSError as error:
            self._complain(trial.trial_id, storage_error(error, "cannot remove an old event file in", path))


def plain_dirname(trainable_name: str, trial: Trial) -> str:
    """Return the default name of a trial's directory."""
    return trial_dirname(trainable_name, trial.trial_id, trial.first_tag or trial.tag, trial.created_at)


def static_fields(trial: Trial) -> dict[str, Any]:
    """Return what is the same in all results of an attempt, and is sent only once."""
    return {**trial.attempt_fields, "config": trial.shown_config}


def complete_result(trial: Trial) -> dict[str, Any]:
    """Return a trial's latest result as its user sees it: with its config, and ``done`` once it is complete.

    To be called in the user's own process: it opens the user's objects.
    """
    done = {"done": True} if trial.status == TERMINATED else {}
    result = open_leniently(trial.result)
    about = {"config": open_leniently(trial.params), "experiment_tag": trial.tag}
    return {**result, **done, **static_fields(trial), **about}


class PolicyFiles:
    """Writes the history of exploits, for schedulers that keep one (`policy_log`).

    A file is replaced as a whole, and holds the same again after a restart: its content follows from the scheduler's
    state. One that cannot be written ends no experiment; it is retried, and `warn` is called once.

    Args:
        directory: the experiment's.
        scheduler: whose history; any, also one that keeps none.
        warn: called with a sentence when a file cannot be written.

    Attributes:
        names: of the files that this process has written; replaced when another one comes, for other threads.
    """

    def __init__(self, directory: Path, scheduler: TrialScheduler, warn: Callable[[str], None]) -> None:
        self.names: frozenset[str] = frozenset()
        self._directory = directory
        self._scheduler = scheduler
        self._warn = warn
        self._warned = False
        self._written = 0  # exploits that are in the files

    def flush(self) -> None:
        """Bring the files up to date."""
        count = int(getattr(self._scheduler, "num_perturbations", 0) or 0)
        policy_log = getattr(self._scheduler, "policy_log", None)
        if count <= self._written or policy_log is None:
            return
        for name, lines in policy_log(self._written).items():
            if not self._write(name, lines):
                return
        self._written = count

    def _write(self, name: str, lines: list[str]) -> bool:
        path = self._directory / name
        text = "".join(f"{line}\n" for line in lines)
        passing = path.with_name(f".{path.name}.new")
        try:
            passing.write_text(text, encoding="utf-8")
            os.replace(passing, path)
            self.names |= {name}
        except OSError as error:
            with contextlib.suppress(OSError):
                passing.unlink()
            if not self._warned:
                self._warned = True
                self._warn(str(storage_error(error, "cannot write", path, len(text))))
            return False
        return True
