"""The cluster's own page for a user at a desk: reached by a port-forward, as the user whom the kubeconfig names.

The browser opens a session with this process, by a link, and never has the user's token: each request gets it here,
fresh from the kubeconfig or its plug-in, on its way through the API server to the page's pod.

Invariants: only requests of that session reach the cluster, each with its path, query, body and a few headers.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import weakref
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from trialpod.errors import TrialpodError
from trialpod_operator.cluster import names
from trialpod_operator.kube_client.port_forward import PortForward
from trialpod_operator.kube_client.service_address import service_address
from trialpod_operator.ui.access import Sessions
from trialpod_operator.ui.gate import POLICY, STRICT_HEADERS, Gate, error

if TYPE_CHECKING:
    from trialpod_operator.kube_client.client import Experiments

Json = dict[str, Any]

CONNECT_S = 10.0
ANSWER_S = 60.0
MAX_BODY_BYTES = 64 * 1024
_PASSED_ON = ("accept", "content-type", "last-event-id", "x-trialpod-token")
_NOT_PASSED_BACK = frozenset({"connection", "transfer-encoding", "server", "date", "set-cookie"})


class PageUnavailableError(TrialpodError):
    """The cluster has no page, or this user cannot use it; the message says why."""


class PageRelay:
    """Sends requests to the cluster's page.

    Args:
        dial: connects to the page's pod; takes a timeout in seconds.
        authorization: returns the header of the user.
        host: by which the page knows itself.
    """

    def __init__(self, dial: Callable[[float], socket.socket], authorization: Callable[[], str], host: str) -> None:
        self._dial = dial
        self._authorization = authorization
        self._host = host
        self._open: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    @classmethod
    def connect(cls, api: Experiments) -> PageRelay:
        """Return the way to the page that the operator names.

        Raises:
            PageUnavailableError: there is none, or the user has no token or no permission to forward a port to it.
        """
        address = api.operator_facts().get(names.UI_ANNOTATION, "")
        if not address:
            raise PageUnavailableError("")
        access = api.client.access
        if access.headers or not _authorization(access.configuration):
            raise PageUnavailableError("it needs a token, and the kubeconfig has another way to log in")
        service = service_address(address, api.namespace)
        if service is None:
            raise PageUnavailableError(f"its address {address} is not that of a Service")
        forward = PortForward(access, service)
        made = cls(forward.dial, lambda: _authorization(access.configuration), urlsplit(address).netloc)
        made.session()
        return made

    def session(self) -> Json:
        """Return what the page says of the user.

        Raises:
            PageUnavailableError: it cannot be reached, or does not accept the user's token.
        """
        try:
            connection, found = self._asked("GET", "/api/session", b"", {})
            with contextlib.closing(connection):
                data = found.read()
        except (OSError, http.client.HTTPException, TrialpodError) as problem:
            raise PageUnavailableError(str(problem) or type(problem).__name__) from problem
        if found.status != 200:
            raise PageUnavailableError(f"it answers {found.status}")
        answer: Json = json.loads(data)
        return answer

    def app_of(self, sessions: Sessions, hosts: frozenset[str]) -> tuple[ASGIApp, Callable[[], None]]:
        """Return the application for the sessions of this machine, and what ends its streams."""
        return self._app(sessions, hosts), self._end_streams

    def _end_streams(self) -> None:
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _app(self, sessions: Sessions, hosts: frozenset[str]) -> Starlette:
        return Starlette(
            routes=[Route("/{path:path}", self._answer, methods=["GET", "POST"])],
            middleware=[
                Middleware(
                    Gate,
                    sessions=sessions,
                    hosts=hosts,
                    headers={"content-security-policy": POLICY, **STRICT_HEADERS},
                )
            ],
        )

    async def _answer(self, request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY_BYTES:
                return error(413, "TooLarge", "the body is too large", "send a JSON object")
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        try:
            connection, found = await run_in_threadpool(self._asked, request.method, path, body, headers)
        except (OSError, http.client.HTTPException, TrialpodError) as problem:
            return error(503, "Unavailable", f"the cluster's page cannot be reached: {problem}", "try again")
        if found.status == 401:
            connection.close()
            return error(401, "NoSession", "the API server does not accept your token", "log in to the cluster again")
        own = {name.lower() for name in (*STRICT_HEADERS, "content-security-policy")} | _NOT_PASSED_BACK
        back = {name: value for name, value in found.getheaders() if name.lower() not in own}
        return StreamingResponse(_pieces(connection, found), found.status, back)

    def _asked(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self._host, timeout=ANSWER_S)
        connection.sock = self._dial(CONNECT_S)
        connection.sock.settimeout(ANSWER_S)
        self._open.add(connection.sock)
        try:
            own = {"Host": self._host, "Authorization": self._authorization(), "Accept-Encoding": "identity"}
            connection.request(method, path, body or None, {**headers, **own})
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise


async def _pieces(connection: http.client.HTTPConnection, found: http.client.HTTPResponse) -> AsyncIterator[bytes]:
    with contextlib.closing(connection), contextlib.closing(found):
        while data := await run_in_threadpool(found.read1, 64 * 1024):
            yield data


def _authorization(configuration: Any) -> str:
    """Return the Authorization header of a kubeconfig's user, renewed where that is due; "" without a token."""
    return str(configuration.auth_settings().get("BearerToken", {}).get("value") or "")
