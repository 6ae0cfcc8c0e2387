"""What the tests of the operator share. The storage in memory is the storage's own tests'."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import virtual_time

sys.path.append(str(Path(__file__).parents[1] / "storage"))

from cluster_world import Play, Scenario, World


@pytest.fixture(autouse=True)
def _remove_folders_at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No thread of an operator outlives its test: the next one in this process may have made-up time."""
    monkeypatch.setattr("trialpod_operator.cluster.experiment_storage.AFTER_S", 0.0)
    yield
    for thread in threading.enumerate():
        if thread.name == "trialpod-scrap":
            thread.join(20.0)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Play:
    """Runs a scenario in a world with one operator."""

    def run(scenario: Scenario, seed: int = 1) -> None:
        async def test() -> None:
            world = World(monkeypatch, tmp_path, seed)
            world.start_operator()
            await scenario(world)
            await world.close()

        virtual_time.run(test)

    return run
