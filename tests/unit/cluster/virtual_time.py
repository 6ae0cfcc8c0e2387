"""An event loop whose clock jumps to the next timer as soon as nothing is left to do now.

So an hour of waiting takes no time, and a run is the same each time: nothing here is decided by threads. What the
code under test gives to an executor runs at once, in the loop.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

START = 1_790_000_000.0
"""Seconds since the epoch at which every run begins."""


class StuckError(AssertionError):
    """Nothing is left to do, no timer is set, and the test still waits."""


class _Selector(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise StuckError("nothing is left to do, and the test is not over")
        self.now += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; `now` is its time in seconds since the epoch."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    def now(self) -> float:
        return START + self._virtual.now

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - its waiter gets it
            future.set_exception(error)
        return future


def run(test: Callable[[], Coroutine[Any, Any, T]], limit_s: float = 50_000.0) -> T:
    """Run a coroutine in a loop of its own, for at most so many seconds of its time."""
    loop = VirtualLoop()

    async def bounded() -> T:
        async with asyncio.timeout(limit_s):
            return await test()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(bounded())


async def until(holds: Callable[[], bool], within_s: float = 600.0, what: str = "") -> None:
    """Wait until something holds, looking ten times a second."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within_s
    while not holds():
        assert loop.time() < end, f"not within {within_s} s: {what or holds}"
        await asyncio.sleep(0.1)


async def all_of(*waiting: Awaitable[Any]) -> None:
    """Wait for all of them."""
    await asyncio.gather(*waiting)
