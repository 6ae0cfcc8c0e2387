"""A small synchronous client of the API server, for scripts and commands.

The operator has its own, asynchronous one (`kube`). This one is the standard library's HTTP.

Invariants: every error says what to do. One connection is kept and opened again when the server has closed it; a
request that may have been carried out already is never sent twice, except reading ones.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

from trialpod.errors import InvalidInputError, TrialpodError
from trialpod_operator.kube_client.kubeconfig import Access

TIMEOUT_S = 30.0
FOLLOW_TIMEOUT_S = 6 * 3600.0
"""So long a log that is followed may be silent."""

_MAX_HEAD = 64 * 1024

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
Json = dict[str, Any]


class ClusterUnreachableError(TrialpodError):
    """The API server cannot be reached; it may be tried again."""


class ApiError(TrialpodError):
    """The API server refused a request.

    Attributes:
        status: of the HTTP answer.
        reason: `reason` of the Status object, such as "NotFound".
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status = status
        self.reason = reason
        super().__init__(message)


class NotThereError(InvalidInputError):
    """There is no experiment of that name."""


class ForbiddenError(InvalidInputError):
    """The user may not do that; the message names the right that is missing."""


class KubeClient:
    """Requests to one API server.

    Args:
        access: which one, and as whom.
        timeout_s: for one answer.
    """

    def __init__(self, access: Access, *, timeout_s: float = TIMEOUT_S) -> None:
        self.access = access
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None
        self.date = ""
        """What the server's clock said in its latest answer, as in HTTP's header."""

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        """Send one request and return what is answered.

        Raises:
            ApiError: the server refuses.
            ClusterUnreachableError: it does not answer.
        """
        target = self._target(path, query)
        data = None if body is None else json.dumps(body, allow_nan=False).encode()
        headers = {"Accept": "application/json", "User-Agent": "trialpod", **self._authorization()}
        if data is not None:
            headers["Content-Type"] = content_type
        fresh = self._connection is None
        try:
            status, answer = self._send(method, target, data, headers)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if fresh or method != "GET":
                raise self._unreachable(error) from error
            try:
                status, answer = self._send(method, target, data, headers)
            except (OSError, http.client.HTTPException) as again:
                self.close()
                raise self._unreachable(again) from again
        if status >= 400:
            raise _refused(status, answer)
        try:
            found = json.loads(answer) if answer else {}
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise _refused(status, answer)
        return found

    def lines(self, path: str, *, query: Mapping[str, str] | None = None) -> Iterator[bytes]:
        """Yield the lines of an answer that is text, as they come, each with its end; a log that is followed, say.

        Raises:
            ApiError: the server refuses.
            ClusterUnreachableError: it does not answer, or breaks off.
        """
        connection = self._connect(FOLLOW_TIMEOUT_S)
        try:
            headers = {"Accept": "*/*", "User-Agent": "trialpod", **self._authorization()}
            connection.request("GET", self._target(path, query), headers=headers)
            response = connection.getresponse()
            if response.status >= 400:
                raise _refused(response.status, response.read())
            while line := response.readline():
                yield line
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        finally:
            connection.close()

    def upgrade(
        self, path: str, headers: Mapping[str, str], *, query: Mapping[str, str], timeout_s: float
    ) -> tuple[socket.socket, bytes]:
        """Send a GET request that switches its connection to another protocol.

        Args:
            path: of the request.
            headers: that ask for the protocol.
            query: of the request.
            timeout_s: for the connection and the answer.

        Returns:
            The connection, without a timeout, and what came on it behind the answer.

        Raises:
            ApiError: the server refuses.
            ClusterUnreachableError: it does not answer.
        """
        connection = self._connect(timeout_s)
        try:
            connection.connect()
            stream: socket.socket = connection.sock
            asked = {**self._authorization(), "User-Agent": "trialpod", **headers}
            lines = [f"GET {self._target(path, query)} HTTP/1.1", f"Host: {urlsplit(self.access.server).netloc}"]
            lines += [f"{name}: {value}" for name, value in asked.items()]
            stream.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
            head, rest = _read_head(stream)
            status = int(head.split(b" ", 2)[1])
            if status != 101:
                raise _refused(status, _read_body(stream, head, rest))
            stream.settimeout(None)
        except (OSError, http.client.HTTPException, ValueError, IndexError) as error:
            connection.close()
            raise self._unreachable(error) from error
        except BaseException:
            connection.close()
            raise
        return stream, rest

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, method: str, target: str, data: bytes | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = self._connect(self._timeout_s)
        self._connection.request(method, target, body=data, headers=dict(headers))
        response = self._connection.getresponse()
        answer = response.read()
        self.date = response.getheader("Date") or self.date
        if response.will_close:
            self.close()
        return response.status, answer

    def _target(self, path: str, query: Mapping[str, str] | None) -> str:
        return urlsplit(self.access.server).path.rstrip("/") + path + (f"?{urlencode(query)}" if query else "")

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        parts = urlsplit(self.access.server)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        proxy = self.access.proxy or ("" if proxy_bypass(host) else getproxies().get(parts.scheme, ""))
        via = urlsplit(proxy) if proxy else None
        if via is not None and via.scheme != "http":
            raise InvalidInputError(f"the proxy {via.scheme}://{via.hostname} is not supported; use an http:// one")
        near = (via.hostname or "", via.port or 3128) if via is not None else (host, port)
        if self.access.tls is None:
            return http.client.HTTPConnection(*near, timeout=timeout_s)
        made = _Https(*near, self.access.tls, self.access.server_name or host, timeout_s)
        if via is not None:
            pair = f"{via.username}:{via.password or ''}".encode() if via.username else b""
            extra = {"Proxy-Authorization": f"Basic {base64.b64encode(pair).decode()}"} if pair else {}
            made.set_tunnel(host, port, extra)
        return made

    def _authorization(self) -> dict[str, str]:
        if not self.access.token_file:
            return self.access.headers
        try:
            token = Path(self.access.token_file).read_text().strip()
        except OSError as error:
            raise InvalidInputError(f"the token {self.access.token_file} cannot be read: {error.strerror}") from error
        return {**self.access.headers, "Authorization": f"Bearer {token}"}

    def _unreachable(self, error: BaseException) -> ClusterUnreachableError:
        words = str(error) or type(error).__name__
        remedy = "is the cluster up, and does `kubectl version` work?"
        if isinstance(error, ssl.SSLCertVerificationError):
            remedy = "its certificate is not the one that the kubeconfig expects; get a new kubeconfig"
        return ClusterUnreachableError(
            f"the cluster at {self.access.server} cannot be reached: {words}; {remedy} (from {self.access.source})"
        )


