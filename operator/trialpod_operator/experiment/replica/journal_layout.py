"""The layout of an experiment's journal in its storage: the names of the objects, and what belongs together.

They are in a folder of their own, whose name is the journal's id. What other folders hold is left of earlier
experiments at the same location, and is never read.

``00000003.log/000000004096`` has the bytes of segment 3 from byte 4,096 on; an empty one is a seal, the end of its
segment. ``00000003.log/bundle-000000000000-000000008192`` has the bytes of many of these objects too, so that a
reader needs one request for them. ``00000003.snapshot`` is the snapshot before segment 3, whole; an empty one says
that it will never come, and that segment 3 continues segment 2. ``00000002.log.removed`` marks where a segment was
removed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from trialpod.storage.base import Storage
from trialpod.storage.journal.format import FRAME, SEGMENT_HEADER_BYTES
from trialpod.storage.layout import JOURNAL_DIR, TRIALPOD_DIR
from trialpod.storage.parallel import run_all

JOURNAL = f"{TRIALPOD_DIR}/{JOURNAL_DIR}"
"""The journal's folder in an experiment's directory, which has no id in it: there is one journal in a directory."""

SEGMENT = re.compile(r"(\d{8})\.log")
SNAPSHOT = re.compile(r"(\d{8})\.snapshot")
REMOVED = ".removed"
_PARALLEL = 8
_BUNDLE = re.compile(r"bundle-(\d{12})-(\d{12})")


class Pieces:
    """What the storage holds of a journal.

    Attributes:
        snapshots: file names, oldest first; only the latest where there are several.
        segments: the bytes of each object, by its offset, by the segment's file name.
        bundles: where each bundle ends, by where it begins, by the same.
        given_up: file names of snapshots that will never come.
        replaced: the file names of older snapshots and segments, which the latest snapshot has replaced.
    """

    def __init__(self, folder: str, objects: Mapping[str, int]) -> None:
        """Take what a listing of the journal's folder found: sizes in bytes by key."""
        self._folder = folder
        self.snapshots: list[str] = []
        self.given_up: list[str] = []
        self.segments: dict[str, dict[int, int]] = {}
        self.bundles: dict[str, dict[int, int]] = {}
        for key in sorted(objects):
            name, _, offset = key.removeprefix(f"{folder}/").partition("/")
            if found := _BUNDLE.fullmatch(offset):
                self.bundles.setdefault(name, {})[int(found[1])] = int(found[2])
            elif offset and SEGMENT.fullmatch(name):
                self.segments.setdefault(name, {})[int(offset)] = objects[key]
            elif not offset and SNAPSHOT.fullmatch(name):
                (self.snapshots if objects[key] else self.given_up).append(name)
        self.replaced: list[str] = []
        if self.snapshots:
            # Older ones are about to be removed, perhaps by a process that died before it got to it.
            number = number_of(self.snapshots[-1])
            older = {name for name in self.segments if number_of(name) < number}
            self.replaced = [*self.snapshots[:-1], *sorted(older)]
            self.replaced += [name for name in self.given_up if number_of(name) < number]
            self.snapshots = self.snapshots[-1:]
            self.segments = {name: each for name, each in self.segments.items() if name not in older}

    def sizes(self) -> dict[str, int]:
        """Return how long each segment is."""
        return {name: last + found[last] for name, found in self.segments.items() for last in [max(found)]}

    def keys_from(self, segment: str, start: int) -> dict[int, str]:
        """Return the keys of few objects that hold a segment's bytes from there on, by their offset in it.

        A bundle that the listing has not shown every object of is left out: it grew meanwhile.
        """
        pieces, bundles = self.segments[segment], self.bundles.get(segment, {})
        keys: dict[int, str] = {}
        size, covered = self.sizes()[segment], start
        for offset in sorted(each for each in pieces if each >= start):
            if offset < covered:
                continue
            keys[offset], covered = piece_key(self._folder, segment, offset), offset + pieces[offset]
            end = bundles.get(offset, size + 1)
            if end <= size:
                keys[offset], covered = bundle_key(self._folder, segment, offset, end), end
        return keys

    def bundled(self, segment: str) -> tuple[int, int]:
        """Return where a segment's bundles end, and how many objects are in them."""
        end = max(self.bundles.get(segment, {}).values(), default=0)
        return end, sum(offset < end for offset in self.segments[segment])

    def seals(self) -> set[str]:
        """Return the segments that take nothing more."""
        return {name for name, found in self.segments.items() if not found[max(found)]}


def number_of(name: str) -> int:
    """Return the number of a segment or snapshot."""
    return int(name.partition(".")[0])


def segment_name(number: int) -> str:
    """Return the file name of a segment."""
    return f"{number:08d}.log"


def snapshot_name(number: int) -> str:
    """Return the file name of the snapshot before a segment."""
    return f"{number:08d}.snapshot"


def folder_of(journal_id: str) -> str:
    """Return the folder in a storage that holds the objects of the journal with this id."""
    return f"{JOURNAL}/{journal_id}"


def folder_in(key: str) -> str:
    """Return the folder of the journal that an object in a storage is of, "" when it is of none."""
    above, _, rest = key.removeprefix(f"{JOURNAL}/").partition("/")
    return folder_of(above) if rest and key.startswith(f"{JOURNAL}/") else ""


def piece_key(folder: str, segment: str, offset: int) -> str:
    """Return the key of the object that holds a segment's bytes from there on."""
    return f"{folder}/{segment}/{offset:012d}"


def bundle_key(folder: str, segment: str, start: int, end: int) -> str:
    """Return the key of the bundle of a segment's bytes between these."""
    return f"{folder}/{segment}/bundle-{start:012d}-{end:012d}"


def read_all(storage: Storage, keys: Mapping[int, str]) -> dict[int, bytes]:
    """Read objects, several at a time; return their bytes, by the same numbers.

    Raises:
        KeyMissingError: one of them is gone.
        StorageError: the storage cannot be read.
    """
    found: dict[int, bytes] = {}

    def read(number: int, key: str) -> None:
        found[number] = storage.read(key)

    run_all([partial(read, number, key) for number, key in keys.items()], _PARALLEL)
    return found


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
