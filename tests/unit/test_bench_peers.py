"""The benchmark of the peers: what trials' records say, and the table, in which the peers' wins come first."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import file_module

PEERS = Path(__file__).parents[2] / "benchmarks/peers"

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def records() -> ModuleType:
    return file_module.load(PEERS / "records.py", "peers_records")


@pytest.fixture(scope="module")
def report() -> ModuleType:
    return file_module.load(PEERS / "report.py", "peers_report")


def written(folder: Path, name: str, trial: str, began: float, steps: int, *, ended: bool = True) -> None:
    lines: list[dict[str, Any]] = [{"at": began, "trial": trial, "x": 0.5, "begin": True}]
    lines += [{"at": began + step, "step": step} for step in range(1, steps + 1)]
    lines += [{"at": began + steps, "end": True}] if ended else []
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


class TestRecords:
    def test_trials_write_what_is_read(self, records: ModuleType, tmp_path: Path) -> None:
        names: dict[str, Any] = {}
        exec(records.SOURCE.replace(records.PLACE, str(tmp_path)), names)
        reported: list[float] = []
        names["steps_of"]("one", 0.5, 4, 0.0, reported.append)
        (ran,) = records.read(tmp_path)
        assert (ran.trial, [step for step, _ in ran.steps], ran.ended) == ("one", [1, 2, 3, 4], True)
        assert reported == [0.125, 0.25, 0.375, 0.5]

    def test_trial_of_two_processes_ran_twice(self, records: ModuleType, tmp_path: Path) -> None:
        written(tmp_path, "a", "one", 10.0, 2, ended=False)
        written(tmp_path, "b", "one", 20.0, 4)
        written(tmp_path, "c", "two", 21.0, 4)
        found = records.account(records.read(tmp_path))
        assert (found.trials, found.steps, found.ran_twice, found.steps_repeated) == (2, 10, 1, 2)
        assert (found.most_at_once, found.same_parameters) == (2, 1)

    def test_a_line_that_was_cut_off_is_left_out(self, records: ModuleType, tmp_path: Path) -> None:
        written(tmp_path, "a", "one", 10.0, 2, ended=False)
        with open(tmp_path / "a.jsonl", "a") as file:
            file.write('{"at": 13.0, "st')
        (ran,) = records.read(tmp_path)
        assert (len(ran.steps), ran.ended, ran.last) == (2, False, 12.0)


def system(title: str, **figures: Any) -> dict[str, Any]:
    fault = {
        "ended": True, "state": "Succeeded {}", "after_fault_s": 4.0, "took_s": 9.0, "trials": 24, "with_result": 23,
        "finished_before_and_lost": 1, "finished_before_and_run_again": 2, "ran_twice": 3, "steps_repeated": 5,
    }  # fmt: skip
    return {
        "title": title,
        "versions": {title: "v1"},
        "experiments": {"30": figures},
        "failures": {"kill -9: controller": fault},
    }


class TestReport:
    def test_wins_of_peers_come_first(self, report: ModuleType) -> None:
        systems = {
            "trialpod": system("trialpod", end_s=20.0, requests_own=6.0),
            "katib": system("Katib", end_s=30.0, requests_own=5.0),
            "kuberay": system("Ray", end_s=40.0, requests_own=7.0),
        }
        lines = report.render({"machine": "one", "systems": systems}).splitlines()
        first = lines.index(
            "Katib is better in: API requests of its own parts, for each trial with 30 trials: 5 against 6."
        )
        assert lines[first + 1] == "Ray is better in: nothing that was measured."
        assert first < lines.index("| 30 | apply to the end, s | 20 | 30 | 40 |")

    def test_what_was_lost_stands_in_its_row(self, report: ModuleType) -> None:
        assert (
            "| Katib | kill -9: controller | yes: Succeeded | 4 | 23 of 24 | 1 | 2 | 3 | 5 |"
            in report.lost({"katib": system("Katib")}).splitlines()
        )

    def test_an_experiment_that_did_not_end_wins_nothing(self, report: ModuleType) -> None:
        systems = {
            "trialpod": system("trialpod", end_s=20.0),
            "katib": system("Katib", end_s=3.0, problem="not within 5 s"),
        }
        assert report.wins(systems) == "Katib is better in: nothing that was measured."
        assert "did not end: not within 5 s" in report.measured(systems)
