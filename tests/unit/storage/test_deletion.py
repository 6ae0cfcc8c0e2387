from __future__ import annotations

import pytest
from memory_storage import MemoryStorage, unavailable

from trialpod.storage.base import StorageUnavailableError
from trialpod.storage.deletion import Deletion, delete_experiment
from trialpod.storage.directory import DirectoryStorage


def test_all_of_an_experiment_goes_and_nothing_else():
    storage = MemoryStorage({f"exp/trial/{number}": b"x" for number in range(2500)} | {"exp2/a": b"", "other": b""})
    assert delete_experiment(storage.sub("exp"), lambda: 60.0) == Deletion(2500, done=True)
    assert set(storage.values) == {"exp2/a", "other"}


def test_out_of_time_it_stops_and_continues_with_the_next_call():
    storage = MemoryStorage({f"exp/{number}": b"x" for number in range(2500)})
    experiment = storage.sub("exp")
    found = [delete_experiment(experiment, lambda: 0.0) for _ in range(4)]
    assert found == [Deletion(1000, False), Deletion(1000, False), Deletion(500, True), Deletion(0, True)]


def test_what_was_listed_stays_when_another_may_delete_it():
    storage = MemoryStorage({"exp/a": b"x"})
    aborted: list[str] = []
    storage.before = lambda name, key: aborted.append(key) if name == "abort_uploads" else None
    experiment = storage.sub("exp")
    assert delete_experiment(experiment, lambda: 60.0, lambda: False) == Deletion(0, done=False)
    assert set(storage.values) == {"exp/a"}
    answers = iter([True, False])
    assert delete_experiment(experiment, lambda: 60.0, lambda: next(answers)) == Deletion(1, done=False)
    assert aborted == []


def test_a_storage_that_cannot_be_reached_is_said():
    storage = MemoryStorage({"exp/a": b""})
    storage.before = unavailable
    with pytest.raises(StorageUnavailableError):
        delete_experiment(storage.sub("exp"), lambda: 60.0)


def test_a_folder_is_emptied(tmp_path):
    storage = DirectoryStorage(tmp_path)
    storage.write("a/b/c", b"x")
    storage.write("d", b"x")
    assert delete_experiment(storage, lambda: 60.0) == Deletion(2, done=True)
    assert storage.list() == []


def test_what_tells_whose_the_place_is_goes_last():
    mark = ".trialpod/experiment.json"
    storage = MemoryStorage({f"exp/{number}": b"x" for number in range(2500)} | {f"exp/{mark}": b"{}"})
    experiment = storage.sub("exp")
    left = [0] * 4
    for turn in range(4):
        delete_experiment(experiment, lambda: 0.0)
        left[turn] = len(storage.values)
        assert (f"exp/{mark}" in storage.values) == (turn < 3)
    assert left == [1502, 503, 1, 0]


def test_another_experiment_that_begins_there_stays():
    mark = ".trialpod/experiment.json"
    storage = MemoryStorage({"exp/trial/result.json": b"x", f"exp/{mark}": b"mine"})
    foreign = {f"exp/{mark}": b"of another", "exp/.trialpod/journal": b"x"}

    def begin(name, key):
        if (name, key) == ("delete", mark):
            storage.values.update(foreign)

    experiment = storage.sub("exp")
    experiment.after = begin
    found = delete_experiment(experiment, lambda: 60.0, is_own=lambda stored: stored == b"mine")
    assert found.done
    assert storage.values == foreign


def test_a_version_is_deleted_only_while_it_is_there(tmp_path):
    for storage in (MemoryStorage(), DirectoryStorage(tmp_path)):
        first = storage.write_if("key", b"one", None)
        second = storage.write_if("key", b"two", first)
        storage.delete_if("key", first)
        assert storage.read("key") == b"two"
        storage.delete_if("key", second)
        storage.delete_if("key", second)
        assert not storage.exists("key")
