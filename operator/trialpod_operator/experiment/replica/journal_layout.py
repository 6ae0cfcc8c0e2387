"""The layout of an experiment's journal in its storage: the names of the objects, and what belongs together.

``00000003.log/000000004096`` has the bytes of segment 3 from byte 4,096 on; an empty one is a seal, the end of its
segment. ``00000003.snapshot`` is the snapshot before segment 3, whole. ``00000002.log.removed`` marks where
a segment was removed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from trialpod.storage.journal.format import FRAME, SEGMENT_HEADER_BYTES
from trialpod.storage.layout import JOURNAL_DIR, TRIALPOD_DIR

JOURNAL = f"{TRIALPOD_DIR}/{JOURNAL_DIR}"
SEGMENT = re.compile(r"(\d{8})\.log")
SNAPSHOT = re.compile(r"(\d{8})\.snapshot")
REMOVED = ".removed"


class Pieces:
    """What the storage holds of a journal.

    Attributes:
        snapshots: file names, oldest first; only the latest where there are several.
        segments: the bytes of each object, by its offset, by the segment's file name.
    """

    def __init__(self, objects: Mapping[str, int]) -> None:
        """Take what a listing of the journal's folder found: sizes in bytes by key."""
        self.snapshots: list[str] = []
        self.segments: dict[str, dict[int, int]] = {}
        for key in sorted(objects):
            name, _, offset = key.removeprefix(f"{JOURNAL}/").partition("/")
            if offset and SEGMENT.fullmatch(name):
                self.segments.setdefault(name, {})[int(offset)] = objects[key]
            elif not offset and SNAPSHOT.fullmatch(name):
                self.snapshots.append(name)
        if self.snapshots:
            # Older ones are about to be removed, perhaps by a process that died before it got to it.
            number = number_of(self.snapshots[-1])
            self.snapshots = self.snapshots[-1:]
            self.segments = {name: each for name, each in self.segments.items() if number_of(name) >= number}

    def sizes(self) -> dict[str, int]:
        """Return how long each segment is."""
        return {name: last + found[last] for name, found in self.segments.items() for last in [max(found)]}

    def seals(self) -> set[str]:
        """Return the segments that take nothing more."""
        return {name for name, found in self.segments.items() if not found[max(found)]}


def number_of(name: str) -> int:
    """Return the number of a segment or snapshot."""
    return int(name.partition(".")[0])


def piece_key(segment: str, offset: int) -> str:
    """Return the key of the object that holds a segment's bytes from there on."""
    return f"{JOURNAL}/{segment}/{offset:012d}"


def local_sizes(folder: Path) -> dict[str, int]:
    """Return how long the segments in a journal's folder are."""
    if not folder.is_dir():
        return {}
    return {name: (folder / name).stat().st_size for name in os.listdir(folder) if SEGMENT.fullmatch(name)}


def whole_records(data: bytes, *, at_start: bool) -> bytes:
    """Cut off a record that is still being written: a crash would replace it by another one.

    Args:
        data: of a segment, from the beginning of a record on.
        at_start: whether it begins with the segment's header.
    """
    end = SEGMENT_HEADER_BYTES if at_start else 0
    if len(data) < end:
        return b""
    while len(data) - end >= FRAME.size:
        length = FRAME.size + FRAME.unpack_from(data, end)[0]
        if end + length > len(data):
            break
        end += length
    return data[:end]


def read_part(path: Path, start: int, length: int = -1) -> bytes:
    """Return so many bytes of a file from byte `start` on; all to its end for -1."""
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(length)
