"""Keys and their work: nothing twice at once, nothing forgotten, failures later and later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import virtual_time

from trialpod_operator.cluster.work_queue import FairSemaphore, WorkQueue


class Log:
    """Notes the calls; a key's work waits for its gate where there is one."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failures: list[tuple[str, str]] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.fail_times: dict[str, int] = {}
        self.at_once = 0
        self.active: set[str] = set()
        self.news = asyncio.Event()

    async def work(self, key: str) -> float | None:
        assert key not in self.active, "one key is never worked on twice at a time"
        self.active.add(key)
        self.calls.append(key)
        self.news.set()
        try:
            if key in self.gates:
                await self.gates[key].wait()
            if self.fail_times.get(key, 0) > 0:
                self.fail_times[key] -= 1
                raise RuntimeError("not yet")
        finally:
            self.active.discard(key)
        return None

    def failed(self, key: str, error: BaseException) -> None:
        self.failures.append((key, str(error)))

    async def until(self, count: int) -> None:
        while len(self.calls) < count:
            self.news.clear()
            await self.news.wait()


def run(test: Callable[[Log, WorkQueue], Awaitable[None]]) -> Log:
    log = Log()

    async def body() -> None:
        queue = WorkQueue(log.work, log.failed, workers=3, jitter=lambda: 0.01)
        queue.start()
        async with asyncio.timeout(20):
            await test(log, queue)
        await queue.close()

    asyncio.run(body())
    return log


def test_a_key_put_in_many_times_is_worked_on_once() -> None:
    async def test(log: Log, queue: WorkQueue) -> None:
        for _ in range(10):
            queue.add("a")
        queue.add("b")
        await log.until(2)

    assert sorted(run(test).calls) == ["a", "b"]


def test_key_added_during_its_work_runs_again() -> None:
    async def test(log: Log, queue: WorkQueue) -> None:
        log.gates["a"] = asyncio.Event()
        queue.add("a")
        await log.until(1)
        queue.add("a")
        queue.add("a")
        queue.add("b")
        await log.until(2)
        assert log.calls == ["a", "b"]
        log.gates["a"].set()
        await log.until(3)

    assert run(test).calls == ["a", "b", "a"]


def test_failed_work_is_retried_and_blocks_no_other() -> None:
    async def test(log: Log, queue: WorkQueue) -> None:
        log.fail_times["a"] = 2
        queue.add("a")
        queue.add("b")
        await log.until(4)

    log = run(test)
    assert log.calls.count("a") == 3
    assert log.failures == [("a", "not yet")] * 2


def test_what_failed_is_done_at_once_when_its_cause_is_over() -> None:
    """Also a change that came right before: it does not wait for the backoff of an outage that is over."""

    async def test() -> None:
        log = Log()
        queue = WorkQueue(log.work, log.failed, workers=1, jitter=lambda: 1.0)
        queue.start()
        log.fail_times["a"] = 9
        queue.add("a")
        await log.until(8)
        queue.add("a")
        await log.until(9)
        loop = asyncio.get_running_loop()
        began = loop.time()
        queue.retry_failed()
        await log.until(10)
        assert loop.time() == began
        queue.retry_failed()
        assert queue.depth == 0
        await queue.close()

    virtual_time.run(test)


