"""Statuses are written and pods made beside the reconcile passes, which wait for neither."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from cluster_world import Operator, Play, World
from virtual_time import until

from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster.pods.creation import MAX_CONCURRENT_CREATIONS

pytestmark = pytest.mark.once


def delay(operator: Operator, kind: str, ending: str, seconds: float, *, answer_s: float = 0.0) -> None:
    """From now on such a request takes `seconds`, and its answer `answer_s`."""
    request = operator.kube.request

    async def late(method: str, path: str, **more: Any) -> Any:
        if method != kind or not path.endswith(ending):
            return await request(method, path, **more)
        await asyncio.sleep(seconds)
        answer = await request(method, path, **more)
        await asyncio.sleep(answer_s)
        return answer

    operator.kube.request = late  # type: ignore[method-assign]


def test_trials_begin_while_a_status_is_written(play: Play) -> None:
    async def scenario(world: World) -> None:
        delay(world.operator, "PATCH", "/status", 60.0)
        await world.apply(numSamples=4, maxConcurrentTrials=1)
        await until(lambda: len(world.trials()) == 4, within_s=50.0, what="the last trial begins")
        await world.until_over()
        assert world.states() == ["TERMINATED"] * 4
        world.check_results()

    play(scenario)


def test_late_statuses_are_not_all_waited_for_together(play: Play) -> None:
    """What closes the experiment waits for a writing of statuses that is in progress."""

    async def scenario(world: World) -> None:
        await world.apply(numSamples=80, maxConcurrentTrials=40)
        await world.until_running(40)
        delay(world.operator, "PATCH", "/status", 10.0)
        await until(lambda: world.states().count("TERMINATED") == 40)
        assert world.operator.controller.statuses.longest_pass_s < 25.0
        await world.until_over()

    play(scenario)


def test_each_transition_has_its_event_though_answers_are_late(play: Play) -> None:
    """The watch shows a status to a pass before its writer knows that it was written."""

    async def scenario(world: World) -> None:
        def told() -> set[str]:
            return {event["reason"] for event in world.api.all("events")}

        delay(world.operator, "PATCH", "/status", 0.0, answer_s=3.0)
        world.pods.behaviour.step_s = 8.0
        await world.apply()
        await until(lambda: "Started" in told(), 60.0, "the start is told")
        await world.change(numSamples=0)
        await until(lambda: "InvalidSpec" in told() or "Stalled" in told(), 60.0, "the mistake is told")
        await world.change(numSamples=3)
        await world.until_over()
        assert "Succeeded" in told()

    play(scenario)


def test_passes_continue_while_pods_are_made(play: Play) -> None:
    async def scenario(world: World) -> None:
        delay(world.operator, "POST", "/pods", 30.0)
        await world.apply(numSamples=4, maxConcurrentTrials=2)
        await world.until_over()
        assert world.operator.controller.queue.longest_pass_s < 1.0
        assert len(world.pods.begun) == 4
        world.check_results()

    play(scenario)


def test_pods_are_made_in_rounds_of_bounded_size(play: Play) -> None:
    async def scenario(world: World) -> None:
        most = under_way = 0
        request = world.operator.kube.request

        async def counted(method: str, path: str, **more: Any) -> Any:
            nonlocal most, under_way
            made = method == "POST" and path.endswith("/pods")
            under_way += made
            most = max(most, under_way)
            try:
                return await request(method, path, **more)
            finally:
                under_way -= made

        world.operator.kube.request = counted  # type: ignore[method-assign]
        await world.apply(numSamples=100)
        await world.until_over()
        assert len(world.pods.begun) == 100
        assert 4 < most <= MAX_CONCURRENT_CREATIONS

    play(scenario)


def test_a_round_that_fails_is_repeated(play: Play) -> None:
    async def scenario(world: World) -> None:
        left = 1

        def lost(method: str, path: str, _body: Any) -> Exception | None:
            nonlocal left
            if method == "POST" and path.endswith("/pods") and left:
                left -= 1
                return RuntimeError("the connection is in no state for this")
            return None

        world.operator.kube.faults.append(lost)  # type: ignore[arg-type]
        await world.apply()
        await world.until_over()
        assert world.states() == ["TERMINATED"] * 3
        assert [str(error) for error in world.operator.errors] == ["the connection is in no state for this"]

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
