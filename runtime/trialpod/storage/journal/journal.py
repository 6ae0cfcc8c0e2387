"""The experiment's journal: records appended in order, with snapshots that replace what came before them.

Invariants:

* `append` returns after one ``write`` of the whole record: from then on it survives the death of this process.
  `sync` writes them to the disk: they then survive a power failure too.
* Records are numbered 1, 2, 3, ... over the whole life of the journal. `records` yields each one after the snapshot
  exactly once, in order.
* A snapshot is complete or invisible. It stands for all records before its segment; a failed snapshot loses nothing.
* Only the end of the last segment may be torn (a crash in mid-write); it is cut off at open. A broken record with
  good ones after it, or anywhere else, is damage: a JournalError that says where.
* There is one appender; its caller holds the experiment's lock. Readers (``read_only``) change nothing.

Files: ``00000001.log``, ... (segments) and ``00000002.snapshot`` (the state before segment 2).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trialpod.errors import JournalError, StorageError
from trialpod.storage.base import storage_error
from trialpod.storage.file_tree import sync_path, write_synced
from trialpod.storage.journal.format import (
    FRAME,
    MAX_RECORD_BYTES,
    SEGMENT_HEADER_BYTES,
    OtherFormatError,
    decode_snapshot,
    encode_segment_header,
    encode_snapshot,
    frame_check,
    read_segment_header,
    scan,
)

logger = logging.getLogger(__name__)

_NAME = re.compile(r"(\d{8,})\.(log|snapshot)", re.ASCII)
_MASK = 0xFFFFFFFF
_NEW = ".tmp"
"""Suffix of a file that is not complete."""


class _Segment(NamedTuple):
    number: int
    first: int  # number of its first record
    end: int = 0  # offset behind its last record, when it is closed


class Journal:
    """A journal in a folder of its own. Make one with `Journal.open`.

    `append` and `write_snapshot` belong to one thread; `sync` may run in another one.
    """

    def __init__(self, directory: Path, *, read_only: bool, keep_replaced: bool = False) -> None:
        """Use `Journal.open`."""
        self._directory = os.fspath(directory)
        self._read_only = read_only
        self._keep_replaced = keep_replaced
        self._snapshot: bytes | None = None
        self._covered = 0  # records that the snapshot stands for
        self._closed: list[_Segment] = []  # since the snapshot, where a later one was lost
        self._current: _Segment | None = None
        self._end = 0  # of the last whole record in the current segment
        self._contents: dict[int, bytes] = {}  # kept by readers: the writer may remove the files
        self._position = 0
        self._synced = 0
        self._fd = -1
        self._broken = ""
        self._lock = threading.Lock()  # held while the segment's descriptor is synced or changed

    @classmethod
    def open(cls, directory: Path, *, read_only: bool = False, keep_replaced: bool = False) -> Journal:
        """Open the journal in `directory`; without `read_only`, make it if there is none and mend a torn end.

        Args:
            directory: its folder.
            read_only: change nothing.
            keep_replaced: keep the segments that a snapshot replaces; the caller still copies them, and then removes
                them.

        Raises:
            JournalError: it is damaged before its end, or was written by another version.
            StorageError: a file cannot be read or written.
        """
        journal = cls(directory, read_only=read_only, keep_replaced=keep_replaced)
        if read_only:
            # The writer removes old files after a snapshot, perhaps between our listing and our reading.
            for attempt in range(10):
                with contextlib.suppress(FileNotFoundError):
                    journal._load()
                    return journal
                logger.debug("the journal %s changed while it was read, attempt %d", directory, attempt)
            raise JournalError(f"the journal {directory} changes faster than it can be read; try again")
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError as error:
            raise storage_error(error, "cannot make the folder", directory) from error
        journal._load()
        journal._start_appending()
        return journal

    @property
    def snapshot(self) -> bytes | None:
        """The latest complete snapshot; None if there is none."""
        return self._snapshot

    @property
    def position(self) -> int:
        """Number of the last record; 0 if there never was one."""
        return self._position

    @property
    def covered(self) -> int:
        """Number of the last record that the snapshot stands for; 0 without one."""
        return self._covered

    @property
    def tail(self) -> tuple[int, int] | None:
        """Number of the last segment and the offset behind its last record; None while there is no segment."""
        return None if self._current is None else (self._current.number, self._end)

    @property
    def takes_records(self) -> bool:
        """Whether it is open for appending, and nothing that failed has ended that."""
        return self._fd >= 0 and not self._broken

    @property
    def size_since_snapshot(self) -> int:
        """Bytes of the segments since the snapshot: what a restart has to read."""
        return sum(segment.end for segment in self._closed) + self._end

    def records(self) -> Iterator[bytes]:
        """Yield every record after the snapshot, oldest first."""
        segments = list(self._closed)
        if self._current is not None:
            segments.append(self._current._replace(end=self._end))
        for number, _, end in segments:
            data = self._contents[number] if self._read_only else self._read(self._path(number, "log"))
            at = SEGMENT_HEADER_BYTES
            while at < end:
                length = FRAME.unpack_from(data, at)[0]
                at += FRAME.size + length
                yield data[at - length : at]

    def append(self, record: bytes) -> int:
        """Add a record; return its number.

        Raises:
            StorageError: it could not be written; the journal is as it was before, unless the message says that it
                has to be opened again.
        """
        if self._fd < 0 or self._broken:
            raise self._unusable()
        if len(record) > MAX_RECORD_BYTES:
            raise StorageError(f"a journal record has {len(record)} bytes; at most {MAX_RECORD_BYTES} are allowed")
        position = self._position + 1
        low = position & _MASK
        frame = FRAME.pack(len(record), low, frame_check(len(record), low, record)) + record
        try:
            _write_all(self._fd, frame)
        except OSError as error:
            self._take_back()
            raise storage_error(error, "cannot append to the journal in", self._directory, len(frame)) from error
        self._end += len(frame)
        self._position = position
        return position

    def sync(self) -> int:
        """Sync all records to the disk; return the number of the last one that survives a power failure.

        Raises:
            StorageError: the disk refused. Its contents are then unknown: the journal has to be opened again.
        """
        with self._lock:
            if self._fd < 0 or self._broken:
                raise self._unusable()
            position = self._position
            if position != self._synced:
                try:
                    os.fdatasync(self._fd)
                except OSError as error:
                    self._broken = f"syncing failed ({error.strerror})"
                    raise storage_error(error, "cannot sync the journal in", self._directory) from error
                self._synced = position
            return position

    def write_snapshot(self, data: bytes) -> None:
        """Replace all records by `data` and continue in a new segment. If this fails, all is as before.

        The snapshot is there before its segment: a concurrent copy of the journal never has records behind a
        segment that has not ended for good.

        Args:
            data: the state after the last record.

        Raises:
            StorageError: it could not be written.
        """
        self.sync()
        assert self._current is not None
        number, first = self._current.number + 1, self._position + 1
        path, segment = self._path(number, "snapshot"), self._path(number, "log")
        blob = encode_snapshot(data, self._position)
        fd = -1
        try:
            write_synced(path + _NEW, blob)
            fd = self._create_segment(segment + _NEW)
            os.rename(path + _NEW, path)
            os.rename(segment + _NEW, segment)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            self._take_back_snapshot(path, path + _NEW, segment + _NEW)
            raise storage_error(error, "cannot write the snapshot", path, len(blob)) from error
        self._snapshot, self._covered = data, self._position
        self._closed.clear()
        self._continue_in(_Segment(number, first), fd)
        self._remove_before(number)

    def begin_segment(self) -> None:
        """Continue in a new segment without a snapshot before it. If this fails, all is as before.

        Raises:
            StorageError: it could not be made.
        """
        self.sync()
        assert self._current is not None
        number, first = self._current.number + 1, self._position + 1
        segment = self._path(number, "log")
        fd = -1
        try:
            fd = self._create_segment(segment + _NEW)
            os.rename(segment + _NEW, segment)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            raise storage_error(error, "cannot make", segment, SEGMENT_HEADER_BYTES) from error
        self._closed.append(self._current._replace(end=self._end))
        self._continue_in(_Segment(number, first), fd)

    def _continue_in(self, segment: _Segment, fd: int) -> None:
        with self._lock:
            old, self._fd = self._fd, fd
            os.close(old)
        self._current, self._end = segment, SEGMENT_HEADER_BYTES
        sync_path(self._directory)

    def close(self) -> None:
        """Close the journal without syncing it. Closing it again does nothing."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _path(self, number: int, suffix: str) -> str:
        return os.path.join(self._directory, f"{number:08d}.{suffix}")

    def _unusable(self) -> StorageError:
        if self._read_only:
            return StorageError(f"the journal {self._directory} was opened read-only")
        why = self._broken or "it is closed"
        return StorageError(f"the journal {self._directory} takes no more records: {why}; open it again")

    def _read(self, path: str) -> bytes:
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            if self._read_only:
                raise
            raise JournalError(f"{path} is missing; put the file back from a copy of the experiment") from None
        except OSError as error:
            raise storage_error(error, "cannot read", path) from error

    def _listing(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {"log": [], "snapshot": []}
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            names = []
        except OSError as error:
            raise storage_error(error, "cannot list", self._directory) from error
        for name in names:
            if match := _NAME.fullmatch(name):
                found[match[2]].append(int(match[1]))
        return {suffix: sorted(numbers) for suffix, numbers in found.items()}

    def _load(self) -> None:
        listing = self._listing()
        logs = listing["log"]
        start = self._load_snapshot(listing["snapshot"], logs)
        self._closed, self._current, self._end = [], None, 0
        self._contents.clear()
        self._position = self._covered
        expected = start
        for number in [n for n in logs if n >= start]:
            path = self._path(number, "log")
            if number != expected:
                raise JournalError(
                    f"{self._path(expected, 'log')} is missing, though {path} is there; put it back from a copy of "
                    "the experiment, or start a new experiment"
                )
            expected += 1
            self._load_segment(number, path, last=number == logs[-1])

    def _load_snapshot(self, snapshots: list[int], logs: list[int]) -> int:
        """Load the newest valid snapshot, and return the number of the first segment to read.

        A snapshot of another format is an error; no older one is loaded instead.
        """
        problem: JournalError | None = None
        for number in reversed(snapshots):
            path = self._path(number, "snapshot")
            try:
                self._snapshot, self._covered = decode_snapshot(self._read(path), path)
            except OtherFormatError:
                raise
            except JournalError as error:
                problem = problem or error
                # An older state helps only if every segment since is still there.
                continue
            if problem is not None and not set(range(number, snapshots[-1])) <= set(logs):
                raise problem
            if problem is not None:
                logger.warning("went back to the snapshot %s: %s", path, problem)
            return number
        self._snapshot, self._covered = None, 0
        if problem is not None:
            if not set(range(1, snapshots[-1])) <= set(logs):
                raise problem
            logger.warning("reading the whole journal: %s", problem)
        return 1

    def _load_segment(self, number: int, path: str, *, last: bool) -> None:
        data = self._read(path)
        # Empty: it was ended before anything of it was copied. Where records are missing the next one does not fit.
        # The last one: the crash came while the file was made; nothing was ever appended to it.
        if not data or (last and (len(data) < SEGMENT_HEADER_BYTES or not any(data))):
            self._take_segment(_Segment(number, self._position + 1), 0, b"")
            return
        first, start = read_segment_header(data, path)
        if first != self._position + 1:
            raise JournalError(
                f"{path} begins with record {first}, but record {self._position + 1} is next: the files are not of "
                "one journal; put them back from a copy of the experiment"
            )
        self._position, end = scan(data, start, self._position, path, last=last)
        self._take_segment(_Segment(number, first), end, data)
        if end < len(data):
            logger.info("%s: cut off %d bytes of a record that was not written to its end", path, len(data) - end)

    def _take_segment(self, segment: _Segment, end: int, data: bytes) -> None:
        if self._current is not None:
            self._closed.append(self._current._replace(end=self._end))
        self._current, self._end = segment, end
        if self._read_only:
            self._contents[segment.number] = data

    def _start_appending(self) -> None:
        try:
            if self._current is None:
                self._current = _Segment(self._next_number(), self._position + 1)
            if self._end == 0:
                self._fd = self._create_segment(self._path(self._current.number, "log"))
                sync_path(self._directory)
                self._end = SEGMENT_HEADER_BYTES
            else:
                path = self._path(self._current.number, "log")
                self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
                if os.fstat(self._fd).st_size != self._end:
                    os.ftruncate(self._fd, self._end)
                # What the last process wrote may still be in memory only.
                os.fsync(self._fd)
            for name in os.listdir(self._directory):
                if name.endswith(_NEW):
                    os.unlink(os.path.join(self._directory, name))
        except OSError as error:
            self.close()
            raise storage_error(error, "cannot open the journal in", self._directory) from error
        except StorageError:
            self.close()
            raise
        self._synced = self._position
        start = (self._closed[0] if self._closed else self._current).number
        if os.path.exists(self._path(start, "snapshot")):
            self._remove_before(start)

    def _next_number(self) -> int:
        return max(self._listing()["snapshot"], default=1)

    def _create_segment(self, path: str) -> int:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            _write_all(fd, encode_segment_header(self._position + 1))
            os.fsync(fd)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _take_back(self) -> None:
        try:
            os.ftruncate(self._fd, self._end)
        except OSError as error:
            self._broken = f"a part of a record could not be removed ({error.strerror})"

    def _take_back_snapshot(self, path: str, *unfinished: str) -> None:
        for each in unfinished:
            with contextlib.suppress(OSError):
                os.unlink(each)
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            # It would hide what is appended from now on.
            self._broken = f"{path} has no segment and cannot be removed ({error.strerror})"

    def _remove_before(self, number: int) -> None:
        if self._keep_replaced:
            return
        for suffix, numbers in self._listing().items():
            for old in numbers:
                if old < number:
                    try:
                        os.unlink(self._path(old, suffix))
                    except OSError as error:
                        logger.warning("could not remove %s: %s", self._path(old, suffix), error)


def _write_all(fd: int, data: bytes) -> None:
    # A full disk takes a part. Asking for the rest gets the reason, or the space that is free again.
    while data:
        data = data[os.write(fd, data) :]
