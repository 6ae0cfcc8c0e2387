"""Reads a journal that another process appends to, and each time only what is new.

Invariants: nothing is changed; each record is returned once, in order, unless `Update.restart` says that the state is
to be made from the beginning; a torn record at the end is left for the next call. Where another journal has taken the
place of the one that was read, its records are never taken for later ones: the last record that was returned is
looked for, by its frame.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from trialpod.errors import JournalError
from trialpod.storage.base import storage_error
from trialpod.storage.journal.format import FRAME, SEGMENT_HEADER_BYTES, frame_check, read_segment_header, scan
from trialpod.storage.journal.journal import Journal


@dataclass(frozen=True, slots=True)
class Update:
    """What is new in a journal.

    Attributes:
        restart: forget everything: `snapshot`, or nothing, is the state before `records`.
        snapshot: the state to begin with; None where the journal has none.
        records: what comes after it, or after the last update.
    """

    restart: bool = False
    snapshot: bytes | None = None
    records: list[bytes] = field(default_factory=list)


class JournalFollower:
    """Follows the journal in a folder.

    Args:
        directory: the journal's folder; it may not exist yet.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tail: tuple[int, int] | None = None
        self._position = -1  # of the last record that was returned; -1 before the first update
        self._frame = b""  # the header of that record's frame; b"" where only a snapshot stood for it
        self._frame_at: tuple[int, int] | None = None  # its segment and offset; None where it is in none any more

    def poll(self) -> Update:
        """Return what was written since the last call.

        Raises:
            JournalError: the journal is damaged, or of another version.
            StorageError: it cannot be read.
        """
        if self._tail is None:
            return self._reopen()
        records: list[bytes] = []
        if not self._is_unchanged():
            self._tail, self._position = None, -1
            return self._reopen()
        number, offset = self._tail
        position = self._position
        frame_at = self._frame_at
        while True:
            path = self._path(number)
            # Looked at before the segment is read: then what was read is all of it.
            closed = self._path(number + 1).exists()
            try:
                data = _read_from(path, offset)
            except FileNotFoundError:
                return self._reopen()  # a snapshot has replaced it
            start = 0
            if offset == 0:
                if len(data) < SEGMENT_HEADER_BYTES or not any(data):
                    break  # it is being made
                first, start = read_segment_header(data, os.fspath(path))
                if first != position + 1:
                    return self._reopen()
            try:
                position, end = scan(data, start, position, os.fspath(path), last=not closed)
            except JournalError:
                # The message is to name the place in the file, not in the part of it that was read here.
                return self._reopen()
            records += _frames(data, start, end)
            offset += end
            if end > start:
                frame_at = _place_of(records, number, offset)
            if not closed:
                break
            number, offset = number + 1, 0
        self._tail, self._position, self._frame_at = (number, offset), position, frame_at
        if records:
            self._frame = _frame_of(records[-1], position)
        return Update(records=records)

    def _reopen(self) -> Update:
        journal = Journal.open(self._directory, read_only=True)
        try:
            records = list(journal.records())
            snapshot, position = journal.snapshot, journal.position
        finally:
            journal.close()
        covered, known, frame = position - len(records), self._position, self._frame
        self._tail, self._position = journal.tail, position
        if records:
            self._frame = _frame_of(records[-1], position)
        elif known != position:
            self._frame = b""
        self._frame_at = _place_of(records, *journal.tail) if journal.tail is not None else None
        # Snapshots of one journal stand for more and more records: without a frame it is another journal.
        found = covered == known or (
            covered < known <= position and _frame_of(records[known - covered - 1], known) == frame
        )
        if found:
            return Update(records=records[known - covered :])
        return Update(restart=True, snapshot=snapshot, records=records)

    def _is_unchanged(self) -> bool:
        """Return whether what was read last is still where it was; True too where its segment is gone."""
        assert self._tail is not None
        number, offset = self._tail
        try:
            if os.stat(self._path(number)).st_size < offset:
                return False
            if self._frame_at is None:
                return True
            number, offset = self._frame_at
            return _read_from(self._path(number), offset, FRAME.size) == self._frame
        except FileNotFoundError:
            return True  # `_reopen` finds out
        except OSError as error:
            raise storage_error(error, "cannot read", self._path(number)) from error

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:08d}.log"


def _frame_of(record: bytes, position: int) -> bytes:
    """Return the header of a record's frame."""
    low = position & 0xFFFFFFFF
    return FRAME.pack(len(record), low, frame_check(len(record), low, record))


def _place_of(records: list[bytes], number: int, end: int) -> tuple[int, int] | None:
    """Return where the frame of the last record is, which ends at an offset of a segment; None: in an earlier one."""
    return (number, end - len(records[-1]) - FRAME.size) if records and end > SEGMENT_HEADER_BYTES else None


def _read_from(path: Path, offset: int, size: int = -1) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(size)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise storage_error(error, "cannot read", path) from error


def _frames(data: bytes, at: int, end: int) -> list[bytes]:
    records = []
    while at < end:
        length = FRAME.unpack_from(data, at)[0]
        at += FRAME.size + length
        records.append(data[at - length : at])
    return records
