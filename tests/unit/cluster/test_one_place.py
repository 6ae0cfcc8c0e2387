"""Two experiments of one name in two namespaces that are to be kept in one place: the first one has it."""

from __future__ import annotations

import asyncio
from typing import Any

from cluster_world import Play, World, manifest
from fake_api import Object
from virtual_time import until

from trialpod_operator.cluster import kube as paths

DELETE = {"uri": "s3://bucket/runs", "deletionPolicy": "Delete"}


def other(world: World) -> Object:
    return world.api.get("tuneexperiments", "digits", "others") or {}


def reason(world: World) -> str:
    conditions = (other(world).get("status") or {}).get("conditions") or []
    return next((f"{each['reason']}: {each['message']}" for each in conditions if each["type"] == "Stalled"), "")


async def create_other(world: World, **spec: Any) -> None:
    await world.client.create(paths.experiments("others"), manifest(**spec))


async def both(world: World, *, first: dict[str, Any], second: dict[str, Any]) -> None:
    """Have the one in `team` run and the one in `others` refused."""
    world.pods.behaviour.steps = 1000
    await world.apply(**first)
    await world.until_running(3)
    await create_other(world, **second)
    await until(lambda: bool(reason(world)), 60.0)


def test_second_experiment_is_refused_with_owners_name(play: Play) -> None:
    async def scenario(world: World) -> None:
        await both(world, first={}, second={})
        assert reason(world).startswith("Refused: s3://bucket/runs/digits holds an experiment of namespace team;")
        assert world.api.all("tunetrials", "others") == world.api.all("pods", "others") == []

    play(scenario)


def test_while_it_is_refused_nothing_is_written_for_it(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.starts = False
        await world.apply()
        await until(lambda: len(world.api.all("pods")) == 3, 60.0)
        await create_other(world)
        await until(lambda: bool(reason(world)), 60.0)
        await asyncio.sleep(30.0)
        before = world.api.counts.copy()
        await asyncio.sleep(300.0)
        assert [kind for kind in world.api.counts - before if not kind.startswith("GET ")] == []

    play(scenario)


def test_deleting_the_refused_one_leaves_the_others_data_alone(play: Play) -> None:
    async def scenario(world: World) -> None:
        await both(world, first={}, second={"storage": DELETE})
        stored = set(world.storage.values)
        await world.client.delete(paths.experiments("others"), "digits")
        await until(lambda: not other(world), 120.0)
        assert stored <= set(world.storage.values)
        world.pods.behaviour.steps = 8
        await world.until_over()
        world.check_results()
        assert world.status["trials"]["terminated"] == 3

    play(scenario)


def test_refused_experiment_starts_when_location_is_free(play: Play) -> None:
    async def scenario(world: World) -> None:
        await both(world, first={"storage": DELETE}, second={})
        world.pods.behaviour.steps = 5
        await world.client.delete(paths.experiments("team"), "digits")
        await until(lambda: bool((other(world).get("status") or {}).get("completionTime")), 600.0)
        assert other(world)["status"]["trials"]["terminated"] == 3
        assert not world.experiment

    play(scenario)


def test_experiment_deleted_before_its_claim_has_no_data(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.watch_delay_s = 3.0
        await world.replace_operator()
        await world.apply(storage=DELETE)
        await world.client.delete(paths.experiments("team"), "digits")
        await asyncio.sleep(60.0)
        assert world.storage.values == {}
        assert world.api.counts["POST pods"] == 0

    play(scenario)
