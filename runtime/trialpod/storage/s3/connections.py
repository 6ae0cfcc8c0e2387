"""HTTP/1.1 on connections that stay open: a request with its body, and the whole answer.

An operator makes 10 to 20 requests to the bucket for each trial. By urllib3 and minio's signature, one of a kilobyte
takes 0.5 ms of CPU, most of it for objects that are never read: a parser of mail for the answer's head, addresses,
locks, a header for each call of `send`. Here it takes 0.07 to 0.13 ms (measured 2026-11-26 against a stand-in for a
bucket on the same machine, which answers with MinIO's headers; load 5 to 7). minio's client keeps connections of its
own, which are urllib3's.

Invariants:

* An answer is returned when it is there as a whole, by its own length. A head that was cut off is none.
* Only a connection is used again whose last answer ended where it was to end, and on which nothing has come since.
* Nothing is sent twice. After an exception it is not known whether the server has carried out the request.
"""

from __future__ import annotations

import re
import select
import socket
import weakref
from collections.abc import Callable
from http.client import HTTPException
from typing import NamedTuple

from trialpod.storage.s3.errors import Answer
from trialpod.storage.s3.files import FilePart

_STEP = 256 * 1024
_JOINED_BYTES = 64 * 1024
"""A body up to so many bytes is sent together with its head."""

_MAX_HEAD_BYTES = 64 * 1024
_MAX_CHUNK_LINE_BYTES = 4096
_BEGINNING = b"HTTP/1."
_STATUS = re.compile(r"HTTP/1\.(\d) (\d{3})(?: .*)?")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_WITHOUT_BODY = (204, 304)
_ENDS_LINE = re.compile(r"[\r\n\0]")


class CutOffError(ConnectionError):
    """The connection ended before the answer did."""


class NotHttpError(HTTPException):
    """What came back is not an HTTP response."""


class _Head(NamedTuple):
    status: int
    headers: dict[str, str]
    keeps_alive: bool


