"""An open experiment whose storage is a folder that can be held up, and a shell that records what it is told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from trialpod.errors import StorageError
from trialpod.protocol.messages import TrainableRef
from trialpod.storage.directory import DirectoryStorage
from trialpod.tune.schedulers import FIFOScheduler
from trialpod.tune.search import BasicVariantGenerator
from trialpod_operator.engine.actions import Action, StartAttempt
from trialpod_operator.engine.events import AnyEvent, ResultsReceived
from trialpod_operator.engine.settings import Settings
from trialpod_operator.experiment.durable import DurableExperiment, Shell
from trialpod_operator.experiment.plan import ExperimentPlan
from trialpod_operator.experiment.replica.replica import ReplicaStatus

SETTINGS = Settings(name="digits", trainable_name="train", metric="score", num_samples=2, max_concurrent=2)


class Gated(DirectoryStorage):
    """A folder whose new objects wait at a gate, or are refused. `waiting` is set once one was at a closed gate."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()
        self.refuse = False

    def write_new(self, key: str, data: bytes) -> None:
        if not self.gate.is_set():
            self.waiting.set()
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


class RecordingShell(Shell):
    """Opens the experiment and records what it is told."""

    def __init__(self, storage: DirectoryStorage, directory: Path) -> None:
        self.actions: list[Action] = []
        self.errors: list[BaseException] = []
        self.changed = asyncio.Event()
        self.experiment = DurableExperiment.open(make_plan, directory, storage, time.time)

    def start(self) -> DurableExperiment:
        self.experiment.start(self)
        return self.experiment

    def perform(self, action: Action) -> None:
        self.actions.append(action)

    def applied(self, event: AnyEvent, position: int, *, blocks: bool) -> None:
        self.changed.set()

    def replica_changed(self, status: ReplicaStatus) -> None:
        self.changed.set()

    def broken(self, error: BaseException) -> None:
        self.errors.append(error)

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


async def within(awaitable: Awaitable[object], seconds: float = 60.0) -> None:
    await asyncio.wait_for(asyncio.ensure_future(awaitable), seconds)  # type: ignore[arg-type]
