"""An attempt that starts from another trial's checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_attempt import Link, attempt

from trialpod.protocol.messages import AttemptEnd, CheckpointInfo
from trialpod.runner.attempt import SourceLostError


def saved(folder: Path, text: str, step: int) -> CheckpointInfo:
    """Commit a checkpoint below the trial's `folder`."""
    folder.mkdir(exist_ok=True)
    source = folder.parent / "made"
    source.mkdir(exist_ok=True)
    (source / "w").write_text(text)
    made = attempt(Link(), folder)
    info = made.snapshot(str(source), {"training_iteration": step})
    made.send({"training_iteration": step}, info, False)
    made.complete(AttemptEnd(cause="completed"), 1.0)
    return info


def follower(tmp_path: Path, info: CheckpointInfo, **fields: Any) -> Any:
    values = {"attempt": 2, "checkpoint": info, "source_dir": str(tmp_path / "theirs"), "next_checkpoint_index": 3}
    return attempt(Link(), tmp_path / "ours", **{**values, **fields})


def test_other_trials_checkpoint_is_read_and_numbering_kept(tmp_path: Path) -> None:
    info = saved(tmp_path / "theirs", "theirs", 7)
    own = saved(tmp_path / "ours", "ours", 2)
    made = follower(tmp_path, info, checkpoints=[own])
    found, path = made.restore()
    assert (found.iteration, (path / "w").read_text()) == (7, "theirs")
    assert made.snapshot(str(path), {"training_iteration": 8}).index == 3
    assert (tmp_path / "ours" / own.name).is_dir()
    assert (tmp_path / "theirs" / info.name).is_dir()


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_no_other_checkpoint_will_do_when_it_is_damaged_or_gone(tmp_path: Path, damage: str) -> None:
    saved(tmp_path / "theirs", "older", 6)
    info = saved(tmp_path / "theirs", "theirs", 7)
    folder = tmp_path / "theirs" / info.name
    if damage == "missing":
        folder.rename(tmp_path / "away")
    else:
        (folder / "w").write_text("thXirs")
    with pytest.raises(SourceLostError, match="cannot be restored"):
        follower(tmp_path, info).restore()


def test_pinned_checkpoint_survives_a_start_from_scratch(tmp_path: Path) -> None:
    own = saved(tmp_path / "ours", "ours", 2)
    made = attempt(Link(), tmp_path / "ours", attempt=3, checkpoints=[], pinned=[own.name], next_checkpoint_index=1)
    assert made.restore() is None
    assert (tmp_path / "ours" / own.name).is_dir()
    unpinned = attempt(Link(), tmp_path / "ours", attempt=4, checkpoints=[], next_checkpoint_index=1)
    assert unpinned.restore() is None
    assert not (tmp_path / "ours" / own.name).exists()
