from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from trialpod_operator.engine.trial import Trial
from trialpod_operator.experiment import trial_files
from trialpod_operator.experiment.trial_files import TrialFiles

TRIAL = Trial(
    trial_id="a_00000", index=0, tag="0_x=1", params=msgspec.msgpack.encode({"x": 1}), created_at=1_700_000_000.0
)
RESULT = {"loss": 1.0, "training_iteration": 1, "timestamp": 1_700_000_001}


def written(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*/events.out.tfevents.*"))


@pytest.fixture(autouse=True)
def checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_files, "crc32c", lambda: lambda data: len(data))


def run(directory: Path, host: str, resumed: dict[str, dict[str, int]] | None = None) -> dict[str, dict[str, int]]:
    files = TrialFiles(directory, "train", host=host)
    files.resumed = resumed or {}
    files.create(TRIAL)
    files.append(TRIAL, [RESULT])
    offsets = files.offsets()
    files.close()
    return offsets


def test_a_trial_that_continues_elsewhere_keeps_its_event_file(tmp_path: Path) -> None:
    offsets = run(tmp_path, "first")
    run(tmp_path, "second", offsets)
    assert written(tmp_path) == ["events.out.tfevents.1700000000.first"]


def test_moved_trial_leaves_no_second_event_file(tmp_path: Path) -> None:
    run(tmp_path, "first")
    (users,) = tmp_path.iterdir()
    (users / "events.out.tfevents.1600000000.mine").write_bytes(b"the user's own")
    run(tmp_path, "second")
    assert written(tmp_path) == ["events.out.tfevents.1600000000.mine", "events.out.tfevents.1700000000.second"]


def test_operators_on_different_hosts_write_one_event_file(tmp_path: Path) -> None:
    names = []
    for host in ("first", "second"):
        files = TrialFiles(tmp_path / host, "train", host=host, fetch=lambda _keys: None)
        files.create(TRIAL, replayed=host == "second")
        files.append(TRIAL, [RESULT])
        files.arrived(files.absent())
        files.close()
        names += written(tmp_path / host)
    assert names == ["events.out.tfevents.1700000000.trialpod"] * 2


def test_without_the_package_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_files, "crc32c", lambda: None)
    run(tmp_path, "first")
    assert written(tmp_path) == []
