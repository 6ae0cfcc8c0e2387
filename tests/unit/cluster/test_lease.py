"""The Lease: one holder at a time, by each contender's own clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import virtual_time
from fake_api import FakeApi, FakeKube, error, outage
from virtual_time import until

from trialpod_operator.api.api_errors import ApiError
from trialpod_operator.cluster.lease import DURATION_S, RENEW_DEADLINE_S, Lease


def contender(
    api: FakeApi, identity: str, *, alone: bool = False, on_outage: Callable[[float], None] = lambda _: None
) -> tuple[Lease, FakeKube]:
    kube = FakeKube(api)
    return Lease(
        kube, "team", "operator", identity, asyncio.get_running_loop().time, alone=alone, on_outage=on_outage
    ), kube


def spec(api: FakeApi) -> dict[str, Any]:
    found = api.get("leases", "operator")
    assert found is not None
    return dict(found["spec"])


def test_of_two_contenders_one_holds_it_and_the_other_waits() -> None:
    async def test() -> None:
        api = FakeApi()
        leases = [contender(api, name)[0] for name in ("one", "two")]
        waiting = [asyncio.ensure_future(lease.acquire()) for lease in leases]
        await until(lambda: any(lease.held for lease in leases))
        holder = next(lease for lease in leases if lease.held)
        keeping = asyncio.ensure_future(holder.keep())
        await asyncio.sleep(200.0)
        assert [lease.held for lease in leases].count(True) == 1
        assert spec(api)["leaseTransitions"] == 0
        keeping.cancel()
        for each in waiting:
            each.cancel()

    virtual_time.run(test)


def test_a_holder_that_is_gone_is_followed_once_its_time_is_over() -> None:
    async def test() -> None:
        api = FakeApi()
        first, _ = contender(api, "one")
        await first.acquire()
        second, _ = contender(api, "two")
        began = asyncio.get_running_loop().time()
        await second.acquire()
        assert DURATION_S <= asyncio.get_running_loop().time() - began < DURATION_S + 3.0
        assert (spec(api)["holderIdentity"], spec(api)["leaseTransitions"]) == ("two", 1)

    virtual_time.run(test)


def test_what_the_holder_writes_as_the_time_plays_no_part() -> None:
    async def test() -> None:
        api = FakeApi()
        first, _ = contender(api, "one")
        await first.acquire()
        item = api.get("leases", "operator")
        assert item is not None
        api.edit(item, lambda each: each["spec"].update(renewTime="2001-01-01T00:00:00.000000Z"))
        second, _ = contender(api, "two")
        waiting = asyncio.ensure_future(second.acquire())
        await asyncio.sleep(DURATION_S - 2.0)
        assert not second.held
        await waiting

    virtual_time.run(test)


def test_a_lease_that_is_released_is_free_at_once() -> None:
    async def test() -> None:
        api = FakeApi()
        first, _ = contender(api, "one")
        await first.acquire()
        await first.release()
        assert not first.held
        second, _ = contender(api, "two")
        began = asyncio.get_running_loop().time()
        await second.acquire()
        assert asyncio.get_running_loop().time() - began < 1.0

    virtual_time.run(test)


def test_restarted_pod_regains_its_own_lease_at_once() -> None:
    async def test() -> None:
        api = FakeApi()
        first, _ = contender(api, "one")
        await first.acquire()
        again, _ = contender(api, "one")
        began = asyncio.get_running_loop().time()
        await again.acquire()
        assert asyncio.get_running_loop().time() - began < 1.0

    virtual_time.run(test)


def test_a_lease_that_another_has_taken_is_lost() -> None:
    async def test() -> None:
        api = FakeApi()
        first, _ = contender(api, "one")
        await first.acquire()
        second, _ = contender(api, "two")
        await second.acquire()
        await asyncio.wait_for(first.keep(), 10.0)
        assert not first.held
        assert second.held
        await first.release()
        assert spec(api)["holderIdentity"] == "two"

    virtual_time.run(test)


def test_holder_that_cannot_renew_stops_before_takeover() -> None:
    async def test() -> None:
        api = FakeApi()
        first, kube = contender(api, "one")
        await first.acquire()
        second, _ = contender(api, "two")
        waiting = asyncio.ensure_future(second.acquire())
        keeping = asyncio.ensure_future(first.keep())
        await asyncio.sleep(50.0)
        kube.faults.append(outage)
        began = asyncio.get_running_loop().time()
        await keeping
        assert not first.held
        assert not second.held
        assert asyncio.get_running_loop().time() - began < RENEW_DEADLINE_S + 3.0
        await waiting

    virtual_time.run(test)


def test_sole_holder_outlasts_server_without_writing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        api = FakeApi()
        first, kube = contender(api, "one", alone=True, on_outage=outages.append)
        await first.acquire()
        keeping = asyncio.ensure_future(first.keep())
        await asyncio.sleep(50.0)
        assert first.lease_valid()
        kube.faults.append(outage)
        await asyncio.sleep(3600.0)
        assert first.held
        assert not first.lease_valid()
        kube.faults.clear()
        await asyncio.sleep(3.0)
        assert first.lease_valid()
        assert not keeping.done()
        keeping.cancel()

    outages: list[float] = []
    virtual_time.run(test)
    assert [3600.0 < seconds < 3610.0 for seconds in outages] == [True]
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) < 15
    assert "nothing new begins" in told[-2]
    assert "renewed again" in told[-1]


def test_sole_holder_ends_when_another_has_taken_over() -> None:
    async def test() -> None:
        api = FakeApi()
        first, kube = contender(api, "one", alone=True)
        await first.acquire()
        keeping = asyncio.ensure_future(first.keep())
        kube.faults.append(outage)
        second, _ = contender(api, "two", alone=True)
        await second.acquire()
        await asyncio.sleep(600.0)
        assert not keeping.done()
        assert not first.lease_valid()
        kube.faults.clear()
        await asyncio.wait_for(keeping, 5.0)
        assert not first.held
        assert not first.lease_valid()
        assert spec(api)["holderIdentity"] == "two"

    virtual_time.run(test)


def test_a_renewal_whose_answer_was_lost_does_not_lose_the_lease() -> None:
    async def test() -> None:
        api = FakeApi()
        first, kube = contender(api, "one")
        await first.acquire()
        keeping = asyncio.ensure_future(first.keep())
        lost = [True]
        kube.lost_answers = lambda: bool(lost) and lost.pop()
        await asyncio.sleep(100.0)
        assert first.held
        assert not keeping.done()
        keeping.cancel()

    virtual_time.run(test)


def test_a_request_that_is_refused_ends_the_wait_with_the_reason() -> None:
    async def test() -> None:
        first, kube = contender(FakeApi(), "one")
        kube.faults.append(lambda method, path, body: error(method, path, 403, "Forbidden", "no right to leases"))
        with pytest.raises(ApiError, match="no right to leases"):
            await first.acquire()

    virtual_time.run(test)


def test_resumed_holder_may_not_act_before_renewal() -> None:
    async def test() -> None:
        api = FakeApi()
        loop = asyncio.get_running_loop()
        asleep = 0.0
        lease = Lease(FakeKube(api), "team", "operator", "one", lambda: loop.time() + asleep)
        assert not lease.lease_valid()
        await lease.acquire()
        keeping = asyncio.ensure_future(lease.keep())
        await asyncio.sleep(60.0)
        assert lease.lease_valid()
        asleep = DURATION_S + 1.0
        assert lease.held
        assert not lease.lease_valid()
        await asyncio.sleep(10.0)
        assert lease.lease_valid(), "nobody had taken it, so it was renewed"
        keeping.cancel()

    virtual_time.run(test)
