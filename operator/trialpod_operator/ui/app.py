"""The server's routes: the page, its data as JSON, and changes as they happen (server-sent events).

Invariants:

* Nothing is answered without a session, but for the route that opens one.
* Only requests to a known Host are answered, and none that another origin's page has sent: no such page can read or
  write here, by CORS, a forged form, or a name that it makes resolve to this address.
* Nothing is changed unless actions were asked for; then each needs the session's own token and the user's permission.
* Files come from the package's folder, and experiments from a list: no part of a URL is used as a path.
* Every answer forbids scripts, styles and connections of other origins.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
import weakref
from collections.abc import AsyncIterator, Container, Sequence
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from trialpod.errors import InvalidInputError, TrialpodError
from trialpod_operator.ui.access import (
    ActionDeniedError,
    Actions,
    Experiments,
    Json,
    NoSuchExperimentError,
    Sessions,
)
from trialpod_operator.ui.gate import POLICY, STRICT_HEADERS, Authenticate, Gate, error
from trialpod_operator.view.curves import MAX_POINTS
from trialpod_operator.view.exports import results_csv
from trialpod_operator.view.model import ExperimentModel, ModelClosedError, NoSuchTrialError

STATIC = Path(__file__).parent / "static"
TOKEN_HEADER = "x-trialpod-token"
REFRESH_S = 1.0
READ_S = 0.1
"""An answer reads files of trials for so many seconds at most; a thread reads the others."""

KEEP_ALIVE_S = 15.0
RECHECK_INTERVAL_S = 10.0
MAX_TRIES = 3
MAX_BODY_BYTES = 64 * 1024
ACTIONS = ("suspend", "resume", "stop-trial", "more-samples")


class Server:
    """What the routes share.

    Args:
        experiments: what is served.
        sessions: the browsers that have signed in.
        hosts: the values of the Host header that are answered.
        actions: what may be changed; None: nothing.
        authenticate: finds the user of a request that no link's session has.
        sign_in: routes, besides, that need no user: with them users sign in.
    """

    def __init__(
        self,
        experiments: Experiments,
        sessions: Sessions | None,
        hosts: Container[str],
        actions: Actions | None = None,
        authenticate: Authenticate | None = None,
        sign_in: Sequence[Route] = (),
    ) -> None:
        self._experiments = experiments
        self._sessions = sessions
        self._hosts = hosts
        self._actions = actions
        self._authenticate = authenticate
        self._sign_in = sign_in
        self._loading: weakref.WeakSet[ExperimentModel] = weakref.WeakSet()  # whose files a thread reads
        self._closing = asyncio.Event()

    def app(self) -> Starlette:
        """Return the ASGI application."""
        one = "/api/experiments/{id}"
        routes: list[BaseRoute] = [
            *self._sign_in,
            Route("/", self._page),
            Route("/api/session", self._session),
            Route("/api/experiments", self._list),
            Route(one, self._header),
            Route(f"{one}/trials", self._trials),
            Route(f"{one}/trials/{{trial}}", self._trial),
            Route(f"{one}/curves", self._curves),
            Route(f"{one}/importance", self._importance),
            Route(f"{one}/timeline", self._timeline),
            Route(f"{one}/events", self._events),
            Route(f"{one}/export.csv", self._csv),
            Route(f"{one}/actions", self._list_actions),
            Route(f"{one}/actions/{{action}}", self._act, methods=["POST"]),
        ]
        if STATIC.is_dir():
            routes.append(Mount("/static", StaticFiles(directory=STATIC)))
        return Starlette(
            routes=routes,
            middleware=[
                Middleware(
                    Gate,
                    sessions=self._sessions,
                    hosts=self._hosts,
                    authenticate=self._authenticate,
                    public=frozenset(route.path for route in self._sign_in),
                    headers={"content-security-policy": POLICY, **STRICT_HEADERS},
                ),
                Middleware(GZipMiddleware, compresslevel=1),
            ],
            exception_handlers={TrialpodError: _refusal, HTTPException: _http_refusal},
            lifespan=self._lifespan,
        )

    def stop(self) -> None:
        """End the streams of events, so that the server can end."""
        self._closing.set()

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        yield
        self._closing.set()
        self._experiments.close()

    # -- routes -------------------------------------------------------------------------------------------------

    async def _page(self, request: Request) -> Response:
        if "token" in request.query_params:
            return RedirectResponse("/", status_code=303)  # of a browser that has a session already
        index = STATIC / "index.html"
        if not index.exists():
            return PlainTextResponse("the page's files are not installed; its data is under /api/experiments")
        return FileResponse(index, headers={"cache-control": "no-cache"})

    def _session(self, request: Request) -> Response:
        # A user who is identified by a bearer token signs in elsewhere, and cannot sign out here.
        scheme = request.headers.get("authorization", "").partition(" ")[0]
        signs_in = bool(self._sign_in) and scheme.lower() != "bearer"
        known = {"token": request.state.token, "user": request.state.user.name, "signs_in": signs_in}
        return _json({**known, "actions": self._actions is not None})

    def _list(self, request: Request) -> Response:
        found = self._experiments.summaries(request.state.user, request.query_params.get("namespace", ""))
        return _json({"experiments": found, "actions": self._actions is not None})

    def _header(self, request: Request) -> Response:
        return _json(self._headed(request, self._model(request)))

    def _trials(self, request: Request) -> Response:
        return _json(self._model(request).trial_rows(request.query_params.get("after", "")))

    def _trial(self, request: Request) -> Response:
        found = self._model(request).trial(request.path_params["trial"])
        if self._experiments.reads_logs(request.state.user, request.path_params["id"]):
            return _json(found)
        return _json({**msgspec.json.decode(found), "logs": {"where": "you may not read logs of pods", "tail": None}})

    def _curves(self, request: Request) -> Response:
        query = request.query_params
        points = query.get("points", str(MAX_POINTS))
        if not points.isdecimal():
            raise InvalidInputError(f"points={points}: must be a whole number")
        return _json(
            self._model(request).curves(
                query.get("metric", ""),
                x=query.get("x", "iteration"),
                points=int(points[:9]),
                trials=[each for each in query.get("trials", "").split(",") if each],
                after=query.get("after", ""),
            )
        )

    def _importance(self, request: Request) -> Response:
        return _json(self._model(request).importance(request.query_params.get("metric", "")))

    def _timeline(self, request: Request) -> Response:
        return _json(self._model(request).timeline())

    def _csv(self, request: Request) -> Response:
        model = self._model(request)
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", model.location.name)
        return Response(
            results_csv(model.rows()) + "\n",
            media_type="text/csv; charset=utf-8",
            headers={"content-disposition": f'attachment; filename="{name}.csv"', "cache-control": "no-store"},
        )

    def _list_actions(self, request: Request) -> Response:
        model = self._model(request)
        if self._actions is None:
            raise HTTPException(404)
        return _json(self._actions.listed(request.state.user, model))

    async def _act(self, request: Request) -> Response:
        action = request.path_params["action"]
        if self._actions is None or action not in ACTIONS:
            raise HTTPException(404)
        token = request.state.token
        if not token or request.headers.get(TOKEN_HEADER, "") != token:
            return error(403, "NoToken", f"the header {TOKEN_HEADER} is missing or wrong", "reload the page")
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY_BYTES:
                return error(413, "TooLarge", "the body is too large", "send a JSON object")
        try:
            arguments = msgspec.json.decode(body or b"{}", type=dict[str, Any])
        except msgspec.DecodeError as problem:
            return error(400, "NoJson", f"the body is not a JSON object: {problem}", "send a JSON object")
        user, actions = request.state.user, self._actions
        model = await run_in_threadpool(self._model, request)
        done = await run_in_threadpool(actions.perform, user, model, action, arguments)
        return _json({"done": done})

    async def _events(self, request: Request) -> Response:
        model = await run_in_threadpool(self._model, request)
        after = request.query_params.get("after") or request.headers.get("last-event-id", "")
        stream = self._deltas(request, model, after)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store"})

    async def _deltas(self, request: Request, model: ExperimentModel, cursor: str) -> AsyncIterator[bytes]:
        yield b": connected\n\n"
        with model.in_use():
            said, stale, header = time.monotonic(), None, b""
            asked = said
            while not self._closing.is_set() and not await request.is_disconnected():
                if time.monotonic() - asked >= RECHECK_INTERVAL_S:
                    asked = time.monotonic()
                    if not await self._is_current(request, model):
                        return  # the page asks again, and learns why
                try:
                    await run_in_threadpool(self._refresh, model)
                except ModelClosedError:
                    return  # the page asks again, for the model that has taken its place
                now = time.monotonic()
                rows = await run_in_threadpool(model.trial_rows, cursor) if model.cursor != cursor else b""
                found = await run_in_threadpool(self._headed, request, model)
                encoded = msgspec.json.encode({key: each for key, each in found.items() if key not in _MOVING})
                if found["stale_since"] != stale:
                    stale = found["stale_since"]
                    yield b"event: stale\ndata: " + msgspec.json.encode({"since": stale}) + b"\n\n"
                if rows or encoded != header:
                    header, said = encoded, now
                    delta = msgspec.json.decode(rows, type=_Rows) if rows else _Rows(cursor=model.cursor)
                    cursor = delta.cursor
                    data = msgspec.json.encode(
                        {"trials": delta.trials, "cursor": cursor, "whole": delta.whole, "header": found}
                    )
                    yield b"id: " + cursor.encode() + b"\nevent: delta\ndata: " + data + b"\n\n"
                elif now - said >= KEEP_ALIVE_S:
                    said = now
                    yield b": nothing new\n\n"
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), REFRESH_S)

    async def _is_current(self, request: Request, model: ExperimentModel) -> bool:
        """Return whether the user may still see the model, and no other one has taken its place."""
        if self._authenticate is not None and not isinstance(await self._authenticate(request), tuple):
            return False
        user, known = request.state.user, request.path_params["id"]
        try:
            return await run_in_threadpool(self._experiments.model, user, known) is model
        except TrialpodError:
            return False

    @staticmethod
    def _headed(request: Request, model: ExperimentModel) -> Json:
        return {**model.header(), "id": request.path_params["id"]}

    def _model(self, request: Request) -> ExperimentModel:
        for _ in range(MAX_TRIES):
            model = self._experiments.model(request.state.user, request.path_params["id"])
            with contextlib.suppress(ModelClosedError):  # dropped for another one since
                self._refresh(model)
                return model
        raise ModelClosedError("the server's memory for experiments is short; ask again")

    def _refresh(self, model: ExperimentModel) -> None:
        """Bring the model up to date, once a second however many ask."""
        if model.refresh(READ_S, max_age_s=REFRESH_S) and model not in self._loading:
            self._loading.add(model)
            threading.Thread(target=self._load, args=(model,), name="trialpod-ui-load", daemon=True).start()

    def _load(self, model: ExperimentModel) -> None:
        """Read the files of trials beside the answers, until there are none left."""
        try:
            with contextlib.suppress(ModelClosedError):
                while not self._closing.is_set() and model.refresh(REFRESH_S):
                    pass
        finally:
            self._loading.discard(model)


_MOVING = frozenset({"estimated_end", "elapsed", "budget"})
"""What of the header changes with time alone: no reason to send it."""


class _Rows(msgspec.Struct):
    cursor: str
    trials: list[msgspec.Raw] = []
    whole: bool = False


def _json(body: Json | list[Json] | bytes) -> Response:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return Response(data, media_type="application/json", headers={"cache-control": "no-store"})


async def _refusal(_request: Request, failure: Exception) -> Response:
    status, reason = 503, "Unavailable"
    if isinstance(failure, (NoSuchExperimentError, NoSuchTrialError)):
        status, reason = 404, "NotFound"
    elif isinstance(failure, ActionDeniedError):
        status, reason = 403, "Forbidden"
    elif isinstance(failure, InvalidInputError):
        status, reason = 400, "BadRequest"
    message, _, remedy = str(failure).partition("; ")
    return error(status, reason, message, remedy)


async def _http_refusal(_request: Request, failure: Exception) -> Response:
    assert isinstance(failure, HTTPException)
    reason = "NotFound" if failure.status_code == 404 else "Refused"
    return error(failure.status_code, reason, str(failure.detail), "")
