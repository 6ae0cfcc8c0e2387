"""What a trial costs the API server."""

from __future__ import annotations

import asyncio
import operator

import pytest
from cluster_world import Play, World
from virtual_time import until

from trialpod_operator.cluster.status import writer

pytestmark = pytest.mark.once

MAX_REQUESTS = 6.0
"""For each trial: its TuneTrial, its pod, what became of both, and its part of what is asked for the experiment."""


@pytest.mark.parametrize("begin_s", [2.0, 12.0])
def test_six_requests_or_fewer(play: Play, begin_s: float) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.begin_s = begin_s
        await world.apply(numSamples=40, maxConcurrentTrials=10)
        before = world.api.counts.copy()
        await world.until_over()
        made = {call: count - before[call] for call, count in world.api.counts.items() if count > before[call]}
        own = {call: count for call, count in made.items() if not call.endswith(("events", "tuneexperiments"))}
        assert sum(own.values()) / 40 <= MAX_REQUESTS, own

    play(scenario)


def test_status_of_a_trial_that_begins_counts_as_its_progress(play: Play) -> None:
    """Between two writes of what a running trial has reached are 30 seconds, the write that it runs among them."""

    async def scenario(world: World) -> None:
        world.pods.behaviour.steps, world.pods.behaviour.step_s = 9, 2.0
        await world.apply(numSamples=12, maxConcurrentTrials=4)
        await world.until_over()
        assert world.api.counts["PATCH tunetrials"] <= 2 * 12, world.api.counts

    play(scenario)


def test_restart_writes_progress_of_running_trials_by_turns(play: Play) -> None:
    """With a thousand running trials these writes took the API server ten times what it needs for a restart."""

    async def scenario(world: World) -> None:
        world.pods.behaviour.steps, world.pods.behaviour.step_s = 60, 2.0
        await world.apply(numSamples=80, maxConcurrentTrials=80)
        await world.until_running(80)
        await asyncio.sleep(20.0)
        await world.replace_operator()
        before, shown = world.api.counts["PATCH tunetrials"], iterations(world)
        await until(lambda: world.operator.controller.open_count == 1)
        await asyncio.sleep(10.0)
        assert world.api.counts["PATCH tunetrials"] == before
        await asyncio.sleep(55.0)
        assert all(map(operator.lt, shown, iterations(world)))

    play(scenario)


def iterations(world: World) -> list[int]:
    return [trial["status"]["iteration"] for trial in world.trials()]


@pytest.mark.parametrize(("attempts", "seconds"), [(1, 1.0), (32, 1.0), (64, 2.0), (1_000, 3.0)])
def test_status_is_written_less_often_with_many_in_progress(attempts: int, seconds: float) -> None:
    assert writer.interval_s(attempts) == seconds


def test_status_of_many_takes_a_third_of_the_requests(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "UNHURRIED", 1)

    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 60
        await world.apply(numSamples=4, maxConcurrentTrials=4)
        await world.until_running(4)
        before, began = world.api.counts["PATCH tuneexperiments"], world.loop.now()
        await asyncio.sleep(30.0)
        made = world.api.counts["PATCH tuneexperiments"] - before
        assert made <= 1 + (world.loop.now() - began) / writer.MAX_EXPERIMENT_INTERVAL_S

    play(scenario)
