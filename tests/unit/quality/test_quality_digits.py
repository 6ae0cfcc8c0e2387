"""The real check of tuning quality: what an experiment has found when it has used so much processor time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks" / "quality"))

from digits import EPOCHS, mean_and_spread, reports, returned

pytestmark = pytest.mark.once


def row(trial: str, time: float, epoch: int, cpu_s: float, accuracy: float) -> dict[str, object]:
    return {
        "trial_id": trial,
        "timestamp": time,
        "training_iteration": epoch,
        "cpu_s": cpu_s,
        "accuracy": accuracy,
        "config": {"name": trial},
    }


class TestEqualProcessorTime:
    RESULTS = (
        [row("a", 1, 1, 2.0, 0.5), row("a", 3, 2, 3.0, 0.9), row("a", 9, EPOCHS, 1.5, 0.6)],  # resumed for the last
        [row("b", 2, 1, 4.0, 0.7)],
    )

    def test_a_process_that_continues_a_trial_counts_from_its_start(self):
        found = reports([*self.RESULTS])
        assert [(each.trial, each.cpu_s) for each in found] == [("a", 2.0), ("b", 4.0), ("a", 1.0), ("a", 1.5)]

    @pytest.mark.parametrize(
        ("cpu_s", "best", "accuracy", "trials", "full"),
        [(2.0, "a", 0.5, 1, 0), (6.9, "b", 0.7, 2, 0), (7.0, "a", 0.9, 2, 0), (8.5, "b", 0.7, 2, 1)],
    )
    def test_the_latest_accuracy_within_it_decides(self, cpu_s, best, accuracy, trials, full):
        assert returned(reports([*self.RESULTS]), cpu_s) == ({"name": best}, accuracy, trials, full)


def test_the_spread_of_one_seed_is_none() -> None:
    assert mean_and_spread([0.9, 0.8, 1.0]) == "0.9000 ± 0.1000 (n=3)"
    assert mean_and_spread([0.9]) == "0.9000 ± 0.0000 (n=1)"
