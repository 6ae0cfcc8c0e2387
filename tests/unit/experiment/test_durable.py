"""What an open experiment shows to the outside, and when: a folder plays the storage, and can be held up."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path

import pytest
from durable_support import SETTINGS, Gated, RecordingShell, make_plan, results, within

from trialpod.errors import InvalidInputError, StorageError
from trialpod.protocol.messages import AttemptEnd
from trialpod.storage.directory import DirectoryStorage
from trialpod.storage.journal.journal import Journal
from trialpod.tune.plugins.state import StateNotKeptError
from trialpod_operator.engine.actions import TrialCreated, Warned
from trialpod_operator.engine.events import AttemptEnded, AttemptStarted, SettingsObserved
from trialpod_operator.experiment import durable, journaled_engine
from trialpod_operator.experiment.durable import DurableExperiment, NotReadyError
from trialpod_operator.experiment.plan import ExperimentPlan
from trialpod_operator.experiment.replica.replica import FencedError, Replica
from trialpod_operator.experiment.stored import JOURNAL_ID, write_stored


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(within_coroutine(test))


async def within_coroutine(test: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.timeout(60):
        await test()


def test_no_action_before_the_storage_has_its_record(tmp_path: Path) -> None:
    async def test() -> None:
        storage = Gated(tmp_path / "storage")
        shell = RecordingShell(storage, tmp_path / "work")
        storage.gate.clear()
        experiment = shell.start()
        experiment.apply(SettingsObserved(settings=SETTINGS))
        assert experiment.committed() is not None
        await asyncio.sleep(0.05)  # whatever could happen has happened by then
        assert shell.actions == []
        storage.gate.set()
        await within(experiment.commit())
        assert [type(action) for action in shell.actions].count(TrialCreated) == 2
        assert len(shell.starts()) == 2
        assert experiment.committed() is None
        experiment.close()

    run(test)


def test_unawaited_results_are_committed_within_a_second(tmp_path: Path) -> None:
    async def test() -> None:
        shell = RecordingShell(Gated(tmp_path / "storage"), tmp_path / "work")
        experiment = shell.start()
        experiment.apply(SettingsObserved(settings=SETTINGS))
        await within(experiment.commit())
        trial_id = shell.starts()[0]
        experiment.apply(AttemptStarted(trial_id=trial_id, attempt=1, pid=7))
        await within(experiment.commit())
        experiment.apply(results(trial_id, 1, 0.5, 0.6))
        answer = experiment.answer(trial_id, 1)
        assert answer.received == 2
        committed = experiment.committed()
        assert committed is not None
        await within(committed, 5.0)
        experiment.close()

    run(test)


def test_another_operator_resumes_from_committed_state_only(tmp_path: Path) -> None:
    async def test() -> None:
        storage = Gated(tmp_path / "storage")
        shell = RecordingShell(storage, tmp_path / "first")
        experiment = shell.start()
        experiment.apply(SettingsObserved(settings=SETTINGS))
        await within(experiment.commit())
        trial_id = shell.starts()[0]
        experiment.apply(results(trial_id, 1, 0.5))
        await within(experiment.commit())
        storage.gate.clear()
        experiment.apply(results(trial_id, 2, 0.6))  # this one the operator takes with it
        lost = experiment.committed()
        assert lost is not None
        experiment.close()
        with pytest.raises(NotReadyError):
            await lost

        second = RecordingShell(DirectoryStorage(tmp_path / "storage"), tmp_path / "second").start()
        assert second.resumed
        assert not experiment.resumed
        assert second.engine.state.trials[trial_id].current.received == 1
        second.apply(results(trial_id, 2, 0.6))
        assert second.answer(trial_id, 1).received == 2
        await within(second.commit())
        second.close()
        storage.gate.set()

    run(test)


class SlowSnapshots(Gated):
    """A folder where only snapshots wait at the gate."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.begun = threading.Event()

    def write_new(self, key: str, data: bytes) -> None:
        if key.endswith(".snapshot"):
            self.begun.set()
            super().write_new(key, data)
        else:
            DirectoryStorage.write_new(self, key, data)


def snapshots(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("work/**/*.snapshot")]


