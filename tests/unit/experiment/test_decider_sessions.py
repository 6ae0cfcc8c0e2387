"""The process of a decider: how long the user's code may take, and what the operator learns meanwhile."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from decider_support import World, request, settings_of

from trialpod.protocol.messages import AttemptEnd
from trialpod.tune.search import Searcher
from trialpod_operator.decider import process
from trialpod_operator.decider.code import load_plan, pack_code
from trialpod_operator.decider.deciding import DecidingEngine
from trialpod_operator.engine.choices import Choices
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.events import AnyEvent, AttemptEnded, SettingsObserved, SuggestionReady
from trialpod_operator.experiment.decisions import queue as decisions_queue
from trialpod_operator.experiment.decisions.messages import (
    DecisionAnswer,
    Item,
    decode_answer,
    decode_request,
    encode,
)
from trialpod_operator.experiment.records import Record

HOOKS: dict[str, Callable[[], object]] = {}
"""What happens during the calls of a searcher."""


class Slow(Searcher):
    """Takes as long as the test says."""

    def suggest(self, trial_id: str) -> Any:
        self.during("suggest")
        return {"x": 1.0}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        self.during("complete")

    def during(self, call: str) -> None:
        from test_decider_sessions import HOOKS  # not those of the pickle

        HOOKS.get(call, lambda: None)()


class Clock:
    """Monotonic seconds, which pass only in the test; knows how often another thread has looked."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._owner = threading.get_ident()
        self._looks = threading.Condition()
        self._looked = 0

    def __call__(self) -> float:
        with self._looks:
            now = self.now
            if threading.get_ident() != self._owner:
                self._looked += 1
                self._looks.notify_all()
        return now

    def advance(self, seconds: float) -> None:
        """Let time pass, and return when the watching thread has acted on it."""
        with self._looks:
            self.now += seconds
            expected = self._looked + 2
            assert self._looks.wait_for(lambda: self._looked >= expected, timeout=5)


