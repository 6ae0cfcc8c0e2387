"""What an open experiment shows to the outside, and when: a folder plays the storage, and can be held up."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec
import pytest

from trialpod.errors import InvalidInputError, StorageError
from trialpod.protocol.messages import AttemptEnd, TrainableRef
from trialpod.storage.directory import DirectoryStorage
from trialpod.tune.schedulers import FIFOScheduler
from trialpod.tune.search import BasicVariantGenerator
from trialpod_operator.cluster import hosted as hosted_module
from trialpod_operator.cluster.hosted import HostedExperiment
from trialpod_operator.engine.actions import Action, StartAttempt, TrialCreated
from trialpod_operator.engine.events import AttemptEnded, AttemptStarted, ResultsReceived, SettingsObserved
from trialpod_operator.engine.settings import Settings
from trialpod_operator.experiment.plan import ExperimentPlan
from trialpod_operator.experiment.replica.replica import Replica
from trialpod_operator.reports.service import NotReadyError

SETTINGS = Settings(name="digits", trainable_name="train", metric="score", num_samples=2, max_concurrent=2)


class Gated(DirectoryStorage):
    """A folder whose new objects wait at a gate, or are refused."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.gate = threading.Event()
        self.gate.set()
        self.refuse = False

    def write_new(self, key: str, data: bytes) -> None:
        self.gate.wait(30)
        if self.refuse:
            raise StorageError("the storage is down")
        super().write_new(key, data)


def make_plan(_stored: object) -> ExperimentPlan:
    search = BasicVariantGenerator(seed=1)
    search.configure({"x": 1}, 2)
    return ExperimentPlan(
        settings=SETTINGS,
        search=search,
        scheduler=FIFOScheduler(),
        stopper=None,
        trainable=TrainableRef(entrypoint="train:train"),
    )


class Shell:
    """Opens the experiment and notes what it is told."""

    def __init__(self, storage: DirectoryStorage, directory: Path) -> None:
        self.actions: list[Action] = []
        self.broken: list[BaseException] = []
        self.changed = asyncio.Event()
        self.hosted = HostedExperiment.open(make_plan, directory, storage, time.time)

    def start(self) -> HostedExperiment:
        self.hosted.start(self.actions.append, self.broken.append, self.changed.set)
        return self.hosted

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self.changed.clear()
            await self.changed.wait()

    def starts(self) -> list[str]:
        return [action.trial.trial_id for action in self.actions if isinstance(action, StartAttempt)]


def results(trial_id: str, first: int, *scores: float) -> ResultsReceived:
    encoded = [
        msgspec.Raw(msgspec.msgpack.encode({"score": score, "training_iteration": first + number}))
        for number, score in enumerate(scores)
    ]
    return ResultsReceived(trial_id=trial_id, attempt=1, first=first, results=encoded)


async def within(awaitable: Awaitable[object], seconds: float = 20.0) -> None:
    await asyncio.wait_for(asyncio.ensure_future(awaitable), seconds)  # type: ignore[arg-type]


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(within_coroutine(test))