def test_no_snapshot_before_the_last_one_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "MAX_OBJECTS", 0)
    monkeypatch.setattr(durable, "MAX_OBJECTS_PER_RUNNING", 0)
    monkeypatch.setattr(durable, "FLUSH_INTERVAL_S", 0.01)

    async def test() -> None:
        storage = SlowSnapshots(tmp_path / "storage")
        storage.gate.clear()
        experiment = RecordingShell(storage, tmp_path / "work").start()
        experiment.apply(SettingsObserved(settings=SETTINGS))
        await within(experiment.commit())
        assert await asyncio.to_thread(storage.begun.wait, 30)
        rounds = asyncio.Event()
        looks = itertools.count()
        flush = experiment.journaled.flush_in_slices

        def count() -> Iterator[None]:
            if next(looks) == 50:
                rounds.set()
            return flush()

        monkeypatch.setattr(experiment.journaled, "flush_in_slices", count)
        await within(rounds.wait(), 30.0)
        assert snapshots(tmp_path) == ["00000002.snapshot"]
        storage.gate.set()
        experiment.close()

    run(test)


def test_state_that_cannot_be_stored_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt encodes the whole engine and has the files of all trials copied before."""
    monkeypatch.setattr(durable, "MAX_OBJECTS", 0)
    monkeypatch.setattr(durable, "MAX_OBJECTS_PER_RUNNING", 0)
    monkeypatch.setattr(durable, "FLUSH_INTERVAL_S", 0.01)
    tries = itertools.count()

    def refuse() -> bytes:
        next(tries)
        raise StateNotKeptError("it holds a lock")

    async def test() -> None:
        experiment = RecordingShell(DirectoryStorage(tmp_path / "storage"), tmp_path / "work").start()
        monkeypatch.setattr(experiment.engine, "snapshot", refuse)
        experiment.apply(SettingsObserved(settings=SETTINGS))
        await within(experiment.commit())
        tried, rounds, looks = asyncio.Event(), asyncio.Event(), itertools.count()
        write_snapshot, flush = experiment.journaled.write_snapshot, experiment.journaled.flush_in_slices

        def count() -> Iterator[None]:
            if tried.is_set() and next(looks) == 50:
                rounds.set()
            return flush()

        monkeypatch.setattr(experiment.journaled, "write_snapshot", lambda: [tried.set(), write_snapshot()])
        monkeypatch.setattr(experiment.journaled, "flush_in_slices", count)
        await within(rounds.wait(), 30.0)
        assert next(tries) == 1
        experiment.close()

    run(test)


def test_newly_claimed_location_is_read_before_writing(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path / "storage")
    theirs = {"version": 1, "namespace": "team", JOURNAL_ID: "0123456789abcdef"}
    seen: list[object] = []

    def refuse(stored: Mapping[str, object] | None) -> ExperimentPlan:
        seen.append(stored)
        if stored is not None:
            raise InvalidInputError("it is another's")
        storage.write(".trialpod/experiment.json", json.dumps(theirs).encode())  # in this moment
        return make_plan(stored)

    with pytest.raises(InvalidInputError):
        DurableExperiment.open(refuse, tmp_path / "here", storage, time.time)
    assert seen == [None, theirs]
    assert storage.list() == [".trialpod/experiment.json"]


def test_second_of_two_operators_is_stopped_without_effect(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        storage = Gated(tmp_path / "storage")
        first = RecordingShell(storage, tmp_path / "first")
        first.start().apply(SettingsObserved(settings=SETTINGS))
        await within(first.experiment.commit())
        trial_id = first.starts()[0]
        second = RecordingShell(storage, tmp_path / "second")
        second.start().apply(results(trial_id, 1, 0.9))
        await within(second.experiment.commit())

        first.experiment.apply(results(trial_id, 1, 0.1))
        with pytest.raises(NotReadyError):
            await within(first.experiment.commit())
        assert len(first.errors) == 1
        with pytest.raises(NotReadyError):
            first.experiment.apply(results(trial_id, 2, 0.2))
        third = RecordingShell(storage, tmp_path / "third").start()
        assert third.engine.state.trials[trial_id].value == 0.9
        for each in (first.experiment, second.experiment, third):
            each.close()

    run(test)


class TestClose:
    """A closed experiment may be open again already: nothing that comes late acts for it."""

    def test_commit_in_progress_performs_no_action(self, tmp_path: Path) -> None:
        async def test() -> None:
            storage = Gated(tmp_path / "storage")
            shell = RecordingShell(storage, tmp_path / "work")
            others = set(threading.enumerate())
            experiment = shell.start()
            await within(experiment.commit())
            storage.gate.clear()
            experiment.apply(SettingsObserved(settings=SETTINGS))
            assert await asyncio.to_thread(storage.waiting.wait, 30)
            experiment.close()
            storage.gate.set()
            for thread in set(threading.enumerate()) - others:
                if thread.name.startswith("trialpod-replica"):
                    await asyncio.to_thread(thread.join)
            await asyncio.sleep(0)
            assert shell.actions == []

        run(test)

    def test_failure_is_not_told(self, tmp_path: Path) -> None:
        async def test() -> None:
            shell = RecordingShell(Gated(tmp_path / "storage"), tmp_path / "work")
            experiment = shell.start()
            experiment.close()
            experiment.fail(FencedError("another process writes the journal"))
            assert shell.errors == []

        run(test)


def test_nothing_is_confirmed_during_an_outage(tmp_path: Path) -> None:
    async def test() -> None:
        storage = Gated(tmp_path / "storage")
        shell = RecordingShell(storage, tmp_path / "work")
        experiment = shell.start()
        storage.refuse = True
        experiment.apply(SettingsObserved(settings=SETTINGS))
        committed = experiment.committed()
        assert committed is not None
        await shell.until(lambda: bool(experiment.storage_problem))
        assert "the storage is down" in str(experiment.storage_problem)
        assert shell.actions == []
        storage.refuse = False
        await within(committed)
        assert len(shell.starts()) == 2
        await shell.until(lambda: not experiment.storage_problem)
        experiment.close()

    run(test)


def test_storage_that_falls_silent_is_a_problem_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "SILENCE_S", 0.5)

    async def test() -> None:
        storage = Gated(tmp_path / "storage")
        shell = RecordingShell(storage, tmp_path / "work")
        experiment = shell.start()
        await within(experiment.commit())
        storage.gate.clear()  # a request that neither succeeds nor fails
        experiment.apply(SettingsObserved(settings=SETTINGS))
        await within(shell.until(lambda: bool(experiment.storage_problem)))
        assert "has not answered" in str(experiment.storage_problem)
        storage.gate.set()
        await within(shell.until(lambda: not experiment.storage_problem))
        await within(experiment.commit())
        experiment.close()

    run(test)


def test_a_complete_end_leaves_everything_in_the_storage(tmp_path: Path) -> None:
    async def test() -> None:
        storage = Gated(tmp_path / "storage")
        shell = RecordingShell(storage, tmp_path / "work")
        experiment = shell.start()
        experiment.apply(SettingsObserved(settings=SETTINGS))
        await within(experiment.commit())
        for trial_id in shell.starts():
            experiment.apply(results(trial_id, 1, 0.5))
            experiment.apply(AttemptEnded(trial_id=trial_id, attempt=1, end=AttemptEnd(cause="completed")))
        assert experiment.engine.finished
        assert await experiment.finish(10.0) is None
        experiment.close()
        keys = storage.list()
        assert len([key for key in keys if key.endswith("/result.json")]) == 2
        again = RecordingShell(storage, tmp_path / "again").experiment
        assert again.engine.finished
        again.close()

    run(test)


@pytest.mark.parametrize("until_finish", [True, False])
def test_lines_that_could_not_be_written_are_copied_later(tmp_path: Path, until_finish: bool) -> None:
    """The disk was full when the last trials ended: their files are not complete in the storage yet."""

    async def test() -> None:
        storage = Gated(tmp_path / "storage")
        shell = RecordingShell(storage, tmp_path / "work")
        experiment = shell.start()
        experiment.apply(SettingsObserved(settings=SETTINGS))
        await within(experiment.commit())
        blocked = []
        for trial_id in shell.starts():
            trial = experiment.engine.state.trials[trial_id]
            blocked.append(experiment.files.path(trial) / "result.json")
            blocked[-1].mkdir()
            experiment.apply(results(trial_id, 1, 0.5))
            experiment.apply(AttemptEnded(trial_id=trial_id, attempt=1, end=AttemptEnd(cause="completed")))
        replica = experiment._replica
        assert replica is not None
        while replica.files_due():  # noqa: ASYNC110 - a thread copies them
            await asyncio.sleep(0.05)
        assert not experiment.files_stored
        for path in blocked:
            path.rmdir()
        if not until_finish:
            while not experiment.files_stored:  # noqa: ASYNC110 - likewise
                await asyncio.sleep(0.05)
        assert await experiment.finish(10.0) is None
        experiment.close()
        keys = [key for key in storage.list() if key.endswith("/result.json")]
        assert [storage.read(key).count(b"\n") for key in keys] == [1, 1]

    run(test)


def test_log_that_arrives_during_copy_is_copied_too(tmp_path: Path) -> None:
    class Late(DirectoryStorage):
        """While the log is written here, another pod's output is kept."""

        hook: Callable[[], None] = staticmethod(lambda: None)

        def write(self, key: str, data: bytes) -> None:
            super().write(key, data)
            if key.endswith("log.txt"):
                hook, self.hook = self.hook, lambda: None  # type: ignore[method-assign]
                hook()

    storage = Late(tmp_path / "storage")
    directory = tmp_path / "work"
    replica = Replica(directory, storage)
    (directory / "trial").mkdir(parents=True)
    write_stored(directory, {})
    log = directory / "trial" / "log.txt"
    log.write_text("first\n")

    def more() -> None:
        log.write_text("first\nsecond\n")
        replica.copy_soon("trial")

    storage.hook = more  # type: ignore[method-assign]
    replica.trial_ended("trial")
    replica.copy(everything=False)
    assert replica.files_due("trial")
    replica.copy(everything=False)
    assert not replica.files_due()
    assert storage.read("trial/log.txt") == b"first\nsecond\n"


