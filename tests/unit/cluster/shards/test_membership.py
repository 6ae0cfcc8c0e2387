"""Active replicas: their Leases, the one written map, handover and takeover, by each replica's own clock."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
import virtual_time
from fake_api import FakeApi, FakeKube, error, outage
from virtual_time import until

from trialpod_operator.api.api_errors import ApiError
from trialpod_operator.cluster import names
from trialpod_operator.cluster.shards.assignment import SHARDS, shard_of, unserved_since
from trialpod_operator.cluster.shards.membership import (
    ALONE_DURATION_S,
    DURATION_S,
    HANDOVER_TIMEOUT_S,
    UNSERVED_S,
    Membership,
)
from trialpod_operator.cluster.shards.ownership import Ownership

NAME = "operator"


class Replica:
    """One replica, whose experiments close when they are told to."""

    def __init__(self, api: FakeApi, identity: str, *, alone: bool = False) -> None:
        self.identity = identity
        self.kube = FakeKube(api)
        self.closes = asyncio.Event()
        self.closes.set()
        self.stuck: frozenset[int] = frozenset()  # shards that are not closed before `closes`
        self.gained: list[frozenset[int]] = []
        self.outages: list[float] = []
        self.stopped_s = 0.0  # how far its clock is ahead of what it has lived through
        self.membership = Membership(
            self.kube,
            "team",
            NAME,
            identity,
            Ownership(identity),
            self._release,
            self.gained.append,
            address=f"{identity}:8443",
            monotonic=asyncio.get_running_loop().time,
            facts={"fact": "1"},
            alone=alone,
            on_outage=self.outages.append,
        )
        self.task: asyncio.Future[None] | None = None

    async def _release(self, shards: frozenset[int]) -> None:
        if not self.closes.is_set() and (not self.stuck or self.stuck & shards):
            await self.closes.wait()

    @property
    def serving(self) -> frozenset[int]:
        return self.membership.ownership.serving

    def start(self) -> None:
        async def live() -> None:
            await self.membership.join()
            await self.membership.keep()

        self.task = asyncio.ensure_future(live())

    def kill(self) -> None:
        assert self.task is not None
        self.task.cancel()

    async def end(self) -> None:
        await self.membership.hand_over(5.0)
        self.kill()
        await self.membership.leave()


def run(test: Callable[[FakeApi], Any]) -> None:
    async def begin() -> None:
        await test(FakeApi())
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    virtual_time.run(begin)


def pair(api: FakeApi, *identities: str) -> list[Replica]:
    made = [Replica(api, identity) for identity in identities]
    for each in made:
        each.start()
    return made


def all_served(*replicas: Replica) -> bool:
    """Return whether each shard is served, by one of them, and shares are equal."""
    shares = [each.serving for each in replicas]
    fair = max(map(len, shares)) - min(map(len, shares)) <= 1
    return fair and sum(map(len, shares)) == SHARDS == len(frozenset().union(*shares))


def lease(api: FakeApi, name: str = NAME) -> dict[str, Any]:
    found = api.get("leases", name)
    assert found is not None
    return dict(found)


def now() -> float:
    return asyncio.get_running_loop().time()


class TestSeveral:
    def test_share_the_shards_and_rest(self) -> None:
        async def test(api: FakeApi) -> None:
            one, two, three = pair(api, "one", "two", "three")
            await until(lambda: all_served(one, two, three))
            await asyncio.sleep(10.0)
            version = one.membership.map.version
            await asyncio.sleep(200.0)
            assert all_served(one, two, three)
            assert one.membership.map.version == version
            assert all(each.membership.lease_valid() for each in (one, two, three))
            assert not any(each.membership.unserved() for each in (one, two, three))
            assert lease(api)["metadata"]["annotations"]["fact"] == "1"

        run(test)

    def test_one_at_first_serves_everything(self) -> None:
        async def test(api: FakeApi) -> None:
            (one,) = pair(api, "one")
            await until(lambda: len(one.serving) == SHARDS)
            assert now() < 3.0

        run(test)

    def test_newcomer_gets_its_share_within_seconds(self) -> None:
        async def test(api: FakeApi) -> None:
            (one,) = pair(api, "one")
            await until(lambda: len(one.serving) == SHARDS)
            await asyncio.sleep(20.0)
            began = now()
            (two,) = pair(api, "two")
            await until(lambda: all_served(one, two))
            assert now() - began < 5.0
            uid = next(uid for uid in map(str, range(99)) if two.membership.ownership.serves(uid))
            await asyncio.sleep(2.0)
            assert one.membership.ownership.address_of(uid) == "two:8443"
            assert two.membership.ownership.address_of(uid) == ""

        run(test)

    def test_shard_moves_only_after_its_owner_has_closed_it(self) -> None:
        async def test(api: FakeApi) -> None:
            (one,) = pair(api, "one")
            await until(lambda: len(one.serving) == SHARDS)
            one.closes.clear()
            (two,) = pair(api, "two")
            await until(lambda: len(one.serving) == SHARDS // 2)
            await asyncio.sleep(HANDOVER_TIMEOUT_S / 2)
            assert not two.serving
            one.closes.set()
            await until(lambda: all_served(one, two))

        run(test)

    def test_owner_that_does_not_close_in_time_is_not_waited_for(self) -> None:
        async def test(api: FakeApi) -> None:
            (one,) = pair(api, "one")
            await until(lambda: len(one.serving) == SHARDS)
            one.closes.clear()
            began = now()
            (two,) = pair(api, "two")
            await until(lambda: all_served(one, two))
            assert HANDOVER_TIMEOUT_S < now() - began < HANDOVER_TIMEOUT_S + 6.0
            assert max(one.membership.unserved().values()) > HANDOVER_TIMEOUT_S, "which is what the alert is about"
            await asyncio.sleep(3.0)
            assert not one.membership.unserved()

        run(test)

    @pytest.mark.parametrize("victim", [0, 1, 2], ids=["coordinator", "other", "last"])
    def test_shards_of_a_dead_replica_are_taken_over(self, victim: int) -> None:
        async def test(api: FakeApi) -> None:
            replicas = pair(api, "one", "two", "three")
            await until(lambda: all_served(*replicas))
            await asyncio.sleep(10.0)
            dead = replicas.pop(victim)
            dead.kill()
            began = now()
            await until(lambda: all_served(*replicas))
            assert DURATION_S - 2.5 < now() - began < DURATION_S + 3.5
            await asyncio.sleep(3.0)
            assert api.get("leases", f"{NAME}-{dead.identity}") is None
            assert not replicas[0].membership.unserved()

        run(test)

    def test_replica_that_renews_at_the_last_moment_is_not_dead(self) -> None:
        async def test(api: FakeApi) -> None:
            one, two = pair(api, "one", "two")
            await until(lambda: all_served(one, two))
            await asyncio.sleep(5.0)
            two.kill()

            def renewed(method: str, path: str, _body: Any) -> ApiError | None:
                if method != "DELETE":
                    return None
                conflicts.append(path)
                return error(method, path, 409, "Conflict", "the object has been modified")

            conflicts: list[str] = []
            one.kube.faults.append(renewed)
            await until(lambda: len(conflicts) >= 3)
            assert len(one.serving) == SHARDS // 2
            one.kube.faults.clear()
            await until(lambda: len(one.serving) == SHARDS)

        run(test)

    def test_one_that_leaves_is_followed_at_once(self) -> None:
        async def test(api: FakeApi) -> None:
            one, two = pair(api, "one", "two")
            await until(lambda: all_served(one, two))
            leaver, stays = (one, two) if lease(api)["spec"]["holderIdentity"] == "one" else (two, one)
            began = now()
            await leaver.end()
            await until(lambda: len(stays.serving) == SHARDS)
            assert now() - began < 3.0

        run(test)

    @pytest.mark.parametrize("coordinator", [True, False])
    def test_one_that_leaves_hands_over_shard_by_shard(self, coordinator: bool) -> None:
        """One experiment that cannot be closed in time does not keep the others waiting."""

        async def test(api: FakeApi) -> None:
            replicas = pair(api, "one", "two", "three")
            await until(lambda: all_served(*replicas))
            holder = lease(api)["spec"]["holderIdentity"]
            leaver = next(each for each in replicas if (each.identity == holder) == coordinator)
            others = [each for each in replicas if each is not leaver]
            stuck = min(leaver.serving)
            leaver.closes.clear()
            leaver.stuck = frozenset({stuck})
            began = now()
            leaving = asyncio.ensure_future(leaver.end())
            await until(lambda: sum(len(each.serving) for each in others) == SHARDS - 1)
            assert now() - began < 2.5
            assert not leaver.serving
            assert leaver.membership.lease_valid(), "what closes may still write"
            await leaving
            assert now() - began == pytest.approx(5.0, abs=0.5)
            await until(lambda: sum(len(each.serving) for each in others) == SHARDS)
            assert now() - began < 8.0

        run(test)

    def test_all_leave_and_one_comes_back(self) -> None:
        async def test(api: FakeApi) -> None:
            one, two = pair(api, "one", "two")
            await until(lambda: all_served(one, two))
            await asyncio.gather(one.end(), two.end())
            (three,) = pair(api, "three")
            await until(lambda: len(three.serving) == SHARDS)

        run(test)

    def test_container_that_was_restarted_in_place_continues(self) -> None:
        async def test(api: FakeApi) -> None:
            one, two = pair(api, "one", "two")
            await until(lambda: all_served(one, two))
            await asyncio.sleep(5.0)
            two.kill()
            began = now()
            (again,) = pair(api, "two")
            await until(lambda: all_served(one, again))
            assert now() - began < 2.0

        run(test)

    def test_restarted_container_joins_while_its_lease_is_removed(self) -> None:
        """It has read the Lease of the container before, which is deleted as a dead replica's before it writes."""

        async def test(api: FakeApi) -> None:
            one, two = pair(api, "one", "two")
            await until(lambda: all_served(one, two))
            two.kill()
            again = Replica(api, "two")
            puts: list[str] = []

            def removed_before(method: str, path: str, _body: Any) -> None:
                if method == "PUT":
                    puts.append(path)
                    if len(puts) == 1:
                        api.remove(lease(api, f"{NAME}-two"))

            again.kube.faults.append(removed_before)
            again.start()
            await until(lambda: all_served(one, again))
            assert puts

        run(test)

    def test_restarted_container_and_its_heir_never_both_serve(self) -> None:
        """It makes its Lease after the one before was deleted as a dead replica's, and before the map says so."""

        async def test(api: FakeApi) -> None:
            one, two = pair(api, "one", "two")
            await until(lambda: all_served(one, two))
            two.kill()
            again = Replica(api, "two")
            started: list[float] = []

            async def look() -> None:
                while True:
                    assert not one.serving & again.serving
                    await asyncio.sleep(0.01)

            def removed(method: str, path: str, _body: Any) -> None:
                if method == "DELETE" and not started:
                    started.append(now())
                    asyncio.get_running_loop().call_soon(again.start)
                    one.kube._latency_s = 1.5

            one.kube.faults.append(removed)
            looking = asyncio.ensure_future(look())
            await until(lambda: bool(started) and all_served(one, again))
            await asyncio.sleep(10.0)
            assert not looking.done()
            assert all_served(one, again)

        run(test)

    def test_one_without_api_server_writes_nothing_and_rejoins(self) -> None:
        async def test(api: FakeApi) -> None:
            one, two = pair(api, "one", "two")
            await until(lambda: all_served(one, two))
            await asyncio.sleep(5.0)
            two.kube.faults.append(outage)
            before = two.serving
            await until(lambda: not one.serving.isdisjoint(before))
            assert not two.membership.lease_valid(), "before another has taken over"
            assert two.serving == before, "it still takes reports, which the journals judge"
            assert len(one.serving) == SHARDS
            two.kube.faults.clear()
            await until(lambda: not two.serving)
            await until(lambda: all_served(one, two))
            assert two.membership.lease_valid()

        run(test)

    def test_outage_for_all_moves_nothing(self) -> None:
        async def test(api: FakeApi) -> None:
            one, two = pair(api, "one", "two")
            await until(lambda: all_served(one, two))
            await asyncio.sleep(5.0)
            before = one.serving, two.serving
            for each in (one, two):
                each.kube.faults.append(outage)
            await asyncio.sleep(600.0)
            assert (one.serving, two.serving) == before
            assert not one.membership.lease_valid()
            for each in (one, two):
                each.kube.faults.clear()
            await until(lambda: one.membership.lease_valid() and two.membership.lease_valid())
            await until(lambda: all_served(one, two))
            assert [len(each.outages) for each in (one, two)] == [1, 1]

        run(test)

    def test_outage_of_reads_is_one_too(self, caplog: pytest.LogCaptureFixture) -> None:
        """The Lease is renewed meanwhile, and nothing may be changed without the map."""

        def unlisted(method: str, path: str, _body: Any) -> ApiError | None:
            is_list = method == "GET" and path.endswith("/leases")
            return error(method, path, 500, "InternalError") if is_list else None

        async def test(api: FakeApi) -> None:
            one, two = pair(api, "one", "two")
            await until(lambda: all_served(one, two))
            await asyncio.sleep(5.0)
            caplog.clear()
            one.kube.faults.append(unlisted)
            await asyncio.sleep(DURATION_S + 1.0)
            assert not one.membership.lease_valid()
            await asyncio.sleep(13.0)
            one.kube.faults.clear()
            await until(one.membership.lease_valid)
            await asyncio.sleep(5.0)
            assert [19.0 < seconds < 23.0 for seconds in one.outages] == [True]
            assert two.outages == []
            assert all_served(one, two)

        run(test)
        told = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
        assert len(told) < 10
        assert "or the shard map not be read, for 5 s: trials continue" in told[-2]
        assert "renewed again, and the shard map read" in told[-1]

    def test_lost_answers_lose_nothing(self) -> None:
        async def test(api: FakeApi) -> None:
            one, two = pair(api, "one", "two")
            await until(lambda: all_served(one, two))
            lost = iter([True, False, False] * 60)
            two.kube.lost_answers = lambda: next(lost, False)
            await asyncio.sleep(100.0)
            assert all_served(one, two)

        run(test)

    def test_deleted_lease_costs_a_handover(self) -> None:
        async def test(api: FakeApi) -> None:
            one, two = pair(api, "one", "two")
            await until(lambda: all_served(one, two))
            api.remove(lease(api, f"{NAME}-two"))
            await until(lambda: len(one.serving) == SHARDS)
            await until(lambda: all_served(one, two))

        run(test)

    def test_edited_record_is_written_again(self) -> None:
        async def test(api: FakeApi) -> None:
            one, two = pair(api, "one", "two")
            await until(lambda: all_served(one, two))
            spoil = {names.REPLICA_ANNOTATION: "nonsense"}
            api.edit(lease(api, f"{NAME}-two"), lambda each: each["metadata"].update(annotations=spoil))
            await asyncio.sleep(20.0)
            assert all_served(one, two)
            assert "two:8443" in lease(api, f"{NAME}-two")["metadata"]["annotations"][names.REPLICA_ANNOTATION]

        run(test)

    def test_map_of_another_release_stops_them_with_the_reason(self, caplog: pytest.LogCaptureFixture) -> None:
        async def test(api: FakeApi) -> None:
            (one,) = pair(api, "one")
            await until(lambda: len(one.serving) == SHARDS)
            await one.end()
            text = json.dumps({"format": 99, "version": 1, "shards": []})
            api.edit(lease(api), lambda each: each["metadata"]["annotations"].update({names.SHARDS_ANNOTATION: text}))
            (two,) = pair(api, "two")
            await asyncio.sleep(20.0)
            assert not two.membership.joined
            assert json.loads(lease(api)["metadata"]["annotations"][names.SHARDS_ANNOTATION])["format"] == 99

        run(test)
        assert "Run operators of one release" in caplog.text


