"""An experiment that is opened while the watches list everything is not listed again."""

from __future__ import annotations

import asyncio

import virtual_time
from cluster_world import Play, World
from virtual_time import until

from trialpod_operator.cluster import first_lists
from trialpod_operator.cluster.first_lists import FirstLists
from trialpod_operator.cluster.shards.assignment import SHARDS, shard_of

UID = "uid-1"


def test_lists_cover_what_was_served_before_they_began_once() -> None:
    async def scenario() -> None:
        lists = FirstLists({shard_of(UID)}, until=60.0 + asyncio.get_running_loop().time())
        assert lists.cover(UID)
        assert not lists.cover(UID), "what this process has made since is not in them"
        others = set(range(SHARDS)) - {shard_of(UID)}
        assert not FirstLists(others, until=60.0 + asyncio.get_running_loop().time()).cover(UID)
        assert not FirstLists(range(SHARDS), until=asyncio.get_running_loop().time()).cover(UID)

    virtual_time.run(scenario)


def test_a_list_that_does_not_come_is_not_waited_for_forever() -> None:
    async def scenario() -> None:
        came, never = asyncio.Event(), asyncio.Event()
        came.set()
        lists = FirstLists(range(SHARDS), [came], [came, never])
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await lists.pods_shown()
        assert loop.time() == began
        assert not await lists.trials_shown()
        assert loop.time() - began == first_lists.WAIT_S

    virtual_time.run(scenario)


def test_nothing_is_listed_for_a_new_experiment(play: Play) -> None:
    """The API server would look at all TuneTrials of the namespace."""

    async def scenario(world: World) -> None:
        world.operator.controller.services.first_lists = FirstLists()  # of an operator that has long been there
        await world.apply(numSamples=2)
        await world.until_over()
        assert world.api.counts["GET tunetrials"] == 0
        world.check_results()

    play(scenario)


class TestRestart:
    """The operator is replaced while trials run."""

    def test_children_are_not_listed_again(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            world.pods.behaviour.steps = 20
            await world.apply(numSamples=3)
            await world.until_running()
            lists = [call for call in world.api.counts if call.startswith("GET")]
            before = {call: world.api.counts[call] for call in lists}
            await world.replace_operator()
            await until(lambda: world.operator.controller.open_count == 1, 60.0)
            await asyncio.sleep(3.0)
            new = {call: count - before.get(call, 0) for call, count in world.api.counts.items()}
            assert [call for call, count in new.items() if count and call in ("GET pods", "GET tunetrials")] == []
            await world.until_over()
            world.check_results()

        play(scenario)

    def test_attempts_are_answered_before_trials_are_listed(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            world.pods.behaviour.steps = 20
            await world.apply(numSamples=4, maxConcurrentTrials=3)
            await world.until_running()
            world.pods.service = None
            await world.operator.close()
            operator = world.start_operator()
            listed = asyncio.Event()
            shown = operator.watch.listed["pods"]
            operator.controller.begin_lists([shown], [listed])
            await until(lambda: operator.controller.open_count == 1, 5.0)
            safe = sum(world.pods.safe.values())
            await until(lambda: sum(world.pods.safe.values()) >= safe + 3, 20.0)
            await asyncio.sleep(25.0)
            assert len(world.trials()) == 3, "a trial was begun before the other TuneTrials were known"
            listed.set()
            await world.until_over()
            world.check_results()

        play(scenario)
