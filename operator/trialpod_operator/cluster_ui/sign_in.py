"""How users of the cluster's page sign in: with a bearer token in each request, or once, for a session of a browser.

A session is a cookie that no script reads and no other site sends, and the token that was given for it, which is only
in this process's memory. Each request asks whose token it is (`Reviews`): a session ends within seconds of its token.

Invariants: a token is in no log, no answer and no URL that a server sees. Sessions are bounded in time and number.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from trialpod_operator.cluster_ui.reviews import MAX_TOKEN_BYTES, Reviews, ReviewUnavailableError
from trialpod_operator.ui.access import User
from trialpod_operator.ui.app import STATIC
from trialpod_operator.ui.gate import SIGN_IN_PATH, cookie_name, error

MAX_SESSIONS = 2000


@dataclass(frozen=True, slots=True)
class _Session:
    token: str
    until: float  # monotonic seconds

    def __repr__(self) -> str:
        return "_Session()"


class SignIn:
    """Finds the user of each request.

    Args:
        reviews: ask the API server.
        session_s: how long a session lasts at most, in seconds.
        clock: monotonic seconds.
    """

    def __init__(self, reviews: Reviews, session_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._reviews = reviews
        self._session_s = session_s
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._key = secrets.token_bytes(32)

    def routes(self) -> list[Route]:
        """Return the routes that need no user."""
        return [
            Route(SIGN_IN_PATH, self._page),
            Route("/signin", self._sign_in, methods=["POST"]),
            Route("/signout", self._sign_out, methods=["POST"]),
            Route("/signin.js", lambda _request: FileResponse(STATIC / "js" / "sign_in.js")),
            Route("/signin.css", lambda _request: FileResponse(STATIC / "style.css")),
            Route("/healthz", _health),
        ]

    async def authenticate(self, request: Request) -> tuple[User, str] | Response | None:
        """Return the user, and the token that changes need; None: not signed in; else the refusal."""
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        cookie = request.cookies.get(cookie_name(request), "")
        # With a header the cookie does not count: a proxy in front says who it is.
        token = bearer.strip() if scheme.lower() == "bearer" else self._token_of(cookie)
        if not token:
            return None
        try:
            user = await run_in_threadpool(self._reviews.user, token)
        except ReviewUnavailableError as problem:
            return _unavailable(problem)
        if user is None:
            self._forget(cookie)
            return None
        return user, self._change_token(user)

    def _token_of(self, cookie: str) -> str:
        with self._lock:
            found = self._sessions.get(cookie)
            if found is None or self._clock() >= found.until:
                self._sessions.pop(cookie, None)
                return ""
            return found.token

    def _forget(self, cookie: str) -> None:
        with self._lock:
            self._sessions.pop(cookie, None)

    def _change_token(self, user: User) -> str:
        """Return what a change has to have: only a page of this origin can read it. It outlives the user's token."""
        return hmac.new(self._key, f"{user.name}\0{user.uid}".encode(), hashlib.sha256).hexdigest()

    async def _page(self, _request: Request) -> Response:
        return FileResponse(STATIC / "sign_in.html", headers={"cache-control": "no-store"})

    async def _sign_in(self, request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded":
            return error(415, "WrongType", "the token has to come as a form", "reload the page")
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > 2 * MAX_TOKEN_BYTES:
                return error(413, "TooLarge", "this is not a token", "paste what `kubectl create token` prints")
        token = (parse_qs(body.decode("utf-8", "replace")).get("token") or [""])[0].strip()
        try:
            user = await run_in_threadpool(self._reviews.user, token)
        except ReviewUnavailableError as problem:
            return _unavailable(problem)
        if user is None:
            return error(401, "NotAccepted", "the API server does not accept this token", "get a new one")
        cookie = secrets.token_urlsafe(32)
        with self._lock:
            now = self._clock()
            self._sessions[cookie] = _Session(token, now + self._session_s)
            while len(self._sessions) > MAX_SESSIONS or next(iter(self._sessions.values())).until <= now:
                self._sessions.popitem(last=False)
        response = Response(status_code=204, headers={"cache-control": "no-store"})
        response.set_cookie(
            cookie_name(request),
            cookie,
            max_age=int(self._session_s),
            httponly=True,
            samesite="strict",
            secure=_is_https(request),
        )
        return response

    async def _sign_out(self, request: Request) -> Response:
        self._forget(request.cookies.get(cookie_name(request), ""))
        response = Response(status_code=204)
        response.delete_cookie(cookie_name(request), httponly=True, samesite="strict", secure=_is_https(request))
        return response


async def _health(_request: Request) -> Response:
    """Answer on the event loop: the threads may all wait for a storage, and the process is healthy."""
    return PlainTextResponse("ok")


def _is_https(request: Request) -> bool:
    """Return whether the browser's side is encrypted; a forged header only leads to a stricter cookie."""
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto", "") == "https"


def _unavailable(problem: ReviewUnavailableError) -> Response:
    message, _, remedy = str(problem).partition("; ")
    return error(503, "Unavailable", message, remedy)
