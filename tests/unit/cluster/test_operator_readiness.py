"""What an operator says of itself while it waits for its Lease, and while it cannot renew it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import virtual_time
from fake_api import FakeApi, FakeKube, error
from fake_api_http import HttpApi

from trialpod_operator.api.api_errors import ApiError, NotSentError, NotServedError, UnreachableError
from trialpod_operator.cluster import first_lists, operator
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster.kube import Kube
from trialpod_operator.cluster.object_watch import BACKOFF_S
from trialpod_operator.cluster.operator import OperatorProcess
from trialpod_operator.cluster.options import OperatorOptions
from trialpod_operator.cluster.shards.membership import Membership
from trialpod_operator.cluster.shards.ownership import Ownership


class TestOptions:
    @pytest.mark.parametrize(("value", "wanted"), [("", 1), ("1", 1), ("3", 3)])
    def test_chart_says_how_many_share_the_work(self, value: str, wanted: int) -> None:
        assert OperatorOptions.from_environment({"TRIALPOD_REPLICAS": value}).replicas == wanted

    @pytest.mark.parametrize(
        ("address", "wanted"), [("", ""), ("10.0.0.7", "10.0.0.7:8443"), ("fd00::7", "[fd00::7]:8443")]
    )
    def test_direct_address(self, address: str, wanted: str) -> None:
        assert OperatorOptions.from_environment({"TRIALPOD_POD_ADDRESS": address}).direct_address == wanted


async def leader(kube: Kube) -> Membership:
    """Return an operator that is alone and at work."""

    async def release(_shards: frozenset[int]) -> None:
        pass

    made = Membership(
        kube, "default", operator.LEASE_NAME, "other", Ownership("other"), release, lambda _: None, alone=True
    )
    await made.join()
    return made


async def quiet_watch(*_: Any) -> AsyncIterator[bytes]:
    await asyncio.sleep(1e9)
    yield b""


@contextlib.asynccontextmanager
async def waiting(kube: FakeKube, replicas: int, until: Callable[[OperatorProcess], bool]) -> Any:
    process = OperatorProcess(kube, OperatorOptions(replicas=replicas, host="127.0.0.1", probe_port=0))
    assert process.readiness()[0] is False, "it has no certificates yet"
    run = asyncio.ensure_future(process._join())
    try:
        for _ in range(6_000):
            if until(process):
                break
            await asyncio.sleep(0.01)
        yield process
    finally:
        run.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await run
        await process.close()


class TestReadiness:
    def test_one_that_is_alone_waits_unready_but_alive(self) -> None:
        async def test() -> None:
            kube, reads = FakeKube(FakeApi()), []
            await leader(kube)
            kube.faults.append(lambda method, path, _: reads.append(path) if method == "GET" else None)
            async with waiting(kube, 1, lambda _: any(path.endswith(operator.LEASE_NAME) for path in reads)) as made:
                ready, why = made.readiness()
                assert not ready
                assert "another operator is active" in why
                assert made.liveness()[0]

        asyncio.run(test())

    def test_one_of_several_joins_those_at_work(self) -> None:
        async def test() -> None:
            kube = FakeKube(FakeApi())
            await leader(kube)
            async with waiting(kube, 2, lambda process: process._membership.joined) as made:
                ready, why = made.readiness()
                assert not ready, "its watches have not begun"
                assert why.startswith("0 shards")
                made._membership._read_at -= 100.0
                assert "could not be renewed" in made.readiness()[1]

        asyncio.run(test())

    @pytest.mark.parametrize("namespaces", [("a", "b"), ("b",)])
    def test_namespace_that_cannot_be_listed(self, namespaces: tuple[str, ...]) -> None:
        """It keeps the trials of no other one waiting for longer than the first lists may take."""

        async def scenario() -> None:
            kube = FakeKube(FakeApi())
            kube.faults.append(
                lambda method, path, _: error(method, path, 403, "Forbidden") if "/namespaces/b/" in path else None
            )
            kube.watch = quiet_watch  # type: ignore[assignment,method-assign]
            process = OperatorProcess(kube, OperatorOptions(namespaces=namespaces))
            await process._membership.join()
            process._watching.set()
            process._follow_objects()
            try:
                await asyncio.sleep(first_lists.WAIT_S - 1.0)
                ready, text = process.readiness()
                assert not ready
                assert text.endswith("queued; not listed yet: b")
                await asyncio.sleep(2.0)
                assert process.readiness() == (len(namespaces) > 1, text)
                kube.faults.clear()
                await asyncio.sleep(BACKOFF_S[-1] + 1.0)
                ready, text = process.readiness()
                assert ready
                assert "not listed" not in text
            finally:
                await process.close()

        virtual_time.run(scenario)


def test_operator_without_valid_lease_sends_no_write() -> None:
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


@pytest.mark.parametrize("lost", ["lease", "experiment"])
def test_lost_while_connecting_sends_no_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    """A process may be stopped between the first look at what it has and the moment in which it is connected."""
    server = HttpApi()
    location = "kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"  # read from KUBECONFIG at import
    monkeypatch.setattr(location, str(server.kubeconfig(tmp_path)))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    collection = paths.experiments("team")
    server.create(collection, {"metadata": {"name": "digits"}, "spec": {"numSamples": 1}})

    async def test() -> None:
        kube = await Kube.connect()
        answers: Iterator[bool] = itertools.repeat(True)
        own = kube.on_behalf_of(lambda: lost == "lease" or next(answers))
        kube.lease_valid = lambda: lost == "experiment" or next(answers)
        try:
            for kept_alive in (False, True):
                answers = iter([True, False])
                with pytest.raises((NotSentError, NotServedError), match="not sent") as caught:
                    await own.patch(collection, "digits", {"spec": {"numSamples": 2}})
                assert isinstance(caught.value, ApiError) == (lost == "lease"), "the other one is not retried"
                answers = itertools.repeat(False)
                assert not own.may_change()
                found = await own.get(collection, "digits")
                assert found is not None, kept_alive
                assert found["spec"]["numSamples"] == 1, kept_alive
            if lost == "experiment":  # what is done for no experiment is sent, by the same task
                await kube.patch(collection, "digits", {"spec": {"parallel": 2}})
            answers = itertools.repeat(True)
            assert own.may_change()
            await own.patch(collection, "digits", {"spec": {"numSamples": 3}})
        finally:
            await kube.close()

    try:
        asyncio.run(test())
        item = server.call(lambda: server.api.get("tuneexperiments", "digits"))
        assert item["spec"] == {"numSamples": 3, **({"parallel": 2} if lost == "experiment" else {})}
    finally:
        server.close()


@pytest.mark.parametrize(("listed", "accepted_at"), [(1, first_lists.WAIT_S), (2, 0.0)])
def test_attempts_are_accepted_once_pods_are_listed_or_in_time(listed: int, accepted_at: float) -> None:
    """A namespace whose list is refused does not keep the attempts of the others waiting for good."""

    async def scenario() -> None:
        process = OperatorProcess(FakeKube(FakeApi()), OperatorOptions(host="127.0.0.1", report_port=0))
        lists = [asyncio.Event() for _ in range(2)]
        process._controller.begin_lists(lists, [])
        for each in lists[:listed]:
            each.set()
        accepted = []

        async def accept() -> None:
            accepted.append(asyncio.get_running_loop().time())

        process._server.accept = accept  # type: ignore[method-assign]
        began = asyncio.get_running_loop().time()
        await process._accept()
        assert [round(at - began, 3) for at in accepted] == [accepted_at]

    virtual_time.run(scenario)