def _refused(status: int, answer: bytes) -> ApiError:
    try:
        found = json.loads(answer)
    except ValueError:
        found = {"message": answer[:300].decode(errors="replace")}
    found = found if isinstance(found, dict) else {}
    return ApiError(status, str(found.get("reason") or ""), str(found.get("message") or f"status {status}"))


def _read_head(stream: socket.socket) -> tuple[bytes, bytes]:
    """Return the head of an answer, and what came behind it."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = stream.recv(65536)
        if not piece or len(data) > _MAX_HEAD:
            raise http.client.HTTPException("the answer to a change of protocol is not HTTP")
        data += piece
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def _read_body(stream: socket.socket, head: bytes, begin: bytes) -> bytes:
    """Return the body of a refusal."""
    fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
    length = min(int(fields.get(b"content-length", b"0") or 0), _MAX_HEAD)
    while len(begin) < length and (piece := stream.recv(65536)):
        begin += piece
    return begin


class _Https(http.client.HTTPSConnection):
    """HTTPS whose certificate is checked against a name of its own, also through a proxy."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext, server_name: str, timeout: float) -> None:
        super().__init__(host, port, timeout=timeout)
        self._tls = context
        self._server_name = server_name

    def connect(self) -> None:
        """Connect and shake hands."""
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._server_name)
