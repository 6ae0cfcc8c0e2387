"""The client of the report service: requests with retries, for runners and the decider.

Invariants:

* A call that got no answer, or a 5xx, is repeated with backoff and jitter for as long as it takes: an unreachable
  server is never the trial's error. A 4xx is final and carries the server's words, except 401 (the token's
  file is read again), 408, 425 and 429.
* An answer that is not the report service's (a proxy's, garbled, or one that cannot be true) is ignored,
  and the call is repeated.
* No call is made before the moment that the server asked to wait for (Retry-After).
* Of several servers one serves the experiment. The answer 421 names it, and calls go there until it does not answer
  or refuses for now; then they go to the address again, whose servers know better.
* One connection per client, used under one lock. It is never held while sleeping.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar, cast

import msgspec

from trialpod.errors import TrialpodError
from trialpod.protocol import messages
from trialpod.protocol.backoff import Backoff, _uniform
from trialpod.protocol.bearer import BearerToken
from trialpod.protocol.http import Connection, TransportError

log = logging.getLogger(__name__)

T = TypeVar("T")

_UNAUTHENTICATED = 401
_RETRIED = frozenset({_UNAUTHENTICATED, 408, 421, 425, 429})
_MISDIRECTED, _UNAVAILABLE = 421, 503
_MAX_REDIRECTS = 2
_MAX_RETRY_AFTER_S = 300.0
_UNESCAPED = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/")
_CALLS: tuple[messages.Call, ...] = ("assignment", "report", "credentials", "decisions")
_ASSIGNMENT_TIMEOUT_S = 300.0
_LOG_INTERVAL_S = 60.0


class RefusedError(TrialpodError):
    """The server refused a request for good (4xx); the message is the server's."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ReportClient:
    """Talks to the report service on behalf of one process.

    Args:
        address: ``unix:/path``, ``http://host:port`` or ``https://host:port``.
        experiment: the experiment's name; "namespace/name" in a cluster.
        token_file: holds the token that identifies this process; read again whenever it changes.
        ca_file: certificates to trust for https instead of the system's; read again for each connection.
        clock: monotonic seconds.
        sleep: waits that many seconds.
        uniform: a number in [0, 1), for jitter.
        connection: replaces the connection to `address`.
    """

    def __init__(
        self,
        address: str,
        experiment: str,
        *,
        token_file: str | None = None,
        ca_file: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        uniform: Callable[[], float] = _uniform,
        connection: Connection | None = None,
    ) -> None:
        self.experiment = experiment
        self.clock = clock
        self.sleep = sleep
        self.lock = threading.Lock()
        """Held while the connection is in use."""
        self.not_before = 0.0
        """No call before this moment of `clock`."""
        self._backoff = Backoff(uniform=uniform)
        self._token = BearerToken(token_file) if token_file else None
        self._connection = connection or Connection(address, authorization=self._token, ca_file=ca_file)
        self._redirected = False
        self._paths = {call: messages.path(_escaped(experiment), call) for call in _CALLS}
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode_assignment = msgspec.msgpack.Decoder(messages.AssignmentAnswer).decode
        self._warned_at: float | None = None

    def assignment(self, request: messages.AssignmentRequest) -> messages.AssignmentAnswer:
        """Ask for work, for as long as it takes to get an answer.

        Raises:
            RefusedError: the server refuses this runner for good.
        """
        body = self._encode(request)
        while True:
            self.wait_until_allowed()
            try:
                with self.lock:
                    return self.call("assignment", body, self._read_assignment, timeout_s=_ASSIGNMENT_TIMEOUT_S)
            except TransportError:
                continue

    def credentials(self, request: messages.CredentialsRequest) -> messages.CredentialsAnswer:
        """Ask once for keys to the storage.

        Raises:
            TransportError: there is no usable answer now.
            RefusedError: the server refuses.
        """
        with self.lock:
            if self.not_before > self.clock():
                raise TransportError("the report service could not be reached a moment ago")
            return self.call("credentials", self._encode(request), _read_credentials)

    def call(
        self, name: messages.Call, body: bytes, read: Callable[[bytes], T], *, timeout_s: float | None = None
    ) -> T:
        """Make one call; the caller holds `lock`.

        Args:
            name: of the call.
            body: the request.
            read: returns what an answer says; raises msgspec.DecodeError for one that cannot be.
            timeout_s: seconds to wait for the answer.

        Raises:
            TransportError: no usable answer; `not_before` says when to try again.
            RefusedError: the server refused the call for good.
        """
        status = 0
        try:
            status, data = self._post(self._paths[name], body, timeout_s)
            if status == _UNAUTHENTICATED and self._token is not None:
                self._token.refused()
            if status >= 500 or status in _RETRIED:
                raise TransportError(f"the report service answered {status}: {_error_text(data)}")
            refusal = None if 200 <= status < 300 else _refusal(status, data)
            answer = _read_as(read, data) if refusal is None else None
        except TransportError as error:
            delay = self._backoff.failed()
            if asked_s := min(self._connection.retry_after_s or 0.0, _MAX_RETRY_AFTER_S):
                # An answer that says when to retry knows better than the number of failures.
                delay = asked_s if status == _UNAVAILABLE else max(delay, asked_s)
            self.not_before = self.clock() + delay
            self._warn_unreachable(error)
            raise
        if self._warned_at is not None:
            log.warning("the report service answers again")
            self._warned_at = None
        self._backoff.succeeded()
        self.not_before = 0.0
        if refusal is not None:
            raise RefusedError(refusal or f"the report service answered {status}", status)
        return cast("T", answer)

    def _post(self, path: str, body: bytes, timeout_s: float | None) -> tuple[int, bytes]:
        """Send a request to the server that serves the experiment."""
        connection = self._connection
        for _ in range(1 + _MAX_REDIRECTS):
            try:
                status, data = connection.post(path, body, timeout_s=timeout_s)
            except TransportError:
                if not self._redirected:
                    raise
                self._redirect("")
                continue
            if status != _MISDIRECTED:
                break
            self._redirect(_owner(data))
        if status >= 500 and self._redirected:
            self._redirect("")  # it may be cut off, and another one serve the experiment
        return status, data

    def _redirect(self, target: str) -> None:
        self._connection.redirect(target)
        self._redirected = target != ""

    def _read_assignment(self, data: bytes) -> messages.AssignmentAnswer:
        answer = self._decode_assignment(data)
        work = answer.assignment
        if work is not None and not (work.attempt >= 1 and work.heartbeat_s > 0 and 0 <= work.rank < work.world_size):
            raise msgspec.ValidationError(
                f"attempt {work.attempt}, heartbeat {work.heartbeat_s} s, rank {work.rank} of {work.world_size}"
            )
        return answer

    def encode(self, message: messages.Message) -> bytes:
        """Return the message's MessagePack."""
        return self._encode(message)

    def wait_until_allowed(self) -> None:
        """Wait until another try is due."""
        while (delay := self.not_before - self.clock()) > 0:
            self.sleep(delay)

    def close(self) -> None:
        """Close the connection."""
        with self.lock:
            self._connection.close()

    def _warn_unreachable(self, error: TransportError) -> None:
        now = self.clock()
        # One lost connection is routine; only what lasts is worth a line, and not one for every try.
        if self._backoff.failures >= 3 and (self._warned_at is None or now - self._warned_at >= _LOG_INTERVAL_S):
            self._warned_at = now
            log.warning("%s; results are kept, and sending is retried", error)


