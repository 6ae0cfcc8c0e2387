from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from trialpod.errors import StorageError
from trialpod.runner.artifacts import LAST_COPY_S, ArtifactCopies
from trialpod.storage.base import StorageDeniedError, StorageUnavailableError
from trialpod.storage.directory import DirectoryStorage


class Counting(DirectoryStorage):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.put: list[str] = []
        self.unavailable = 0  # calls that fail

    def put_file(self, local: Path, key: str) -> int:
        self.put.append(key)
        if key == "refused":
            raise StorageError("no room")
        if key == "denied":
            raise StorageDeniedError("no permission")
        if self.unavailable:
            self.unavailable -= 1
            raise StorageUnavailableError("no answer")
        return super().put_file(local, key)


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Counting]:
    trial, bucket = tmp_path / "trial", tmp_path / "experiment" / "trial"
    trial.mkdir()
    bucket.mkdir(parents=True)
    return trial, Counting(bucket)


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_only_what_the_trial_wrote_itself_is_copied(places: tuple[Path, Counting]) -> None:
    trial, storage = places
    write(trial, "a.txt", "deep/er/b.txt", "deep/result.json")
    write(trial, "result.json", "progress.csv", "log.txt", "params.json", "checkpoint_000001/x")
    write(trial, ".trialpod-staging-1/y", ".command/checkpoint/model.bin")
    os.symlink("a.txt", trial / "link")
    copies = ArtifactCopies(trial, lambda: storage)
    assert copies.finish(lambda: 10.0)
    assert sorted(storage.list()) == ["a.txt", "deep/er/b.txt", "deep/result.json"]


def test_unchanged_files_are_copied_once(places: tuple[Path, Counting]) -> None:
    trial, storage = places
    write(trial, "a", "b")
    copies = ArtifactCopies(trial, lambda: storage, period_s=0.01)
    while sorted(storage.put) != ["a", "b"]:
        assert copies._thread.is_alive()
    write(trial, "c")
    (trial / "b").write_text("longer than before")
    assert copies.finish(lambda: 10.0)
    assert sorted(storage.put) == ["a", "b", "b", "c"]
    assert storage.read("b") == b"longer than before"


def test_what_cannot_be_copied_is_named_once(places: tuple[Path, Counting], caplog: pytest.LogCaptureFixture) -> None:
    trial, storage = places
    write(trial, "refused", "taken")
    copies = ArtifactCopies(trial, lambda: storage, period_s=0.01)
    while storage.put.count("refused") < 3:
        assert copies._thread.is_alive()
    with caplog.at_level(logging.WARNING):
        assert copies.finish(lambda: 10.0)
    assert storage.list() == ["taken"]
    assert caplog.text.count("no room") == 1


class TestUnavailableStorage:
    def test_delays_the_end_until_it_answers(self, places: tuple[Path, Counting]) -> None:
        trial, storage = places
        write(trial, "a", "b")
        storage.unavailable = 3
        assert ArtifactCopies(trial, lambda: storage, sleep=lambda _: None).finish(lambda: 10.0)
        assert sorted(storage.list()) == ["a", "b"]

    def test_that_denies_a_file_is_asked_once_and_keeps_the_others(
        self, places: tuple[Path, Counting], caplog: pytest.LogCaptureFixture
    ) -> None:
        trial, storage = places
        write(trial, "denied", "other")
        assert ArtifactCopies(trial, lambda: storage, sleep=lambda _: None).finish(lambda: 10.0)
        assert (storage.list(), storage.put.count("denied")) == (["other"], 1)
        assert "denied of the trial is not kept: no permission" in caplog.text

    def test_ends_the_wait_once_and_not_for_each_file(
        self, places: tuple[Path, Counting], caplog: pytest.LogCaptureFixture
    ) -> None:
        trial, storage = places
        write(trial, *(f"f{number}" for number in range(50)))
        storage.unavailable = 10_000
        now = [0.0]

        def sleep(seconds: float) -> None:
            now[0] += seconds + 60.0  # a request is retried for a minute before

        assert ArtifactCopies(trial, lambda: storage, clock=lambda: now[0], sleep=sleep).finish(lambda: 10.0)
        assert LAST_COPY_S <= now[0] < LAST_COPY_S + 100
        assert caplog.text.count("no answer") == 1


def test_nothing_is_copied_once_superseded_or_deleted(places: tuple[Path, Counting]) -> None:
    trial, storage = places
    write(trial, "a")
    assert ArtifactCopies(trial, lambda: storage, stopped=lambda: True).finish(lambda: 10.0)
    assert ArtifactCopies(trial, lambda: storage, marked=True).finish(lambda: 10.0)
    assert storage.put == []
    write(Path(storage.parent().local_path("") or ""), ".trialpod/experiment.json")
    assert ArtifactCopies(trial, lambda: storage, marked=True).finish(lambda: 10.0)
    assert storage.put == ["a"]


def test_keys_that_open_only_the_trials_folder_suffice(
    places: tuple[Path, Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Denied(DirectoryStorage):
        def exists(self, key: str) -> bool:
            raise StorageError("access denied")

    trial, storage = places
    write(trial, "a")
    above = storage.parent().local_path("") or Path()
    monkeypatch.setattr(storage, "parent", lambda: Denied(above))
    assert ArtifactCopies(trial, lambda: storage, marked=True).finish(lambda: 10.0)
    assert storage.put == ["a"]
