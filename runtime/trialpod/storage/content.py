"""Finds out whether a file's content is already stored, with as little reading as possible.

Invariants: two files count as the same only if size and SHA-256 are equal; the samples only rule out early.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterable

import msgspec

from trialpod.errors import CheckpointError
from trialpod.storage.tree_copy import FileEntry

_STEP = 256 * 1024
_SAMPLE = 16 * 1024


def digest(path: str) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal.

    Raises:
        CheckpointError: the file cannot be read.
    """
    found = hashlib.sha256()
    buffer = memoryview(bytearray(_STEP))
    try:
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                found.update(buffer[:count])
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    return found.hexdigest()


def read(path: str, size: int) -> bytes:
    """Return a small file's content, by three system calls if it has `size` bytes; errors are OSErrors."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(descriptor, size + 1)
        if len(data) == size:
            return data
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return data + file.read()
    finally:
        os.close(descriptor)


def probe(path: str, size: int) -> int:
    """Return the CRC-32 of samples from the start, the middle and the end of a file of `size` bytes.

    Raises:
        CheckpointError: the file cannot be read.
    """
    try:
        if size <= 3 * _SAMPLE:
            return zlib.crc32(read(path, size))
        with open(path, "rb", buffering=0) as file:
            found = 0
            for start in (0, size // 2, size - _SAMPLE):
                found = zlib.crc32(os.pread(file.fileno(), _SAMPLE, start), found)
            return found
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error


def probe_bytes(data: bytes) -> int:
    """Return the probe of a file with this content."""
    if len(data) <= 3 * _SAMPLE:
        return zlib.crc32(data)
    found = 0
    for start in (0, len(data) // 2, len(data) - _SAMPLE):
        found = zlib.crc32(data[start : start + _SAMPLE], found)
    return found


class Stored:
    """The files of a checkpoint that is stored: what a new file may be the same as.

    Args:
        entries: its files; those without a digest are not considered.
        name: the checkpoint's.
    """

    def __init__(self, entries: Iterable[FileEntry] = (), name: str = "") -> None:
        self._sizes: dict[int, list[FileEntry]] = {}
        for entry in entries:
            if entry.digest and entry.size:
                placed = entry if entry.at else msgspec.structs.replace(entry, at=f"{name}/{entry.path}")
                self._sizes.setdefault(entry.size, []).append(placed)

    def has_size(self, size: int) -> bool:
        """Tell whether any of the files has this size."""
        return size in self._sizes

    def candidates(self, size: int, sampled: int) -> list[FileEntry]:
        """Return the files that may be the same as one of this size and probe, with `at` set."""
        return [entry for entry in self._sizes.get(size, ()) if entry.probe == sampled]
