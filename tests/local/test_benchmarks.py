"""The benchmarks' workloads still run: the cheapest ones, in tiny sizes, on trialpod alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

pytestmark = [pytest.mark.local, pytest.mark.once, pytest.mark.slow]


def figures_of(script: str, folder: Path, **sizes: float | str) -> dict[str, Any]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("TRIALPOD_")}
    env |= {"BENCH_SYSTEM": "trialpod", "BENCH_SIZES": json.dumps(sizes)}
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "workloads" / script)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FIGURES ")]
    assert done.returncode == 0, done.stderr
    assert len(lines) == 1, done.stdout
    figures: dict[str, Any] = json.loads(lines[0].removeprefix("FIGURES "))
    return figures


def test_every_workload_of_the_table_has_its_script() -> None:
    listing = subprocess.run(
        [
            sys.executable,
            "-c",
            "from rows import WORKLOADS; print(*(w.script for w in WORKLOADS))",
        ],
        cwd=BENCHMARKS,
        capture_output=True,
        text=True,
        check=True,
    )
    scripts = listing.stdout.split()
    assert scripts
    assert [name for name in scripts if not (BENCHMARKS / "workloads" / name).is_file()] == []


def test_trials_with_reused_processes_are_timed(tmp_path: Path) -> None:
    assert figures_of("churn_200_reuse.py", tmp_path, trials=4)["fit_s"] > 0


def test_reports_are_timed_with_and_without_a_judge(tmp_path: Path) -> None:
    figures = figures_of("report_latency.py", tmp_path, reports=50)
    assert 0 < figures["p50_us"] <= figures["p99_us"]
    assert 0 < figures["judged_us"] <= figures["judged_p99_us"]


def test_results_are_counted_in_the_files(tmp_path: Path) -> None:
    figures = figures_of("throughput.py", tmp_path, trials=2, length_s=0.05)
    assert figures["results"] > 0
    assert figures["results_per_s"] > 0


def test_steps_of_a_class_are_timed(tmp_path: Path) -> None:
    assert figures_of("class_step.py", tmp_path, length_s=0.05)["step_us"] > 0


def test_a_population_and_asha_are_timed_against_their_steps(tmp_path: Path) -> None:
    for script, sizes in (("pbt.py", {"steps": 12}), ("asha_64.py", {"trials": 4})):
        folder = tmp_path / script
        folder.mkdir()
        figures = figures_of(script, folder, **sizes)
        assert 0 < figures["ideal_s"] < figures["fit_s"]


def test_trials_with_optuna_are_timed(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    assert figures_of("optuna_16.py", tmp_path, trials=2, length_s=0.01)["fit_s"] > 0


def test_the_killed_run_is_resumed_and_counted(tmp_path: Path) -> None:
    figures = figures_of("resume_after_kill.py", tmp_path, trials=16)
    assert figures["next_result_s"] > 0
    assert (figures["ran_again"], figures["lost"]) == (0, 0)


def checkpoint_figures(folder: Path, kind: str, count: int) -> dict[str, Any]:
    return figures_of("checkpoints.py", folder, kind=kind, count=count, scale=0.02, raw=0)


def test_large_checkpoint_is_timed_and_traffic_counted(tmp_path: Path) -> None:
    figures = checkpoint_figures(tmp_path, "one", 1)
    assert 0 < figures["blocked_s"] <= figures["committed_s"]
    assert 20 <= figures["moved_mb"] < 22


@pytest.mark.parametrize("kind", ["small", "near", "near_file"])
def test_checkpoints_of_all_kinds_are_timed(tmp_path: Path, kind: str) -> None:
    figures = checkpoint_figures(tmp_path, kind, 2)
    assert figures["later_committed_s"] > 0
    assert figures["moved_mb"] > 0


def test_the_start_is_timed(tmp_path: Path) -> None:
    figures = figures_of("startup.py", tmp_path)
    assert 0 < figures["import_s"] < figures["first_result_s"] <= figures["end_s"]