def test_finished_experiment_closes_without_last_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        storage = Gated(tmp_path / "storage")
        shell = RecordingShell(storage, tmp_path / "work")
        experiment = shell.start()
        experiment.apply(SettingsObserved(settings=SETTINGS))
        await within(experiment.commit())
        storage.gate.clear()
        assert "not everything is copied" in str(await experiment.finish(0.1))
        experiment.close()
        storage.gate.set()

    run(test)


def test_disk_that_fails_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async def test() -> None:
        experiment = RecordingShell(DirectoryStorage(tmp_path / "storage"), tmp_path / "work").start()
        experiment.apply(SettingsObserved(settings=SETTINGS))
        waiting = asyncio.ensure_future(experiment.commit())
        await asyncio.sleep(0)
        monkeypatch.setattr(os, "fdatasync", fail)
        experiment.close()
        with pytest.raises(NotReadyError):
            await waiting

    run(test)
    assert "cannot sync the journal" in caplog.text
    opened = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    assert [path for path in opened if path.startswith(str(tmp_path / "work")) and path.endswith(".log")] == []


def test_snapshots_that_cannot_be_written_end_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def refuse(_journal: Journal, data: bytes) -> None:
        tries.append(data)
        raise StorageError("cannot write the snapshot: no space left on the device")

    async def test() -> None:
        shell = RecordingShell(Gated(tmp_path / "storage"), tmp_path / "work")
        experiment = shell.start()
        monkeypatch.setattr(journaled_engine, "SNAPSHOT_MIN_BYTES", 0)
        monkeypatch.setattr(Journal, "write_snapshot", refuse)
        experiment.apply(SettingsObserved(settings=SETTINGS))
        await within(experiment.commit())
        first, second = shell.starts()
        for number in range(1, 4):
            experiment.apply(results(first, number, 0.5))
        experiment.apply(results(second, 1, 0.5))
        assert tries
        assert await experiment.finish(30.0) is None
        experiment.close()
        messages = [action.message for action in shell.actions if isinstance(action, Warned)]
        assert len(messages) == 1
        assert "no space left" in messages[0]

    run(test)
    assert list((tmp_path / "storage").glob("*/result.json"))
