"""Folders that go at once."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from trialpod_operator.cluster import experiment_storage
from trialpod_operator.cluster.experiment_storage import FolderRemoval

_before: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def _other_threads() -> None:
    _before.clear()
    _before.update(threading.enumerate())  # other tests' operators may still remove folders of theirs


def _removing() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "trialpod-scrap" and each not in _before]


def _wait() -> None:
    for thread in _removing():
        thread.join(60.0)


def _folder(path: Path) -> Path:
    (path / "trial").mkdir(parents=True)
    (path / "trial" / "result.json").write_text("{}")
    return path


def test_a_folder_is_gone_at_once_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "one")
    _folder(tmp_path / "other")
    FolderRemoval()(folder)
    assert not folder.exists()
    _wait()
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_what_a_process_had_no_time_to_remove_goes_with_the_next(tmp_path: Path) -> None:
    _folder(tmp_path / ".removed-0")
    FolderRemoval()(_folder(tmp_path / "one"))
    _wait()
    assert list(tmp_path.iterdir()) == []


def test_many_folders_are_removed_by_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment_storage, "AFTER_S", 0.1)
    remove = FolderRemoval()
    for number in range(20):
        remove(_folder(tmp_path / str(number)))
        assert len(_removing()) == 1
    _wait()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    FolderRemoval()(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_emptied_meanwhile_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread removes the folder whose place was wanted between the attempt to take that and the next one."""
    folder, taken = _folder(tmp_path / "one"), _folder(tmp_path / ".removed-0")
    real = os.rename

    def rename(source: Path, target: Path) -> None:
        try:
            real(source, target)
        finally:
            if target == taken and taken.exists():
                shutil.rmtree(taken)

    monkeypatch.setattr(os, "rename", rename)
    FolderRemoval()(folder)
    _wait()
    assert list(tmp_path.iterdir()) == []
