"""Parts of local files as bodies of requests."""

from __future__ import annotations

import os
import selectors
import socket
import zlib
from collections.abc import Iterator
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

    def __iter__(self) -> Iterator[FilePart]:
        """Yield itself, as the only piece that urllib3 hands to the connection to send."""
        yield self

    def fileno(self) -> int:
        """Return the descriptor, for sendfile(2)."""
        return self.descriptor

    def send(self, connection: socket.socket) -> None:
        """Send the bytes, by sendfile(2) where the connection is not encrypted.

        On a busy machine each step waits for the interpreter lock: a loop of `read` and `sendall` in steps of 256 kB
        took 1.2 to 1.3 times as long.

        Raises:
            ShortFileError: the file is shorter than the part.
        """
        if type(connection) is socket.socket:
            self._send_by_kernel(connection)
            return
        reader = self.reader()
        while piece := reader.read(_STEP):
            connection.sendall(piece)

    def _send_by_kernel(self, connection: socket.socket) -> None:
        # socket.sendfile takes a connection that broke before the first byte for a file that cannot be sent like
        # this, and reads the file instead, from its own position.
        sent = 0
        with selectors.PollSelector() as writable:
            writable.register(connection, selectors.EVENT_WRITE)
            while sent < self.length:
                if not writable.select(connection.gettimeout()):
                    raise TimeoutError("timed out")
                try:
                    count = os.sendfile(connection.fileno(), self.descriptor, self.start + sent, self.length - sent)
                except BlockingIOError:
                    continue
                if not count:
                    raise ShortFileError
                sent += count

    def reader(self) -> PartReader:
        """Return what reads them from the beginning."""
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
