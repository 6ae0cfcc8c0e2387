"""An operator begins in an empty directory: what it reads of the storage, and what becomes of the files there."""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from memory_storage import MemoryStorage, fail_on

from trialpod.errors import JournalError, StorageError
from trialpod.protocol.messages import AttemptEnd, TrainableRef
from trialpod.storage.journal.format import encode_snapshot
from trialpod.tune.schedulers import FIFOScheduler
from trialpod.tune.search import BasicVariantGenerator
from trialpod_operator.engine.actions import Action, StartAttempt
from trialpod_operator.engine.events import (
    AttemptEnded,
    AttemptStarted,
    ResultsReceived,
    RetryRequested,
    SettingsObserved,
)
from trialpod_operator.engine.settings import Settings
from trialpod_operator.engine.trial import Trial
from trialpod_operator.experiment.durable import DurableExperiment, Shell
from trialpod_operator.experiment.plan import ExperimentPlan
from trialpod_operator.experiment.replica.replica import Replica

RUNNING = 3
JOURNAL = ".trialpod/journal/"


class Operator(Shell):
    """One process that hosts the experiment; results of a trial are 1, 2, 3, ..."""

    def __init__(self, storage: MemoryStorage, directory: Path, samples: int) -> None:
        self.samples = samples
        self.storage = storage
        self.directory = directory
        self.starts: list[Trial] = []
        self.durable = DurableExperiment.open(self._plan, directory, storage, time.time)
        self.host = self.durable.journaled

    @property
    def settings(self) -> Settings:
        return Settings(
            name="digits",
            trainable_name="train",
            metric="score",
            num_samples=self.samples,
            max_concurrent=RUNNING,
        )

    def _plan(self, _stored: object) -> ExperimentPlan:
        search = BasicVariantGenerator(seed=1)
        search.configure({"x": 1}, self.samples)
        return ExperimentPlan(
            settings=self.settings,
            search=search,
            scheduler=FIFOScheduler(),
            stopper=None,
            trainable=TrainableRef(entrypoint="train:train"),
        )

    def start(self) -> Operator:
        self.durable.start(self)
        return self

    def perform(self, action: Action) -> None:
        if isinstance(action, StartAttempt):
            self.starts.append(action.trial)

    def trial(self, trial_id: str) -> Trial:
        return self.host.engine.state.trials[trial_id]

    async def next_start(self, pid: int = 7) -> Trial:
        await self.durable.commit()
        trial = self.starts.pop(0)
        self.durable.apply(AttemptStarted(trial_id=trial.trial_id, attempt=trial.attempt, pid=pid))
        return trial

    def results(self, trial: Trial, count: int) -> None:
        scores = range(trial.results + 1, trial.results + 1 + count)
        encoded = [
            msgspec.Raw(msgspec.msgpack.encode({"score": score, "training_iteration": score})) for score in scores
        ]
        self.durable.apply(
            ResultsReceived(
                trial_id=trial.trial_id, attempt=trial.attempt, first=trial.current.received + 1, results=encoded
            )
        )

    def end(self, trial: Trial, cause: str = "completed") -> None:
        self.durable.apply(AttemptEnded(trial_id=trial.trial_id, attempt=trial.attempt, end=AttemptEnd(cause=cause)))

    async def copied(self) -> None:
        """Everything that was to be copied at once is."""
        await self.durable.commit()
        while not self.durable.files_stored:  # noqa: ASYNC110 - the replica's threads tell nobody
            await asyncio.sleep(0.005)

    async def close(self) -> None:
        assert await self.durable.finish(60.0) is None
        self.durable.close()

    async def die(self) -> None:
        await self.copied()
        self.durable.close()


def scores(storage: MemoryStorage, trial: Trial) -> list[int]:
    (key,) = (key for key in storage.values if trial.trial_id in key and key.endswith("/result.json"))
    return [json.loads(line)["score"] for line in storage.values[key].splitlines()]


def trial_files(storage: MemoryStorage) -> dict[str, bytes]:
    return {key: data for key, data in storage.values.items() if not key.startswith(".trialpod/")}