class TestBackoff:
    """A key that fails at 0 s, is retried at 0.5 s, 1.5 s, and at 3.5 s with success."""

    def times(self, test: Callable[[WorkQueue], Awaitable[None]]) -> list[float]:
        async def body() -> list[float]:
            loop = asyncio.get_running_loop()
            began: list[float] = []

            async def work(_key: str) -> float | None:
                began.append(loop.time())
                await asyncio.sleep(0.01)
                if len(began) < 4:
                    raise RuntimeError("not yet")
                return None

            queue = WorkQueue(work, lambda _key, _error: None, workers=1, jitter=lambda: 1.0)
            queue.start()
            queue.add("a")
            await test(queue)
            await asyncio.sleep(10.0)
            await queue.close()
            return [round(each, 1) for each in began]

        return virtual_time.run(body)

    @pytest.mark.parametrize("at", [0.1, 0.005], ids=["waits", "is processed"])
    def test_new_events_do_not_shorten_it(self, at: float) -> None:
        async def events(queue: WorkQueue) -> None:
            await asyncio.sleep(at)
            queue.add("a")
            queue.add_later("a", 0.1)

        assert self.times(events) == [0.0, 0.5, 1.5, 3.5]

    def test_later_events_do_not_shorten_it(self) -> None:
        async def events(queue: WorkQueue) -> None:
            await asyncio.sleep(0.005)
            queue.add_later("a", 0.1)  # while it is processed, which fails

        assert self.times(events) == [0.0, 0.5, 1.5, 3.5]

    def test_an_event_during_the_failing_pass_shortens_it(self) -> None:
        async def body() -> list[float]:
            loop = asyncio.get_running_loop()
            began: list[float] = []

            async def work(_key: str) -> float | None:
                began.append(loop.time())
                if len(began) == 6:
                    queue.add("a")
                raise RuntimeError("no")

            queue = WorkQueue(work, lambda _key, _error: None, workers=1, jitter=lambda: 1.0)
            queue.start()
            queue.add("a")
            await asyncio.sleep(21.0)
            await queue.close()
            return began

        assert virtual_time.run(body) == [0.0, 0.5, 1.5, 3.5, 7.5, 15.5, 20.5]

    @pytest.mark.parametrize(("asked", "expected"), [(0.0, [0.0, 0.5, 1.5, 3.5, 7.5, 13.0]), (30.0, [0.0, 30.0])])
    def test_events_shorten_it_but_not_what_the_server_asked(self, asked: float, expected: list[float]) -> None:
        async def body() -> list[float]:
            loop = asyncio.get_running_loop()
            began: list[float] = []

            async def work(_key: str) -> float | None:
                began.append(loop.time())
                error = RuntimeError("no")
                error.retry_after_s = asked  # type: ignore[attr-defined]
                raise error

            queue = WorkQueue(work, lambda _key, _error: None, workers=1, jitter=lambda: 1.0)
            queue.start()
            queue.add("a")
            await asyncio.sleep(8.0)
            for _ in range(3):
                queue.add("a")
            await asyncio.sleep(7.0 + asked)
            await queue.close()
            return [round(each, 1) for each in began]

        assert virtual_time.run(body) == expected

    def test_retry_during_a_pass_that_fails_is_not_lost(self) -> None:
        async def retry(queue: WorkQueue) -> None:
            await asyncio.sleep(1.525)  # while the third pass runs
            queue.retry("a")

        assert self.times(retry) == [0.0, 0.5, 1.5, 1.5]

    def test_retry_of_a_key_begins_it_again(self) -> None:
        async def events(queue: WorkQueue) -> None:
            await asyncio.sleep(1.0)
            queue.retry("a")

        assert self.times(events) == [0.0, 0.5, 1.0, 1.5]


def test_the_earlier_of_two_appointments_holds() -> None:
    async def test(log: Log, queue: WorkQueue) -> None:
        queue.add_later("a", 100.0)
        queue.add_later("a", 0.01)
        queue.add_later("a", 50.0)
        await log.until(1)

    assert run(test).calls == ["a"]


def test_resting_key_merges_its_events_into_one_run() -> None:
    async def body() -> None:
        log = Log()
        queue = WorkQueue(log.work, log.failed, workers=1, rest=lambda key: 0.05 if key == "large" else 0.0)
        queue.start()
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(20):
            queue.add("large")
            await log.until(1)
            began = loop.time()
            for _ in range(3):
                queue.add("large")
                await asyncio.sleep(0)
            queue.add("small")
            await log.until(2)
            queue.add("small")
            await log.until(4)
            assert log.calls == ["large", "small", "small", "large"]
            assert loop.time() - began >= 0.04
        await queue.close()

    asyncio.run(body())


class TestFairRoom:
    def test_keys_have_their_turns_one_after_the_other(self) -> None:
        """A hundred requests of one experiment keep one of another waiting for a single place."""
        order: list[str] = []

        async def test() -> None:
            room = FairSemaphore(1)

            async def request(key: str) -> None:
                async with room:
                    order.append(key)
                    await asyncio.sleep(0.01)

            async def work(key: str) -> float | None:
                if key == "small":
                    await asyncio.sleep(0.025)
                await asyncio.gather(*(request(key) for _ in range(10 if key == "large" else 2)))
                return None

            queue = WorkQueue(work, lambda _key, _error: None)
            queue.start()
            queue.add("large")
            queue.add("small")
            await virtual_time.until(lambda: len(order) == 12)
            await queue.close()

        virtual_time.run(test)
        assert [number for number, key in enumerate(order) if key == "small"] in ([3, 5], [4, 6])

    def test_room_of_a_cancelled_request_is_given_on(self) -> None:
        async def test() -> None:
            room, served = FairSemaphore(1), []

            async def request(name: str) -> None:
                async with room:
                    served.append(name)
                    await asyncio.sleep(1.0)

            first, second, third = (asyncio.ensure_future(request(name)) for name in "abc")
            await asyncio.sleep(0.1)
            second.cancel()
            await asyncio.sleep(1.0)
            assert served == ["a", "c"]
            third.cancel()
            await asyncio.sleep(0.1)
            await request("d")
            assert served == ["a", "c", "d"]
            await first

        virtual_time.run(test)
