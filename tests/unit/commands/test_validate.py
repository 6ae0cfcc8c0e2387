from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from trialpod.cli.main import main

GOOD = """\
apiVersion: trialpod.dev/v1alpha1
kind: TuneExperiment
metadata: {name: digits}
spec:
  trainable: {entrypoint: "train:train"}
  searchSpace: {a: {grid_search: [1, 2, 3]}, b: {grid_search: [x, z]}, lr: {loguniform: [1e-4, 1e-1]}}
  metric: accuracy
  mode: max
  numSamples: 4
  timeBudget: 2h
  scheduler: {name: asha}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "m.yaml"
    path.write_text(GOOD)
    return path


def test_a_valid_experiment_is_one_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(file)]) == 0
    out = capsys.readouterr().out
    assert out == "digits: valid: 24 trials (grid 6 x 4 samples), scheduler asha, max accuracy, at most 2h\n"


def test_all_problems_of_all_files_are_shown(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(GOOD.replace("mode: max", "mode: maximum").replace("numSamples", "numSample"))
    assert main(["validate", str(bad), str(file)]) == 1
    captured = capsys.readouterr()
    assert captured.err.splitlines()[0] == f"{bad}: 2 problems"
    assert captured.err.count("\n  line ") == 2
    assert captured.out.startswith("digits: valid")


def test_unreadable_file_exits_2_and_others_are_checked(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "no-such-file.yaml", str(file)]) == 2
    captured = capsys.readouterr()
    assert "no-such-file.yaml: cannot be read: No such file" in captured.err
    assert captured.out.startswith("digits: valid")


def test_overrides_are_part_of_what_is_checked(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(file), "--set", "spec.numSamples=1", "--set", "metadata.name=x"]) == 0
    assert capsys.readouterr().out.startswith("x: valid: 6 trials (grid 6 x 1 sample)")
    assert main(["validate", str(file), "--set", "spec.numSamples=ten"]) == 1
    assert "--set spec.numSamples=ten" in capsys.readouterr().err
    assert main(["validate", str(file), "--set", "numSamples=1"]) == 2


def test_a_dash_is_the_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a: [")))
    assert main(["validate", "-"]) == 1
    assert capsys.readouterr().err.startswith("standard input: 1 problem\n")


def test_a_warning_leaves_the_file_valid(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(file), "--set", "spec.numSamples=-1", "--set", "spec.timeBudget=null"]) == 0
    captured = capsys.readouterr()
    assert "warning: spec.numSamples: -1 without a timeBudget" in captured.err
    assert "trials without limit" in captured.out


class TestImports:
    @pytest.mark.parametrize(
        ("command", "said"),
        [
            (
                '[pyhton3, "--lr={lr}"]',
                "spec.trainable.command: there is no program 'pyhton3'; did you mean 'python3'",
            ),
            ('[./train.sh, "--lr={lr}"]', "train.sh may not be executed: chmod +x"),
            ('[./tarin.sh, "--lr={lr}"]', "the program ./tarin.sh does not exist, seen from"),
            ('[sh, train.sh, "--lr={lr}"]', ""),
            ('["{lr}"]', ""),
        ],
    )
    def test_looks_for_the_program_of_a_command(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, said: str
    ) -> None:
        (tmp_path / "train.sh").write_text("echo loss=1\n")
        file = tmp_path / "experiment.yaml"
        space = "  searchSpace: {lr: {loguniform: [1e-4, 1e-1]}}"
        lines = [space if "searchSpace" in line else line for line in GOOD.splitlines()]
        file.write_text("\n".join(lines).replace('entrypoint: "train:train"', f"command: {command}"))
        assert main(["validate", str(file)]) == 0
        assert main(["validate", "--imports", str(file)]) == (1 if said else 0)
        assert said in capsys.readouterr().err

    def test_loads_the_trainable_on_request(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "experiment.yaml"
        file.write_text(GOOD.replace("train:train", "imported_here:trian"))
        assert main(["validate", str(file)]) == 0
        (tmp_path / "imported_here.py").write_text("print('noise')\ndef train(config): pass\n")
        assert main(["validate", "--imports", str(file)]) == 1
        said = capsys.readouterr().err
        assert "spec.trainable.entrypoint: 'imported_here'" in said
        assert "did you mean 'train'?" in said
        (tmp_path / "imported_here.py").write_text("import sys; sys.exit(3)\n")
        assert main(["validate", "--imports", str(file)]) == 1
        assert "importing 'imported_here' raised SystemExit" in capsys.readouterr().err
        (tmp_path / "imported_here.py").write_text("def trian(config): pass\n")
        assert main(["validate", "--imports", str(file)]) == 0
        assert "warning" not in capsys.readouterr().err
        (tmp_path / "imported_here.py").write_text("def trian(config): config['momentum']\n")
        assert main(["validate", "--imports", str(file)]) == 0
        assert "warning: " in (said := capsys.readouterr().err)
        assert "trian reads momentum from its config" in said


class TestFilesBesideTheManifest:
    """Read, not imported: what they tell is a warning, since an image may have other files."""

    def said(self, file: Path, capsys: pytest.CaptureFixture[str], module: str, source: str) -> str:
        (file.parent / f"{module}.py").write_text(source)
        assert main(["validate", str(file)]) == 0
        return capsys.readouterr().err

    def test_mistyped_module(self, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        said = self.said(file, capsys, "trian", "def train(config): pass")
        assert "train.py is not beside the manifest; did you mean trian:train?" in said

    def test_mistyped_function(self, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        said = self.said(file, capsys, "train", "def trian(config): pass")
        assert "train.py does not define train; did you mean trian?" in said

    def test_syntax_error(self, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert "train.py, line 1 is not valid Python" in self.said(file, capsys, "train", "def train(config:")

    def test_parameter_that_nothing_gives(self, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        said = self.said(file, capsys, "train", "def train(config): config['momentum']")
        assert "train reads momentum from its config" in said

    @pytest.mark.parametrize(
        "source",
        [
            "def train(config): pass",
            "from other import train",
            "from other import *",
            "train = 1",
            "exec('train = 1')",
            "if True:\n    def train(config): pass",
        ],
    )
    def test_nothing_to_say(self, file: Path, capsys: pytest.CaptureFixture[str], source: str) -> None:
        assert self.said(file, capsys, "train", source) == ""


def test_a_file_that_only_this_machine_has_is_warned_of(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "policy.txt").write_text('["a", "b", 5, 4, {"lr": 1}, {"lr": 2}]\n')
    replay = f"{{name: pbt_replay, parameters: {{policy_file: {tmp_path / 'policy.txt'}}}}}"
    file.write_text(GOOD.replace("{name: asha}", replay))
    assert main(["validate", str(file)]) == 0
    assert "policy_file" in (err := capsys.readouterr().err)
    assert "for kubectl apply give policy" in err
    assert main(["submit", str(file), "--dry-run", "-o", "json"]) == 0
    parameters = json.loads(capsys.readouterr().out)["spec"]["scheduler"]["parameters"]
    assert parameters == {"policy": ['["a", "b", 5, 4, {"lr": 1}, {"lr": 2}]']}
