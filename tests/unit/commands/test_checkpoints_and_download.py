from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from trialpod.errors import InvalidInputError, StorageError
from trialpod.storage.checkpoints import open_checkpoints
from trialpod.storage.directory import DirectoryStorage
from trialpod_operator.commands import checkpoints, download


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    for trial in ("a", "b"):
        store = open_checkpoints(DirectoryStorage(tmp_path / "exp" / trial))
        for index in range(2):
            (source / "sub" / "w").write_text(f"{trial}{index}")
            store.snapshot(index, source)
            metrics = {"loss": 0.5 - index, "done": False}
            store.commit(index, iteration=index + 1, metrics=metrics, attempt=1, time=1.0)
    return tmp_path / "exp"


def run(module: Any, *arguments: object) -> int:
    parser = argparse.ArgumentParser()
    module.configure(parser)
    status = module.run(parser.parse_args([str(argument) for argument in arguments]))
    assert isinstance(status, int)
    return status


def test_the_checkpoints_of_every_trial_are_listed(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(checkpoints, experiment) == 0
    text = capsys.readouterr().out
    assert text.count("checkpoint_000001") == 2
    assert "loss=-0.5" in text
    assert "4 checkpoints, 8 bytes" in text


def test_a_single_trial_can_be_named(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(checkpoints, experiment / "a", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["trial"], one["name"], one["verified"]) for one in found] == [
        ("", "checkpoint_000000", None),
        ("", "checkpoint_000001", None),
    ]
    assert found[0]["metrics"] == {"loss": 0.5, "done": False}


def test_verifying_finds_damage_and_the_status_says_so(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (experiment / "b" / "checkpoint_000000" / "sub" / "w").write_text("xx")
    assert run(checkpoints, experiment, "--verify") == 1
    text = capsys.readouterr().out
    assert text.count(" yes ") == 3
    assert "damaged: " in text
    assert run(checkpoints, experiment, "--verify", "--json") == 1
    assert [one["verified"] for one in json.loads(capsys.readouterr().out)] == [True, True, False, True]


def test_a_place_without_checkpoints_is_an_error(tmp_path: Path) -> None:
    for module, more in ((checkpoints, []), (download, [tmp_path / "to"])):
        with pytest.raises(InvalidInputError, match="has no checkpoints"):
            run(module, tmp_path, *more)


def test_one_checkpoint_goes_directly_into_the_destination(experiment: Path, tmp_path: Path) -> None:
    assert run(download, experiment / "a" / "checkpoint_000001", tmp_path / "to") == 0
    assert [str(path.relative_to(tmp_path / "to")) for path in sorted((tmp_path / "to").rglob("*"))] == [
        "sub",
        "sub/w",
    ]
    assert (tmp_path / "to" / "sub" / "w").read_text() == "a1"


def test_the_files_go_into_the_empty_folder_that_one_is_in(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "to").mkdir()
    monkeypatch.chdir(tmp_path / "to")
    assert run(download, experiment / "a" / "checkpoint_000001", ".") == 0
    assert [path.as_posix() for path in sorted(Path().rglob("*"))] == ["sub", "sub/w"]
    assert Path("sub", "w").read_text() == "a1"


def test_a_damaged_checkpoint_leaves_an_empty_folder_empty(experiment: Path, tmp_path: Path) -> None:
    (experiment / "a" / "checkpoint_000001" / "sub" / "w").write_text("xx")
    (tmp_path / "to").mkdir()
    with pytest.raises(StorageError, match="1 checkpoint could not be copied"):
        run(download, experiment / "a" / "checkpoint_000001", tmp_path / "to")
    assert list((tmp_path / "to").iterdir()) == []


def test_a_whole_experiment_keeps_its_layout(experiment: Path, tmp_path: Path) -> None:
    assert run(download, experiment, tmp_path / "to") == 0
    assert (tmp_path / "to" / "b" / "checkpoint_000000" / "sub" / "w").read_text() == "b0"


def test_nothing_is_overwritten(experiment: Path, tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "mine").touch()
    with pytest.raises(InvalidInputError, match="not an empty folder"):
        run(download, experiment / "a" / "checkpoint_000001", tmp_path / "to")


def test_damaged_checkpoint_is_skipped_and_others_copied(experiment: Path, tmp_path: Path) -> None:
    (experiment / "b" / "checkpoint_000000" / "sub" / "w").write_text("xx")
    with pytest.raises(StorageError, match="1 checkpoint could not be copied"):
        run(download, experiment, tmp_path / "to")
    assert sorted(path.name for path in (tmp_path / "to" / "b").iterdir()) == ["checkpoint_000001"]


def test_a_checkpoint_that_is_not_there_is_named(experiment: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no whole checkpoint_000007; did you mean checkpoint_00000"):
        run(download, experiment / "a" / "checkpoint_000007", tmp_path / "to")