class Line:
    """A connection of a decider to an experiment in this process, until it has loaded."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.busy = 0
        self.problems: list[str] = []
        self.lock = threading.Lock()
        self.answers = 0

    def wait_until_allowed(self) -> None:
        """There is nothing to wait for."""

    def call(self, _name: str, body: bytes, _read: Any, *, timeout_s: float) -> DecisionAnswer:
        message = decode_request(body)
        if message.busy or message.problem or message.suggestion is not None:
            self.busy += message.busy
            self.problems += [message.problem] if message.problem else []
            return DecisionAnswer(session=message.session)
        found = self.world.experiment.decide(message)
        self.answers += 1
        if not isinstance(found, DecisionAnswer) or (self.answers > 1 and not found.loading):
            return DecisionAnswer(ended="the test is over")
        return decode_answer(encode(found))


async def loaded(directory: Path, monkeypatch: pytest.MonkeyPatch, pass_time: Callable[[Clock], None]) -> Line:
    """Have a new decider load an experiment with three trials whose suggestions take their time."""
    world = World(request(search_alg=Slow(), num_samples=3, max_concurrent=3), directory, lambda _c, _i: 1.0, 8)
    world.start()
    assert world.decider is not None
    for _ in range(1000):
        await world.decider.step()
        if len(world.attempts) == 3:
            break
    world.kill_decider()
    clock, line = Clock(), Line(world)
    monkeypatch.setattr(process, "ReportClient", lambda *_args, **_given: line)
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setitem(HOOKS, "suggest", lambda: pass_time(clock))
    left: list[int] = []
    outcome = process.Decider("http://localhost", "digits", leave=left.append).run()
    assert (outcome, left, line.problems) == (process.Outcome.ENDED, [], [])
    return line


class TestLoading:
    def test_reads_each_record_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(decisions_queue, "MAX_BATCH_EVENTS", 4)

        async def test() -> None:
            given = request(search_alg=Slow(), num_samples=3, max_concurrent=1)
            world = World(given, tmp_path, lambda _c, _i: 1.0, 8)
            world.start()
            while len(world.experiment.engine.state.trials) < 3:
                while await world.decider.step():
                    pass
                await asyncio.sleep(0)
                world.train()
            world.kill_decider()
            journaled, read = world.experiment.journaled, list[int]()
            records_after = journaled.records_after

            def count(position: int) -> Iterator[Record]:
                for record in records_after(position):
                    read.append(position)
                    yield record

            monkeypatch.setattr(journaled, "records_after", count)
            while not world.experiment.decisions.deciding:
                assert await world.decider.step()
            assert len(read) == journaled.position > 8
            assert len(set(read)) == 1

        asyncio.run(test())

    def test_slow_suggestions_are_repeated(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What the searcher may take in its thread it may take when a new decider repeats it."""
        line = asyncio.run(loaded(tmp_path, monkeypatch, lambda clock: clock.advance(400.0)))
        assert line.busy

    def test_many_short_records_keep_the_session(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each takes less time than the decider waits before it says that it is busy."""
        line = asyncio.run(loaded(tmp_path, monkeypatch, lambda clock: clock.advance(4.0)))
        assert line.busy


class Unkept(Slow):
    """Holds what cannot be pickled, once it has suggested."""

    def suggest(self, trial_id: str) -> Any:
        self.lock = threading.Lock()
        return super().suggest(trial_id)


class TestSnapshot:
    def test_of_unkept_state_is_tried_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each attempt encodes the whole engine, so another one follows only when the journal has grown."""
        tried: list[int] = []
        snapshot = Engine.snapshot

        def count(engine: Engine) -> bytes:
            tried.append(len(engine.state.trials))
            return snapshot(engine)

        monkeypatch.setattr(Engine, "snapshot", count)

        async def test() -> None:
            world = World(request(search_alg=Unkept(), num_samples=4), tmp_path, lambda _c, _i: 1.0, 8)
            world.start()
            world.experiment.journaled.write_snapshot()  # the decider is asked for it
            await world.run()
            journaled = world.experiment.journaled
            assert journaled.position > 20
            assert len(tried) <= 2
            assert not journaled.snapshot_wanted

        asyncio.run(test())

    def test_of_a_search_that_always_suggests_continues_it(self) -> None:
        """It is idle only between a suggestion and the request for the next one."""
        given = request(search_alg=Slow(), num_samples=4)
        arrived: list[SuggestionReady] = []

        def opened(position: int = 0, snapshot: bytes | None = None) -> DecidingEngine:
            plan = load_plan(pack_code(given), 7, "digits")
            return DecidingEngine(plan, arrived.append, position, snapshot, threaded=False)

        def follow(deciding: DecidingEngine, event: AnyEvent, wait_s: float | None = None) -> bytes | None:
            deciding.decide([Item(Record(1.0, event), decided=False)])
            snapshot = deciding.release(wait_s)
            assert deciding.snapshot() is None, "the next suggestion is being made"
            while deciding.search.work():
                pass
            return snapshot

        deciding = opened()
        assert follow(deciding, SettingsObserved(settings=settings_of(given)), 0.0) is not None
        snapshot = follow(deciding, arrived.pop(), 0.0)
        follow(deciding, arrived.pop())
        (expected,) = arrived
        arrived.clear()
        assert snapshot is not None
        again = opened(deciding.position - 1, snapshot)
        again.release()
        while again.search.work():
            pass
        follow(again, arrived.pop())
        assert arrived == [expected]

    def test_never_waits_for_a_search_that_learns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The operator would hear nothing meanwhile, and end the session."""
        given = request(search_alg=Slow(), num_samples=1)
        suggestions: queue.Queue[SuggestionReady] = queue.Queue()
        deciding = DecidingEngine(load_plan(pack_code(given), 7, "digits"), suggestions.put)

        def decide(event: AnyEvent) -> list[Choices]:
            chosen = deciding.decide([Item(Record(1.0, event), decided=False)])
            deciding.release()
            return chosen

        decide(SettingsObserved(settings=settings_of(given)))
        (chosen,) = decide(suggestions.get(timeout=30))
        decide(suggestions.get(timeout=30))  # there are no more
        begun, learned = threading.Event(), threading.Event()
        monkeypatch.setitem(HOOKS, "complete", lambda: [begun.set(), learned.wait(30)])
        (trial_id,) = chosen.started
        decide(AttemptEnded(trial_id=trial_id, attempt=1, end=AttemptEnd(cause="completed")))
        assert begun.wait(30)
        try:
            with ThreadPoolExecutor(1) as pool:
                try:
                    assert pool.submit(deciding.snapshot).result(timeout=5) is None
                finally:
                    learned.set()
            assert deciding.snapshot(wait_s=30.0) is not None
        finally:
            deciding.search.close()
