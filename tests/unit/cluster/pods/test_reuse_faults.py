"""Pods that are reused, under random faults: each experiment ends as its history explains."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
import virtual_time
from cluster_world import World
from test_reconciler_faults import SEEDS, Story

pytestmark = [pytest.mark.once, pytest.mark.slow]


class ReuseStory(Story):
    """A story in which pods are reused."""

    async def fault_two_operators(self) -> None:
        await super().fault_two_operators()
        await asyncio.sleep(5.0 * self.random.random())
        for operator in self.world.operators[:-1]:
            await operator.close()  # its lease has run out


def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int) -> None:
    """Run the story of a seed."""

    async def test() -> None:
        chance = random.Random(seed + 2000)
        world = World(monkeypatch, tmp_path, seed, chance.choice([0.01, 0.2, 3.0]))
        most, samples = chance.choice([1, 2, 3]), chance.choice([4, 7])
        story = ReuseStory(world, seed, reusePods=True, numSamples=samples, maxConcurrentTrials=most)
        try:
            await story.run()
            await world.close()
            for trial_id, text in world.files("log.txt").items():
                marks = [line for line in text.splitlines() if line.startswith("trialpod: trial ")]
                assert all(mark.split()[2] == trial_id for mark in marks)
        except BaseException as error:
            error.add_note(f"seed {seed}: {', '.join(story.told)}")
            raise

    virtual_time.run(test)


@pytest.mark.parametrize("part", range(4))
def test_trials_in_reused_pods_end_as_their_history_explains(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: int
) -> None:
    for seed in range(part, SEEDS // 2, 4):
        play(monkeypatch, tmp_path, seed)


def test_trial_given_to_an_orphaned_pod_keeps_its_retries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The TuneTrial that owns the pod is deleted in the moment in which the pod gets its next trial."""
    play(monkeypatch, tmp_path, 184)
