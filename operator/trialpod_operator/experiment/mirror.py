"""Copies an experiment's directory to a remote storage while it is being written, and back on another machine.

The directory stays where the truth is written first; the storage follows within about a second. Checkpoints are not
copied from here: the attempts put them into the storage by themselves.

* The journal's segments only grow. Each growth becomes an object of its own, named by its offset and created only if
  it does not exist. So no object is ever rewritten, and of two processes that write the same experiment from two
  machines the second is stopped by the first object that it finds taken (`FencedError`).
* A snapshot replaces a segment only where that was sealed before: an empty object, created only if there is none,
  takes the place of its next growth. So nobody's records are replaced by a snapshot that does not know them. A mark
  stays where a segment was removed: what is written there again counts nothing, and its writer finds that out.
* The other files are replaced, each after the records that it follows from were copied, and only in the version that
  is known here (`StoredFiles`). So no process that was replaced puts back what they were before.
* ``result.json``, ``progress.csv`` and ``log.txt`` of a running trial are copied again only when they have grown by a
  quarter, and at its end; over a trial's life that is at most five times their size.
* What cannot be copied now is copied later. Nothing here ever stops training.

* With `commits`, whoever writes the journal may wait until the storage has what was written so far: `request` asks
  for it, `committed` is told. The journal then has a thread of its own, so that the trials' files never delay it.

Background threads do the copying; `Mirror`'s public methods may be called from any thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from trialpod.errors import StorageError, TrialpodError
from trialpod.storage.base import KeyExistsError, KeyMissingError, Storage
from trialpod.storage.journal_format import FRAME, SEGMENT_HEADER_BYTES
from trialpod.storage.layout import (
    CALLBACKS_FILE,
    ERROR_FILE,
    EVENT_FILE_PREFIX,
    EXPERIMENT_FILE,
    JOURNAL_DIR,
    LOG_FILE,
    PARAMS_FILE,
    PROGRESS_FILE,
    RESULT_FILE,
    TRAINABLE_FILE,
    TRIALPOD_DIR,
)
from trialpod_operator.experiment.stored_files import RefuseOutdated, StoredFiles

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
LIVE_INTERVAL_S = 15.0
GROWTH = 1.25
PARALLEL = 8
BACKOFF_MAX_S = 30.0
LISTINGS = 10
"""How often the journal's folder is listed anew when files have gone meanwhile, before that counts as an error."""

_GROWING = (RESULT_FILE, PROGRESS_FILE, LOG_FILE)
_TRIAL_FILES = (PARAMS_FILE, RESULT_FILE, PROGRESS_FILE, LOG_FILE, ERROR_FILE)
_EXPERIMENT_FILES = tuple(f"{TRIALPOD_DIR}/{name}" for name in (EXPERIMENT_FILE, TRAINABLE_FILE, CALLBACKS_FILE))
_TUNER_FILE = "tuner.pkl"  # what `Tuner.restore` needs
_POLICY_PREFIX = "pbt_"
_SEGMENT = re.compile(r"(\d{8})\.log")
_SNAPSHOT = re.compile(r"(\d{8})\.snapshot")
_REMOVED = ".removed"
_JOURNAL = f"{TRIALPOD_DIR}/{JOURNAL_DIR}"


class FencedError(TrialpodError):
    """Another process writes the same experiment into the same storage."""


class _Due(NamedTuple):
    """A file to copy, as it was when it was looked at."""

    key: str
    mark: tuple[int, int]  # size in bytes, mtime_ns
    data: bytes | None  # None: its first `size` bytes, which stay as they are


