"""The connections of one process to one S3 server: urllib3's pool, with minio's signature on every request.

minio's client sends its requests through a urllib3 pool that it is given. This one is given to a client without
credentials and signs by itself, because the client could not: each try with the keys that are valid now, for the
server's clock, with any header (a presigned URL signs none, and Amazon refuses unsigned ``x-amz-*`` headers), and
without a second pass over a body that a checksum header protects.

A process with many storages, as the operator is, has them share connections (`share_connections`): else each keeps
its own open, used or not.

Invariants: at most `parallelism` requests of a storage wait for an answer; a body of bytes is signed, the body of a
file is protected by its CRC-32, which the server verifies; names below ``.localhost`` are this machine (RFC 6761).
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import datetime, timezone
from functools import cache
from http.client import HTTPResponse, IncompleteRead
from typing import Any
from urllib.parse import urlsplit

import urllib3
from minio import Minio
from minio.credentials import Credentials as MinioCredentials
from minio.helpers import BaseURL
from minio.signer import sign_v4_s3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.response import BaseHTTPResponse

from trialpod.errors import InvalidInputError
from trialpod.storage.options import StorageOptions
from trialpod.storage.s3.credentials import Credentials
from trialpod.storage.s3.errors import Answer, ErrorAnswerError
from trialpod.storage.s3.files import FilePart
from trialpod.storage.s3.routes import Dial

UNSIGNED = "UNSIGNED-PAYLOAD"
_UNACKNOWLEDGED_MS = 20_000
"""Maximum time that sent data stays unacknowledged; TCP by itself retries for a quarter of an hour."""
_NO_RETRIES = urllib3.Retry.from_int(False)
MAX_SHARED = 32
"""Idle connections to one server that are kept, where storages share them."""
_KEEPALIVE_S = 10
"""Interval of the probes that must be acknowledged while an answer is awaited."""


class Transport(urllib3.PoolManager):
    """Sends and signs requests. Safe for use by many threads of one process.

    Args:
        options: resolved.
        keys: returns the credentials that are valid now.
        now: seconds since the epoch on the server's clock.
        dial: connects to the server; None = by its address.

    Raises:
        InvalidInputError: the certificates cannot be used.
    """

    def __init__(
        self,
        options: StorageOptions,
        keys: Callable[[], Credentials],
        now: Callable[[], float],
        dial: Dial | None,
    ) -> None:
        self._shares = options.share_connections and dial is None
        context = _shared_tls_context if self._shares else tls_context
        tls = {"ssl_context": context(options)} if options.endpoint.startswith("https:") else {}
        super().__init__(
            num_pools=4,
            # No request waits for one of another storage: what is above the shared maximum is closed after its use.
            maxsize=MAX_SHARED if self._shares else options.parallelism,
            block=not self._shares,
            retries=_NO_RETRIES,
            timeout=_timeout(options.connect_timeout_s, options.timeout_s),
            **tls,
        )
        self.pool_classes_by_scheme = _pool_classes(dial)
        self._room = threading.BoundedSemaphore(options.parallelism) if self._shares else nullcontext()
        if self._shares:
            self.pools = _shared_pools()
        self._address = BaseURL(options.endpoint, options.region)
        self._address.virtual_style_flag = options.addressing == "virtual"
        self._region = options.region
        self._keys = keys
        self._now = now

    def clear(self) -> None:
        """Close the idle connections, unless others share them."""
        if not self._shares:
            super().clear()

    def urlopen(  # type: ignore[override]
        self,
        method: str,
        url: str,
        redirect: bool = True,
        *,
        body: bytes | FilePart | None = None,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> BaseHTTPResponse:
        """Send a signed request, and return an answer with a 2xx status.

        Raises:
            ErrorAnswerError: the server gave another answer.
            HTTPError: of urllib3: there is no complete answer.
        """
        signed = self._signed(method, url, dict(headers or {}), body)
        options |= {"decode_content": False}
        with self._room:
            response = super().urlopen(method, url, redirect=False, body=body, headers=signed, **options)
        if 200 <= response.status < 300:
            return response
        data = response.data
        response.release_conn()
        raise ErrorAnswerError(Answer.of(response.status, response.headers, data))

    def url(self, method: str, bucket: str, key: str, query: Mapping[str, str]) -> str:
        """Return the address of an object, or of the bucket for the key ""."""
        return str(
            self._address.build(
                method=method,
                region=self._region,
                bucket_name=bucket,
                object_name=key or None,
                query_params=dict(query),
            ).geturl()
        )

    def _signed(
        self, method: str, url: str, headers: dict[str, str], body: bytes | FilePart | None
    ) -> dict[str, str]:
        keys, address = self._keys(), urlsplit(url)
        digest = UNSIGNED if isinstance(body, FilePart) else hashlib.sha256(body or b"").hexdigest()
        date = datetime.fromtimestamp(self._now(), timezone.utc)
        headers |= {"Host": address.netloc, "x-amz-date": f"{date:%Y%m%dT%H%M%SZ}", "x-amz-content-sha256": digest}
        if keys.token:
            headers["x-amz-security-token"] = keys.token
        if method in ("PUT", "POST"):
            headers["Content-Length"] = str(body.length if isinstance(body, FilePart) else len(body or b""))
        signed: dict[str, str] = sign_v4_s3(
            method=method,
            url=address,
            region=self._region,
            headers=headers,
            credentials=MinioCredentials(keys.access_key, keys.secret_key, keys.token or None),
            content_sha256=digest,
            date=date,
        )
        return signed


def connect(options: StorageOptions, transport: Transport) -> Minio:
    """Return minio's client on a transport."""
    parts = urlsplit(options.endpoint)
    client = Minio(parts.netloc, region=options.region, secure=parts.scheme == "https", http_client=transport)
    if options.addressing == "virtual":
        client.enable_virtual_style_endpoint()
    else:
        client.disable_virtual_style_endpoint()
    return client