async def within_coroutine(test: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.timeout(60):
        await test()


def test_no_action_is_given_out_before_the_storage_has_its_record(tmp_path: Path) -> None:
    async def test() -> None:
        storage = Gated(tmp_path / "storage")
        shell = Shell(storage, tmp_path / "work")
        storage.gate.clear()
        hosted = shell.start()
        hosted.apply(SettingsObserved(settings=SETTINGS))
        assert hosted.committed() is not None
        await asyncio.sleep(0.05)  # whatever could happen has happened by then
        assert shell.actions == []
        storage.gate.set()
        await within(hosted.settle())
        assert [type(action) for action in shell.actions].count(TrialCreated) == 2
        assert len(shell.starts()) == 2
        assert hosted.committed() is None
        await hosted.close(complete=False)

    run(test)


def test_results_that_nobody_waits_for_are_committed_within_about_a_second(tmp_path: Path) -> None:
    async def test() -> None:
        shell = Shell(Gated(tmp_path / "storage"), tmp_path / "work")
        hosted = shell.start()
        hosted.apply(SettingsObserved(settings=SETTINGS))
        await within(hosted.settle())
        trial_id = shell.starts()[0]
        hosted.apply(AttemptStarted(trial_id=trial_id, attempt=1, pid=7))
        await within(hosted.settle())
        hosted.apply(results(trial_id, 1, 0.5, 0.6))
        answer = hosted.answer(trial_id, 1)
        assert (answer.received, answer.durable) == (2, 2)
        committed = hosted.committed()
        assert committed is not None
        await within(committed, 5.0)
        await hosted.close(complete=False)

    run(test)


def test_another_operator_goes_on_from_what_was_committed_and_from_nothing_else(tmp_path: Path) -> None:
    async def test() -> None:
        storage = Gated(tmp_path / "storage")
        shell = Shell(storage, tmp_path / "first")
        hosted = shell.start()
        hosted.apply(SettingsObserved(settings=SETTINGS))
        await within(hosted.settle())
        trial_id = shell.starts()[0]
        hosted.apply(results(trial_id, 1, 0.5))
        await within(hosted.settle())
        storage.gate.clear()
        hosted.apply(results(trial_id, 2, 0.6))  # this one the operator takes with it
        lost = hosted.committed()
        assert lost is not None
        await hosted.close(complete=False)
        with pytest.raises(NotReadyError):
            await lost

        second = Shell(DirectoryStorage(tmp_path / "storage"), tmp_path / "second").start()
        assert second.host.engine.state.trials[trial_id].current.received == 1
        second.apply(results(trial_id, 2, 0.6))
        assert second.answer(trial_id, 1).received == 2
        await within(second.settle())
        await second.close(complete=False)
        storage.gate.set()

    run(test)


def test_a_place_that_another_has_just_taken_is_looked_at_before_anything_is_written(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path / "storage")
    storage.write(".trialpod/experiment.json", b'{"version": 1, "namespace": "team"}')
    seen: list[object] = []

    def refuse(stored: Mapping[str, object] | None) -> ExperimentPlan:
        seen.append(stored)
        if stored is not None:
            raise InvalidInputError("it is another's")
        return make_plan(stored)

    with pytest.raises(InvalidInputError):
        HostedExperiment.open(refuse, tmp_path / "here", storage, time.time)
    assert seen == [None, {"version": 1, "namespace": "team"}]
    assert storage.list() == [".trialpod/experiment.json"]


def test_of_two_operators_the_one_that_comes_second_to_an_object_is_stopped_and_changes_nothing(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        storage = Gated(tmp_path / "storage")
        first = Shell(storage, tmp_path / "first")
        first.start().apply(SettingsObserved(settings=SETTINGS))
        await within(first.hosted.settle())
        trial_id = first.starts()[0]
        second = Shell(storage, tmp_path / "second")
        second.start().apply(results(trial_id, 1, 0.9))
        await within(second.hosted.settle())

        first.hosted.apply(results(trial_id, 1, 0.1))
        with pytest.raises(NotReadyError):
            await within(first.hosted.settle())
        assert len(first.broken) == 1
        with pytest.raises(NotReadyError):
            first.hosted.apply(results(trial_id, 2, 0.2))
        third = Shell(storage, tmp_path / "third").start()
        assert third.host.engine.state.trials[trial_id].value == 0.9
        for each in (first.hosted, second.hosted, third):
            await each.close(complete=False)

    run(test)


def test_while_the_storage_is_down_nothing_is_confirmed_and_afterwards_everything(tmp_path: Path) -> None:
    async def test() -> None:
        storage = Gated(tmp_path / "storage")
        shell = Shell(storage, tmp_path / "work")
        hosted = shell.start()
        storage.refuse = True
        hosted.apply(SettingsObserved(settings=SETTINGS))
        committed = hosted.committed()
        assert committed is not None
        await shell.until(lambda: bool(hosted.trouble))
        assert "the storage is down" in hosted.trouble
        assert shell.actions == []
        storage.refuse = False
        await within(committed)
        assert len(shell.starts()) == 2
        await shell.until(lambda: not hosted.trouble)
        await hosted.close(complete=False)

    run(test)


def test_a_complete_end_leaves_everything_in_the_storage(tmp_path: Path) -> None:
    async def test() -> None:
        storage = Gated(tmp_path / "storage")
        shell = Shell(storage, tmp_path / "work")
        hosted = shell.start()
        hosted.apply(SettingsObserved(settings=SETTINGS))
        await within(hosted.settle())
        for trial_id in shell.starts():
            hosted.trial_started(hosted.host.engine.state.trials[trial_id])
            hosted.apply(results(trial_id, 1, 0.5))
            hosted.apply(AttemptEnded(trial_id=trial_id, attempt=1, end=AttemptEnd(cause="completed")))
            hosted.trial_ended(hosted.host.engine.state.trials[trial_id])
        assert hosted.host.engine.finished
        assert await hosted.close(complete=True) == ""
        keys = storage.list()
        assert len([key for key in keys if key.endswith("/result.json")]) == 2
        again = Shell(storage, tmp_path / "again").hosted
        assert again.host.engine.finished
        again.host.close()

    run(test)


def test_a_log_that_comes_while_its_trial_is_copied_is_copied_too(tmp_path: Path) -> None:
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


def test_a_settled_experiment_is_let_go_although_its_last_snapshot_cannot_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        storage = Gated(tmp_path / "storage")
        shell = Shell(storage, tmp_path / "work")
        hosted = shell.start()
        hosted.apply(SettingsObserved(settings=SETTINGS))
        await within(hosted.settle())
        storage.gate.clear()
        monkeypatch.setattr(hosted_module, "CLOSE_WITHIN_S", 0.1)
        assert "not everything is copied" in await hosted.close(complete=True)
        storage.gate.set()

    run(test)
