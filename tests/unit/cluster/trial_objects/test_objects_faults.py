"""Trials that are Jobs, under random faults: each experiment ends as its history explains, and nothing stays."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
import virtual_time
from cluster_world import World
from fake_jobs import FakeJobs
from test_objects_reconciled import job
from test_reconciler_faults import SEEDS, Story

pytestmark = [pytest.mark.once, pytest.mark.slow]


class ObjectStory(Story):
    """A story whose trials are Jobs, of which some make another pod in the place of a lost one."""

    async def fault_job_deleted(self) -> None:
        if jobs := self.world.api.all("jobs"):
            self.world.api.delete(self.random.choice(jobs))

    async def fault_two_operators(self) -> None:
        await super().fault_two_operators()
        await asyncio.sleep(5.0 * self.random.random())
        for operator in self.world.operators[:-1]:
            await operator.close()  # its lease has run out


@pytest.mark.parametrize("part", range(4))
def test_trials_that_are_jobs_end_as_their_history_explains(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: int
) -> None:
    for seed in range(part, SEEDS // 2, 4):

        async def test(seed: int = seed) -> None:
            chance = random.Random(seed + 3000)
            world = World(monkeypatch, tmp_path, seed, chance.choice([0.01, 0.2, 3.0]))
            FakeJobs(world.api).retries = chance.choice([0, 0, 3])
            story = ObjectStory(world, seed, **job())
            try:
                await story.run()
                await world.close()
                assert world.api.all("jobs") == []
            except BaseException as error:
                error.add_note(f"seed {seed}: {', '.join(story.told)}")
                raise

        virtual_time.run(test)
