"""Manifests whose trials are objects of another kind, on one machine: checked, and not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from trialpod.cli.main import main

MANIFEST = """\
apiVersion: trialpod.dev/v1alpha1
kind: TuneExperiment
metadata: {name: digits}
spec:
  trainable: {command: ["true", "{lr}"]}
  searchSpace: {lr: {grid_search: [1, 2]}}
  metric: loss
  mode: min
  trialResource:
    template:
      apiVersion: batch/v1
      kind: Job
      spec: {template: {spec: {containers: [{name: trial, image: "registry.example/train:1"}]}}}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "digits.yaml").write_text(MANIFEST)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_run_refuses_before_anything_is_made(
    folder: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    assert main(["run", "digits.yaml", *more]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "digits.yaml: spec.trialResource makes each trial a Job, and that needs a cluster" in said
    assert "`trialpod submit digits.yaml`" in said
    assert [each.name for each in folder.iterdir()] == ["digits.yaml"]


def test_without_the_field_trials_are_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "digits.yaml", "--set", "spec.trialResource=null", "--dry-run"]) == 0
    assert "  true 1\n" in capsys.readouterr().out


def test_validate_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "digits.yaml"]) == 0
    assert capsys.readouterr().out.startswith("digits: valid: 2 trials")
