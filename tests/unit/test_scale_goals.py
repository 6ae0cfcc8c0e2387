"""The table of the scale bench: goals, this run, and the last one that was stored."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

import file_module

SCALE = Path(__file__).parents[2] / "benchmarks/scale"


@pytest.fixture(scope="module")
def goals() -> ModuleType:
    return file_module.load(SCALE / "goals.py", "scale_goals")


def test_figures_stand_beside_their_goals_and_the_last_run(goals: ModuleType) -> None:
    figures = {
        "from 0 finished to half of them": {"reconcile_p99_s": 9.0},
        "to all of them": {"reconcile_p99_s": 0.05, "rss_mb": 300.0, "decision_p99_s": float("nan")},
        "calm: to all of them": {"decision_p99_s": 0.3},
    }
    last = {"commit": "0123456789", "scale": 0.1, "figures": {"to all of them": {"reconcile_p99_s": 4.5}}}
    table = goals.table(figures, last)
    assert "| reconcile p99 | 0.1 s | 0.05 s ok |  | 4.5 s |  |" in table
    assert "| operator memory | 250 MB | 300 MB **missed** |  |  |  |" in table
    assert "| decision p99 | 0.2 s |  | 0.3 s **missed** |  |  |" in table
    assert "0123456, scale 0.1" in table
    assert "nothing stored" in goals.table(figures, None)


def test_every_goal_is_a_figure_that_the_bench_prints(goals: ModuleType) -> None:
    source = (SCALE / "__main__.py").read_text()
    assert [goal.text for goal in goals.GOALS if f"{goal.figure}=" not in source] == []
    assert [goal.text for goal in goals.GOALS if goal.part not in source] == []


def test_last_run_of_the_same_scale_is_compared(goals: ModuleType, tmp_path: Path) -> None:
    assert goals.newest(1.0, folder=tmp_path) is None
    file = goals.store({"at the end": {"rss_mb": 1.0}}, {"scale": 0.1, "seconds": 8}, tmp_path)
    stored = json.loads(file.read_text())
    assert stored["machine"]["cores"] >= 1
    assert len(stored["commit"]) in (40, 0)  # 0: this tree is no clone
    assert stored["arguments"]["seconds"] == "8"
    for scale, date in ((1.0, "2020"), (0.1, "2021")):
        (tmp_path / f"{date}.json").write_text(json.dumps({"scale": scale, "date": date, "figures": {}}))
    assert goals.newest(1.0, folder=tmp_path)["date"] == "2020"
    assert goals.newest(0.1, folder=tmp_path)["figures"] == {"at the end": {"rss_mb": 1.0}}
    assert goals.newest(0.5, folder=tmp_path)["date"] == stored["date"]


def test_a_run_is_compared_with_one_of_as_many_running_trials(goals: ModuleType, tmp_path: Path) -> None:
    for date, running in (("2020", None), ("2021", 5000), ("2022", None), ("2023", 5000)):
        run = {"scale": 1.0, "date": date, "figures": {}, "arguments": {"running": running}}
        (tmp_path / f"{date}.json").write_text(json.dumps(run))
    assert goals.newest(1.0, folder=tmp_path)["date"] == "2022"
    assert goals.newest(1.0, 5000, tmp_path)["date"] == "2023"
    assert goals.newest(1.0, 10, tmp_path)["date"] == "2023"
