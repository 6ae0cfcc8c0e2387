from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import yaml

from trialpod.errors import InvalidInputError
from trialpod_operator.commands.init import FILES, command, write_example


def init(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.configure(parser)
    return command.run(parser.parse_args(arguments))


def test_it_writes_three_files_and_names_the_next_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "my first"
    assert init(str(target)) == 0
    assert sorted(path.name for path in target.iterdir()) == sorted(FILES)
    assert capsys.readouterr().out.endswith(f"\nnext: cd '{target}' && trialpod run experiment.yaml\n")


def test_here_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert init() == 0
    assert capsys.readouterr().out == (
        "wrote train.py\nwrote experiment.yaml\nwrote README.md\n\nnext: trialpod run experiment.yaml\n"
    )


def test_a_file_in_the_way_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("mine")
    with pytest.raises(InvalidInputError, match=r"already has train\.py; nothing was written.*--force"):
        init(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    assert (tmp_path / "train.py").read_text() == "mine"


def test_the_example_of_a_command_runs_without_trialpod(tmp_path: Path) -> None:
    import subprocess
    import sys

    assert init(str(tmp_path), "--command") == 0
    manifest = yaml.safe_load((tmp_path / "experiment.yaml").read_text())["spec"]
    assert manifest["trainable"]["command"][:2] == ["python", "train.py"]
    arguments = [sys.executable, "-I", "train.py", "--lr", "0.1", "--epochs", "3"]
    printed = subprocess.run(arguments, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert [line.split()[0] for line in printed.splitlines()] == ["epoch=1", "epoch=2", "epoch=3"]
    assert "import trialpod" not in (tmp_path / "train.py").read_text()


def test_force_overwrites(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("mine")
    assert init(str(tmp_path), "--force") == 0
    assert "tune.report" in (tmp_path / "train.py").read_text()


def test_unwritable_folder_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInputError, match="cannot write"):
        init(str(tmp_path / "file" / "below"))


def test_the_manifest_names_the_function_in_the_script(tmp_path: Path) -> None:
    write_example(tmp_path, force=False)
    manifest = yaml.safe_load((tmp_path / "experiment.yaml").read_text())
    module, _, function = manifest["spec"]["trainable"]["entrypoint"].partition(":")
    assert f"def {function}(" in (tmp_path / f"{module}.py").read_text()


def test_the_example_learns_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import contextlib
    import shutil
    import sys
    import types

    reported: list[float] = []
    kept = tmp_path / "kept"

    class Folder:
        def __init__(self, path: Path) -> None:
            self.path = path

        @classmethod
        def from_directory(cls, path: str) -> Folder:
            return cls(Path(path))

        def as_directory(self) -> Any:
            return contextlib.nullcontext(str(self.path))

    def report(metrics: dict[str, float], checkpoint: Folder) -> None:
        reported.append(metrics["accuracy"])
        shutil.copytree(checkpoint.path, kept, dirs_exist_ok=True)

    fake = types.ModuleType("trialpod.tune")
    vars(fake).update(
        report=report, Checkpoint=Folder, get_checkpoint=lambda: Folder(kept) if kept.exists() else None
    )
    monkeypatch.setitem(sys.modules, "trialpod.tune", fake)
    monkeypatch.setattr("trialpod.tune", fake, raising=False)
    write_example(tmp_path, force=False)
    spec = importlib.util.spec_from_file_location("example_train", tmp_path / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = {"lr": 0.1, "momentum": 0.5, "degree": 2, "epochs": 4}
    module.train(config)
    assert len(reported) == 4
    assert reported[-1] > 0.8
    module.train({**config, "epochs": 6})
    assert len(reported) == 6
