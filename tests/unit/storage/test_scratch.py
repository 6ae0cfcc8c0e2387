from __future__ import annotations

import os
import shutil
import subprocess
import sys

from trialpod.storage.scratch import PREFIX, Scratch, remove_left_behind

HOLDER = """
import sys
from pathlib import Path
from trialpod.storage.scratch import Scratch
scratch = Scratch(Path(sys.argv[1]))
print(scratch.folder("x-"), flush=True)
sys.stdin.read()
"""


def test_a_folder_goes_with_its_content(tmp_path):
    scratch = Scratch(tmp_path)
    folder = scratch.folder("x-")
    open(os.path.join(folder, "file"), "w").close()
    scratch.remove()
    assert os.listdir(tmp_path) == []


def test_leftovers_of_killed_process_go_and_locked_ones_stay(tmp_path):
    holders = [
        subprocess.Popen(
            [sys.executable, "-c", HOLDER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    folders = [holder.stdout.readline().strip() for holder in holders]
    assert all(os.path.isdir(folder) for folder in folders)
    holders[0].kill()
    holders[0].wait()
    scratch = Scratch(tmp_path)
    assert [os.path.isdir(folder) for folder in folders] == [False, True]
    scratch.remove()
    holders[1].kill()
    holders[1].wait()
    for holder in holders:
        holder.stdin.close()
        holder.stdout.close()
    assert len(remove_left_behind(str(tmp_path))) == 1
    assert os.listdir(tmp_path) == []


def test_removal_killed_halfway_is_completed_by_the_next(tmp_path, monkeypatch):
    scratch = Scratch(tmp_path)
    open(os.path.join(scratch.folder("x-"), "file"), "w").close()
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_options: os.unlink(os.path.join(path, ".lock")))
    scratch.remove()
    assert len(os.listdir(tmp_path)) == 1
    monkeypatch.undo()
    remove_left_behind(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_folders_of_others_stay(tmp_path):
    (tmp_path / f"{PREFIX}of-somebody").mkdir()
    assert remove_left_behind(str(tmp_path)) == []
    assert remove_left_behind(str(tmp_path / "missing")) == []


def test_folders_for_another_purpose_stay(tmp_path):
    scratch = Scratch(tmp_path, "trialpod-run-")
    os.rename(scratch.path, tmp_path / "trialpod-run-elsewhere")
    os.close(scratch._lock)
    assert remove_left_behind(str(tmp_path)) == []
    assert remove_left_behind(str(tmp_path), "trialpod-run-") == ["trialpod-run-elsewhere"]


def test_half_made_leftovers_go_after_a_minute(tmp_path):
    for name in ("empty", "locked"):
        (tmp_path / f".trialpod-new-{name}").mkdir()
    (tmp_path / ".trialpod-new-locked" / ".lock").touch()
    made_at = (tmp_path / ".trialpod-new-locked").stat().st_mtime
    remove_left_behind(str(tmp_path), wall=lambda: made_at + 30.0)
    assert len(list(tmp_path.iterdir())) == 2
    remove_left_behind(str(tmp_path), wall=lambda: made_at + 90.0)
    assert list(tmp_path.iterdir()) == []


def test_process_stopped_while_making_a_folder_makes_another(tmp_path, monkeypatch):
    real, taken = os.open, []

    def open_late(path, *arguments, **options):
        if ".trialpod-new-" in str(path) and not taken:
            taken.append(path)
            os.rmdir(os.path.dirname(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", open_late)
    scratch = Scratch(tmp_path)
    assert taken
    assert [path.name for path in tmp_path.iterdir()] == [os.path.basename(scratch.path)]
    scratch.remove()
