"""What every request passes first: the name it was sent to, the page that sent it, and the session it belongs to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, MutableMapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from trialpod_operator.ui.access import Sessions, User

COOKIE = "trialpod_session"

STRICT_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

POLICY = "default-src 'self'; base-uri 'none'; object-src 'none'; frame-ancestors 'none'; form-action 'none'"

Authenticate = Callable[[Request], Awaitable[tuple[User, str] | Response | None]]
"""Finds the user of a request and the token that its changes need; None: it shows no user; else the refusal."""

SIGN_IN_PATH = "/login"


class Gate:
    """ASGI middleware that refuses, and adds headers to every answer.

    Args:
        app: what is behind it; it finds `user` and `token` in the request's state.
        sessions: the browsers that have opened a link; None: only `authenticate` identifies users.
        hosts: the values of the Host header that are answered.
        authenticate: finds the user of a request that no link's session has.
        public: paths that need no user; with any, a request without one is sent to `SIGN_IN_PATH`.
        headers: of every answer.
        read_only: only GET and HEAD get through.
    """

    def __init__(
        self,
        app: ASGIApp,
        sessions: Sessions | None,
        hosts: Container[str],
        authenticate: Authenticate | None = None,
        public: Container[str] = (),
        headers: dict[str, str] | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        self._app = app
        self._sessions = sessions
        self._hosts = hosts
        self._authenticate = authenticate
        self._public = public
        headers = STRICT_HEADERS if headers is None else headers
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]
        self._read_only = read_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *self._headers]
            await send(message)

        refusal = await self._refusal(Request(scope, receive))
        await (refusal or self._app)(scope, receive, with_headers)

    async def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that is refused; None: it is passed on, its user in its state."""
        if request.headers.get("host", "") not in self._hosts:
            return error(421, "WrongHost", "this address is not served under that name", "open the printed link")
        origin = request.headers.get("origin")
        here = {f"{scheme}://{request.headers['host']}" for scheme in ("http", "https")}
        foreign = request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
        navigates = request.method == "GET" and request.url.path in ("/", SIGN_IN_PATH)
        if (origin is not None and origin not in here) or (foreign and not navigates):
            return error(403, "OtherOrigin", "a page of another origin may not ask here", "open the printed link")
        if self._read_only and request.method not in ("GET", "HEAD"):
            return error(405, "ReadOnly", "nothing can be changed here", "")
        if request.url.path in self._public:
            return None
        found = self._opened_before(request)
        token = request.query_params.get("token", "")
        if found is None and self._sessions is not None and navigates and token:
            return self._opened(request, self._sessions.open(token))
        if found is None and self._authenticate is not None:
            answer = await self._authenticate(request)
            if isinstance(answer, Response):
                return answer
            found = answer
        if found is None and self._sessions is None:
            return RedirectResponse(SIGN_IN_PATH, status_code=303) if navigates else signed_out()
        if found is None:
            return _unauthorized(page=navigates)
        request.state.user, request.state.token = found
        return None

    def _opened_before(self, request: Request) -> tuple[User, str] | None:
        if self._sessions is None:
            return None
        return self._sessions.find(request.cookies.get(cookie_name(request), ""))

    def _opened(self, request: Request, cookie: str | None) -> Response:
        if cookie is None:
            return _unauthorized(page=True)
        response = RedirectResponse("/", status_code=303)
        response.set_cookie(cookie_name(request), cookie, httponly=True, samesite="strict", path="/")
        return response


def error(status: int, reason: str, message: str, remedy: str) -> Response:
    """Return an answer that refuses, as JSON."""
    body = msgspec.json.encode({"error": {"reason": reason, "message": message, "remedy": remedy}})
    return Response(body, status, media_type="application/json", headers={"cache-control": "no-store"})


def cookie_name(request: Request) -> str:
    """Return the cookie's name, of this port: browsers send cookies to all ports of a host."""
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"{COOKIE}_{port}" if port.isdecimal() else COOKIE


def signed_out() -> Response:
    """Return the answer to a request for data that shows no user, where users sign in."""
    return error(401, "SignedOut", "you are not signed in, or no longer", "sign in again")


_SIGN_IN = """<!doctype html><html lang="en"><meta charset="utf-8"><title>trialpod</title>
<h1>This page needs a link</h1>
<p>Open the link that <code>trialpod ui</code> has printed. Each link opens one browser's session; after it was used,
the command prints the next one.</p></html>"""


def _unauthorized(*, page: bool) -> Response:
    if page:
        return HTMLResponse(_SIGN_IN, 401, headers={"cache-control": "no-store"})
    return error(401, "NoSession", "there is no session", "open the link that `trialpod ui` printed")
