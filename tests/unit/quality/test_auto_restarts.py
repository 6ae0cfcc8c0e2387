"""The scheduler and the search `auto` in the engine: the same seed gives the same run, whenever it is restarted."""

from __future__ import annotations

import dataclasses
import random
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy")
pytest.importorskip("threadpoolctl")

sys.path.append(str(Path(__file__).parents[3] / "benchmarks" / "quality"))

from simulator import Conditions, Outcome, Simulation
from tasks.synthetic import synthetic_tasks
from tasks.task import Reference
from tuners.own import EPOCH, TrialpodTuner

pytestmark = pytest.mark.once

CONDITIONS = Conditions(workers=3, budget=5.0)


class Restarting(TrialpodTuner):
    """Replaces the engine after some events: by one that reads a snapshot, or that replays all records.

    Args:
        how: "snapshot" or "journal".
        after: numbers of events.
    """

    def __init__(self, how: str = "", after: frozenset[int] = frozenset()) -> None:
        super().__init__("auto", "auto", {"calibration": 4}, {"startup": 5})
        self.how, self.after = how, after

    def begin(self, problem: Any) -> None:
        self.problem, self.records = problem, []
        super().begin(problem)

    def _apply(self, event: Any, now: float) -> None:
        super()._apply(event, now)
        self.records.append((event, EPOCH + now, self.engine.choices))
        if len(self.records) in self.after:
            fresh = self.make_engine(self.problem)
            if self.how == "snapshot":
                fresh.restore(self.engine.snapshot())
            else:
                for record in self.records:
                    fresh.apply(*record)
            self.engine = fresh


def run(tuner: Restarting) -> Outcome:
    task = next(each for each in synthetic_tasks() if each.name == "divergence-branin")
    task.reference = Reference(best=0.0, median=0.1, worst=1.0, full_training_s=27.0)
    return dataclasses.replace(Simulation(task, tuner, 3, CONDITIONS).run(), decide_s=0.0)


@pytest.fixture(scope="module")
def undisturbed() -> tuple[Outcome, int]:
    """The run without a restart, and how many events it has."""
    tuner = Restarting()
    outcome = run(tuner)
    assert outcome.trials > 20
    assert outcome.resumes
    return outcome, len(tuner.records)


class TestRestart:
    @pytest.mark.parametrize("how", ["snapshot", "journal"])
    @pytest.mark.parametrize("seed", range(2))
    def test_at_some_events_changes_nothing(self, undisturbed: tuple[Outcome, int], how: str, seed: int) -> None:
        expected, events = undisturbed
        after = frozenset(random.Random(seed).sample(range(1, events + 1), 5))
        assert run(Restarting(how, after)) == expected

    def test_after_every_single_event_changes_nothing(self, undisturbed: tuple[Outcome, int]) -> None:
        expected, events = undisturbed
        assert run(Restarting("snapshot", frozenset(range(1, events + 1)))) == expected
