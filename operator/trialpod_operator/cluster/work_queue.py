"""A work queue of keys, as in client-go: equal keys are merged, and one key is never processed concurrently.

`FairSemaphore` limits concurrent requests and serves keys round-robin: however many requests one experiment queues,
another waits for at most one of them.

Own code, because Python's client has none, and kopf queues events of one object instead of keys of one experiment.

Invariants: a key added while it is processed is processed again afterwards. A failed key is retried with backoff,
which new events shorten to `EVENT_DELAY_S`, but never to less than the server has asked for; only `retry` ends it. A
large key rests after each pass, so that its events are merged and the loop has time for others. Owned by one event
loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections import deque
from collections.abc import Awaitable, Callable

BACKOFF_S = 0.5
MAX_BACKOFF_S = 60.0
EVENT_DELAY_S = 5.0
"""Maximum time from an event to the pass of a key that fails: only one step of the pass may be failing."""

Work = Callable[[str], Awaitable[float | None]]

_KEY: contextvars.ContextVar[str] = contextvars.ContextVar("key", default="")


class FairSemaphore:
    """Limits the number of parallel requests; waiting requests of different keys take turns.

    Args:
        size: maximum number of parallel requests.
    """

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by key; the first is next

    async def __aenter__(self) -> None:
        if self._free and not self._waiting:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(_KEY.get(), deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._next()  # it had its turn, and does not use it
            raise

    async def __aexit__(self, *_: object) -> None:
        self._next()

    def _next(self) -> None:
        while self._waiting:
            key, turns = next(iter(self._waiting.items()))
            del self._waiting[key]
            turn = turns.popleft()
            if turns:
                self._waiting[key] = turns  # after the others
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class WorkQueue:
    """Calls `work` for keys.

    Args:
        work: processes a key; returns in how many seconds to process it again (None = not by itself).
        on_failure: called with the key and the exception when `work` raises.
        workers: how many keys are processed concurrently.
        jitter: returns a factor for the backoff.
        rest: returns for how many seconds a key is not processed again after a pass.

    Attributes:
        passes: how many times `work` was called.
        longest_pass_s: the longest of these calls.
    """

    def __init__(
        self,
        work: Work,
        on_failure: Callable[[str, BaseException], None],
        workers: int = 16,
        jitter: Callable[[], float] = lambda: random.uniform(0.75, 1.25),  # spreads load, decides nothing
        rest: Callable[[str], float] = lambda _key: 0.0,
    ) -> None:
        self._work = work
        self.on_failure = on_failure
        self._workers = workers
        self.jitter = jitter
        self.passes = 0
        self.longest_pass_s = 0.0
        self._rest = rest
        self._ready: asyncio.Queue[str] = asyncio.Queue()
        self._queued: set[str] = set()
        self._active: set[str] = set()
        self._resting: dict[str, asyncio.TimerHandle] = {}
        self._again: set[str] = set()  # added while active or resting
        self._later: dict[str, asyncio.TimerHandle] = {}
        self._backoff: dict[str, asyncio.TimerHandle] = {}  # of keys whose latest pass has failed
        self._not_before: dict[str, float] = {}  # of those, where the server has said when to come again
        self._retried: set[str] = set()  # `retry` while active
        self._failures: dict[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def depth(self) -> int:
        """How many keys are queued."""
        return len(self._queued)

    def add(self, key: str) -> None:
        """Process a key as soon as possible; one that has failed, after `EVENT_DELAY_S` or its backoff."""
        waiting = self._backoff.get(key)
        if waiting is not None:
            loop = asyncio.get_running_loop()
            at = max(loop.time() + EVENT_DELAY_S, self._not_before.get(key, 0.0))
            if waiting.when() > at:
                waiting.cancel()
                self._backoff[key] = loop.call_at(at, self._backed_off, key)
            return
        _cancel(self._later, key)
        if key in self._active or key in self._resting:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._ready.put_nowait(key)

    def add_later(self, key: str, seconds: float) -> None:
        """Process a key after a delay in seconds, unless it is due earlier."""
        if key in self._queued or key in self._again or key in self._backoff:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        known = self._later.get(key)
        if known is not None:
            if known.when() <= at:
                return
            known.cancel()
        self._later[key] = loop.call_at(at, self._due, key)

    def retry(self, key: str) -> None:
        """Process a key as soon as possible, although it may have failed: its backoff begins again."""
        self._failures.pop(key, None)
        self._not_before.pop(key, None)
        _cancel(self._backoff, key)
        if key in self._active:
            self._retried.add(key)
        self.add(key)

    def retry_failed(self) -> None:
        """Process all keys that failed now: their common cause has ended. Their backoff begins again."""
        for key in list(self._failures):
            self.retry(key)

    def start(self) -> None:
        """Start the workers."""
        self._tasks = [asyncio.ensure_future(self._run()) for _ in range(self._workers)]

    async def close(self) -> None:
        """Stop the workers; passes in progress are cancelled."""
        for waiting in (self._later, self._backoff, self._resting):
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

    def _backed_off(self, key: str) -> None:
        del self._backoff[key]
        self._not_before.pop(key, None)
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
            _KEY.set(key)
            again_in: float | None = None
            self.passes += 1
            began = asyncio.get_running_loop().time()
            try:
                again_in = await self._work(key)
                self._failures.pop(key, None)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - given to `on_failure`, and retried
                failures = self._failures.get(key, 0) + 1
                self._failures[key] = failures
                asked = min(getattr(error, "retry_after_s", 0.0), MAX_BACKOFF_S)
                wait = max(BACKOFF_S * 2.0 ** min(failures - 1, 16), asked)
                again_in = min(wait, MAX_BACKOFF_S) * self.jitter()
                self._not_before[key] = asyncio.get_running_loop().time() + min(asked, again_in)
                self.on_failure(key, error)
            finally:
                self._active.discard(key)
                self.longest_pass_s = max(self.longest_pass_s, asyncio.get_running_loop().time() - began)
            retried = key in self._retried
            self._retried.discard(key)
            if key in self._failures and retried:
                self._again.discard(key)
                self.retry(key)
                continue
            if key in self._failures:
                _cancel(self._later, key)
                self._backoff[key] = asyncio.get_running_loop().call_later(again_in or 0.0, self._backed_off, key)
                if key in self._again:
                    self._again.discard(key)
                    self.add(key)  # shortens the backoff
                continue
            rest = self._rest(key)
            if rest > 0.0:
                self._resting[key] = asyncio.get_running_loop().call_later(rest, self._rested, key)
            if key in self._again:
                if rest > 0.0:
                    continue
                self._again.discard(key)
                self.add(key)
            elif again_in is not None:
                self.add_later(key, again_in)


def _cancel(timers: dict[str, asyncio.TimerHandle], key: str) -> None:
    timer = timers.pop(key, None)
    if timer is not None:
        timer.cancel()
