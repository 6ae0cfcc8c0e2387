"""`trialpod check-metrics`: what is recognised in a sample of output."""

from __future__ import annotations

from pathlib import Path

import pytest

from trialpod.cli.main import main

MANIFEST = """
apiVersion: trialpod.dev/v1alpha1
kind: TuneExperiment
metadata: {name: digits}
spec:
  trainable: {command: [train, "{lr}"], metricsFrom: {step: epoch}}
  searchSpace: {lr: {uniform: [0, 1]}}
  metric: loss
  mode: min
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The output of three epochs, without an end of its last line."""
    path = tmp_path / "log"
    path.write_bytes(
        b"starts at 12:30:05\nepoch=2\nacc=0.5 loss=0.3\nepoch=4 loss=nan\nepoch=6 \x1b[1mloss=0.1\x1b[0m"
    )
    return path


class TestRecognisedResults:
    def test_each_result_has_its_line_and_iteration(self, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["check-metrics", str(log), "--metric", "loss", "--step", "epoch"]) == 0
        first, second, third, *_ = capsys.readouterr().out.splitlines()
        assert first == "line 3: iteration 2: epoch=2 acc=0.5 loss=0.3"
        assert second == "line 4: iteration 4: epoch=4 loss=nan"
        assert third == "line 5: iteration 6: epoch=6 loss=0.1"

    def test_a_manifest_says_what_to_look_for(
        self, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        manifest = tmp_path / "experiment.yaml"
        manifest.write_text(MANIFEST)
        assert main(["check-metrics", str(log), "-f", str(manifest)]) == 0
        assert "iteration 6: epoch=6 loss=0.1" in capsys.readouterr().out

    def test_long_output_is_summarised(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        log = tmp_path / "long"
        log.write_text("".join(f"loss={step}\n" for step in range(1000)))
        assert main(["check-metrics", str(log)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[10:12] == ["... 989 more ...", "line 1000: iteration 1000: loss=999"]
        assert lines[13].startswith("1000 lines, 1000 results; looked for ")


class TestNothingFound:
    def test_what_there_was_instead_is_named(self, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["check-metrics", str(log), "--metric", "lss"]) == 1
        assert "'lss' was not found; did you mean 'loss'?" in capsys.readouterr().out

    def test_a_missing_log_is_an_error(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["check-metrics", str(tmp_path / "none")]) == 2
        assert "cannot read" in capsys.readouterr().err
