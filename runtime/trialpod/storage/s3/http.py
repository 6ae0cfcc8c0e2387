"""HTTP/1.1 for an S3 server: kept-alive connections, bodies from and to files without a detour through memory.

Written instead of taken because of what the storage needs: files go out by sendfile(2) and come in through one small
buffer, names below ``.localhost`` are this machine (RFC 6761), and every failure keeps its cause.

Invariants: a connection on which anything went wrong is closed, never used again; a connection made before a fork is
never used after it; memory is bounded by one buffer a connection.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trialpod.errors import InvalidInputError

if TYPE_CHECKING:
    import ssl

    from trialpod.storage.s3.routes import Dial

Sink = Callable[[memoryview], None]

_STEP = 256 * 1024
_MAX_HEAD = 64 * 1024
_MAX_BODY = 64 * 1024 * 1024
_SENDFILE_STEP = 8 * 1024 * 1024
_UNACKNOWLEDGED_MS = 20_000
"""A connection whose packets nobody acknowledges is given up; TCP would go on only long after the network is back."""
_KEEPALIVE_S = 10
"""Where an answer is waited for, probes are what is acknowledged."""


class ProtocolError(OSError):
    """What came back is not an answer in HTTP/1.1."""


class StaleConnectionError(OSError):
    """A kept-alive connection had been dropped by the server; a new one may well work."""


class ShortFileError(Exception):
    """The local file ended before the number of bytes that it was to give."""


@dataclass(frozen=True)
class FilePart:
    """Some bytes of an open file, as the body of a request."""

    descriptor: int
    start: int
    length: int


@dataclass(frozen=True)
class Answer:
    """What the server said. Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class HttpPool:
    """Kept-alive connections to one endpoint. Safe for use by many threads.

    Args:
        endpoint: ``http://host:port`` or ``https://host:port``.
        ca_file: certificates to trust for https; "" for the system's.
        timeout_s: seconds for one send or one wait for data.
        connect_timeout_s: seconds until a connection must stand.
        ca_pem: certificates to trust for https, themselves; goes before `ca_file`.
        dial: connects to the endpoint; None = by its address.

    Raises:
        InvalidInputError: the file of certificates cannot be used.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        ca_file: str,
        timeout_s: float,
        connect_timeout_s: float,
        ca_pem: str = "",
        dial: Dial | None = None,
    ) -> None:
        parts = urlsplit(endpoint)
        self._tls: ssl.SSLContext | None = _context(ca_file, ca_pem) if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._dial = dial
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        # Not by __del__: in a cycle that is collected the sockets may come first, and warn that nobody closed them.
        weakref.finalize(self, _close_all, self._idle)
        self._pid = os.getpid()

    def exchange(
        self,
        method: str,
        host: str,
        target: str,
        headers: dict[str, str],
        body: bytes | FilePart,
        sink: Sink | None = None,
    ) -> Answer:
        """Send one request and return its answer.

        Args:
            method: of HTTP.
            host: the host to connect to and to verify; one connection serves only one.
            target: path and query, percent-encoded.
            headers: without Content-Length.
            body: bytes, or a part of a file.
            sink: takes the body of an answer with a 2xx status piece by piece; the answer's body is then empty.

        Raises:
            OSError: there is no whole answer (of which StaleConnectionError means: nothing was tried really).
            ShortFileError: the file is shorter than the part.
        """
        connection, reused = self._acquire(host)
        keep = False
        try:
            answer, keep = connection.exchange(method, target, headers, body, sink)
        except (ConnectionError, ProtocolError) as error:
            if reused and connection.silent:
                self._forget()
                raise StaleConnectionError(str(error)) from error
            raise
        finally:
            if keep:
                with self._lock:
                    self._idle.append(connection)
            else:
                connection.close()
        return answer

    def close(self) -> None:
        """Close the idle connections."""
        self._forget()

    def _acquire(self, host: str) -> tuple[_Connection, bool]:
        with self._lock:
            if self._pid != os.getpid():
                self._pid = os.getpid()
                _close_all(self._idle)  # only this process's descriptors: the parent's go on
            for index in range(len(self._idle) - 1, -1, -1):
                if self._idle[index].host == host:
                    return self._idle.pop(index), True
        return _Connection(self._connect(host), host, self._timeout_s), False

    def _forget(self) -> None:
        with self._lock:
            _close_all(self._idle)

    def _connect(self, host: str) -> socket.socket:
        if self._dial is not None:
            connection = self._dial(self._connect_timeout_s)
        else:
            address = "localhost" if host.endswith(".localhost") else host
            connection = socket.create_connection((address, self._port), timeout=self._connect_timeout_s)
        try:
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT") and connection.family != socket.AF_UNIX:  # Linux
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S)
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_hostname=host)
            connection.settimeout(self._timeout_s)
        except BaseException:
            connection.close()
            raise
        return connection


def _close_all(connections: list[_Connection]) -> None:
    while connections:
        connections.pop().close()


class _Connection:
    def __init__(self, connected: socket.socket, host: str, timeout_s: float) -> None:
        self.host = host
        self.silent = True  # no byte of the current answer has come
        self._socket = connected
        self._plain = type(connected) is socket.socket
        self._timeout_s = timeout_s
        self._buffer = memoryview(bytearray(_STEP))
        self._begin = self._end = 0

    def close(self) -> None:
        self._socket.close()

    def exchange(
        self, method: str, target: str, headers: dict[str, str], body: bytes | FilePart, sink: Sink | None
    ) -> tuple[Answer, bool]:
        self.silent = True
        length = len(body) if isinstance(body, bytes) else body.length
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        if length or method in ("PUT", "POST"):
            lines.append(f"Content-Length: {length}")
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        try:
            if isinstance(body, bytes):
                self._socket.sendall(head + body)
            else:
                self._socket.sendall(head)
                self._send_file(body)
        except (BrokenPipeError, ConnectionResetError) as error:
            # The server may have said why before it closed.
            try:
                answer, _ = self._receive(method, sink)
            except OSError:
                raise error from None
            return answer, False
        return self._receive(method, sink)

    def _send_file(self, part: FilePart) -> None:
        offset, left = part.start, part.length
        if not self._plain:
            buffer = memoryview(bytearray(min(_STEP, max(left, 1))))
            while left:
                count = os.preadv(part.descriptor, [buffer[: min(left, _STEP)]], offset)
                if not count:
                    raise ShortFileError
                self._socket.sendall(buffer[:count])
                offset, left = offset + count, left - count
            return
        writer = self._socket.fileno()
        while left:
            try:
                count = os.sendfile(writer, part.descriptor, offset, min(left, _SENDFILE_STEP))
            except BlockingIOError:
                poll = select.poll()
                poll.register(writer, select.POLLOUT)
                if not poll.poll(self._timeout_s * 1000):
                    raise TimeoutError("timed out") from None
                continue
            if not count:
                raise ShortFileError
            offset, left = offset + count, left - count

    def _receive(self, method: str, sink: Sink | None) -> tuple[Answer, bool]:
        status = 100
        while 100 <= status < 200:
            status, version, headers = self._head()
        keep = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
        if method == "HEAD" or status in (204, 304):
            return Answer(status, headers, b""), keep
        collected = bytearray()

        def collect(piece: memoryview) -> None:
            if len(collected) + len(piece) > _MAX_BODY:
                raise ProtocolError("the answer is larger than 64 MB")
            collected.extend(piece)

        take = sink if sink is not None and 200 <= status < 300 else collect
        if "chunked" in headers.get("transfer-encoding", "").lower():
            self._chunks(take)
        elif "content-length" in headers:
            if not headers["content-length"].isdecimal():
                raise ProtocolError(f"invalid Content-Length {headers['content-length']!r}")
            self._take(int(headers["content-length"]), take)
        else:
            keep = False
            self._take(None, take)
        return Answer(status, headers, bytes(collected)), keep

    def _fill(self) -> bool:
        self._begin, self._end = 0, self._socket.recv_into(self._buffer)
        self.silent = self.silent and not self._end
        return self._end > 0

    def _take(self, count: int | None, take: Sink) -> None:
        while count is None or count > 0:
            if self._begin == self._end and not self._fill():
                if count is None:
                    return
                raise ConnectionResetError("the connection ended in mid-answer")
            end = self._end if count is None else min(self._end, self._begin + count)
            take(self._buffer[self._begin : end])
            if count is not None:
                count -= end - self._begin
            self._begin = end

    def _line(self) -> str:
        line = bytearray()
        while not line.endswith(b"\n"):
            if self._begin == self._end and not self._fill():
                raise ConnectionResetError("the server closed the connection without a whole answer")
            window = bytes(self._buffer[self._begin : min(self._end, self._begin + 4096)])
            found = window.find(b"\n")
            taken = len(window) if found < 0 else found + 1
            line += window[:taken]
            self._begin += taken
            if len(line) > _MAX_HEAD:
                raise ProtocolError("the answer's head is too large")
        return line.decode("latin-1").rstrip("\r\n")

    def _head(self) -> tuple[int, str, dict[str, str]]:
        first = self._line()
        version, _, rest = first.partition(" ")
        if version not in ("HTTP/1.1", "HTTP/1.0") or not rest[:3].isdecimal():
            raise ProtocolError(f"the answer is not HTTP: {first[:60]!r}")
        headers = {}
        total = 0
        while line := self._line():
            total += len(line)
            if total > _MAX_HEAD:
                raise ProtocolError("the answer's head is too large")
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        return int(rest[:3]), version, headers

    def _chunks(self, take: Sink) -> None:
        while True:
            size = self._line().partition(";")[0].strip()
            try:
                count = int(size, 16)
            except ValueError:
                raise ProtocolError(f"invalid chunk size {size[:20]!r}") from None
            if not count:
                while self._line():
                    pass
                return
            self._take(count, take)
            self._line()


def _context(ca_file: str, ca_pem: str) -> ssl.SSLContext:
    import ssl

    try:
        if ca_pem:
            return ssl.create_default_context(cadata=ca_pem)
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:  # ssl.SSLError is one
        raise InvalidInputError(
            f"cannot use the certificates in {'ca_pem' if ca_pem else ca_file}: {error.strerror or error}; "
            "it must be a PEM file"
        ) from error
