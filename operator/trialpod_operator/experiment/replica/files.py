"""The copies of an experiment's files in its storage: those of the trials, and those beside them.

* A file is replaced as a whole, and only in the version that is known here (`SharedFiles`). So no process that was
  replaced puts back what they were before.
* ``experiment.json`` comes first. It is never written again when it was there and is gone, or is another
  experiment's: the experiment has been deleted then.
* A file that is here is complete: it was fetched, or it was written here from its beginning. One that is not here may
  be in the storage; nothing is ever written here in its place before it was looked for there.

Several threads may `send` and `fetch`; of one file the versions come one after the other, and none that is older than
the last. What else brings files is for one thread, before that.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from trialpod.protocol.output import not_in
from trialpod.storage.base import KeyMissingError, Storage
from trialpod.storage.layout import (
    CALLBACKS_FILE,
    ERROR_FILE,
    EVENT_FILE_PREFIX,
    EXPERIMENT_FILE,
    EXPERIMENT_KEY,
    LOG_FILE,
    PARAMS_FILE,
    PROGRESS_FILE,
    RESULT_FILE,
    TRAINABLE_FILE,
    TRIALPOD_DIR,
)
from trialpod.storage.parallel import run_all
from trialpod_operator.experiment.replica.journal_layout import read_part
from trialpod_operator.experiment.replica.post_delete_cleanup import PostDeleteCleanup
from trialpod_operator.experiment.replica.shared_files import RefuseOutdated, SharedFiles
from trialpod_operator.experiment.stored import (
    JOURNAL_ID,
    draw_journal_id,
    journal_id,
    read_stored,
    write_stored,
)

PARALLEL = 8
MAX_SEQUENTIAL_FILES = 4
"""Up to this many files are copied without threads: those of one trial are not worth them."""

LOCKS = 64
"""Files share so many locks."""

T = TypeVar("T")

_GROWING = (RESULT_FILE, PROGRESS_FILE, LOG_FILE)
_TRIAL_FILES = (PARAMS_FILE, RESULT_FILE, PROGRESS_FILE, LOG_FILE, ERROR_FILE)
_EXPERIMENT_FILES = tuple(f"{TRIALPOD_DIR}/{name}" for name in (EXPERIMENT_FILE, CALLBACKS_FILE))
_TRAINABLE_KEY = f"{TRIALPOD_DIR}/{TRAINABLE_FILE}"
_TUNER_FILE = "tuner.pkl"  # what `Tuner.restore` needs
_POLICY_PREFIX = "pbt_"
_FETCHING = ".fetching"


class Due(NamedTuple):
    """A file to copy, as it was when it was read."""

    key: str
    mark: tuple[int, int]  # size in bytes, mtime_ns
    data: bytes | None  # None: its first `size` bytes, which stay as they are


class LogText(NamedTuple):
    """What is to be added to the log of a trial; with `once`, that part of it which is not in there already."""

    dirname: str
    text: str
    once: bool


class FileReplica:
    """Knows which files have changed since they were copied, and copies them.

    Args:
        directory: the experiment's.
        storage: the experiment's location in the storage.
        late: called with what was written.
    """

    def __init__(self, directory: Path, storage: Storage, late: PostDeleteCleanup) -> None:
        self._directory = directory
        self._storage = storage
        self.stored = SharedFiles(storage)
        self.policy_files: Callable[[], Iterable[str]] = self._find_policy_files
        """Returns the names of the schedulers' policy logs, which stand beside the trials."""
        self._copied: dict[str, tuple[int, int]] = {}  # file -> (size, mtime_ns) when it was copied
        self._locks = [threading.Lock() for _ in range(LOCKS)]  # each is held while a file of its share is sent
        self._late = late
        self._first = True  # no process has written this experiment before
        self._claiming = threading.Lock()
        self._document: bytes | None = None  # as it was found in the storage

    # -- to the storage --

    def due_of_experiment(self) -> list[Due]:
        """Return which files beside the trials' have changed."""
        return [
            *self._due([*_EXPERIMENT_FILES, _TUNER_FILE, *sorted(self.policy_files())]),
            *self._due_trainable(),
        ]

    def _due_trainable(self) -> list[Due]:
        """Return the file of the Trainable if it has changed: the newest of those that the experiment has had."""
        with contextlib.suppress(
            FileNotFoundError
        ):  # an earlier one was removed just now: the next copy finds the rest
            files = sorted(self._trainables(), key=lambda file: file.stat().st_mtime_ns)
            if files:
                status = files[-1].stat()
                mark = (status.st_size, status.st_mtime_ns)
                if self._copied.get(_TRAINABLE_KEY) != mark:
                    return [Due(_TRAINABLE_KEY, mark, files[-1].read_bytes())]
        return []

    def _trainables(self) -> list[Path]:
        return list((self._directory / TRIALPOD_DIR).glob("trainable*.pkl"))

    def claim_location(self) -> bool:
        """Put ``experiment.json`` unless that was done, or found; return False when another process has put one.

        What is put names the experiment's journal, and nothing is written before it.
        """
        with self._claiming:
            if self._late.journal:
                return True
            (file,) = self._due([EXPERIMENT_KEY])
            assert file.data is not None
            ours = journal_id(file.data, str(self._directory))
            self._late.write_soon(file.key)
            # When there is one, it may be ours: the answer to an earlier try was lost.
            if not self.stored.create(file.key, file.data) and self.find_document() != ours:
                return False
            self._late.journal = ours
            self._copied[file.key] = file.mark
            return True

    def due_of_trials(self, dirnames: Iterable[str], growth: float = 0.0) -> list[Due]:
        """Return which files of these trials have changed, or grown by that factor."""
        return self._due([f"{name}/{file}" for name in dirnames for file in self._trial_files(name)], growth)

    def send(self, due: list[Due], refuse_outdated: RefuseOutdated) -> None:
        """Copy these files.

        Args:
            due: which, as they were when the journal was copied after that.
            refuse_outdated: looks at the journal.
        """

        def send(file: Due) -> None:
            with self._locks[zlib.crc32(file.key.encode()) % LOCKS]:
                if not self._is_outdated(file):
                    send_alone(file)

        def send_alone(file: Due) -> None:
            data = file.data
            if data is None:
                with contextlib.suppress(FileNotFoundError):
                    data = read_part(self._directory / file.key, 0, file.mark[0])
            if file.key == EXPERIMENT_KEY:
                found, self._document = self._document, None
                if data == found:
                    self._copied[file.key] = file.mark  # a start that changes nothing need not say so
                    return
            if data is not None:
                self._late.write_soon(file.key)
                try:
                    self.stored.write(file.key, data, refuse_outdated, only_replace=self._is_mark(file.key))
                except KeyMissingError:
                    raise self._late.deleted() from None
                self._late.written(file.key)
                self._copied[file.key] = file.mark

        _each(send, due)

    def forget_versions(self, dirnames: Iterable[str]) -> None:
        """Forget what was copied of trials, 2 kB for each. If more comes of one, its files are compared first.

        For the thread that sends.
        """
        for key in (f"{name}/{file}" for name in dirnames for file in self._trial_files(name)):
            self._copied.pop(key, None)
            self.stored.forget_version(key)

    @property
    def version_count(self) -> int:
        """Of how many files the copied version is known."""
        return len(self._copied)

    def _is_mark(self, key: str) -> bool:
        return key == EXPERIMENT_KEY and bool(self._late.journal)

    def compare(self, dirnames: Iterable[str]) -> None:
        """Take files of these trials that are as long in the storage as here for copied: they only grow."""
        stored = self._storage.sizes()
        for dirname in dirnames:
            self._compare(dirname, stored, self._trial_files(dirname))

    def compare_each(self, dirnames: Iterable[str]) -> None:
        """Do so with the files that do only grow, where the storage has far more than these trials."""

        def compare(dirname: str) -> None:
            names = [name for name in self._trial_files(dirname) if _grows(name)]
            self._compare(dirname, self._storage.sizes(dirname), names)

        _each(compare, [name for name in dirnames if (self._directory / name).is_dir()])

    def _compare(self, dirname: str, stored: dict[str, int], names: list[str]) -> None:
        for key in (f"{dirname}/{name}" for name in names):
            with contextlib.suppress(FileNotFoundError):
                status = (self._directory / key).stat()
                if stored.get(key) == status.st_size:
                    self._copied.setdefault(key, (status.st_size, status.st_mtime_ns))

    def _trial_files(self, dirname: str) -> list[str]:
        try:
            names = set(os.listdir(f"{self._directory}/{dirname}"))
        except (FileNotFoundError, NotADirectoryError):
            return []
        events = sorted(name for name in names if name.startswith(EVENT_FILE_PREFIX))
        return [name for name in (*_TRIAL_FILES, *events) if name in names]

    def _is_outdated(self, file: Due) -> bool:
        """Return whether this version, or a later one, has been sent since it was read."""
        sent = self._copied.get(file.key)
        if sent is None:
            return False
        if file.data is None:
            return sent[0] >= file.mark[0] and sent[1] >= file.mark[1]
        return sent[1] > file.mark[1] or sent == file.mark

    def _find_policy_files(self) -> list[str]:
        """Look for policy logs among all trials: 5 ms of CPU with 10,000 of them (2026-11-26)."""
        names = os.listdir(self._directory) if self._directory.is_dir() else []
        return sorted(name for name in names if name.startswith(_POLICY_PREFIX) and name.endswith(".txt"))

    def _due(self, keys: list[str], growth: float = 0.0) -> list[Due]:
        found, root = [], os.fspath(self._directory)  # a path object for each file costs more than the look at it
        for key in keys:
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(f"{root}/{key}")
                mark = (status.st_size, status.st_mtime_ns)
                before = self._copied.get(key)
                if before == mark or (before is not None and growth and status.st_size < before[0] * growth):
                    continue
                grows = _grows(key.rpartition("/")[2])
                found.append(Due(key, mark, None if grows else (self._directory / key).read_bytes()))
        return found

    # -- from the storage --

    def found_stored(self) -> None:
        """Know from now on that another process may have stored files of this experiment."""
        self._first = False

    def fetch_all(self) -> None:
        """Bring the files of the experiment and of all its trials."""
        keys = (key for key in self._storage.list() if "/checkpoint_" not in key)
        self._fetch([key for key in keys if key.count("/") == 1 and not key.startswith(TRIALPOD_DIR)])
        self.fetch_experiment()

    def fetch_experiment(self) -> None:
        """Bring the files that the experiment itself continues with; its trainable where this start brought none.

        Its document is the one that was found, which says what journal it is.
        """
        here = self._trainables()
        self.take_document()
        keys = [key for key in _EXPERIMENT_FILES if key != EXPERIMENT_KEY]
        self._fetch(keys if here else [*keys, _TRAINABLE_KEY])

    def find_document(self) -> str:
        """Read ``experiment.json``; return the id of the journal that it names, "" when there is none.

        Raises:
            InvalidInputError: it is damaged, or of another version.
            StorageError: the storage cannot be read.
        """
        self._document = None
        try:
            data = self.stored.read(EXPERIMENT_KEY)
        except KeyMissingError:
            return ""
        found = journal_id(data, self._storage.uri)
        self._document = data
        return found

    def take_document(self) -> None:
        """Take the document that was found for that of this directory."""
        if self._document is not None:
            self._late.journal = journal_id(self._document, self._storage.uri)
            self._put_here(EXPERIMENT_KEY, self._document)

    def renew_document(self) -> bool:
        """Have the document that is here, if any, name a journal that begins: the storage has no document."""
        stored = read_stored(self._directory)
        if stored is not None:
            write_stored(self._directory, {**stored, JOURNAL_ID: draw_journal_id()})
        return stored is not None

    def fetch(self, keys: Iterable[str]) -> None:
        """Bring those of these files that are not here; what the storage does not have either is passed over.

        Raises:
            StorageError: the storage cannot be read.
        """
        if not self._first:
            _each(self._fetch_missing, [key for key in keys if not (self._directory / key).exists()])

    def forget_trials(self) -> None:
        """Remove the files of all trials, and policy logs, from the directory: the storage has later ones."""
        for name in os.listdir(self._directory) if self._directory.is_dir() else []:
            path = self._directory / name
            if name != TRIALPOD_DIR and path.is_dir():
                shutil.rmtree(path)
        for name in self._find_policy_files():
            (self._directory / name).unlink()
        self._copied.clear()

    def _fetch(self, keys: list[str]) -> None:
        _each(self._fetch_file, keys)

    def _fetch_missing(self, key: str) -> None:
        with self._locks[zlib.crc32(key.encode()) % LOCKS]:
            if not (self._directory / key).exists():
                self._fetch_file(key)

    def _fetch_file(self, key: str) -> None:
        try:
            data = self.stored.read(key)
        except KeyMissingError:
            return
        self._put_here(key, data)

    def _put_here(self, key: str, data: bytes) -> None:
        path = self._directory / key
        path.parent.mkdir(parents=True, exist_ok=True)
        # As a whole or not at all: a file that is here is taken for whole.
        passing = path.with_name(path.name + _FETCHING)
        passing.write_bytes(data)
        os.replace(passing, path)
        status = path.stat()
        self._copied[key] = (status.st_size, status.st_mtime_ns)

    # -- logs --

    def add_log(self, log: LogText) -> None:
        """Add to the log of a trial, after what the storage has of it.

        Raises:
            StorageError: the storage cannot be read; nothing was added.
            OSError: the log cannot be written.
        """
        key = f"{log.dirname}/{LOG_FILE}"
        self.fetch([key])
        path = self._directory / key
        path.parent.mkdir(parents=True, exist_ok=True)
        data = log.text.encode(errors="replace")
        here = path.exists()
        if here and log.once:
            data = not_in(path.read_bytes(), data)
        # Not created again when it has been removed since: what was in it would be lost in the storage too.
        flags = os.O_APPEND if here else os.O_CREAT | os.O_EXCL
        with open(os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o666), "wb") as file:
            file.write(data)


def _each(work: Callable[[T], None], items: list[T]) -> None:
    """Do it with each of them, several at a time; raise the first error when all are done."""
    errors: list[Exception] = []

    def attempt(item: T) -> None:
        try:
            work(item)
        except Exception as error:  # noqa: BLE001 - raised below: the others are tried whatever became of this one
            errors.append(error)

    if len(items) <= MAX_SEQUENTIAL_FILES:
        for item in items:
            attempt(item)
    else:
        run_all([partial(attempt, item) for item in items], PARALLEL)
    if errors:
        raise errors[0]


def _grows(name: str) -> bool:
    """Return whether a file is only ever added to."""
    return name in _GROWING or name.startswith(EVENT_FILE_PREFIX)
