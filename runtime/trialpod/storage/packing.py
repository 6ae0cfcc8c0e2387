"""Which files of a checkpoint share an object, and which bytes of a shared object to ask for.

A request costs a storage about as much as a megabyte of data, so many small files go into few objects, *packs*: their
contents one after another. Few small files stay objects of their own, which every S3 tool can read.

Invariants: a pack holds whole files; a file keeps its bytes as they are; the order of files is kept.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from trialpod.storage.tree_copy import FileEntry

SETTING = "TRIALPOD_PACK_CHECKPOINTS"
"""Environment variable: "0" keeps one object for each file, as Ray Tune does."""

_GAP_BYTES = 64 * 1024
_SPAN_BYTES = 8 * 1024 * 1024


class Packing(NamedTuple):
    """When files are packed.

    Attributes:
        more_than: up to so many small files keep an object each.
        below_bytes: files below this size are small.
        pack_bytes: a pack is closed when it has reached this size.
    """

    more_than: int = 64
    below_bytes: int = 256 * 1024
    pack_bytes: int = 64 * 1024 * 1024


def configured() -> Packing | None:
    """Return the packing that the environment asks for; None is none."""
    return None if os.environ.get(SETTING, "1").lower() in ("0", "false", "no", "off") else Packing()


class Span(NamedTuple):
    """Neighbouring files of one pack: what one request reads."""

    key: str
    start: int
    length: int
    entries: list[FileEntry]


def packs(files: Sequence[tuple[str, int]], packing: Packing | None) -> tuple[list[str], list[list[str]]]:
    """Divide files into those with an object of their own and packs.

    Args:
        files: path and size in bytes of each.
        packing: None packs nothing.
    """
    small = [path for path, size in files if packing is not None and size < packing.below_bytes]
    if packing is None or len(small) <= packing.more_than:
        return [path for path, _ in files], []
    alone = [path for path, size in files if size >= packing.below_bytes]
    sizes = dict(files)
    made: list[list[str]] = []
    filled = packing.pack_bytes
    for path in small:
        if filled >= packing.pack_bytes:
            made.append([])
            filled = 0
        made[-1].append(path)
        filled += sizes[path]
    return alone, made


def spans(entries: Sequence[FileEntry]) -> list[Span]:
    """Return the ranges to read for files that are in packs: neighbours together, holes of some size left out."""
    found: list[Span] = []
    for entry in sorted(entries, key=lambda entry: (entry.at, entry.offset)):
        last = found[-1] if found else None
        end = entry.offset + entry.size
        if (
            last is not None
            and last.key == entry.at
            and entry.offset - (last.start + last.length) <= _GAP_BYTES
            and end - last.start <= _SPAN_BYTES
        ):
            length = max(last.length, end - last.start)
            found[-1] = Span(last.key, last.start, length, [*last.entries, entry])
        else:
            found.append(Span(entry.at, entry.offset, entry.size, [entry]))
    return found