class Mirror:
    """Keeps the copy of one experiment's directory.

    Args:
        directory: the experiment's directory; this process holds its lock.
        storage: the experiment's place in the storage.
        committed: called from the copying thread with a number that was given to `request`, once everything that
            the journal held at that call is in the storage; None when nobody waits for it.
    """

    def __init__(self, directory: Path, storage: Storage, committed: Callable[[int], None] | None = None) -> None:
        self._directory = directory
        self._storage = storage
        self._committed = committed
        self._requested = 0  # written by the journal's owner, read by the copying thread
        self._told = 0
        self._urgent = threading.Event()
        self._report: Callable[[str], None] = logger.warning
        self._fenced: Callable[[FencedError], None] = lambda error: logger.error("%s", error)
        self._files = StoredFiles(storage)
        self._journal_lock = threading.Lock()  # guards the four below, and what the journal's thread does with them
        self._sent: dict[str, int] = {}  # segment file -> bytes in the storage
        self._snapshots: set[str] = set()  # in the storage
        self._pieces: dict[str, int] = {}  # segment file -> objects that it consists of
        self._sealed_to = 0  # the snapshot that a sealed journal goes on with
        self._copied: dict[str, tuple[int, int]] = {}  # other file -> (size, mtime_ns) when it was copied
        self._lock = threading.Lock()  # guards the five below
        self._live: set[str] = set()  # directories of trials that are running
        self._ended: set[str] = set()  # of those whose files are to be copied now, most because they are complete
        self._copying: set[str] = set()  # of those that are being copied now
        self._unknown: set[str] = set()  # of those of which the storage may hold less than is here
        self._closing = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._tell_end: Callable[[], None] = lambda: None
        self._ended_copying = False
        self._broken: FencedError | None = None
        self._looked_at_live = 0.0
        self._finishing = threading.Event()
        self._given_up = False
        self.sealed = False
        """Whether the journal as it was pulled takes no more records: whoever goes on writes a snapshot first."""
        self.errors = 0  # how often the storage did not take what was to be copied
        self._files_thread: threading.Thread | None = None
        self._journal_complete = threading.Event()  # with `commits`: the journal's thread has copied its last

    @property
    def uri(self) -> str:
        """Where the copy is."""
        return self._storage.uri

    def pull(self, *, journal_only: bool = False) -> bool:
        """Bring the directory up to what the storage holds; return True when anything was fetched.

        Args:
            journal_only: leave the files of the trials where they are: enough to read, not to go on.

        Raises:
            FencedError: directory and storage hold different histories.
            StorageError: the storage cannot be read.
        """
        pieces = _pieces(self._storage.list(_JOURNAL))
        folder = self._directory / TRIALPOD_DIR / JOURNAL_DIR
        remote: dict[str, int] = {}
        seals: set[str] = set()
        for name, offsets in pieces.segments.items():
            grown = len(self._storage.read(f"{_JOURNAL}/{name}/{offsets[-1]:012d}"))
            remote[name] = offsets[-1] + grown
            if not grown:
                seals.add(name)
        local = _local_sizes(folder)
        numbers = [_number(name) for name in local]
        oldest_here, newest_here = min(numbers, default=0), max(numbers, default=0)
        # Segments older than all that are here are covered by the snapshot that is here.
        ahead = [name for name, size in remote.items() if size > local.get(name, 0) and _number(name) >= oldest_here]
        newer = [name for name in pieces.snapshots if _number(name) > newest_here]
        self._check_history(pieces, local)
        newest = max(remote, default="")
        self.sealed = newest in seals and newest_here <= _number(newest)
        if ahead or newer:
            self._fetch(pieces, folder, journal_only=journal_only)
            local = _local_sizes(folder)
        self._sent = {name: min(size, local.get(name, 0)) for name, size in remote.items()}
        self._snapshots = set(pieces.snapshots)
        self._pieces = {name: len(offsets) for name, offsets in pieces.segments.items()}
        self._sealed_to = _number(newest) + 1 if newest in seals else 0
        return bool(ahead or newer)

    def start(self, report: Callable[[str], None], fenced: Callable[[FencedError], None]) -> None:
        """Start copying. Both functions are called from the copying thread.

        Args:
            report: told in one sentence when the storage cannot be reached, and when it can be again.
            fenced: told once when another process writes the same experiment; nothing is copied any more.
        """
        self._report = report
        self._fenced = fenced
        self._thread = threading.Thread(target=self._run, name="trialpod-mirror", daemon=True)
        self._thread.start()
        if self._committed is not None:
            self._files_thread = threading.Thread(target=self._run_files, name="trialpod-mirror-files", daemon=True)
            self._files_thread.start()

    def request(self, position: int, *, urgent: bool) -> None:
        """Ask to be told when the storage has all that the journal holds now.

        Args:
            position: a number that grows with each call; `committed` gets it back, or a later one.
            urgent: somebody waits for it; else it is done with the next regular copy, within `INTERVAL_S`.
        """
        self._requested = position
        if urgent:
            self._urgent.set()

    @property
    def pieces(self) -> int:
        """How many objects the journal has in the storage since its latest snapshot: what a restart has to read."""
        return sum(list(self._pieces.values()))

    def trial_started(self, dirname: str) -> None:
        """A trial is running in this directory."""
        with self._lock:
            self._live.add(dirname)

    def trial_ended(self, dirname: str) -> None:
        """The files of this trial are complete."""
        with self._lock:
            self._live.discard(dirname)
        self.copy_soon(dirname)

    def compare_soon(self, dirnames: Iterable[str]) -> None:
        """Copy what the storage does not have of these trials, which an earlier process may have left behind."""
        with self._lock:
            self._unknown.update(dirnames)
        self._wake.set()

    def copy_soon(self, dirname: str) -> None:
        """Copy the files of this trial as they are now, although it may be running."""
        with self._lock:
            self._ended.add(dirname)
        self._wake.set()

    def files_due(self, dirname: str | None = None) -> bool:
        """Whether files that were to be copied at once are not copied yet: of this trial, or of any."""
        with self._lock:
            due = self._ended | self._copying
        return bool(due) if dirname is None else dirname in due

    def finish(self, ended: Callable[[], None]) -> None:
        """Copy what is left and stop; returns at once. `ended` is called from the copying thread."""
        self._tell_end = ended
        with self._lock:
            self._ended |= self._live
            self._live.clear()
            self._closing = True
        for event in (self._finishing, self._wake, self._urgent):
            event.set()

    def abandon(self) -> None:
        """Copy nothing more; what is under way ends by itself."""
        self._given_up = True
        for event in (self._finishing, self._wake, self._urgent):
            event.set()

    @property
    def done(self) -> bool:
        """True when everything is copied, or nothing can be any more."""
        return self._thread is None or self._ended_copying

    def problem(self) -> str:
        """Return what could not be copied and why, or ""."""
        if self._broken is not None:
            return str(self._broken)
        if not self.done:
            return f"not everything is copied to {self.uri} yet; run again to copy the rest from {self._directory}"
        return ""

    def close(self, timeout_s: float) -> str:
        """Finish and wait for it for so many seconds; return what could not be copied and why, or ""."""
        self.finish(lambda: None)
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self.problem()

    # -- the thread --

    def _run(self) -> None:
        try:
            if self._committed is None:
                self._repeat(self.copy, self._wake)
            else:
                self._repeat(self._commit, self._urgent)
        finally:
            self._journal_complete.set()
            if self._files_thread is None:
                self._ended_copying = True
                self._tell_end()

    def _run_files(self) -> None:
        try:
            self._repeat(self._copy_files, self._wake)
        finally:
            self._journal_complete.wait()
            self._ended_copying = True
            self._tell_end()

    def _commit(self, *, everything: bool) -> None:
        """Copy the journal and tell how far; `everything` changes nothing here."""
        position = self._requested
        if position != self._told or everything:
            self._copy_journal()
        if position != self._told and self._committed is not None:
            self._told = position
            self._committed(position)

    def _repeat(self, copy: Callable[..., None], wake: threading.Event) -> None:
        """Copy again and again, until it was told to finish and has copied everything."""
        failures = 0
        while self._broken is None and not self._given_up:
            with self._lock:
                closing = self._closing
            try:
                copy(everything=closing)
            except FencedError as error:
                self._broken = error
                self._fenced(error)
                return
            except (StorageError, OSError) as error:
                failures += 1
                self._failed(error, failures)
                # Not woken up by those who wait: the storage needs the time more than they do.
                seconds = min(0.25 * 2.0 ** min(failures, 10), BACKOFF_MAX_S) if not closing else 0.5
                self._pause(seconds, self._finishing)
                continue
            if failures:
                self._report(f"{self.uri} is up to date again")
            failures = 0
            if closing:
                return
            self._pause(INTERVAL_S, wake)

    def _pause(self, seconds: float, wake: threading.Event) -> None:
        if not self._closing:
            wake.wait(seconds)
            if wake is not self._finishing:
                wake.clear()
        else:
            time.sleep(min(seconds, 0.5))

    def _failed(self, error: Exception, failures: int) -> None:
        self.errors += 1
        logger.info("copying to %s failed (%d): %s", self.uri, failures, error)
        if failures == 1:
            self._report(f"{self.uri} takes nothing at the moment ({error}); everything is kept in {self._directory}")

    def copy(self, *, everything: bool = True) -> None:
        """Copy what the storage does not hold yet; without `everything`, of running trials only what has grown.

        Called by the background thread; call it yourself only when that was not started.
        """
        self._copy_files(everything=everything, journal_too=True)

    def _copy_files(self, *, everything: bool, journal_too: bool = False) -> None:
        """Copy the files that are due, and before them the records that they follow from, if not all of these."""
        self._compare_unknown()
        with self._lock:
            # Taken out first: what grows while it is copied is put in again, and copied again.
            ended, live = sorted(self._ended), sorted(self._live)
            self._copying, self._ended = set(ended), set()
        try:
            due = self._due([*_EXPERIMENT_FILES, _TUNER_FILE, *self._policy_files()])
            due += self._due_of_trials(ended)
            if live and not everything and time.monotonic() - self._looked_at_live >= LIVE_INTERVAL_S:
                self._looked_at_live = time.monotonic()
                due += self._due_of_trials(live, growth=GROWTH)
            if due or journal_too:
                self._copy_records_of_files()
            self._send(due, self._refuse_outdated)
        except BaseException:
            with self._lock:
                self._ended.update(ended)
            raise
        finally:
            with self._lock:
                self._copying = set()

    def _copy_records_of_files(self) -> None:
        """Find out, too, that somebody else writes here, before anything of theirs is replaced."""
        self._copy_journal()

    def _compare_unknown(self) -> None:
        with self._lock:
            unknown = set(self._unknown)
        if not unknown:
            return
        stored = self._storage.sizes()
        for dirname in unknown:
            for name in self._trial_files(dirname):
                key = f"{dirname}/{name}"
                with contextlib.suppress(FileNotFoundError):
                    status = (self._directory / key).stat()
                    if stored.get(key) == status.st_size:  # they only grow, so they are the same
                        self._copied.setdefault(key, (status.st_size, status.st_mtime_ns))
        with self._lock:
            self._unknown -= unknown
            self._ended |= unknown

    def _trial_files(self, dirname: str) -> list[str]:
        folder = self._directory / dirname
        names = os.listdir(folder) if folder.is_dir() else []
        return [*_TRIAL_FILES, *(name for name in names if name.startswith(EVENT_FILE_PREFIX))]

    def _policy_files(self) -> list[str]:
        """Return the names of the schedulers' policy logs, which stand beside the trials."""
        names = os.listdir(self._directory) if self._directory.is_dir() else []
        return sorted(name for name in names if name.startswith(_POLICY_PREFIX) and name.endswith(".txt"))

    def _due_of_trials(self, dirnames: list[str], growth: float = 0.0) -> list[_Due]:
        return self._due([f"{name}/{file}" for name in dirnames for file in self._trial_files(name)], growth)

    def _due(self, keys: list[str], growth: float = 0.0) -> list[_Due]:
        """Return which of these files have changed, or grown by that factor, since they were copied."""
        found = []
        for key in keys:
            path = self._directory / key
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                mark = (status.st_size, status.st_mtime_ns)
                before = self._copied.get(key)
                if before == mark or (before is not None and growth and status.st_size < before[0] * growth):
                    continue
                name = key.rpartition("/")[2]
                grows = name in _GROWING or name.startswith(EVENT_FILE_PREFIX)
                found.append(_Due(key, mark, None if grows else path.read_bytes()))
        return found

    def _send(self, due: list[_Due], refuse_outdated: RefuseOutdated) -> None:
        def send(file: _Due) -> None:
            data = file.data
            if data is None:
                with contextlib.suppress(FileNotFoundError):
                    data = _read(self._directory / file.key, 0, file.mark[0])
            if data is not None:
                self._files.write(file.key, data, refuse_outdated)
                self._copied[file.key] = file.mark

        if due:
            with ThreadPoolExecutor(PARALLEL, thread_name_prefix="trialpod-mirror") as executor:
                list(executor.map(send, due))

    def _copy_journal(self) -> None:
        for _ in range(LISTINGS - 1):
            # A new snapshot removes older files, perhaps between our listing and our reading.
            with self._journal_lock, contextlib.suppress(FileNotFoundError):
                return self._copy_listed_journal()
        with self._journal_lock:
            return self._copy_listed_journal()

    def _copy_listed_journal(self) -> None:
        folder = self._directory / TRIALPOD_DIR / JOURNAL_DIR
        names = sorted(os.listdir(folder)) if folder.is_dir() else []
        snapshots = [name for name in names if _SNAPSHOT.fullmatch(name)]
        for name in snapshots:
            if name not in self._snapshots:
                self._seal_before(_number(name))
                # It says how long the trials' files are, and the records that they follow from go away with it.
                with self._lock:
                    dirnames = sorted({*self._ended, *self._copying, *self._live})
                self._send(self._due_of_trials(dirnames), self._refuse_outdated_here)
                self._create(f"{_JOURNAL}/{name}", _read(folder / name, 0))
                self._snapshots.add(name)
        for name in names:
            if _SEGMENT.fullmatch(name):
                sent = self._sent.get(name, 0)
                data = _whole_records(_read(folder / name, sent), at_start=sent == 0)
                if data:
                    self._create(f"{_JOURNAL}/{name}/{sent:012d}", data)
                    self._refuse_removed(name)
                    self._files.journal_written()
                    self._sent[name] = sent + len(data)
                    self._pieces[name] = self._pieces.get(name, 0) + 1
        if snapshots:
            self._forget_before(snapshots[-1])

    def _seal_before(self, number: int) -> None:
        """End the segments before this one where they end for this process, or find out that they do not."""
        for each in range(self._newest, number):
            name = f"{each:08d}.log"
            self._create(f"{_JOURNAL}/{name}/{self._sent.get(name, 0):012d}", b"")
            self._refuse_removed(name)
        self._files.journal_written()
        self._sealed_to = number

    @property
    def _newest(self) -> int:
        """The number of the latest segment or snapshot that is in the storage."""
        return max(map(_number, (*self._sent, *self._snapshots)), default=1)

    def _refuse_outdated(self) -> None:
        """Find out whether another process has gone on with the journal from where it ends for this one."""
        with self._journal_lock:
            self._refuse_outdated_here()

    def _refuse_outdated_here(self) -> None:
        newest = self._newest
        folder = self._directory / TRIALPOD_DIR / JOURNAL_DIR
        segment = f"{newest:08d}.log"
        if self._sealed_to > newest:
            name = f"{self._sealed_to:08d}.snapshot"
            key, start = name, 0
        else:
            start = self._sent.get(segment, 0)
            name, key = segment, f"{segment}/{start:012d}"
        with contextlib.suppress(KeyMissingError):
            found = self._storage.read(f"{_JOURNAL}/{key}")
            ours = _read(folder / name, start) if (folder / name).exists() else b""
            if not found or not ours.startswith(found):  # else the answer to our own was lost
                raise self._outdated(key)
        # Looked at last: it is made before what could have been found above is removed.
        self._refuse_removed(segment)

    def _outdated(self, key: str) -> FencedError:
        return FencedError(
            f"another process writes this experiment to {self.uri} (it made {key}); stop one of them, "
            "or give one another name"
        )

    def _refuse_removed(self, segment: str) -> None:
        """Find out whether a segment that has just taken something had been replaced and removed before."""
        with contextlib.suppress(KeyMissingError):
            self._storage.read(f"{_JOURNAL}/{segment}{_REMOVED}")
            raise FencedError(f"another process has gone on with this experiment in {self.uri}; stop one of them")

    def _create(self, key: str, data: bytes) -> None:
        try:
            self._storage.write_new(key, data)
        except KeyExistsError:
            # Ours when the answer to an earlier try was lost.
            if self._storage.read(key) != data:
                raise self._outdated(key) from None

    def _forget_before(self, snapshot: str) -> None:
        number = _number(snapshot)
        for name in [name for name in self._snapshots if _number(name) < number]:
            self._storage.delete(f"{_JOURNAL}/{name}")
            self._snapshots.discard(name)
        for name in [name for name in self._sent if _number(name) < number]:
            self._storage.write(f"{_JOURNAL}/{name}{_REMOVED}", b"")
            self._storage.delete_tree(f"{_JOURNAL}/{name}")
            del self._sent[name]
            self._pieces.pop(name, None)

    # -- fetching --

    def _check_history(self, pieces: _Pieces, local: dict[str, int]) -> None:
        """Refuse when the same stretch of the journal has different bytes here and there."""
        folder = self._directory / TRIALPOD_DIR / JOURNAL_DIR
        for name, offsets in pieces.segments.items():
            last = max((offset for offset in offsets if offset < local.get(name, 0)), default=None)
            if last is None:
                continue
            theirs = self._storage.read(f"{_JOURNAL}/{name}/{last:012d}")
            ours = _read(folder / name, last)[: len(theirs)]
            # Behind a seal there is nothing, unless the snapshot that it was for is here.
            beyond = not theirs and max(map(_number, local)) == _number(name)
            if beyond or not theirs.startswith(ours):
                raise FencedError(
                    f"{self._directory} and {self.uri} hold different histories of this experiment; "
                    f"move {self._directory} away to go on with the one in the storage"
                )

    def _fetch(self, pieces: _Pieces, folder: Path, *, journal_only: bool) -> None:
        logger.info("fetching the experiment from %s", self.uri)
        folder.mkdir(parents=True, exist_ok=True)
        files = list(_EXPERIMENT_FILES)
        if not journal_only:
            keys = (key for key in self._storage.list() if "/checkpoint_" not in key)
            files += [key for key in keys if key.count("/") == 1 and not key.startswith(TRIALPOD_DIR)]
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="trialpod-mirror") as executor:
            list(executor.map(self._fetch_file, files))
        for name in os.listdir(folder):
            os.unlink(folder / name)
        for name in pieces.snapshots:
            (folder / name).write_bytes(self._storage.read(f"{_JOURNAL}/{name}"))
        for name, offsets in pieces.segments.items():
            with open(folder / name, "wb") as file:
                for offset in offsets:
                    if file.tell() != offset:
                        raise FencedError(f"{self.uri}: the journal has a gap before byte {offset} of {name}")
                    file.write(self._storage.read(f"{_JOURNAL}/{name}/{offset:012d}"))

    def _fetch_file(self, key: str) -> None:
        path = self._directory / key
        if key.endswith(f"/{TRAINABLE_FILE}") and path.exists():
            return  # what this start brought: the code may have changed
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.write_bytes(self._files.read(key))
        except KeyMissingError:
            return
        status = path.stat()
        self._copied[key] = (status.st_size, status.st_mtime_ns)


