from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from trialpod.errors import CheckpointError, NotSupportedError
from trialpod.tune.checkpoints import remote_folders
from trialpod.tune.checkpoints.checkpoint import Checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    folder = tmp_path / "c"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "w").write_text("weights")
    return Checkpoint.from_directory(folder)


def test_to_directory_copies_and_leaves_the_original(checkpoint: Checkpoint, tmp_path: Path) -> None:
    target = checkpoint.to_directory(tmp_path / "copy")
    (Path(target) / "sub" / "w").write_text("changed")
    assert (Path(checkpoint.path) / "sub" / "w").read_text() == "weights"
    assert (Path(checkpoint.to_directory()) / "sub" / "w").read_text() == "weights"


def test_as_directory_gives_a_directory_to_read_from(checkpoint: Checkpoint) -> None:
    with checkpoint.as_directory() as folder:
        assert (Path(folder) / "sub" / "w").read_text() == "weights"


def test_metadata_is_set_updated_and_travels_with_the_directory(checkpoint: Checkpoint, tmp_path: Path) -> None:
    assert checkpoint.get_metadata() == {}
    checkpoint.set_metadata({"a": 1, "b": 2})
    checkpoint.update_metadata({"b": 3})
    assert Checkpoint(checkpoint.to_directory(tmp_path / "copy")).get_metadata() == {"a": 1, "b": 3}


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    gone = Checkpoint(tmp_path / "gone")
    with pytest.raises(CheckpointError, match="gone does not exist"):
        gone.to_directory()
    with pytest.raises(CheckpointError, match="gone does not exist"):
        gone.set_metadata({})


def test_a_missing_checkpoint_elsewhere_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        remote_folders.download(f"file://{tmp_path}/none", None)
    assert os.listdir(tmp_path / "temporary") == []


def test_damaged_metadata_is_an_error(checkpoint: Checkpoint) -> None:
    (Path(checkpoint.path) / ".metadata.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        checkpoint.get_metadata()


def test_another_file_system_is_refused() -> None:
    with pytest.raises(NotSupportedError, match="filesystem"):
        Checkpoint("/x", filesystem=object())


def test_equal_directories_are_equal_checkpoints(tmp_path: Path) -> None:
    assert Checkpoint(tmp_path) == Checkpoint(str(tmp_path))
    assert len({Checkpoint(tmp_path), Checkpoint(str(tmp_path))}) == 1
