"""Which files of a checkpoint share an object, and which bytes of a shared object to ask for.

A request costs a storage about as much as a megabyte of data, so many small files go into few objects, *packs*: their
contents one after another. Few small files stay objects of their own, which every S3 tool can read.

Invariants: a pack holds whole files; a file keeps its bytes as they are; the order of files is kept.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from trialpod import variables
from trialpod.storage.base import storage_error
from trialpod.storage.checkpoints.manifest import FileEntry
from trialpod.storage.checkpoints.staging import LocalFile
from trialpod.storage.file_tree import Tree, unreadable
from trialpod.storage.layout import PACK_PREFIX

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
    off = variables.is_off(variables.PACK_CHECKPOINTS, os.environ.get(variables.PACK_CHECKPOINTS, ""))
    return None if off else Packing()


def is_pack(place: str) -> bool:
    """Tell whether a key or a path is a pack's."""
    return place.rpartition("/")[2].startswith(PACK_PREFIX)


def pack_small_files(source: str, target: str, tree: Tree, packing: Packing | None) -> list[LocalFile]:
    """Copy the small files that `tree` lists from `source` into packs in `target`, and take them out of `tree`.

    A thousand new files cost more than their bytes do.

    Raises:
        CheckpointError: a file cannot be read.
        StorageError: a pack cannot be written.
    """
    _, together = packs(list(tree.files.items()), packing)
    found = []
    for number, paths in enumerate(together):
        place = os.path.join(target, f"{PACK_PREFIX}{number:04d}")
        offset = 0
        try:
            with open(place, "xb") as pack:
                for path in paths:
                    data = _read(os.path.join(source, path), tree.files.pop(path))
                    pack.write(data)
                    found.append(LocalFile(path, len(data), place, offset))
                    offset += len(data)
        except OSError as error:
            raise storage_error(error, "cannot write", place, tree.size) from error
    return found


def _read(path: str, size: int) -> bytes:
    """Return a small file's content, by three system calls if it has `size` bytes."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(descriptor, size + 1)
            if len(data) == size:
                return data
            with os.fdopen(os.dup(descriptor), "rb") as file:
                return data + file.read()
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unreadable(error, path) from error


class Span(NamedTuple):
    """Neighbouring files of one pack: what one request reads."""

    key: str
    start: int
    length: int
    entries: list[FileEntry]


class Part(NamedTuple):
    """Some bytes of a file whose bytes are in several objects: what one request reads, and where it writes them."""

    key: str
    start: int
    length: int
    position: int


def parts(entry: FileEntry) -> list[Part]:
    """Return the ranges to read for a file with pieces."""
    found = []
    position = 0
    for piece in entry.pieces:
        for start in range(0, piece.size, _SPAN_BYTES):
            length = min(_SPAN_BYTES, piece.size - start)
            found.append(Part(piece.key, piece.offset + start, length, position + start))
        position += piece.size
    return found


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
    for entry in sorted(entries, key=lambda entry: (entry.key, entry.offset)):
        last = found[-1] if found else None
        end = entry.offset + entry.size
        if (
            last is not None
            and last.key == entry.key
            and entry.offset - (last.start + last.length) <= _GAP_BYTES
            and end - last.start <= _SPAN_BYTES
        ):
            length = max(last.length, end - last.start)
            found[-1] = Span(last.key, last.start, length, [*last.entries, entry])
        else:
            found.append(Span(entry.key, entry.offset, entry.size, [entry]))
    return found
