"""One client of the report server: its parser, its queue of requests, its answers and its deadlines.

Invariants:

* The answers of one connection are sent in the order of its requests; at most one handler runs per connection.
* Nothing that a client does not send or does not read holds memory or the connection for longer than `Limits` says.
* While a handler takes its time, its client is informed every `Limits.working_s` (102, RFC 2518, 10.1): a process
  that is stopped, or whose loop hangs, says nothing, and its clients turn to its successor.
* After a refusal for what was sent (400, 408, 413, 431) the connection is closed, but only when the client has had
  the chance to read why.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

import httptools
import msgspec

from trialpod.protocol.messages import MAX_RESULT_BYTES, PROTOCOL_VERSION, ErrorAnswer

logger = logging.getLogger(__name__)

Answer = tuple[int, bytes]
"""HTTP status and MessagePack body."""

_ROOT = f"/v{PROTOCOL_VERSION}/"
_MAX_PIPELINED = 16
_FOREVER = float("inf")
_encode = msgspec.msgpack.Encoder().encode


class Peer:
    """Who sent a request. `address` is an IP address, or "unix" for a Unix socket."""

    __slots__ = ("_headers", "address")

    def __init__(self, address: str, headers: list[tuple[bytes, bytes]]) -> None:
        self.address = address
        self._headers = headers

    def header(self, name: bytes) -> bytes | None:
        """Return the value of the first header called `name` (lower case), or None."""
        for key, value in self._headers:
            if key.lower() == name:
                return value
        return None


Handler = Callable[[str, bytes, Peer], Answer | Awaitable[Answer]]


CONNECTIONS = 16_384
"""How many clients are connected at most; each running attempt is."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may take. Times are in seconds, sizes in bytes."""

    body_bytes: int = 4 * MAX_RESULT_BYTES
    head_bytes: int = 16 * 1024
    headers: int = 64
    connections: int = CONNECTIONS
    connections_per_address: int = 1024  # many pods may share a node's address; Unix sockets are not counted
    held_bytes: int = 256 * 1024 * 1024  # of requests that have not been served yet, of all clients together
    held_bytes_per_address: int = 64 * 1024 * 1024  # so that no address alone keeps others out; not for Unix sockets
    handshake_s: float = 10.0  # for TLS
    idle_s: float = 75.0  # without a request; an attempt's heartbeat comes every 10 s
    request_s: float = 30.0  # from a request's first byte to its last
    write_s: float = 30.0  # without the client reading its answer
    linger_s: float = 2.0  # for the client to read a refusal while what it still sends is thrown away
    working_s: float = (
        2.5  # between two signs that a request is being worked on; clients wait for three times as long
    )


@dataclass(slots=True)
class AddressUse:
    """What the clients of one address take together."""

    connections: int = 0
    held_bytes: int = 0


class ConnectionOwner(Protocol):
    """What a connection needs of its server."""

    handler: Handler
    limits: Limits
    closing: bool
    held_bytes: int
    needs_authorization: bool

    def admit(self, connection: Connection) -> bool:
        """Count a new connection, and set its `use`; False when there are too many."""

    def forget(self, connection: Connection) -> None:
        """Drop a connection that is closed."""


class _LaterAnswer(tuple[int, bytes]):
    """An answer with a Retry-After header."""

    retry_after_s: int


def error(status: int, message: str, retry_after_s: float = 0.0) -> Answer:
    """Return the answer that refuses a request.

    Args:
        status: HTTP status.
        message: what was wrong and what to do.
        retry_after_s: above 0, seconds that the client is asked to wait; sent in whole seconds, rounded up.
    """
    answer = status, _encode(ErrorAnswer(error=message))
    if retry_after_s <= 0.0:
        return answer
    later = _LaterAnswer(answer)
    later.retry_after_s = math.ceil(retry_after_s)
    return later


def _head(status: int, ending: bytes) -> bytes:
    reason = HTTPStatus(status).phrase.encode()
    allow = b"Allow: POST\r\n" if status == HTTPStatus.METHOD_NOT_ALLOWED else b""
    return (
        b"HTTP/1.1 %d %s\r\n" % (status, reason)
        + allow
        + b"Content-Type: application/msgpack\r\n"
        + ending
        + b"Content-Length: %d\r\n\r\n"
    )


