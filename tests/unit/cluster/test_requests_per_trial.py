"""What a trial costs the API server."""

from __future__ import annotations

import pytest
from cluster_world import Play, World

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
