"""Parts of local files as bodies of requests."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path

from trialpod.errors import StorageError
from trialpod.storage.base import storage_error

_STEP = 256 * 1024


class ShortFileError(Exception):
    """The local file ended before the number of bytes that it was to give."""


@dataclass(frozen=True)
class FilePart:
    """Some bytes of an open file, as the body of a request."""

    descriptor: int
    start: int
    length: int

    def reader(self) -> PartReader:
        """Return what reads them from the beginning; each try of a request takes a new one."""
        return PartReader(self)

    def checksum(self, local: Path) -> int:
        """Return the CRC-32 of the bytes; `local` is the file's name for messages."""
        reader, checksum = self.reader(), 0
        try:
            while piece := reader.read(_STEP):
                checksum = zlib.crc32(piece, checksum)
        except OSError as error:
            raise storage_error(error, "cannot read", local) from error
        except ShortFileError as error:
            raise StorageError(f"{local} became shorter while it was sent") from error
        return checksum


class PartReader:
    """Reads a part of a file through one small buffer."""

    def __init__(self, part: FilePart) -> None:
        self._descriptor = part.descriptor
        self._position = part.start
        self._left = part.length
        self._buffer = memoryview(bytearray(min(_STEP, max(part.length, 1))))

    def read(self, size: int) -> memoryview:
        """Return the next bytes, at most `size`, in a buffer that the next call overwrites; none at the end.

        Raises:
            ShortFileError: the file is shorter than the part.
        """
        wanted = min(size, self._left, len(self._buffer))
        if not wanted:
            return self._buffer[:0]
        count = os.preadv(self._descriptor, [self._buffer[:wanted]], self._position)
        if not count:
            raise ShortFileError
        self._position += count
        self._left -= count
        return self._buffer[:count]
