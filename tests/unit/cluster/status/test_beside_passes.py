"""Statuses are written beside the reconcile passes: whatever a status takes, trials do not wait for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from cluster_world import Operator, Play, World
from virtual_time import until

from trialpod_operator.cluster import kube as paths

pytestmark = pytest.mark.once


def delay_statuses(operator: Operator, seconds: float) -> None:
    """From now on each status takes so long to write."""
    request = operator.kube.request

    async def late(method: str, path: str, **more: Any) -> Any:
        if method == "PATCH" and path.endswith("/status"):
            await asyncio.sleep(seconds)
        return await request(method, path, **more)

    operator.kube.request = late  # type: ignore[method-assign]


def test_trials_begin_while_a_status_is_written(play: Play) -> None:
    async def scenario(world: World) -> None:
        delay_statuses(world.operator, 60.0)
        await world.apply(numSamples=4, maxConcurrentTrials=1)
        await until(lambda: len(world.trials()) == 4, within_s=50.0, what="the last trial begins")
        await world.until_over()
        assert world.states() == ["TERMINATED"] * 4
        world.check_results()

    play(scenario)


def test_a_generation_is_observed_once_a_pass_has_seen_it(play: Play) -> None:
    """A status that is written while a pass applies another spec says what holds for the spec before."""

    async def scenario(world: World) -> None:
        world.pods.behaviour.step_s = 5.0
        request, apart = world.operator.kube.request, asyncio.Event()

        async def held(method: str, path: str, **more: Any) -> Any:
            if method == "PATCH" and path.endswith("/tuneexperiments/digits"):
                await apart.wait()  # in the middle of the pass
            return await request(method, path, **more)

        await world.apply(numSamples=2)
        await world.until_running(2)
        world.operator.kube.request = held  # type: ignore[method-assign]
        storage = {"uri": "s3://bucket/runs", "deletionPolicy": "Delete"}
        await world.client.patch(paths.experiments("team"), "digits", {"spec": {"storage": storage}})
        before = world.status.get("best")
        await until(lambda: world.status.get("best") != before, what="another status is written")
        assert world.status["observedGeneration"] == 1
        apart.set()
        await until(lambda: world.status["observedGeneration"] == 2, what="the spec is observed")
        await world.until_over()

    play(scenario)
