"""`FakeApi` behind a socket, with discovery and watches, for a whole operator process.

Runs an aiohttp application in a thread of its own; the `FakeApi` belongs to that thread's event loop.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web
from fake_api import FakeApi, Object

from trialpod_operator.api.api_errors import ApiError

START_TIMEOUT_S = 60.0
# Namespaces and definitions are for kopf, which finds out whether the server has them.
_KINDS = {
    "/api/v1": {
        "pods": "Pod",
        "secrets": "Secret",
        "configmaps": "ConfigMap",
        "events": "Event",
        "namespaces": "Namespace",
    },
    "/apis/apiextensions.k8s.io/v1": {"customresourcedefinitions": "CustomResourceDefinition"},
    "/apis/trialpod.dev/v1alpha1": {"tuneexperiments": "TuneExperiment", "tunetrials": "TuneTrial"},
    "/apis/coordination.k8s.io/v1": {"leases": "Lease"},
}


class HttpApi:
    """The server; `api` may be used through `call`, which runs a function in its event loop."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.watches_opened: set[str] = set()
        self.retry_watches_after: list[int] = []
        """Seconds for each of the next watches, which are refused."""
        self._watchers: dict[str, list[asyncio.Queue[tuple[str, Object]]]] = {}
        self._events: list[tuple[int, str, str, Object]] = []  # version, plural, kind of the event, object
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), name="fake-api")
        self._thread.start()
        if not self._ready.wait(START_TIMEOUT_S):
            raise RuntimeError("the stand-in of the API server has not started")

    def call(self, function: Callable[[], Any]) -> Any:
        """Run a function in the server's event loop and return what it returns."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(START_TIMEOUT_S)

    def create(self, collection: str, body: Object) -> Object:
        """Create an object as a user does."""
        made: Object = self.call(lambda: self.api.handle("POST", collection, {}, body, text=False))
        return made

    def kubeconfig(self, folder: Path) -> Path:
        """Write the file by which clients find this server."""
        path = folder / "kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self._port}"}}],
            "users": [{"name": "u", "user": {"token": "secret-token"}}],
        }
        path.write_text(json.dumps(config))
        return path

    def close(self) -> None:
        """Stop the server and its thread."""
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self._port = runner.addresses[0][1]
        self.api.listeners.append(self._notify)
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    def _notify(self, kind: str, item: Object) -> None:
        shown = {key: value for key, value in item.items() if key != "_plural"}
        self._events.append((int(item["metadata"]["resourceVersion"]), item["_plural"], kind, shown))
        for queue in self._watchers.get(item["_plural"], []):
            queue.put_nowait((kind, shown))

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path in _KINDS:
            return web.json_response({"kind": "APIResourceList", "resources": _resources(_KINDS[request.path])})
        if request.path == "/api":
            return web.json_response({"versions": ["v1"]})
        if request.path == "/apis":
            return web.json_response({"groups": [_group(path) for path in _KINDS if path.startswith("/apis/")]})
        if request.query.get("watch") == "true" and self.retry_watches_after:
            headers = {"Retry-After": str(self.retry_watches_after.pop(0))}
            return web.json_response({"kind": "Status", "code": 429}, status=429, headers=headers)
        if request.query.get("watch") == "true":
            return await self._watch(request)
        body = await request.json() if request.can_read_body else None
        try:
            answer = self.api.handle(request.method, request.path, request.query, body, text=False)
        except ApiError as error:
            status = {"kind": "Status", "code": error.status, "reason": error.reason, "message": error.detail}
            return web.json_response(status, status=error.status)
        if "items" in answer:
            answer["metadata"]["resourceVersion"] = str(max((version for version, *_ in self._events), default=0))
        return web.json_response(answer)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        plural = request.path.rpartition("/")[2]
        queue: asyncio.Queue[tuple[str, Object]] = asyncio.Queue()
        # What happened since the list, before this watch.
        since = int(request.query.get("resourceVersion") or sys.maxsize)
        for version, kind_of, kind, item in self._events:
            if kind_of == plural and version > since:
                queue.put_nowait((kind, item))
        self._watchers.setdefault(plural, []).append(queue)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        self.watches_opened.add(plural)
        assert self._stop is not None
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            while not stopped.done():
                news = asyncio.ensure_future(queue.get())
                await asyncio.wait((news, stopped), return_when=asyncio.FIRST_COMPLETED)
                if not news.done():
                    news.cancel()
                    break
                kind, item = news.result()
                await response.write(json.dumps({"type": kind, "object": item}).encode() + b"\n")
        finally:
            stopped.cancel()
            self._watchers[plural].remove(queue)
        return response


def _group(path: str) -> dict[str, Any]:
    _, _, name, version = path.split("/")
    versions = [{"groupVersion": f"{name}/{version}", "version": version}]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _resources(kinds: dict[str, str]) -> list[dict[str, Any]]:
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    return [
        {"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": True, "verbs": verbs}
        for plural, kind in kinds.items()
    ]
