"""A work queue of keys: what is put in twice is done once, one key is never worked on twice at a time.

Invariants: a key put in while it is being worked on is worked on again afterwards. A key whose work failed comes back
by itself, later each time, and at once when something new happens to it. A large key rests after each piece of work,
so that its news come together and the loop has time for the others. Owned by one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

BASE_S = 0.5
MOST_S = 60.0

Work = Callable[[str], Awaitable[float | None]]


class WorkQueue:
    """Calls `work` for keys.

    Args:
        work: does what a key needs; returns in how many seconds it wants the key again (None = not by itself).
        failed: told of the key and the exception when `work` raises.
        workers: how many keys are worked on at once.
        jitter: returns a factor for the waits after failures.
        rest: returns for how many seconds a key is not worked on again after it was.
    """

    def __init__(
        self,
        work: Work,
        failed: Callable[[str, BaseException], None],
        workers: int = 16,
        jitter: Callable[[], float] = lambda: random.uniform(0.75, 1.25),  # spreads load, decides nothing
        rest: Callable[[str], float] = lambda _key: 0.0,
    ) -> None:
        self._work = work
        self._failed = failed
        self._workers = workers
        self._jitter = jitter
        self._rest = rest
        self._ready: asyncio.Queue[str] = asyncio.Queue()
        self._queued: set[str] = set()
        self._active: set[str] = set()
        self._resting: dict[str, asyncio.TimerHandle] = {}
        self._again: set[str] = set()  # put in while active or resting
        self._later: dict[str, asyncio.TimerHandle] = {}
        self._failures: dict[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def depth(self) -> int:
        """How many keys wait to be worked on."""
        return len(self._queued)

    def add(self, key: str) -> None:
        """Have a key worked on as soon as possible."""
        later = self._later.pop(key, None)
        if later is not None:
            later.cancel()
        if key in self._active or key in self._resting:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._ready.put_nowait(key)

    def add_later(self, key: str, seconds: float) -> None:
        """Have a key worked on in so many seconds, unless that is due earlier already."""
        if key in self._queued or key in self._again:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        known = self._later.get(key)
        if known is not None:
            if known.when() <= at:
                return
            known.cancel()
        self._later[key] = loop.call_at(at, self._due, key)

    def start(self) -> None:
        """Start working."""
        self._tasks = [asyncio.ensure_future(self._run()) for _ in range(self._workers)]

    async def close(self) -> None:
        """Stop: work in progress is cancelled."""
        for waiting in (self._later, self._resting):
            for handle in waiting.values():
                handle.cancel()
            waiting.clear()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks = []

    def _due(self, key: str) -> None:
        self._later.pop(key, None)
        self.add(key)

    def _rested(self, key: str) -> None:
        del self._resting[key]
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    async def _run(self) -> None:
        while True:
            key = await self._ready.get()
            self._queued.discard(key)
            self._active.add(key)
            again_in: float | None = None
            try:
                again_in = await self._work(key)
                self._failures.pop(key, None)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - told to `failed`, and tried again
                failures = self._failures.get(key, 0) + 1
                self._failures[key] = failures
                wait = max(BASE_S * 2.0 ** min(failures - 1, 16), getattr(error, "retry_after_s", 0.0))
                again_in = min(wait, MOST_S) * self._jitter()
                self._failed(key, error)
            finally:
                self._active.discard(key)
            rest = self._rest(key) if key not in self._failures else 0.0
            if rest > 0.0:
                self._resting[key] = asyncio.get_running_loop().call_later(rest, self._rested, key)
            if key in self._again:
                if rest > 0.0:
                    continue
                self._again.discard(key)
                if key in self._failures:
                    self.add_later(key, again_in or 0.0)  # news do not shorten the wait after a failure
                else:
                    self.add(key)
            elif again_in is not None:
                self.add_later(key, again_in)
