"""What a user asks of an experiment is told once, when it has been done."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import decider_support

from trialpod import tune
from trialpod.protocol.messages import AttemptEnd
from trialpod_operator.cluster.user_requests import apply_retry, retry_recorded
from trialpod_operator.engine.events import AnyEvent, AttemptEnded, RetryRequested


class World(decider_support.World):
    """Records what requests to retry lead to."""

    def __init__(self, directory: Path) -> None:
        given = decider_support.request(
            param_space={"x": tune.grid_search([1.0, 2.0])}, scheduler=tune.schedulers.FIFOScheduler()
        )
        super().__init__(given, directory, lambda config, step: config["x"] * step, 2)
        self.recorded: list[tuple[int, bool]] = []

    def step(self, event: AnyEvent) -> AbstractContextManager[None]:
        retry = isinstance(event, RetryRequested)
        return retry_recorded(event, self.experiment, self._record) if retry else nullcontext()

    def _record(self, count: int, *, has_failed: bool) -> None:
        self.recorded.append((count, has_failed))

    def retry(self, value: str) -> None:
        """Reconcile the experiment, whose annotation has this value."""
        apply_retry({"metadata": {"annotations": {"trialpod.dev/retry": value}}}, self.experiment)

    async def decide(self) -> None:
        assert self.decider is not None
        while await self.decider.step():
            pass

    async def fail_one(self) -> None:
        """Run the experiment to its end; one of its two trials fails."""
        self.start()
        await self.decide()
        trial_id, (attempt, _) = next(iter(self.attempts.items()))
        failed = AttemptEnd(cause="failed", error="no", retry=False)
        self.experiment.apply(AttemptEnded(trial_id=trial_id, attempt=attempt, end=failed))
        await self.run()


class TestRetryWithDecider:
    def test_is_recorded_once_decided(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            world = World(tmp_path)
            await world.fail_one()
            for _ in range(3):
                world.retry("1")
            assert world.recorded == []
            await world.decide()
            world.retry("1")
            assert world.recorded == [(1, False)]
            await world.run()
            world.retry("2")
            await world.decide()
            assert world.recorded == [(1, False), (0, False)]

        asyncio.run(scenario())
