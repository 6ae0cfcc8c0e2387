from __future__ import annotations

import io

import msgspec
import pytest

from trialpod.protocol.messages import CheckpointInfo
from trialpod_operator.display.engine_view import NOTICE_INTERVAL_S, TrialDetails, build_row
from trialpod_operator.display.line_budget import MAX_BURST
from trialpod_operator.display.plain import PlainDisplay
from trialpod_operator.engine.actions import DecisionMade, ResultsApplied
from trialpod_operator.engine.trial import Trial

TRIAL = Trial(
    trial_id="ab12c_00003", index=3, tag="3", params=msgspec.msgpack.encode({}), created_at=0.0, iteration=7
)
CHECKPOINT = CheckpointInfo(name="checkpoint_000002", index=2, iteration=7, metrics={}, attempt=1)
RESULT = {"loss": 0.25, "time_total_s": 1.5, "training_iteration": 7}


class Run:
    def __init__(self, verbose: int) -> None:
        self.time = 0.0
        self.out = io.StringIO()
        display = PlainDisplay(self.out, verbose=verbose, now=lambda: 0.0)
        self.details = TrialDetails(display, "/exp", lambda trial: f"f_{trial.trial_id}", now=lambda: self.time)
        self.details.action(ResultsApplied(TRIAL, 1, [RESULT]))
        self.details.action(DecisionMade(TRIAL, "stop", {"source": "user"}))
        self.details.committed(TRIAL, [CHECKPOINT])

    @property
    def lines(self) -> list[str]:
        return [line.partition("] ")[2] for line in self.out.getvalue().splitlines()]


class TestDetail:
    def test_at_1_results_with_their_own_values(self) -> None:
        assert Run(1).lines == ["ab12c_00003 iteration 7: loss=0.25"]

    def test_at_2_all_values_decisions_and_checkpoints(self) -> None:
        first, second, third = Run(2).lines
        assert first == "ab12c_00003 iteration 7: loss=0.25, time_total_s=1.5"
        assert second.startswith("ab12c_00003 stopped at iteration 7")
        assert third == "ab12c_00003 checkpoint_000002 of iteration 7 is complete"

    @pytest.mark.parametrize("last", [False, True])
    def test_a_flood_is_bounded_and_counted(self, last: bool) -> None:
        run = Run(1)
        run.details.action(ResultsApplied(TRIAL, 1, [RESULT] * (MAX_BURST + 9)))
        run.time += 0 if last else NOTICE_INTERVAL_S
        run.details.poll(last=last)
        assert len(run.lines) == MAX_BURST + 1
        assert run.lines[-1] == "10 results not shown: /exp/*/result.json"


def test_silence_of_a_starting_trial_counts_from_its_start() -> None:
    trial = Trial(trial_id="a", index=0, tag="a", params=msgspec.msgpack.encode({}), created_at=1_000_000.0)
    trial.start_attempt(1_000_100.0)
    assert build_row(trial, path="/e/a", name="a", now=1_000_130.0).silent_s == 30.0
    trial.record_progress(1_000_125.0)
    assert build_row(trial, path="/e/a", name="a", now=1_000_130.0).silent_s == 5.0