def _escaped(name: str) -> str:
    """Percent-encode what may not stand in a URL's path (RFC 3986, 2.3); the slash stays."""
    return "".join(chr(byte) if byte in _UNESCAPED else f"%{byte:02X}" for byte in name.encode())


def _read_as(read: Callable[[bytes], T], data: bytes) -> T:
    try:
        return read(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TransportError(
            f"the answer of the report service cannot be read ({error}); is there a proxy in between?"
        ) from error


def _read_credentials(data: bytes) -> messages.CredentialsAnswer:
    return msgspec.msgpack.decode(data, type=messages.CredentialsAnswer)


def _owner(data: bytes) -> str:
    try:
        owner = msgspec.msgpack.decode(data, type=messages.ErrorAnswer).address
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        owner = ""
    if not owner:
        raise TransportError("the report service redirects to another one without naming its address")
    return owner


def _refusal(status: int, data: bytes) -> str:
    """Return the words of a refusal; raise TransportError when they are not the report service's."""
    try:
        return msgspec.msgpack.decode(data, type=messages.ErrorAnswer).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TransportError(
            f"something that is not the report service answered {status}: {_error_text(data)!r:.200}; is there a "
            "proxy in between?"
        ) from error


def _error_text(data: bytes) -> str:
    try:
        return msgspec.msgpack.decode(data, type=messages.ErrorAnswer).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return data[:500].decode("utf-8", "replace").strip()
