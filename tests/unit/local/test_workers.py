"""Which process gets which attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from trialpod.protocol.messages import AssignmentRequest
from trialpod_operator.engine.events import AttemptEnded
from trialpod_operator.local.machine_resources import Machine, MachineResources
from trialpod_operator.local.workers import Workers


class Shell:
    """Applies nothing by itself; `events` has what it was told."""

    finished = failing = False

    def __init__(self) -> None:
        self.events: list[Any] = []

    def apply(self, event: Any) -> None:
        self.events.append(event)

    def soon(self, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(call)

    def assignment(self, trial: Any) -> Any:
        return trial.trial_id

    def log_path(self, _trial: Any) -> str:
        return ""


class Pool:
    def __init__(self) -> None:
        self.spawned: list[str] = []

    def spawn(self, key: str, **_more: Any) -> None:
        self.spawned.append(key)

    def is_alive(self, _key: str) -> bool:
        return True


def trial(name: str) -> Any:
    current = SimpleNamespace(decision="stop", deadline_missed=False, decision_reason={})
    return SimpleNamespace(trial_id=name, running=True, attempt=1, resources=None, config={}, current=current)


def test_attempt_stopped_as_it_is_handed_over_runs_nowhere() -> None:
    async def test() -> None:
        plan: Any = SimpleNamespace(
            settings=SimpleNamespace(reuse=True),
            resources_for=lambda _config: {"cpu": 1.0},
            grace_s=5.0,
            log_output=True,
            trainable=SimpleNamespace(path=[]),
        )
        shell, pool = Shell(), Pool()
        resources = MachineResources(Machine(cpus=1, memory=2**30), environ={})
        workers = Workers(plan, resources, pool, shell, address="", service="")  # type: ignore[arg-type]
        first, second = trial("first"), trial("second")
        workers.start(first, 1)
        await asyncio.sleep(0)
        (key,) = pool.spawned
        request = AssignmentRequest(runner=key, pid=1, hostname="here")
        workers.assign(request)
        first.running = False
        answer = asyncio.ensure_future(workers.assign(request))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        workers._hand_over(second, 1, None)
        workers.stop(second, 1)
        assert (await answer).assignment is None
        assert [event.trial_id for event in shell.events if isinstance(event, AttemptEnded)] == ["second"]

    asyncio.run(test())
