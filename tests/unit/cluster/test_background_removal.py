"""Folders that go at once."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from trialpod_operator.cluster import experiment_storage
from trialpod_operator.cluster.experiment_storage import remove_in_background


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment_storage, "AFTER_S", 0.0)


def _wait() -> None:
    for thread in threading.enumerate():
        if thread.name == "trialpod-scrap":
            thread.join(60.0)


def _folder(path: Path) -> Path:
    (path / "trial").mkdir(parents=True)
    (path / "trial" / "result.json").write_text("{}")
    return path


def test_a_folder_is_gone_at_once_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "one")
    _folder(tmp_path / "other")
    remove_in_background(folder)
    assert not folder.exists()
    _wait()
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_what_a_process_had_no_time_to_remove_goes_with_the_next(tmp_path: Path) -> None:
    _folder(tmp_path / ".removed-0")
    remove_in_background(_folder(tmp_path / "one"))
    _wait()
    assert list(tmp_path.iterdir()) == []


def test_many_folders_are_removed_by_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment_storage, "AFTER_S", 0.1)
    for number in range(20):
        remove_in_background(_folder(tmp_path / str(number)))
        assert sum(thread.name == "trialpod-scrap" for thread in threading.enumerate()) <= 1
    _wait()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    remove_in_background(tmp_path / "none")
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
    remove_in_background(folder)
    _wait()
    assert list(tmp_path.iterdir()) == []