def tls_context(options: StorageOptions) -> Any:
    """Return the certificates to trust.

    Raises:
        InvalidInputError: they cannot be used.
    """
    import ssl

    try:
        if options.ca_pem:
            return ssl.create_default_context(cadata=options.ca_pem)
        return ssl.create_default_context(cafile=options.ca_file or None)
    except OSError as error:  # ssl.SSLError is one
        raise InvalidInputError(
            f"cannot use the certificates in {'ca_pem' if options.ca_pem else options.ca_file}: "
            f"{error.strerror or error}; it must be a PEM file"
        ) from error


@cache
def _timeout(connect_s: float, read_s: float) -> urllib3.Timeout:
    """Return the same object for the same times: urllib3 takes another one for other connections."""
    return urllib3.Timeout(connect=connect_s, read=read_s)


_shared: dict[int, Any] = {}  # by process: the pools, by everything that makes their connections differ
_contexts: dict[tuple[str, str, int], Any] = {}


def _shared_pools() -> Any:
    """Return the pools that the storages of this process share; those of a parent stay unused."""
    found = _shared.get(os.getpid())
    if found is None:
        found = _shared.setdefault(os.getpid(), urllib3.PoolManager(num_pools=16).pools)
    return found


def _shared_tls_context(options: StorageOptions) -> Any:
    """Return the same context for the same certificates: what differs in it differs in its connections."""
    changed = os.stat(options.ca_file).st_mtime_ns if options.ca_file and os.path.exists(options.ca_file) else 0
    key = options.ca_pem, options.ca_file, changed
    if key not in _contexts:
        _contexts.setdefault(key, tls_context(options))
    return _contexts[key]


class _Lines:
    """The lines of an answer's head, each of them whole."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._first = True

    def readline(self, limit: int) -> bytes:
        line: bytes = self._stream.readline(limit)
        # http.client says itself what is wrong with no line at all, and with one that is too long.
        if not line.endswith(b"\n") and len(line) < limit and not (self._first and not line):
            raise IncompleteRead(line)
        self._first = False
        return line

    def close(self) -> None:
        self._stream.close()


class _Response(HTTPResponse):
    """An answer whose head is whole: http.client takes one that was cut off for all of it."""

    def begin(self) -> None:
        stream, self.fp = self.fp, _Lines(self.fp)  # type: ignore[assignment]
        try:
            super().begin()
        finally:
            self.fp = stream if self.fp is not None else None  # closed after what is not HTTP


def _pool_classes(dial: Dial | None) -> dict[str, type[HTTPConnectionPool]]:
    """Return urllib3's pools with connections that are made here."""

    def connected(connection: HTTPConnection) -> socket.socket:
        timeout_s = connection.timeout if isinstance(connection.timeout, int | float) else None
        if dial is not None:
            made = dial(timeout_s or 0.0)
        else:
            host = connection.host.rstrip(".").strip("[]")
            address = "localhost" if host.endswith(".localhost") else host
            made = socket.create_connection((address, connection.port), timeout=timeout_s)
        try:
            _tune(made)
            made.settimeout(timeout_s)
        except BaseException:
            made.close()
            raise
        return made

    class Plain(HTTPConnection):
        response_class = _Response

        def _new_conn(self) -> socket.socket:
            return connected(self)

        def send(self, data: Any) -> None:
            data.send(self.sock) if isinstance(data, FilePart) else super().send(data)

    class Tls(HTTPSConnection):
        response_class = _Response

        def _new_conn(self) -> socket.socket:
            return connected(self)

        def send(self, data: Any) -> None:
            data.send(self.sock) if isinstance(data, FilePart) else super().send(data)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class TlsPool(HTTPSConnectionPool):
        ConnectionCls = Tls

    return {"http": PlainPool, "https": TlsPool}


def _tune(connection: socket.socket) -> None:
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S)
