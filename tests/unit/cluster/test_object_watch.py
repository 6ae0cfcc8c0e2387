"""Objects that are followed: each state is shown, through breaks of the watch and after what the server forgot."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import virtual_time
from fake_api_http import HttpApi
from virtual_time import until

from trialpod_operator.api.api_errors import ApiError, TooManyRequestsError, api_error
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster.kube import Kube
from trialpod_operator.cluster.names import MANAGED_BY_LABEL, MANAGER
from trialpod_operator.cluster.object_watch import BACKOFF_S, ObjectWatch

COLLECTION = paths.pods("team")
OURS = f"{MANAGED_BY_LABEL}={MANAGER}"


def item(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


def line(kind: str, found: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode()


class Server:
    """A server whose lists and watches are what a test says, one after the other."""

    def __init__(self) -> None:
        self.lists: list[tuple[list[dict[str, Any]], str] | ApiError] = []
        self.watches: list[list[bytes | ApiError]] = []
        self.begun: list[str] = []  # the version behind which each watch began

    async def pages(
        self, collection: str, selector: str, **_options: Any
    ) -> AsyncIterator[tuple[list[dict[str, Any]], str]]:
        assert (collection, selector) == (COLLECTION, OURS)
        found = self.lists.pop(0)
        if isinstance(found, ApiError):
            raise found
        items, version = found
        for each in items:
            yield [each], version

    async def watch(self, collection: str, query: dict[str, str]) -> AsyncIterator[bytes]:
        assert (collection, query["labelSelector"]) == (COLLECTION, OURS)
        self.begun.append(query["resourceVersion"])
        if not self.watches:
            await asyncio.sleep(1e9)
        for each in self.watches.pop(0):
            if isinstance(each, ApiError):
                raise each
            yield each


def follow(server: Server, holds: Callable[[list[tuple[str, bool]]], bool]) -> tuple[list[tuple[str, bool]], float]:
    """Follow until something holds of what was shown; return that, and after how many seconds it did."""
    shown: list[tuple[str, bool]] = []
    times = []

    async def test() -> None:
        kube: Any = server
        watch = ObjectWatch(
            kube, COLLECTION, OURS, lambda each, deleted: shown.append((each["metadata"]["name"], deleted))
        )
        task = asyncio.ensure_future(watch.run())
        await until(lambda: watch.listed.is_set() and holds(shown))
        times.append(asyncio.get_running_loop().time())
        task.cancel()

    virtual_time.run(test)
    return shown, times[0]


class TestObjectWatch:
    def test_break_continues_behind_the_last_state(self) -> None:
        server = Server()
        server.lists = [([item("a", 3), item("b", 4)], "5")]
        broken = api_error("GET", COLLECTION, 0, {"message": "connection reset"})
        server.watches = [
            [line("MODIFIED", item("a", 6)), line("BOOKMARK", item("", 9)), broken],
            [line("DELETED", item("b", 10))],
            [line("ADDED", item("c", 12))],
        ]
        shown, _ = follow(server, lambda shown: ("c", False) in shown)
        assert shown == [("a", False), ("b", False), ("a", False), ("b", True), ("c", False)]
        assert server.begun[:3] == ["5", "9", "10"]

    @pytest.mark.parametrize("in_stream", [True, False])
    def test_what_the_server_forgot_is_listed_again(self, in_stream: bool) -> None:
        server = Server()
        server.lists = [([item("a", 3)], "5"), ([item("a", 80)], "90")]
        status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
        gone = line("ERROR", status) if in_stream else api_error("GET", COLLECTION, 410, status)
        server.watches = [[gone], [line("ADDED", item("b", 91))]]
        shown, _ = follow(server, lambda shown: ("b", False) in shown)
        assert shown == [("a", False), ("a", False), ("b", False)]
        assert server.begun[:2] == ["5", "90"]

    def test_refusals_are_retried_without_end_reported_once(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING)
        server = Server()
        refused = api_error("GET", COLLECTION, 403, {"message": "pods is forbidden"})
        server.lists = [*[refused] * 12, ([item("a", 3)], "5")]
        _, seconds = follow(server, bool)
        assert seconds == pytest.approx(sum(BACKOFF_S) + (12 - len(BACKOFF_S)) * BACKOFF_S[-1], abs=0.2)
        assert caplog.text.count("pods is forbidden") == 1

    def test_retry_after_is_kept(self) -> None:
        server = Server()
        busy = api_error("GET", COLLECTION, 429, {"message": "too many requests"}, 20.0)
        server.lists = [busy, ([item("a", 3)], "5")]
        assert follow(server, bool)[1] == pytest.approx(20.0, abs=0.2)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpApi]:
    """A server that `Kube.connect` finds."""
    made = HttpApi()
    location = "kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"  # read from KUBECONFIG at import
    monkeypatch.setattr(location, str(made.kubeconfig(tmp_path)))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    yield made
    made.close()


def test_real_watch_shows_each_change(server: HttpApi) -> None:
    labels = {MANAGED_BY_LABEL: MANAGER}
    server.create(COLLECTION, {"metadata": {"name": "before", "labels": labels}})
    shown: list[tuple[str, bool]] = []

    async def test() -> None:
        kube = await Kube.connect()
        watch = ObjectWatch(
            kube, COLLECTION, OURS, lambda each, deleted: shown.append((each["metadata"]["name"], deleted))
        )
        task = asyncio.ensure_future(watch.run())
        await until(lambda: "pods" in server.watches_opened)
        await kube.create(COLLECTION, {"metadata": {"name": "after", "labels": labels}})
        await kube.delete(COLLECTION, "before", grace_s=0)
        await until(lambda: ("before", True) in shown)
        task.cancel()
        await asyncio.wait([task])
        await kube.close()

    asyncio.run(test())
    assert shown[:2] == [("before", False), ("after", False)]


def test_refused_watch_says_when_to_retry(server: HttpApi) -> None:
    server.retry_watches_after = [20]

    async def test() -> None:
        kube = await Kube.connect()
        with pytest.raises(TooManyRequestsError) as caught:
            await anext(kube.watch(COLLECTION, {"resourceVersion": "1", "timeoutSeconds": "60"}))
        assert caught.value.retry_after_s == 20.0
        await kube.close()

    asyncio.run(test())


def test_watches_of_many_namespaces_delay_no_request(server: HttpApi) -> None:
    async def test() -> None:
        kube = await Kube.connect()
        collections = [make(f"team-{number}") for number in range(40) for make in (paths.pods, paths.trials)]
        watches = [ObjectWatch(kube, each, OURS, lambda _each, _deleted: None) for each in collections]
        tasks = [asyncio.ensure_future(watch.run()) for watch in watches]
        await until(lambda: all(watch.listed.is_set() for watch in watches), 20.0)
        assert await asyncio.wait_for(kube.list(paths.leases("team")), 20.0) == []
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await kube.close()

    asyncio.run(test())
