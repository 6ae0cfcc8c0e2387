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


class TestUnreadable:
    """A manifest, or a file, that cannot be read is damage: others are still listed, and copied."""

    @pytest.fixture(params=["damaged", "not a file"])
    def without_manifest(self, experiment: Path, request: pytest.FixtureRequest) -> Path:
        manifest = experiment / "a" / "checkpoint_000000" / ".trialpod-manifest.json"
        if request.param == "damaged":
            manifest.write_text(manifest.read_text()[:-20])
        else:
            manifest.unlink()
            manifest.mkdir()
        return experiment

    @pytest.mark.parametrize("options", [(), ("--verify",)])
    def test_manifest_is_listed_as_damaged(
        self, without_manifest: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
    ) -> None:
        assert run(checkpoints, without_manifest, *options) == 1
        text = capsys.readouterr().out
        assert text.count("checkpoint_000000 ") == 2
        assert "4 checkpoints, 6 bytes" in text
        assert "\ndamaged: " in text
        assert run(checkpoints, without_manifest, *options, "--json") == 1
        found = json.loads(capsys.readouterr().out)
        assert [(one["trial"], one["name"], one["size"]) for one in found[:2]] == [
            ("a", "checkpoint_000000", None),
            ("a", "checkpoint_000001", 2),
        ]
        assert [one["verified"] for one in found] == [False, *([True] * 3 if options else [None] * 3)]

    def test_manifest_fails_a_download_of_all(self, without_manifest: Path, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match="1 checkpoint could not be copied"):
            run(download, without_manifest, tmp_path / "to")
        assert len(list((tmp_path / "to").glob("*/checkpoint_*"))) == 3
        with pytest.raises(StorageError, match="1 checkpoint could not be copied"):
            run(download, without_manifest / "a" / "checkpoint_000000", tmp_path / "one")
        assert run(download, without_manifest / "a" / "checkpoint_000001", tmp_path / "one") == 0

    def test_manifest_in_a_bucket_is_listed_too(
        self, experiment: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(DirectoryStorage, "local_path", lambda self, key: None)
        manifest = experiment / "a" / "checkpoint_000000" / ".trialpod-manifest.json"
        manifest.write_text("{}")
        assert run(checkpoints, experiment, "--verify") == 1
        assert "damaged: checkpoint_000000 in " in capsys.readouterr().out

    def test_file_does_not_end_the_list(self, experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = experiment / "a" / "checkpoint_000000" / "sub" / "w"
        file.unlink()
        file.mkdir()
        assert run(checkpoints, experiment, "--verify") == 1
        text = capsys.readouterr().out
        assert text.count(" yes ") == 3
        assert "damaged: cannot read " in text


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
