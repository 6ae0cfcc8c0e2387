"""What the README and examples/ tell people to run does run, word by word."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRIALPOD = Path(sys.executable).with_name("trialpod")
BLOCK = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOME": str(cwd)}  # a script that names no place writes there
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture
def readme_files(tmp_path: Path) -> Path:
    """A folder with the files that the README shows."""
    for name, text in BLOCK.findall((ROOT / "README.md").read_text()):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_manifest_of_the_readme_runs(readme_files: Path) -> None:
    checked = run(TRIALPOD, "validate", "experiment.yaml", cwd=readme_files)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    done = run(TRIALPOD, "run", "experiment.yaml", cwd=readme_files)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 trials in" in done.stdout
    more = run(TRIALPOD, "run", "experiment.yaml", "--set", "spec.numSamples=40", cwd=readme_files)
    assert more.returncode == 0, more.stdout + more.stderr
    assert "40 trials in" in more.stdout
    best = run(TRIALPOD, "best", "trialpod-results/climb", cwd=readme_files)
    assert "'lr':" in best.stdout


def test_readme_script_runs_alone_and_by_trialpod_run(readme_files: Path) -> None:
    by_trialpod = run(TRIALPOD, "run", "script.py", cwd=readme_files)
    assert by_trialpod.returncode == 0, by_trialpod.stdout + by_trialpod.stderr
    assert (readme_files / "trialpod-results" / "script").is_dir()
    source = (readme_files / "script.py").read_text()
    assert source.count("metric=") == 1
    again = run(TRIALPOD, "run", "script.py", cwd=readme_files)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "20 trials in" in again.stdout


@pytest.mark.once
@pytest.mark.slow
def test_the_digits_example_trains_and_checkpoints_a_real_model(tmp_path: Path) -> None:
    manifest = str(ROOT / "examples" / "digits" / "experiment.yaml")
    done = run(TRIALPOD, "run", manifest, "--storage", str(tmp_path), "--set", "spec.numSamples=1", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 trials in" in done.stdout
    accuracy = re.search(r"with accuracy=(0\.\d+)", done.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.8
    assert list(tmp_path.glob("digits/*/checkpoint_*/model.json"))


def test_the_script_of_a_command_runs(tmp_path: Path) -> None:
    manifest = str(ROOT / "examples" / "commands" / "climb.yaml")
    done = run(TRIALPOD, "run", manifest, "--storage", str(tmp_path), "--set", "spec.numSamples=3", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 trials in" in done.stdout
    (best, *_) = tmp_path.glob("climb/*/result.json")
    assert '"step":1' in best.read_text().replace(" ", "")


def test_several_objectives_show_their_front(tmp_path: Path) -> None:
    manifest = str(ROOT / "examples" / "objectives" / "experiment.yaml")
    done = run(TRIALPOD, "run", manifest, "--storage", str(tmp_path), "--set", "spec.numSamples=8", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Pareto front (min loss (<= 0.6), min parameters):" in done.stdout
    shown = run(TRIALPOD, "best", str(tmp_path / "objectives"), "--json", cwd=tmp_path)
    best = json.loads(shown.stdout)
    losses = [each["values"]["loss"] for each in best["pareto_front"]]
    assert losses == sorted(losses)
    assert losses[0] == best["value"] <= losses[-1] <= 0.6


def test_the_script_about_objectives_prints_their_front(tmp_path: Path) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "objectives.md").read_text(), re.DOTALL)
    (tmp_path / "script.py").write_text(script)
    done = run(sys.executable, "script.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("{'width'")]
    sizes = [float(line.split()[-1]) for line in lines]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes


@pytest.mark.once
@pytest.mark.slow
def test_the_manifest_with_algorithm_auto_runs(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    pytest.importorskip("threadpoolctl")
    manifest = str(ROOT / "examples" / "auto" / "experiment.yaml")
    done = run(TRIALPOD, "run", manifest, "--storage", str(tmp_path), "--set", "spec.numSamples=5", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 trials in" in done.stdout
    budget = str(ROOT / "examples" / "auto" / "budget.yaml")
    done = run(TRIALPOD, "run", budget, "--storage", str(tmp_path), "--set", "spec.maxTrialHours=0.001", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of 0.001 trial hours left" in done.stdout
    repeats = str(ROOT / "examples" / "auto" / "repeats.yaml")
    done = run(TRIALPOD, "run", repeats, "--storage", str(tmp_path), "--set", "spec.numSamples=3", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 trials in" in done.stdout
    assert re.search(r"repeats: +mean 0\.\d+, standard deviation 0\.0\d+, n=3", done.stdout)


@pytest.mark.once
@pytest.mark.slow
def test_a_scikit_learn_script_prints_its_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{TRIALPOD.parent}{os.pathsep}{os.environ['PATH']}")
    manifest = str(ROOT / "examples" / "commands" / "train.yaml")
    done = run(TRIALPOD, "run", manifest, "--storage", str(tmp_path), "--set", "spec.numSamples=1", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"with logloss=(\d\.\d+) at iteration 20", done.stdout)
    assert found is not None
    assert float(found[1]) < 5
    assert list(tmp_path.glob("cancer/*/checkpoint_*/model.pkl"))
