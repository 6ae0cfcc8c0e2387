"""The label by which the Service finds the leader, and what a standby says of itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import virtual_time
from fake_api import FakeApi, FakeKube, error

from trialpod_operator.api.api_errors import UnreachableError
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster import operator
from trialpod_operator.cluster.kube import Kube
from trialpod_operator.cluster.lease import ACTIVE_LABEL, LeaderLabel, Lease
from trialpod_operator.cluster.operator import OperatorProcess
from trialpod_operator.cluster.options import OperatorOptions


async def world() -> tuple[FakeApi, FakeKube, LeaderLabel]:
    api = FakeApi()
    kube = FakeKube(api)
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "one", "namespace": "team", "labels": {"app": "operator"}},
        "spec": {"containers": [{"name": "operator"}]},
    }
    await kube.create(paths.pods("team"), pod)
    return api, kube, LeaderLabel(kube, "team", "one")


def labels(api: FakeApi) -> dict[str, str]:
    pod = api.get("pods", "one")
    assert pod is not None
    return dict(pod["metadata"]["labels"])


def test_the_label_comes_and_goes_and_others_stay() -> None:
    async def test() -> None:
        api, _, label = await world()
        await label.set()
        assert labels(api) == {"app": "operator", ACTIVE_LABEL: "true"}
        await label.clear()
        assert labels(api) == {"app": "operator"}

    virtual_time.run(test)


def test_it_is_tried_until_it_works_and_a_missing_right_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        api, kube, label = await world()
        kube.faults.append(lambda method, path, body: error(method, path, 403, "Forbidden", "no right to pods"))
        trying = asyncio.ensure_future(label.set())
        await asyncio.sleep(10.0)
        assert not trying.done()
        kube.faults.clear()
        await trying
        assert labels(api)[ACTIVE_LABEL] == "true"

    with caplog.at_level(logging.ERROR):
        virtual_time.run(test)
    assert "patch pods in its own namespace" in caplog.text


@pytest.mark.parametrize(("value", "wanted"), [("", False), ("false", False), ("true", True)])
def test_the_chart_says_whether_others_stand_by(value: str, wanted: bool) -> None:
    assert OperatorOptions.from_environment({"TRIALPOD_STANDBY": value}).standby is wanted


@pytest.mark.parametrize("standby", [False, True])
def test_a_standby_is_ready_only_where_several_are_wanted(standby: bool) -> None:
    async def test() -> None:
        kube, lease_read = FakeKube(FakeApi()), asyncio.Event()

        def note(method: str, path: str, _body: Any) -> None:
            if method == "GET" and path.endswith(operator.LEASE_NAME):
                lease_read.set()

        await Lease(kube, "default", operator.LEASE_NAME, "leader").acquire()
        process = OperatorProcess(kube, OperatorOptions(standby=standby, host="127.0.0.1", probe_port=0))
        assert process.readiness()[0] is False, "it has no certificates yet"
        kube.faults.append(note)
        running = asyncio.ensure_future(process.run())
        await asyncio.wait_for(lease_read.wait(), 60.0)
        ready, why = process.readiness()
        assert ready is standby
        assert "another operator is the leader" in why
        assert process.liveness()[0]
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await process.close()

    asyncio.run(test())


def test_inactive_operator_sends_no_write() -> None:
    async def test() -> None:
        client: Any = SimpleNamespace(user_agent="test")  # it cannot send anything, and is not asked to
        kube = Kube(client)
        kube.lease_valid = lambda: False
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            with pytest.raises(UnreachableError, match="lease has expired") as caught:
                await kube.request(method, paths.pods("team"))
            assert caught.value.temporary
        assert kube.requests == 0

    asyncio.run(test())
