"""The label by which the Service finds the operator at work."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import virtual_time
from fake_api import FakeApi, FakeKube, error

from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster import operator
from trialpod_operator.cluster.api_errors import UnreachableError
from trialpod_operator.cluster.kube import Kube
from trialpod_operator.cluster.lease import ACTIVE_LABEL, LeaderLabel
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
        api, _, mark = await world()
        await mark.put()
        assert labels(api) == {"app": "operator", ACTIVE_LABEL: "true"}
        await mark.clear()
        assert labels(api) == {"app": "operator"}

    virtual_time.run(test)


def test_it_is_tried_until_it_works_and_a_missing_right_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        api, kube, mark = await world()
        kube.faults.append(lambda method, path, body: error(method, path, 403, "Forbidden", "no right to pods"))
        trying = asyncio.ensure_future(mark.put())
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
def test_who_waits_for_the_lease_is_ready_only_where_several_are_wanted(standby: bool) -> None:
    async def test() -> None:
        process = operator._Process(FakeKube(FakeApi()), OperatorOptions(standby=standby))
        assert process._ready()[0] is False  # it has no certificates yet
        process._waiting = True
        ready, why = process._ready()
        assert ready is standby
        assert "another operator is at work" in why

    virtual_time.run(test)


def test_an_operator_that_may_not_act_sends_nothing_that_changes_anything() -> None:
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
