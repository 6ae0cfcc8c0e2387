"""The scale benchmark's attempts speak the operator's protocol, of today."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from cluster_world import Play, World
from fake_api import Object
from fake_pods import Caller

import file_module
from trialpod.protocol.messages import ErrorAnswer

ATTEMPT = Path(__file__).parents[3] / "benchmarks/scale/attempt.py"
ASHA = {"name": "asha", "parameters": {"max_t": 4, "grace_period": 1, "reduction_factor": 2}}
HERE, THERE = ("127.0.0.1", 1), ("127.0.0.1", 2)


@pytest.fixture(scope="module")
def attempt() -> ModuleType:
    return file_module.load(ATTEMPT, "scale_attempt")


def test_attempts_are_played_to_their_ends(attempt: ModuleType, play: Play) -> None:
    """In a world with two addresses, of which one does not serve the experiment and names the other."""
    seen, calls = attempt.Seen(), attempt.Calls([HERE, THERE], None)

    async def scenario(world: World) -> None:
        class Line(attempt.Line):  # type: ignore[misc, name-defined]
            """A connection that is none."""

            caller: Caller

            async def _exchange(self, where: str, body: bytes) -> tuple[int, float, bytes]:
                address = self._direct or next(addresses)
                if address == HERE:
                    return 421, 0.0, msgspec.msgpack.encode(ErrorAnswer(error="elsewhere", address="127.0.0.1:2"))
                assert world.pods.service is not None
                status, data = await world.pods._answer(world.pods.service, where, body, self.caller)
                return status, 0.0, data

        async def process(pod: Object) -> int:
            line = Line(calls, 1, "token")
            line.caller = Caller(*(pod["metadata"][key] for key in ("namespace", "name", "uid")))
            await attempt.play("team", pod["metadata"]["labels"], line, attempt.Work(4, 0.0), seen, 0.0)
            return 0

        addresses = iter([HERE, THERE] * 100)
        pods: Any = world.pods
        pods._process = process
        await world.apply(numSamples=4, maxConcurrentTrials=2, scheduler=ASHA)
        status = await world.until_over()
        assert status["trials"]["terminated"] == 4
        assert status["failures"] == 0

    play(scenario)
    assert seen.assigned == 4
    assert len(seen.ends) == 4
    assert len(seen.decisions) >= 4
    assert set(calls.refused) <= {421, 503}
    assert calls.refused[421] > 0
