"""A small blocking HTTP/1.1 client for one server: POST over a kept-alive connection.

Own code instead of the standard library's client, because it is on the report path and in each trial's start.
Measured side by side on a Unix socket (benchmarks/http_libraries.py): 14 us of CPU per request against 75 us of
http.client, and 15 ms less CPU to import. http.client also takes the interim answer 102 for the final one, and has no
time limit for a whole answer.

Invariants:

* A call ends within its timeout even if the server trickles bytes, and after `IO_TIMEOUT_S` without data or an
  interim answer 102. TCP alone does not detect a server that hangs: its kernel still acknowledges, and another
  process may have taken over long ago.
* A body has a Content-Length, in both directions; anything else is refused, never guessed.
* After any error, or an exception out of a signal handler, the connection is closed: half an answer can never be
  taken for the answer to the next request.
* A request is sent a second time only when a kept-alive connection turned out to be dropped before the first byte
  of the answer. Callers send only what the server may receive twice.
* A server to which requests were redirected must present a certificate for the original address before it gets any.
* The certificates to trust are read again for each connection: an authority that replaces its own is followed by a
  process that runs for days.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from trialpod.errors import InvalidInputError, TrialpodError

MAX_HEAD_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 64 * 1024 * 1024
_MAX_DIGITS = 18
IO_TIMEOUT_S = 7.5
_MAX_INTERIM = 256
_KEEPALIVE_S, _KEEPALIVE_PROBES = 5, 2
_UNACKNOWLEDGED_MS = 10_000
"""A connection whose packets are not acknowledged is given up: TCP would retry ever later, and after a break of
the network continue only when that was over for as long as it had lasted. A slow server acknowledges, also the
probes, which find out when it is the answer that was lost."""


class TransportError(TrialpodError):
    """No usable answer came back: the server is away, too slow, or does not speak HTTP/1.1. Trying again may help."""


class _DroppedError(Exception):
    """The connection ended before the first byte of an answer."""


class Connection:
    """One kept-alive connection, opened when first needed and again after it was dropped.

    Not safe for use by two threads at a time; its owner serialises.

    Args:
        address: ``unix:/path``, ``http://host:port`` or ``https://host:port``.
        timeout_s: seconds that it may take to send a request, and as many that the whole of its answer may take.
        io_timeout_s: seconds in which the server takes or sends nothing, after which it is given up.
        connect_timeout_s: seconds that connecting may take.
        max_answer_bytes: largest body that is accepted.
        authorization: gives the value of the Authorization header for each request; a token may change over time.
        ca_file: certificates to trust for https instead of the system's; read again for each connection.

    Raises:
        InvalidInputError: the address has none of the three forms.
    """

    retry_after_s: float | None
    """What the last answer's Retry-After header said, in seconds; None without one."""

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = 60.0,
        io_timeout_s: float = IO_TIMEOUT_S,
        connect_timeout_s: float = 10.0,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        authorization: Callable[[], str] | None = None,
        ca_file: str | None = None,
    ) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._io_timeout_s = io_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._max_answer_bytes = max_answer_bytes
        self._authorization = authorization
        self._ca_file = ca_file
        self._scheme, self._target, self._host = _parse(address)
        self._redirect_target = ""
        self._socket: socket.socket | None = None
        self.retry_after_s = None

    def post(self, path: str, body: bytes, *, timeout_s: float | None = None) -> tuple[int, bytes]:
        """Send `body` to `path` and return the answer's status and body.

        Args:
            path: absolute path, already percent-encoded.
            body: the request's body.
            timeout_s: overrides the connection's own timeout for this request.

        Raises:
            TransportError: there is no usable answer.
        """
        self.retry_after_s = None
        extra = f"Authorization: {self._authorization()}\r\n" if self._authorization is not None else ""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/msgpack\r\n"
            f"{extra}Content-Length: {len(body)}\r\n\r\n"
        )
        request = head.encode("latin-1") + body
        timeout = self._timeout_s if timeout_s is None else timeout_s
        began = time.monotonic()
        reused = self._socket is not None
        try:
            while True:
                try:
                    return self._exchange(request, timeout)
                except _DroppedError:
                    self.close()
                    if not reused:
                        raise TransportError(f"{self.address} closed the connection without an answer") from None
                    reused = False
        except TimeoutError as error:
            self.close()
            if error.errno:
                what = "cannot be reached"
            elif timeout > self._io_timeout_s and time.monotonic() - began < timeout:
                what = f"did not answer {path}, nor say that it is active, for {self._io_timeout_s:g} s"
            else:
                what = f"did not answer {path} within {timeout:g} s"
            raise TransportError(f"{self.address} {what}") from None
        except OSError as error:
            self.close()
            raise TransportError(f"{self.address}: {error}") from error
        except BaseException:
            self.close()
            raise

    def redirect(self, target: str) -> None:
        """Send the next requests to another server, which has to prove that it is the address's; "" = to the address.

        Args:
            target: "host:port". Its certificate is compared with the host of `address`.

        Raises:
            TransportError: the target is not a host and port, or the address has no host.
        """
        host, _, port = target.rpartition(":")
        if target and (self._scheme == "unix" or not host or not _is_number(port)):
            raise TransportError(
                f"{self.address} sends this process to {target[:100]!r}, which is not a host and port"
            )
        if target != self._redirect_target:
            self.close()
            self._redirect_target = target

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> socket.socket:
        if self._scheme == "unix":
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(self._connect_timeout_s)
            try:
                connection.connect(self._target)
            except BaseException:
                connection.close()
                raise
            return connection
        host, _, port = (self._redirect_target or self._target).rpartition(":")
        connection = socket.create_connection((host.strip("[]"), int(port)), timeout=self._connect_timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
        # A call that waits for its answer, perhaps for minutes, must notice that the server cannot be reached.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
        if self._scheme == "http":
            return connection
        import ssl

        try:
            try:
                context = ssl.create_default_context(cafile=self._ca_file)
            except OSError as error:
                raise TransportError(f"the certificates in {self._ca_file} cannot be read: {error}") from error
            name = self._target.rpartition(":")[0]
            return context.wrap_socket(connection, server_hostname=name.strip("[]"))
        except BaseException:
            connection.close()
            raise

    def _exchange(self, request: bytes, timeout: float) -> tuple[int, bytes]:
        if self._socket is None:
            self._socket = self._connect()
        connection = self._socket
        patience = min(timeout, self._io_timeout_s)
        if connection.gettimeout() != patience:
            connection.settimeout(patience)
        try:
            try:
                sent = connection.send(request)
                if sent < len(request):
                    _send_rest(connection, memoryview(request)[sent:], time.monotonic() + timeout)
            except OSError as error:
                if not _is_dropped(error):
                    raise
                # A server that refuses a request by its first bytes may answer and close before it has the rest.
            until = time.monotonic() + timeout
            data = connection.recv(65536)
        except OSError as error:
            if _is_dropped(error):
                raise _DroppedError from error
            raise
        if not data:
            raise _DroppedError
        for _ in range(_MAX_INTERIM):
            while (end := data.find(b"\r\n\r\n")) < 0:
                if len(data) > MAX_HEAD_BYTES:
                    raise TransportError(f"{self.address} answered with a head of over {MAX_HEAD_BYTES} bytes")
                data += self._receive(connection, until)
            status, length, keep = self._head(data[:end])
            data = data[end + 4 :]
            if status >= 200:
                break
        else:
            raise TransportError(f"{self.address} sent {_MAX_INTERIM} interim answers and no other")
        if length > self._max_answer_bytes:
            raise TransportError(
                f"{self.address} answered with {length} bytes; the limit is {self._max_answer_bytes}"
            )
        if len(data) < length:
            chunks = [data]
            missing = length - len(data)
            while missing > 0:
                chunks.append(self._receive(connection, until))
                missing -= len(chunks[-1])
            data = b"".join(chunks)
        if len(data) > length:
            raise TransportError(f"{self.address} sent {len(data) - length} bytes more than it announced")
        if not keep:
            self.close()
        return status, data

    def _receive(self, connection: socket.socket, until: float) -> bytes:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(min(left, self._io_timeout_s))
        data = connection.recv(262144)
        if not data:
            raise TransportError(f"{self.address} closed the connection in the middle of an answer")
        return data

    def _head(self, head: bytes) -> tuple[int, int, bool]:
        """Return status, length of the body, and whether the connection stays open."""
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        if version not in {"HTTP/1.1", "HTTP/1.0"} or not _is_number(rest[:3]):
            raise TransportError(f"{self.address} does not speak HTTP/1.1: its answer begins with {first[:80]!r}")
        status = int(rest[:3])
        length: int | None = 0 if status == 204 or status < 200 else None
        keep = version == "HTTP/1.1"
        for line in lines:
            name, colon, value = line.partition(":")
            name, value = name.lower(), value.strip()
            if not colon or not name or name != name.strip():
                raise TransportError(f"{self.address} sent a malformed header: {line[:80]!r}")
            if name == "transfer-encoding":
                raise TransportError(
                    f"{self.address} answered with Transfer-Encoding {value!r}; only Content-Length is understood "
                    "(is a proxy between the trial and the report service?)"
                )
            if name == "content-length":
                if not _is_number(value) or (length is not None and length != int(value)):
                    raise TransportError(f"{self.address} sent the Content-Length {value[:40]!r}")
                length = int(value)
            elif name == "retry-after" and _is_number(value):
                self.retry_after_s = float(value[:9])
            elif name == "connection":
                keep = value.lower() != "close" and (keep or value.lower() == "keep-alive")
        if length is None:
            raise TransportError(f"{self.address} answered {status} without a Content-Length")
        return status, length, keep


def _send_rest(connection: socket.socket, rest: memoryview, until: float) -> None:
    """Send piece by piece: each may take as long as the socket's timeout, and all of them until `until`."""
    while rest:
        if time.monotonic() >= until:
            raise TimeoutError
        rest = rest[connection.send(rest) :]


def _is_number(text: str) -> bool:
    # Some characters are digits to `isdigit` that `int` does not know; and it refuses thousands of digits.
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def _is_dropped(error: OSError) -> bool:
    # Named, not imported: on a Unix socket the ssl module is never loaded.
    return isinstance(error, (BrokenPipeError, ConnectionResetError)) or type(error).__name__ in {
        "SSLEOFError",
        "SSLZeroReturnError",
    }


def _parse(address: str) -> tuple[str, str, str]:
    """Return scheme, what to connect to, and the Host header of an address."""
    if address.startswith("unix:") and len(address) > 5:
        return "unix", address[5:], "localhost"
    scheme, separator, target = address.partition("://")
    target = target.rstrip("/")
    if separator and scheme in {"http", "https"} and target and "/" not in target:
        host = target
        if not target.rpartition(":")[2].isdigit():
            target += ":80" if scheme == "http" else ":443"
        return scheme, target, host
    raise InvalidInputError(
        f"{address!r} is not the address of a report service; write unix:/path, http://host:port or https://host:port"
    )
