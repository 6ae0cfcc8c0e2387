from __future__ import annotations

from pathlib import Path

import pytest

from trialpod.tune.checkpoints.reported_checkpoint import ReportedCheckpoint


def test_nothing_is_asked_until_somebody_reads_and_then_once(tmp_path: Path) -> None:
    asked: list[int] = []

    def locate() -> Path:
        asked.append(1)
        return tmp_path

    checkpoint = ReportedCheckpoint("checkpoint_000001", locate)
    assert repr(checkpoint) == "Checkpoint(name='checkpoint_000001')"
    assert asked == []
    with checkpoint.as_directory() as path:
        assert path == str(tmp_path)
    assert checkpoint.path == str(tmp_path)
    assert checkpoint.local_path == checkpoint.value == str(tmp_path)
    assert checkpoint.uri == f"file://{tmp_path}"
    assert asked == [1]
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        checkpoint.other  # noqa: B018