class TestUnserved:
    """A shard whose owner is there and does not serve it: no takeover helps."""

    def test_coordinator_publishes_it_until_it_is_served(self) -> None:
        async def test(api: FakeApi) -> None:
            one, two = pair(api, "one", "two")
            await until(lambda: all_served(one, two))
            holder = lease(api)["spec"]["holderIdentity"]
            coordinator, other = (one, two) if holder == "one" else (two, one)
            held = dict(other.membership.ownership.held)
            other.membership.ownership.held.clear()
            other.membership.ownership._releasing |= held.keys()  # as if it never ended to close them
            await asyncio.sleep(UNSERVED_S - 3.0)
            assert not coordinator.membership.abandoned()
            await asyncio.sleep(7.0)
            assert coordinator.membership.abandoned().keys() == held.keys()
            assert not other.membership.abandoned(), "only the coordinator reports it"
            uid = next(f"uid-{n}" for n in range(1000) if shard_of(f"uid-{n}") in held)

            def said() -> str | None:
                text = lease(api)["metadata"]["annotations"].get(names.UNSERVED_ANNOTATION, "")
                return unserved_since(text, uid)

            assert "since 20" in (said() or "")
            other.membership.ownership._releasing.clear()
            await until(lambda: all_served(one, two))
            await asyncio.sleep(5.0)
            assert not coordinator.membership.abandoned()
            assert said() is None

        run(test)

    def test_one_that_is_alone_serves_them_until_it_is_dead(self) -> None:
        async def test(api: FakeApi) -> None:
            one = Replica(api, "one", alone=True)
            one.start()
            await until(lambda: one.membership.joined)
            (two,) = pair(api, "two")
            await until(lambda: two.membership.joined)
            for _ in range(60):
                await asyncio.sleep(1.0)
                assert not two.membership.unserved()

            def no_takeover(method: str, path: str, _body: Any) -> ApiError | None:
                is_takeover = method == "PUT" and path.endswith(f"/{NAME}")
                return error(method, path, 409, "Conflict") if is_takeover else None

            two.kube.faults.append(no_takeover)
            one.kill()
            await asyncio.sleep(ALONE_DURATION_S + 5.0)
            assert len(two.membership.unserved()) == SHARDS
            two.kube.faults.clear()
            await until(lambda: len(two.serving) == SHARDS)
            assert not two.membership.unserved()

        run(test)