class Connection:
    """One connection. For one thread at a time.

    Args:
        connected: the socket, whose timeout holds for each wait.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._received = b""  # and not yet read
        self._pending: Callable[[], int] = getattr(connected, "pending", int)  # bytes that TLS has decrypted already
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)
        self.reusable = False
        """Whether the last answer has ended, and another request may follow."""

    def close(self) -> None:
        """End it."""
        self._socket.close()

    def is_quiet(self) -> bool:
        """Return whether nothing has come since the last answer: neither its end, nor what belongs to none."""
        return not self._poll.poll(0) and not self._pending()

    def exchange(self, method: str, head: bytes, body: bytes | FilePart) -> Answer:
        """Send a request, and return the answer.

        Args:
            method: of HTTP.
            head: with the empty line at its end.
            body: as long as the head says.

        Raises:
            OSError: the connection has failed, or something took too long.
            HTTPException: the answer cannot be understood.
            ShortFileError: the file has become shorter.
        """
        self.reusable, whole = False, True
        try:
            self._send(head, body)
        except BrokenPipeError:
            whole = False  # the server may have answered before it had read everything
        answered = self._read_head()
        while answered.status < 200:  # "100 Continue": it is not the answer yet
            answered = self._read_head()
        data, ends = self._read_body(method, answered)
        self.reusable = whole and ends and answered.keeps_alive and not self._received
        return Answer(answered.status, answered.headers, data)

    def _send(self, head: bytes, body: bytes | FilePart) -> None:
        if isinstance(body, FilePart):
            self._socket.sendall(head)
            body.send(self._socket)
        elif len(body) <= _JOINED_BYTES:
            self._socket.sendall(head + body)
        else:
            self._socket.sendall(head)
            self._socket.sendall(body)

    def _receive(self, size: int = _STEP) -> bytes:
        data = self._socket.recv(size)
        if not data:
            raise CutOffError("it closed the connection before its answer had ended")
        return data

    def _read_head(self) -> _Head:
        data = self._received
        while (end := data.find(b"\r\n\r\n")) < 0:
            if len(data) > _MAX_HEAD_BYTES:
                raise NotHttpError("the head of the answer does not end")
            data += self._receive()
            if data[: len(_BEGINNING)] != _BEGINNING[: len(data)]:
                raise NotHttpError(repr(data[:80]))
        self._received = data[end + 4 :]
        return _parsed(data[:end].decode("latin-1"))

    def _read_body(self, method: str, head: _Head) -> tuple[bytes, bool]:
        """Return the body, and whether it has ended before its connection."""
        if method == "HEAD" or head.status in _WITHOUT_BODY:
            return b"", True
        if (coding := head.headers.get("transfer-encoding")) is not None:
            if coding.lower() != "chunked":
                raise NotHttpError(f"transfer-encoding: {coding:.80}")
            return self._read_chunks(), True
        if (length := head.headers.get("content-length")) is not None:
            if not (length.isascii() and length.isdecimal()):
                raise NotHttpError(f"content-length: {length:.80}")
            return self._read_bytes(int(length)), True
        parts = [self._received]
        while data := self._socket.recv(_STEP):
            parts.append(data)
        self._received = b""
        return b"".join(parts), False

    def _read_bytes(self, length: int) -> bytes:
        data = self._received
        if len(data) < length:
            parts, left = [data], length - len(data)
            while left > 0:
                parts.append(data := self._receive(min(left, _STEP)))
                left -= len(data)
            self._received = b""
            return b"".join(parts)
        self._received = data[length:]
        return data[:length]

    def _read_chunks(self) -> bytes:
        parts: list[bytes] = []
        while True:
            line = self._read_line()
            size = _CHUNK_SIZE.fullmatch(line)
            if size is None:
                raise NotHttpError(f"a chunk's size: {line[:80]!r}")
            if not int(size[1], 16):
                while self._read_line():  # trailers
                    pass
                return b"".join(parts)
            parts.append(self._read_bytes(int(size[1], 16)))
            if self._read_bytes(2) != b"\r\n":
                raise NotHttpError("a chunk is longer than its size")

    def _read_line(self) -> bytes:
        data = self._received
        while (end := data.find(b"\r\n")) < 0:
            if len(data) > _MAX_CHUNK_LINE_BYTES:
                raise NotHttpError("a line of the answer does not end")
            data += self._receive()
        self._received = data[end + 2 :]
        return data[:end]


class Connections:
    """The connections to one server. Safe for use by many threads of one process.

    Args:
        max_idle: at most so many unused ones stay open.
    """

    def __init__(self, max_idle: int) -> None:
        self._max_idle = max_idle
        # A list's append and pop are atomic. A lock might be held by another thread in the moment of a fork.
        self._idle: list[Connection] = []
        weakref.finalize(self, _close_all, self._idle)

    def exchange(
        self, connect: Callable[[], socket.socket], method: str, head: bytes, body: bytes | FilePart
    ) -> Answer:
        """Send a request on an idle connection, or on a new one that `connect` makes; see `Connection.exchange`."""
        connection = self._take() or Connection(connect())
        try:
            answer = connection.exchange(method, head, body)
        except BaseException:
            connection.close()
            raise
        if connection.reusable:
            self._idle.append(connection)
            if len(self._idle) > self._max_idle:
                _close_all(self._idle, self._max_idle)
        else:
            connection.close()
        return answer

    def clear(self) -> None:
        """Close those that are idle."""
        _close_all(self._idle)

    def _take(self) -> Connection | None:
        """Return the one that was used last, so that those that are not needed grow old."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.is_quiet():
                return connection
            connection.close()


def head_of(method: str, target: str, headers: dict[str, str]) -> bytes:
    """Return the head of a request, with the empty line at its end.

    Raises:
        ValueError: a value would end its line, or has characters that HTTP does not have.
    """
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    text, ends = "\r\n".join(lines), len(lines) - 1
    if text.count("\r") != ends or text.count("\n") != ends:
        raise ValueError("a header of the request has a line break in it")
    return f"{text}\r\n\r\n".encode("latin-1")


def _parsed(text: str) -> _Head:
    first, *lines = text.split("\r\n")
    status = _STATUS.fullmatch(first)
    if status is None:
        raise NotHttpError(f"{first:.80}")
    headers: dict[str, str] = {}
    name = ""
    for line in lines:
        if line[:1] in (" ", "\t") and name:  # a long value's next line
            headers[name] += f" {line.strip()}"
            continue
        name, colon, value = line.partition(":")
        if not colon or not name or _ENDS_LINE.search(line):
            raise NotHttpError(f"a header: {line:.80}")
        name, value = name.lower(), value.strip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    connection = headers.get("connection", "").lower()
    keeps_alive = "close" not in connection if status[1] != "0" else "keep-alive" in connection
    return _Head(int(status[2]), headers, keeps_alive)


def _close_all(idle: list[Connection], but: int = 0) -> None:
    while len(idle) > but:
        try:
            connection = idle.pop(0)
        except IndexError:
            return  # another thread has just taken it
        connection.close()