def reads(storage: MemoryStorage) -> list[str]:
    return [key for name, key in storage.calls if name in ("read", "read_range", "get_file")]


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(limited())


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


async def ran(storage: MemoryStorage, directory: Path, ended: int) -> Operator:
    """Return an operator of an experiment with so many trials that have ended, and three that run."""
    operator = Operator(storage, directory, ended + RUNNING).start()
    operator.durable.apply(SettingsObserved(settings=operator.settings))
    for number in range(ended + RUNNING):
        trial = await operator.next_start()
        operator.results(trial, 2)
        if number < ended:
            operator.durable.keep_log(trial, "printed")
            operator.end(trial)
    return operator


@pytest.mark.parametrize("how", ["after a snapshot", "from the records"])
def test_restart_cost_does_not_grow_with_ended_trials(storage: MemoryStorage, tmp_path: Path, how: str) -> None:
    async def test() -> None:
        counts = []
        for ended in (2, 25):
            storage.values.clear()
            first = await ran(storage, tmp_path / f"first-{ended}", ended)
            await (first.close() if how == "after a snapshot" else first.die())
            files = trial_files(storage)
            assert len([key for key in files if key.endswith("/result.json")]) >= ended

            storage.calls.clear()
            second = Operator(storage, tmp_path / f"second-{ended}", ended + RUNNING)
            found = reads(storage)
            # Objects, not requests: threads of the first one, which are not killed with it, may look at its document.
            counts.append(len({key for key in found if not key.startswith(JOURNAL)}))
            assert len([key for key in found if key.startswith(JOURNAL)]) <= first.durable._replica.pieces + 2
            assert not any(key == "" for name, key in storage.calls if name in ("list", "sizes"))
            second.start()
            running = [trial for trial in second.host.engine.state.get_trials() if trial.running]
            assert len(running) == RUNNING
            second.results(running[0], 1)
            await second.copied()
            await second.close()
            now = trial_files(storage)
            changed = {key.split("/")[0] for key in now if now[key] != files.get(key)}
            assert all(any(trial.trial_id in name for trial in running) for name in changed)
            assert scores(storage, running[0]) == [1, 2, 3]
        assert counts[0] == counts[1]

    run(test)


def test_trials_ended_after_a_snapshot_keep_their_results(storage: MemoryStorage, tmp_path: Path) -> None:
    async def test() -> None:
        first = await ran(storage, tmp_path / "first", 1)
        first.host.write_snapshot()
        trial = next(trial for trial in first.host.engine.state.get_trials() if trial.running)
        first.results(trial, 2)
        first.end(trial)
        await first.durable.commit()
        first.durable.close()  # perhaps before its files were copied
        second = Operator(storage, tmp_path / "second", 1 + RUNNING).start()
        assert second.trial(trial.trial_id).ended
        await second.close()
        assert scores(storage, trial) == [1, 2, 3, 4]

    run(test)


def test_the_log_of_a_trial_that_ended_before_is_added_to(storage: MemoryStorage, tmp_path: Path) -> None:
    async def test() -> None:
        first = await ran(storage, tmp_path / "first", 1)
        await first.close()
        second = Operator(storage, tmp_path / "second", 1 + RUNNING).start()
        ended = next(trial for trial in second.host.engine.state.get_trials() if trial.ended)
        second.durable.keep_log(ended, "printed", once=True)  # which the operator before had done
        second.durable.keep_log(ended, "and more")
        assert not second.durable.log_stored(ended)
        await second.copied()
        (log,) = (data for key, data in storage.values.items() if ended.trial_id in key and key.endswith("/log.txt"))
        assert log == b"printed\nand more\n"
        await second.close()

    run(test)