_WORKING = b"HTTP/1.1 102 Processing\r\n\r\n"
_KEEP_HEADS = {int(status): _head(status, b"") for status in HTTPStatus if status >= HTTPStatus.OK}
_CLOSE_HEADS = {status: _head(status, b"Connection: close\r\n") for status in _KEEP_HEADS}


class _RefusedError(Exception):
    """Stops the parser in the middle of a request; the reason is in the connection."""


class _Request:
    __slots__ = ("body", "keep_alive", "path", "peer", "refusal", "takes_signs")

    def __init__(
        self, path: str, body: bytes, peer: Peer, keep_alive: bool, refusal: Answer | None, takes_signs: bool
    ) -> None:
        self.path = path
        self.body = body
        self.peer = peer
        self.keep_alive = keep_alive
        self.refusal = refusal
        self.takes_signs = takes_signs


class Connection(asyncio.Protocol):
    """One client: parser callbacks (`on_*`), then the queue of requests, then the answers."""

    # With 30 attributes and no slots, each request would take a tenth more.
    __slots__ = (
        "_begun",
        "_body",
        "_body_bytes",
        "_counted",
        "_ended",
        "_handler",
        "_head_bytes",
        "_headers",
        "_held",
        "_in_head",
        "_keep_alive",
        "_limits",
        "_loop",
        "_lost",
        "_out",
        "_parser",
        "_partial_head_bytes",
        "_queue",
        "_receiving",
        "_refusal",
        "_server",
        "_task",
        "_transport",
        "_unread",
        "_url",
        "address",
        "deadline",
        "interim_at",
        "use",
        "write_deadline",
    )

    def __init__(self, server: ConnectionOwner) -> None:
        self._server = server
        self._limits = server.limits
        self._handler = server.handler
        self._loop = asyncio.get_running_loop()
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self.address = ""
        self.use = AddressUse()  # of its address
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._held = 0  # bytes of bodies that have not been served
        self._counted = 0  # of them, those that are in `use`
        self._head_bytes = 0
        self._partial_head_bytes = 0  # received since the first read of a head that is not complete
        self._begun = 0  # requests whose first byte has come
        self._in_head = False
        self._receiving = False
        self._refusal: Answer | None = None  # set by a callback that stops the parser
        self._queue: deque[_Request] = deque()
        self._task: asyncio.Future[Answer] | None = None
        self._keep_alive = True
        self._out: list[bytes] = []
        self._ended = False  # no further request is taken from this connection
        self._unread = False  # it ends in the middle of a request, the rest of which may still come
        self._lost = False
        self.deadline = _FOREVER
        self.write_deadline = _FOREVER
        self.interim_at = _FOREVER  # when the client is informed that its request is in work

    # What the event loop says.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the client, or refuse it when there are too many."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peername = transport.get_extra_info("peername")
        self.address = peername[0] if isinstance(peername, tuple) else "unix"
        self.deadline = self._loop.time() + self._limits.idle_s
        if not self._server.admit(self):
            self._refuse(error(503, "too many connections; try again later"))

    def data_received(self, data: bytes) -> None:
        """Parse what has come; answer what can be answered at once."""
        if self._ended:
            return
        receiving, in_head, begun = self._receiving, self._in_head, self._begun
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as problem:
            self._refuse(self._refusal or error(400, f"not a valid HTTP/1.1 request: {problem}"))
        if self._in_head:
            # Where in this read a second head began is not known; the next read of it counts.
            if in_head and self._begun == begun:
                self._partial_head_bytes += len(data)
            elif not receiving and self._begun == begun + 1:
                self._partial_head_bytes = len(data)
            if self._partial_head_bytes > self._limits.head_bytes:
                self._refuse(self._head_too_large())
        if not (self._receiving or self._ended):
            waiting = self._task is not None
            self.deadline = _FOREVER if waiting else self._loop.time() + self._limits.idle_s
        if self._held != self._counted:
            self._count_held()
        self._flush()

    def eof_received(self) -> bool:
        """Close: a client that has stopped sending is taken as gone."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the handler whose client has gone."""
        self._lost = self._ended = True
        self._queue.clear()
        self._hold(-self._held)
        self._count_held()
        self._server.forget(self)
        if self._task is not None:
            self._task.cancel()
        # The parser holds this connection, which holds the TLS transport and its buffers: all would stay until the
        # next full garbage collection.
        self._parser = self._transport = None

    def pause_writing(self) -> None:
        """Take nothing more from a client that does not read."""
        assert self._transport is not None
        self.write_deadline = self._loop.time() + self._limits.write_s
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Continue with a client that reads again."""
        assert self._transport is not None
        self.write_deadline = _FOREVER
        if len(self._queue) < _MAX_PIPELINED:
            self._transport.resume_reading()

    # What the parser says. An exception here stops it.

    def on_message_begin(self) -> None:
        """Start a request."""
        if self._ended:
            raise _RefusedError
        self._begun += 1
        self._receiving = self._in_head = True
        self._url = b""
        self._headers = []
        self._body = []
        self._body_bytes = self._head_bytes = self._partial_head_bytes = 0
        self.deadline = self._loop.time() + self._limits.request_s

    def on_url(self, url: bytes) -> None:
        """Take a piece of the URL."""
        self._url += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header."""
        self._headers.append((name, value))
        self._count_head(len(name) + len(value))

    def on_headers_complete(self) -> None:
        """Judge the request before its body comes."""
        self._in_head = False
        if self._parser.should_upgrade():
            self._stop(error(400, "this server speaks HTTP/1.1 only; send no Upgrade header and no CONNECT"))
        if sum(map(len, (self._url, *(part for pair in self._headers for part in pair)))) > (self._limits.head_bytes):
            self._stop(self._head_too_large())
        if self._server.needs_authorization and not any(
            name.lower() == b"authorization" for name, _ in self._headers
        ):
            self._stop(error(401, "the request has no Authorization header; a pod sends its projected token"))
        for name, value in self._headers:
            lowered = name.lower()
            if lowered == b"content-length" and int(value) > self._limits.body_bytes:
                self._stop(self._body_too_large())
            elif lowered == b"expect" and value.lower() == b"100-continue" and self._task is None:
                self._out.append(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.body_bytes:
            self._stop(self._body_too_large())
        if self._server.held_bytes + len(body) > self._limits.held_bytes:
            self._stop(error(503, "the server holds too many requests; try again", 1.0))
        self._hold(len(body))
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Serve the request, or queue it behind the one in progress."""
        self._receiving = False
        parser = self._parser
        path, _, _ = self._url.partition(b"?")
        refusal = None
        if parser.get_method() != b"POST":
            refusal = error(405, f"{parser.get_method().decode('latin-1')} is not supported; use POST")
        elif not path.startswith(_ROOT.encode()):
            refusal = error(404, f"no such path; this server knows paths below {_ROOT}")
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        peer = Peer(self.address, self._headers)
        takes_signs = parser.get_http_version() == "1.1"  # HTTP/1.0 knows no 1xx (RFC 9110, 15.2)
        request = _Request(path.decode("latin-1"), body, peer, parser.should_keep_alive(), refusal, takes_signs)
        self._body = []
        if self._task is None:
            self._serve(request)
        else:
            self._queue.append(request)
            if len(self._queue) >= _MAX_PIPELINED and self._transport is not None:
                self._transport.pause_reading()

    def _hold(self, size: int) -> None:
        self._held += size
        self._server.held_bytes += size

    def _count_held(self) -> None:
        """Count for the address what is held; most requests come in one read, and are never counted."""
        self.use.held_bytes += self._held - self._counted
        self._counted = self._held
        crowded = self.address != "unix" and self.use.held_bytes > self._limits.held_bytes_per_address
        if crowded and self._receiving and not self._ended:
            self._refuse(error(503, "the server holds too many requests of this address; try again", 1.0))
            self._count_held()

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._limits.head_bytes or len(self._headers) > self._limits.headers:
            self._stop(self._head_too_large())

    def _stop(self, refusal: Answer) -> None:
        self._refusal = refusal
        raise _RefusedError

    def _head_too_large(self) -> Answer:
        limit = f"{self._limits.head_bytes} bytes or {self._limits.headers} lines"
        return error(431, f"the request's headers are over the limit of {limit}")

    def _body_too_large(self) -> Answer:
        return error(
            413,
            f"the request's body is over the limit of {self._limits.body_bytes} bytes; "
            "send fewer results at once, and put large data into a checkpoint",
        )

    # From a request to its answer.

    def _serve(self, request: _Request) -> None:
        answer: Answer | Awaitable[Answer]
        self._hold(-len(request.body))
        if request.refusal is not None:
            answer = request.refusal
        else:
            try:
                answer = self._handler(request.path, request.body, request.peer)
            except Exception:
                logger.exception("the handler of %s failed", request.path)
                answer = self._internal_error()
        if isinstance(answer, tuple):
            self._reply(answer, request.keep_alive)
            return
        self._keep_alive = request.keep_alive
        self._task = asyncio.ensure_future(answer)
        if request.takes_signs:
            self.interim_at = self._loop.time() + self._limits.working_s
        self._task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Future[Answer]) -> None:
        self._task = None
        self.interim_at = _FOREVER
        if self._lost:
            if not task.cancelled() and task.exception() is not None:
                logger.error("a handler failed after its client had gone", exc_info=task.exception())
            return
        if task.cancelled():
            answer = error(503, "the server is shutting down; try again")
        elif (problem := task.exception()) is not None:
            logger.error("a handler failed", exc_info=problem)
            answer = self._internal_error()
        else:
            answer = task.result()
        self._reply(answer, self._keep_alive)
        while self._queue and self._task is None and not self._ended:
            self._serve(self._queue.popleft())
        if self._task is None and not self._ended:
            now = self._loop.time()
            self.deadline = now + (self._limits.request_s if self._receiving else self._limits.idle_s)
        if self._transport is not None and not self._ended and self.write_deadline == _FOREVER:
            self._transport.resume_reading()
        self._count_held()
        self._flush()

    @staticmethod
    def _internal_error() -> Answer:
        return error(500, "internal error; the server's log says more")

    def _reply(self, answer: Answer, keep_alive: bool) -> None:
        status, body = answer
        if self._ended:
            return
        if type(answer) is _LaterAnswer:
            keep = keep_alive and not self._server.closing
            ending = b"Retry-After: %d\r\n" % answer.retry_after_s + (b"" if keep else b"Connection: close\r\n")
            self._out += (_head(status, ending) % len(body), body)
            if not keep:
                self._end()
            return
        if keep_alive and not self._server.closing:
            self._out.append(_KEEP_HEADS[status] % len(body))
            self._out.append(body)
            return
        self._out.append(_CLOSE_HEADS[status] % len(body))
        self._out.append(body)
        self._end()

    def _refuse(self, refusal: Answer) -> None:
        """Answer what cannot be parsed, after the requests before it, and take no more."""
        if self._ended:
            return
        self._unread = self._receiving
        self._hold(-sum(map(len, self._body)))
        self._body = []
        self._receiving = self._in_head = False
        if self._task is None:
            self._reply(refusal, False)
            self._flush()
        else:
            self.deadline = _FOREVER  # the handler may take its time
            self._queue.append(_Request("", b"", Peer("", []), False, refusal, False))
            if self._transport is not None:
                self._transport.pause_reading()

    def _end(self) -> None:
        """Send what there is and close.

        A close with unread input makes the kernel reset the connection, and the client may lose the answer. So only
        the sending half is closed; what still comes is thrown away until the client has closed its half.
        """
        self._ended = True
        self.interim_at = _FOREVER
        self._queue.clear()
        self._flush()
        self.deadline = self._loop.time() + self._limits.linger_s
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        elif not self._unread:
            # TLS has no half-closed state; where more may come, the client closes or `linger_s` ends it.
            self._transport.close()

    def _flush(self) -> None:
        if self._out and self._transport is not None:
            out = self._out
            self._out = []
            if not self._transport.is_closing():
                self._transport.write(b"".join(out))

    # What the server asks for.

    def expire(self, now: float) -> None:
        """Act on the deadlines that have passed."""
        assert self._transport is not None
        if now >= self.write_deadline or (self._ended and now >= self.deadline):
            self._transport.abort()
        elif now >= self.deadline and self._receiving:
            self._refuse(error(408, f"the request was not complete after {self._limits.request_s:g} s"))
            self._count_held()
        elif now >= self.deadline:
            self._end()

    def send_interim(self, now: float) -> None:
        """Tell the client that its request is being worked on."""
        self.interim_at = now + self._limits.working_s
        if self.write_deadline == _FOREVER:
            self._out.append(_WORKING)
            self._flush()

    def close_when_idle(self) -> None:
        """Close now, or after the answer to the request in progress."""
        if self._task is None and not self._receiving:
            self._end()

    def close_now(self) -> None:
        """Cancel the handler and drop the connection."""
        if self._transport is not None:
            self._transport.abort()
