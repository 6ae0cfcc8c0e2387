"""The examples of examples/commands in other languages and with other libraries run, with the real programs.

What is not installed is skipped with what would install it; `make test-search` has XGBoost and PyTorch Lightning.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from ctypes.util import find_library
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "commands"
SOCKEYE = ROOT / ".cache/pythons/sockeye-2.3.24"


def run(folder: Path, name: str, trials: int) -> list[list[dict[str, Any]]]:
    """Run some trials of an example, in a copy of its folder; return the results of each."""
    shutil.copytree(EXAMPLES, folder, dirs_exist_ok=True)
    here = Path(sys.executable).parent
    environ = {**os.environ, "PATH": f"{here}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    command = [
        here / "trialpod", "run", f"{name}.yaml", "--storage", "results", "--max-concurrent", "2",
        "--set", f"spec.numSamples={trials}",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{trials} trials in" in done.stdout
    files = sorted(folder.glob(f"results/{name}/*/result.json"))
    assert len(files) == trials
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


class TestLanguages:
    @pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++: apt-get install g++")
    def test_cpp(self, tmp_path: Path) -> None:
        subprocess.run(["g++", "-O2", "-o", tmp_path / "minimise", EXAMPLES / "minimise.cpp"], check=True)
        trials = run(tmp_path, "minimise", 6)
        lengths = [len(rows) for rows in trials]
        assert max(lengths) == 200
        assert min(lengths) < 200, "the scheduler ends what is behind"
        assert all(rows[-1]["training_iteration"] == rows[-1]["step"] for rows in trials)

    @pytest.mark.skipif(shutil.which("Rscript") is None, reason="needs Rscript: apt-get install r-base-core")
    def test_r(self, tmp_path: Path) -> None:
        for rows in run(tmp_path, "fit", 3):
            assert [row["training_iteration"] for row in rows] == list(range(1, 31))
            assert rows[-1]["rmse"] < rows[0]["rmse"] or rows[0]["config"]["rate"] > 0.3


class TestLibraries:
    @pytest.mark.skipif(find_spec("xgboost") is None, reason="needs XGBoost: pip install xgboost-cpu")
    def test_xgboost(self, tmp_path: Path) -> None:
        trials = run(tmp_path, "boost", 4)
        assert max(len(rows) for rows in trials) == 30
        assert all(isinstance(row["valid-logloss"], float) for rows in trials for row in rows)
        best = max(trials, key=len)[0]["trial_id"]
        assert list(tmp_path.glob(f"results/boost/*{best}*/checkpoint_*/model.json")), "the model is kept"

    @pytest.mark.skipif(find_spec("lightning") is None, reason="needs PyTorch Lightning: make test-search")
    def test_lightning(self, tmp_path: Path) -> None:
        trials = run(tmp_path, "lit", 2)
        best = max(trials, key=lambda rows: rows[-1]["accuracy"])
        assert best[-1]["accuracy"] > 0.5
        assert [row["training_iteration"] for row in best] == list(range(1, len(best) + 1))
        assert list(tmp_path.glob("results/lit/*/checkpoint_*/last.ckpt"))


class TestPublicPrograms:
    @pytest.mark.skipif(not SOCKEYE.exists(), reason="needs Sockeye: tools/cluster/command python sockeye")
    def test_sockeye_with_asha_killed_in_the_middle(self, tmp_path: Path) -> None:
        """Its training script is as PyPI has it."""
        if find_library("gomp") is None:
            pytest.skip("needs OpenMP: apt-get install libgomp1")
        shutil.copytree(EXAMPLES / "sockeye", tmp_path, dirs_exist_ok=True)
        subprocess.run([sys.executable, tmp_path / "sentences.py"], check=True)
        environ = {**os.environ, "PATH": f"{sys.base_prefix}/bin{os.pathsep}{os.environ['PATH']}"}
        command = [
            Path(sys.executable).parent / "trialpod", "run", "experiment.yaml", "--max-concurrent", "2",
            "--set", f"spec.trainable.env.PYTHONPATH={SOCKEYE}",
        ]  # fmt: skip
        with subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            for _ in running.stdout:
                if list(tmp_path.glob("trialpod-results/sockeye/*/checkpoint_*")):
                    running.kill()
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=250, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        lengths = []
        for file in tmp_path.glob("trialpod-results/sockeye/*/result.json"):
            steps = [json.loads(line)["training_iteration"] for line in file.read_text().splitlines()]
            # It prints a value before it saves its state: killed between the two, it computes that value again.
            assert sorted(set(steps)) == list(range(1, steps[-1] + 1))
            assert len(steps) - len(set(steps)) <= 1
            lengths.append(steps[-1])
        assert (len(lengths), max(lengths)) == (4, 8)
        assert min(lengths) < 8
        logs = [file.read_text() for file in tmp_path.glob("trialpod-results/sockeye/*/log.txt")]
        assert any("Resuming from saved state" in log for log in logs)

    @pytest.mark.skipif(shutil.which("darknet") is None, reason="needs darknet: apt-get install darknet")
    def test_darknet_with_asha_killed_in_the_middle(self, tmp_path: Path) -> None:
        shutil.copytree(EXAMPLES / "darknet", tmp_path, dirs_exist_ok=True)
        subprocess.run([sys.executable, tmp_path / "images.py"], check=True)
        command = [Path(sys.executable).parent / "trialpod", "run", "experiment.yaml", "--max-concurrent", "2"]
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            for line in running.stdout:
                if "2 results" in line:
                    running.kill()
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        files = tmp_path.glob("trialpod-results/darknet/*/result.json")
        lengths = []
        for rows in ([json.loads(line) for line in file.read_text().splitlines()] for file in files):
            batches = [row["training_iteration"] for row in rows]
            assert batches == list(range(1000, batches[-1] + 1, 1000))
            lengths.append(batches[-1])
        assert (len(lengths), max(lengths)) == (6, 6000)
        assert min(lengths) < 6000