def test_a_log_that_cannot_be_looked_for_now_is_added_to_later(
    storage: MemoryStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        first = await ran(storage, tmp_path / "first", 1)
        await first.close()
        second = Operator(storage, tmp_path / "second", 1 + RUNNING)
        monkeypatch.setattr(second.durable._replica, "_pause", lambda seconds, wake: time.sleep(0.001))
        second.start()
        ended = next(trial for trial in second.host.engine.state.get_trials() if trial.ended)
        await second.copied()
        refused: list[str] = []

        def fail(name: str, key: str) -> None:
            if name == "read" and key.endswith("/log.txt") and len(refused) < 3:
                refused.append(key)
                raise StorageError("connection refused")

        storage.before = fail
        for text in ("and more", "and the end"):
            second.durable.keep_log(ended, text)
        await second.copied()
        (log,) = (data for key, data in storage.values.items() if ended.trial_id in key and key.endswith("/log.txt"))
        assert log == b"printed\nand more\nand the end\n"
        assert len(refused) == 3
        await second.close()

    run(test)


@pytest.mark.parametrize("reachable", [True, False])
def test_retry_after_restart_keeps_earlier_results(storage: MemoryStorage, tmp_path: Path, reachable: bool) -> None:
    async def test() -> None:
        first = Operator(storage, tmp_path / "first", 1).start()
        first.durable.apply(SettingsObserved(settings=first.settings))
        failed = await first.next_start()
        first.results(failed, 2)
        first.end(failed, "failed")
        assert first.trial(failed.trial_id).status == "ERROR"
        await first.close()

        storage.calls.clear()
        second = Operator(storage, tmp_path / "second", 1).start()
        assert not [key for key in reads(storage) if "result.json" in key]
        second.durable.apply(RetryRequested())
        again = await second.next_start()
        if not reachable:
            storage.before = fail_on("read", "/result.json", times=1_000)
        second.results(again, 1)
        before = second.host._journal.snapshot
        second.host.write_snapshot()
        # While they cannot be fetched, only the journal has the new results.
        assert (second.host._journal.snapshot == before) is not reachable
        storage.before = lambda name, key: None
        second.results(again, 1)
        second.end(again)
        await second.close()
        assert scores(storage, again) == [1, 2, 3, 4]

    run(test)


def test_stale_local_files_are_ignored_after_a_takeover(storage: MemoryStorage, tmp_path: Path) -> None:
    async def test() -> None:
        first = await ran(storage, tmp_path / "first", 0)
        await first.die()
        second = Operator(storage, tmp_path / "second", RUNNING).start()
        trial = next(trial for trial in second.host.engine.state.get_trials() if trial.running)
        second.results(trial, 3)
        await second.close()

        third = Operator(storage, tmp_path / "first", RUNNING).start()
        third.results(third.trial(trial.trial_id), 1)
        await third.close()
        assert scores(storage, trial) == [1, 2, 3, 4, 5, 6]

    run(test)


def test_operator_killed_during_download_starts_over(storage: MemoryStorage, tmp_path: Path) -> None:
    async def test() -> None:
        first = await ran(storage, tmp_path / "first", 1)
        await first.close()
        assert Replica(tmp_path / "second", storage).pull(journal_only=True)  # and then it died
        second = Operator(storage, tmp_path / "second", 1 + RUNNING).start()
        trial = next(trial for trial in second.host.engine.state.get_trials() if trial.running)
        second.results(trial, 1)
        await second.close()
        assert scores(storage, trial) == [1, 2, 3]

    run(test)


def test_restarted_container_compares_recently_ended_trials(storage: MemoryStorage, tmp_path: Path) -> None:
    async def test() -> None:
        first = await ran(storage, tmp_path / "work", 8)
        first.host.write_snapshot()
        trial = next(trial for trial in first.host.engine.state.get_trials() if trial.running)
        first.end(trial)
        await first.die()
        storage.calls.clear()
        again = Operator(storage, tmp_path / "work", 8 + RUNNING).start()
        await again.copied()
        assert {key for name, key in storage.calls if name == "sizes" and not key.startswith(".")} == {
            again.host.files.path(trial).name
        }
        await again.close()

    run(test)


def test_newer_snapshot_is_refused_and_left_unchanged(storage: MemoryStorage, tmp_path: Path) -> None:
    async def test() -> None:
        first = await ran(storage, tmp_path / "first", 1)
        await first.die()
        newer = bytearray(encode_snapshot(b"state", 3))
        newer[8:12] = (2).to_bytes(4, "little")
        size = len(encode_snapshot(b"", 0)) - 4
        newer[size : size + 4] = zlib.crc32(newer[:size]).to_bytes(4, "little")
        (segment,) = (key for key in storage.values if key.endswith(".log/000000000000"))
        storage.values[segment.replace("00000001.log/000000000000", "00000002.snapshot")] = bytes(newer)
        before = dict(storage.values)
        with pytest.raises(JournalError, match=r"format version 2, and this trialpod reads"):
            Operator(storage, tmp_path / "second", 1 + RUNNING)
        assert storage.values == before

    run(test)


async def restarted(storage: MemoryStorage, tmp_path: Path) -> tuple[Any, ...]:
    """Return an operator that has replaced another one and cannot read results yet, and the trials that run."""
    first = await ran(storage, tmp_path / "first", 1)
    await first.close()
    storage.before = fail_on("read", "/result.json", times=1_000)
    second = Operator(storage, tmp_path / "second", 1 + RUNNING).start()
    return second, *(trial for trial in second.host.engine.state.get_trials() if trial.running)


class TestFilesOfRunningTrials:
    """They come after the restart, and nothing but their copies waits for them."""

    def test_a_restart_reads_none_of_them(self, storage: MemoryStorage, tmp_path: Path) -> None:
        async def test() -> None:
            first = await ran(storage, tmp_path / "first", 1)
            await first.close()
            storage.calls.clear()
            second = Operator(storage, tmp_path / "second", 1 + RUNNING)
            assert not [key for key in reads(storage) if not key.startswith(".trialpod/")]
            second.start()
            running = [trial for trial in second.host.engine.state.get_trials() if trial.running]
            while second.durable.files.absent():  # noqa: ASYNC110 - the replica's threads tell nobody
                await asyncio.sleep(0.005)
            found = [key for key in reads(storage) if key.endswith("/result.json")]
            assert sorted(found) == sorted(f"{second.durable.dirname(trial)}/result.json" for trial in running)
            await second.close()

        run(test)

    def test_what_comes_before_them_is_added_when_they_are_here(self, storage: MemoryStorage, tmp_path: Path) -> None:
        async def test() -> None:
            second, one, other, *_ = await restarted(storage, tmp_path)
            before = second.host._journal.snapshot
            for trial in (one, other):
                second.results(trial, 2)
            second.end(one)
            second.host.flush()
            second.host.write_snapshot()
            await second.durable.commit()
            assert second.host._journal.snapshot == before  # only the records have these results
            assert not second.durable.files_stored
            storage.before = lambda name, key: None
            await second.copied()
            assert scores(storage, one) == [1, 2, 3, 4]
            second.host.write_snapshot()
            assert second.host._journal.snapshot != before
            await second.close()
            assert scores(storage, other) == [1, 2, 3, 4]

        run(test)

    def test_each_line_has_the_process_that_reported_it(self, storage: MemoryStorage, tmp_path: Path) -> None:
        async def test() -> None:
            second, trial, *_ = await restarted(storage, tmp_path)
            second.results(trial, 1)
            second.end(trial, "preempted")
            again = await second.next_start(pid=9)
            assert again.trial_id == trial.trial_id
            second.results(again, 1)
            assert trial.trial_id in second.durable.files.waiting()
            storage.before = lambda name, key: None
            await second.close()
            (data,) = (data for key, data in storage.values.items() if f"{trial.trial_id}" in key and "result" in key)
            assert [json.loads(line)["pid"] for line in data.splitlines()] == [7, 7, 7, 9]

        run(test)

    @pytest.mark.parametrize("ends", [True, False])
    def test_a_second_kill_before_they_are_here_loses_nothing(
        self, storage: MemoryStorage, tmp_path: Path, ends: bool
    ) -> None:
        async def test() -> None:
            second, trial, *_ = await restarted(storage, tmp_path)
            second.results(trial, 2)
            if ends:
                second.end(trial)
            await second.durable.commit()
            assert trial.trial_id in second.durable.files.waiting()
            second.durable.close()
            storage.before = lambda name, key: None
            third = Operator(storage, tmp_path / "third", 1 + RUNNING).start()
            await third.close()
            assert scores(storage, trial) == [1, 2, 3, 4]

        run(test)