class _Pieces:
    """What the storage holds of a journal."""

    def __init__(self) -> None:
        self.snapshots: list[str] = []
        self.segments: dict[str, list[int]] = {}


def _pieces(keys: list[str]) -> _Pieces:
    found = _Pieces()
    for key in sorted(keys):
        name, _, offset = key.removeprefix(f"{_JOURNAL}/").partition("/")
        if offset and _SEGMENT.fullmatch(name):
            found.segments.setdefault(name, []).append(int(offset))
        elif not offset and _SNAPSHOT.fullmatch(name):
            found.snapshots.append(name)
    if found.snapshots:
        # Older ones are about to be removed, perhaps by a process that died before it got to it.
        number = _number(found.snapshots[-1])
        found.snapshots = found.snapshots[-1:]
        found.segments = {name: offsets for name, offsets in found.segments.items() if _number(name) >= number}
    return found


def _number(name: str) -> int:
    """Return the number of a segment or snapshot."""
    return int(name.partition(".")[0])


def _local_sizes(folder: Path) -> dict[str, int]:
    if not folder.is_dir():
        return {}
    return {name: (folder / name).stat().st_size for name in os.listdir(folder) if _SEGMENT.fullmatch(name)}


def _whole_records(data: bytes, *, at_start: bool) -> bytes:
    """Cut off a record that is still being written: a crash would replace it by another one."""
    end = SEGMENT_HEADER_BYTES if at_start else 0
    if len(data) < end:
        return b""
    while len(data) - end >= FRAME.size:
        length = FRAME.size + FRAME.unpack_from(data, end)[0]
        if end + length > len(data):
            break
        end += length
    return data[:end]


def _read(path: Path, start: int, length: int = -1) -> bytes:
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(length)
