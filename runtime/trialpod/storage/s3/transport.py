"""The connections of one process to one S3 server, with a signature on every request.

Requests that minio's client has no method for, which are most, are sent by `exchange` on connections of their own
(`connections` says why). minio's client sends its own through a urllib3 pool that it is given. This one is given to a
client without credentials and signs by itself, because the client could not: each try with the keys that are valid
now, for the server's clock, with any header (a presigned URL signs none, and Amazon refuses unsigned ``x-amz-*``
headers), and without a second pass over a body that a checksum header protects.

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
from functools import cache, partial
from http.client import HTTPResponse, IncompleteRead
from typing import Any
from urllib.parse import quote, urlsplit

import urllib3
from minio import Minio
from minio.helpers import BaseURL
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.response import BaseHTTPResponse

from trialpod.errors import InvalidInputError
from trialpod.storage.options import StorageOptions
from trialpod.storage.s3.connections import Connections, head_of
from trialpod.storage.s3.credentials import Credentials
from trialpod.storage.s3.errors import Answer, ErrorAnswerError
from trialpod.storage.s3.files import FilePart
from trialpod.storage.s3.routes import Dial
from trialpod.storage.s3.signature import Signer, canonical_query

UNSIGNED = "UNSIGNED-PAYLOAD"
_UNACKNOWLEDGED_MS = 20_000
"""Maximum time that sent data stays unacknowledged; TCP by itself retries for a quarter of an hour."""
_NO_RETRIES = urllib3.Retry.from_int(False)
MAX_SHARED = 32
"""Idle connections to one server that are kept, where storages share them."""
_MAX_HOSTS = 64
"""Where buckets are part of the host's name, each has one."""

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
        self._tls = tls.get("ssl_context")
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
        self._room = threading.BoundedSemaphore(options.parallelism)
        self._direct: dict[Any, Connections] = {}
        if self._shares:
            self.pools, self._direct = _shared_pools()
        self._dial = dial
        self._connect_timeout_s, self._timeout_s = options.connect_timeout_s, options.timeout_s
        self._max_idle = MAX_SHARED if self._shares else options.parallelism
        self._address = BaseURL(options.endpoint, options.region)
        self._address.virtual_style_flag = options.addressing == "virtual"
        self._region = options.region
        self._signer = Signer(options.region)
        self._roots: dict[str, tuple[str, str]] = {}
        self._keys = keys
        self._now = now

    def clear(self) -> None:
        """Close the idle connections, unless others share them."""
        if not self._shares:
            super().clear()
            for each in list(self._direct.values()):
                each.clear()

    def exchange(
        self,
        method: str,
        bucket: str,
        key: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes | FilePart,
    ) -> Answer:
        """Send a signed request for an object, or for the bucket with key "", and return an answer with a 2xx status.

        Raises:
            ErrorAnswerError: the server gave another answer.
            OSError: there is no complete answer.
            HTTPException: there is no answer of HTTP.
        """
        host, root = self._roots.get(bucket) or self._root(bucket)
        path = f"{root}{quote(key)}" if key else root[:-1] or "/"
        encoded = sorted((quote(name, ""), quote(value, "")) for name, value in query.items())
        sorted_query = "&".join([f"{name}={value}" for name, value in encoded])
        more = self._signed(method, host, path, sorted_query, headers, body)
        more["accept-encoding"] = "identity"
        more["user-agent"] = "trialpod"
        head = head_of(method, f"{path}?{sorted_query}" if sorted_query else path, more)
        with self._room:
            answer = self._connections(host).exchange(partial(self._connected, host), method, head, body)
        if 200 <= answer.status < 300:
            return answer
        raise ErrorAnswerError(answer)

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
        address = urlsplit(url)
        path, query = address.path or "/", canonical_query(address.query)
        signed = self._signed(method, address.netloc, path, query, headers or {}, body)
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

    def _root(self, bucket: str) -> tuple[str, str]:
        """Return the host of a bucket's objects, and what their paths begin with."""
        url = urlsplit(self.url("GET", bucket, "x", {}))
        self._roots[bucket] = found = (url.netloc, url.path[:-1])
        return found

    def _connections(self, host: str) -> Connections:
        key = (host, self._tls, self._timeout_s)
        found = self._direct.get(key)
        if found is None:
            found = self._direct.setdefault(key, Connections(self._max_idle))
            for oldest in list(self._direct)[:-_MAX_HOSTS]:
                self._direct.pop(oldest, None)  # they end with their last request
        return found

    def _connected(self, host: str) -> socket.socket:
        """Return a new connection to a host, with its port if that is not the scheme's."""
        address = urlsplit(f"//{host}")
        name = (address.hostname or "").rstrip(".")
        port = address.port or (80 if self._tls is None else 443)
        made = _connected(name, port, self._connect_timeout_s, self._dial)
        try:
            if self._tls is not None:
                made = self._tls.wrap_socket(made, server_hostname=name)
            made.settimeout(self._timeout_s)
        except BaseException:
            made.close()
            raise
        return made

    def _signed(
        self,
        method: str,
        host: str,
        path: str,
        query: str,
        headers: Mapping[str, str],
        body: bytes | FilePart | None,
    ) -> dict[str, str]:
        digest = UNSIGNED if isinstance(body, FilePart) else hashlib.sha256(body or b"").hexdigest()
        if method in ("PUT", "POST"):
            length = body.length if isinstance(body, FilePart) else len(body or b"")
            headers = {**headers, "content-length": str(length)}
        return self._signer.signed(method, host, path, query, headers, digest, self._keys(), self._now())


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


_shared: dict[int, Any] = {}  # by process: urllib3's pools and ours, by what makes their connections differ
_contexts: dict[tuple[str, str, int], Any] = {}


def _shared_pools() -> Any:
    """Return what the storages of this process share; what a parent has stays unused."""
    found = _shared.get(os.getpid())
    if found is None:
        found = _shared.setdefault(os.getpid(), (urllib3.PoolManager(num_pools=16).pools, {}))
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
        return _connected(connection.host.rstrip(".").strip("[]"), connection.port, timeout_s, dial)

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


def _connected(host: str, port: int, timeout_s: float | None, dial: Dial | None) -> socket.socket:
    """Return a new connection to a host by its name, without brackets, or by `dial`."""
    if dial is not None:
        made = dial(timeout_s or 0.0)
    else:
        address = "localhost" if host.endswith(".localhost") else host
        made = socket.create_connection((address, port), timeout=timeout_s)
    try:
        _tune(made)
        made.settimeout(timeout_s)
    except BaseException:
        made.close()
        raise
    return made


def _tune(connection: socket.socket) -> None:
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S)
