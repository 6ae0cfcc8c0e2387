"""What a process writes behind the deletion of its experiment does not stay."""

from __future__ import annotations

import itertools
import threading
from functools import partial
from pathlib import Path

import pytest
from memory_storage import MemoryStorage

from trialpod.storage.base import ConditionalWriteUnsupportedError
from trialpod.storage.journal.journal import Journal
from trialpod.storage.layout import EXPERIMENT_KEY, JOURNAL_DIR, TRIALPOD_DIR
from trialpod_operator.experiment.replica.files import FileReplica
from trialpod_operator.experiment.replica.post_delete_cleanup import IDLE_S, LATELY_S, FencedError, PostDeleteCleanup
from trialpod_operator.experiment.replica.replica import Replica


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The directory of an experiment with a trial, whose journal has one record."""
    (tmp_path / "trial_0").mkdir()
    (tmp_path / TRIALPOD_DIR).mkdir()
    (tmp_path / EXPERIMENT_KEY).write_text("{}")
    (tmp_path / "trial_0" / "params.json").write_text("{}")
    journal_of(tmp_path).append(b"one")
    return tmp_path


def journal_of(directory: Path) -> Journal:
    return Journal.open(directory / TRIALPOD_DIR / JOURNAL_DIR)


def placed(here: Path, storage: MemoryStorage, step_s: float = 0.0) -> FileReplica:
    """Return the copies of an experiment that has its place; each reading of their clock takes this time."""
    clock = partial(next, itertools.count(0.0, step_s))
    copies = FileReplica(here, storage, PostDeleteCleanup(storage, clock))
    assert copies.claim_location()
    return copies


def send(copies: FileReplica) -> None:
    copies.send([*copies.due_of_trials(["trial_0"]), *copies.due_of_experiment()], lambda: None)


def test_releasing_process_removes_what_came_late(here: Path, storage: MemoryStorage) -> None:
    replica = Replica(here, storage)
    assert not replica.pull()
    assert replica.claim_location()
    storage.delete_many(storage.list())
    copied = threading.Event()
    replica.start(lambda _: None, lambda _: None, lambda _: copied.set())
    replica.request(1, urgent=True)
    assert copied.wait(60.0)
    assert storage.list() != []
    replica.abandon()
    replica.close(10.0)
    assert storage.list() == []


@pytest.mark.parametrize("conditions", [True, False])
def test_the_mark_of_a_place_is_not_made_again(
    here: Path, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch, conditions: bool
) -> None:
    def unknown(*_: object) -> str:
        raise ConditionalWriteUnsupportedError("no such condition")

    if not conditions:
        monkeypatch.setattr(storage, "write_if", unknown)
    copies = placed(here, storage)
    storage.delete_many(storage.list())
    (here / EXPERIMENT_KEY).write_text('{"changed": true}')
    with pytest.raises(FencedError, match="was deleted meanwhile"):
        copies.send(copies.due_of_experiment(), lambda: None)
    assert storage.list() == []


def test_the_mark_of_a_place_is_replaced_while_it_is_there(here: Path, storage: MemoryStorage) -> None:
    copies = placed(here, storage)
    (here / EXPERIMENT_KEY).write_text('{"changed": true}')
    send(copies)
    assert storage.read(EXPERIMENT_KEY) == b'{"changed": true}'


def test_a_file_that_took_long_is_taken_away_at_once(here: Path, storage: MemoryStorage) -> None:
    copies = placed(here, storage, step_s=IDLE_S)
    send(copies)
    assert set(storage.list()) == {EXPERIMENT_KEY, "trial_0/params.json"}
    storage.delete_many(storage.list())
    (here / "trial_0" / "result.json").write_text('{"loss": 1}\n')
    with pytest.raises(FencedError, match="was deleted meanwhile"):
        send(copies)
    assert storage.list() == []


class Late:
    """Someone who has a place, and writes there."""

    def __init__(self, storage: MemoryStorage, *, marked: bool = True) -> None:
        self.now, self.storage = 100.0, storage
        self.objects = PostDeleteCleanup(storage, lambda: self.now)
        self.objects.marked = marked
        if marked:
            self.write(EXPERIMENT_KEY)

    def write(self, key: str) -> None:
        self.objects.write_soon(key)
        self.storage.write(key, b"x")
        self.objects.written(key)


def test_nothing_goes_while_the_experiment_is_there(storage: MemoryStorage) -> None:
    late = Late(storage)
    late.write("trial_0/params.json")
    late.objects.leave_none()
    assert set(storage.list()) == {EXPERIMENT_KEY, "trial_0/params.json"}


def test_nothing_goes_of_a_place_that_had_no_mark(storage: MemoryStorage) -> None:
    late = Late(storage, marked=False)
    late.write("trial_0/params.json")
    late.objects.leave_none()
    assert storage.list() == ["trial_0/params.json"]


def test_nothing_goes_when_only_the_mark_was_removed(storage: MemoryStorage) -> None:
    """That is not how an experiment is deleted."""
    storage.write("trial_0/checkpoint_000000/model", b"x")
    late = Late(storage)
    late.write("trial_0/params.json")
    storage.delete(EXPERIMENT_KEY)
    late.objects.leave_none()
    assert set(storage.list()) == {"trial_0/checkpoint_000000/model", "trial_0/params.json"}


def test_nothing_goes_that_was_written_long_ago(storage: MemoryStorage) -> None:
    late = Late(storage)
    late.write("trial_0/params.json")
    late.now += LATELY_S + 1.0
    late.write("trial_1/params.json")
    storage.delete(EXPERIMENT_KEY)
    late.objects.leave_none()
    assert set(storage.list()) == {"trial_0/params.json", "trial_1/params.json"}