class TestAlone:
    def test_serves_everything_with_one_request_at_a_time(self) -> None:
        async def test(api: FakeApi) -> None:
            one = Replica(api, "one", alone=True)
            one.start()
            await until(lambda: len(one.serving) == SHARDS)
            api.counts.clear()
            await asyncio.sleep(400.0)
            assert api.counts.total() == api.counts["PUT leases"] == pytest.approx(100, abs=3)
            assert [item["metadata"]["name"] for item in api.all("leases")] == [NAME]

        run(test)

    def test_waits_for_the_one_before(self) -> None:
        async def test(api: FakeApi) -> None:
            one, two = (Replica(api, name, alone=True) for name in ("one", "two"))
            one.start()
            await until(lambda: one.membership.joined)
            two.start()
            await asyncio.sleep(100.0)
            assert not two.membership.joined
            await one.end()
            began = now()
            await until(lambda: two.membership.joined)
            assert now() - began < 2.0
            assert len(two.serving) == SHARDS

        run(test)

    def test_follows_a_dead_one_whatever_its_clock_says(self) -> None:
        async def test(api: FakeApi) -> None:
            one, two = (Replica(api, name, alone=True) for name in ("one", "two"))
            one.start()
            await until(lambda: one.membership.joined)
            one.kill()
            api.edit(lease(api), lambda each: each["spec"].update(renewTime="2001-01-01T00:00:00.000000Z"))
            began = now()
            two.start()
            await until(lambda: two.membership.joined)
            assert ALONE_DURATION_S <= now() - began < ALONE_DURATION_S + 3.0
            assert lease(api)["spec"]["leaseTransitions"] == 1

        run(test)

    def test_outlasts_the_api_server_without_writing(self, caplog: pytest.LogCaptureFixture) -> None:
        async def test(api: FakeApi) -> None:
            one = Replica(api, "one", alone=True)
            one.start()
            await asyncio.sleep(50.0)
            assert one.membership.lease_valid()
            one.kube.faults.append(outage)
            await asyncio.sleep(3600.0)
            assert len(one.serving) == SHARDS
            assert not one.membership.lease_valid()
            one.kube.faults.clear()
            await asyncio.sleep(3.0)
            assert one.membership.lease_valid()
            assert [3600.0 < seconds < 3610.0 for seconds in one.outages] == [True]

        run(test)
        told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert len(told) < 20
        assert "nothing new begins" in told[-2]
        assert "renewed again" in told[-1]

    def test_ends_when_another_has_taken_over(self) -> None:
        async def test(api: FakeApi) -> None:
            one, two = (Replica(api, name, alone=True) for name in ("one", "two"))
            one.start()
            await until(lambda: one.membership.joined)
            one.kube.faults.append(outage)
            two.start()
            await until(lambda: two.membership.joined)
            await asyncio.sleep(100.0)
            assert one.task is not None
            assert not one.task.done()
            one.kube.faults.clear()
            await asyncio.wait_for(one.task, 5.0)
            assert not one.membership.lease_valid()
            assert lease(api)["spec"]["holderIdentity"] == "two"

        run(test)

    def test_several_follow_one_that_was_alone_and_back(self) -> None:
        async def test(api: FakeApi) -> None:
            one = Replica(api, "one", alone=True)
            one.start()
            await until(lambda: one.membership.joined)
            two, three = pair(api, "two", "three")
            await asyncio.sleep(30.0)
            assert len(one.serving) == SHARDS
            await one.end()
            began = now()
            await until(lambda: all_served(two, three))
            assert now() - began < 8.0
            for each in (two, three):
                await each.end()
            last = Replica(api, "last", alone=True)
            last.start()
            await until(lambda: len(last.serving) == SHARDS)

        run(test)

    def test_follows_several_that_have_lost_their_permissions(self) -> None:
        """A change to one replica takes them away before the others end."""

        async def test(api: FakeApi) -> None:
            one, two = pair(api, "one", "two")
            await until(lambda: all_served(one, two))

            def forbidden(method: str, path: str, _body: Any) -> ApiError | None:
                return None if path.endswith(f"/{NAME}") else error(method, path, 403, "Forbidden", "no such right")

            for each in (one, two):
                each.kube.faults.append(forbidden)
                await each.end()
            began = now()
            last = Replica(api, "last", alone=True)
            last.start()
            await until(lambda: len(last.serving) == SHARDS)
            assert now() - began < 2.0

        run(test)


def test_refused_request_ends_the_wait_with_the_reason() -> None:
    async def test(api: FakeApi) -> None:
        one = Replica(api, "one")

        def forbidden(method: str, path: str, _body: Any) -> ApiError:
            return error(method, path, 403, "Forbidden", "leases is forbidden")

        one.kube.faults.append(forbidden)
        with pytest.raises(ApiError, match="forbidden"):
            await one.membership.join()

    run(test)
