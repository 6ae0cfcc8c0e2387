from __future__ import annotations

from typing import Any

import pytest

from trialpod.tune.schedulers.async_hyperband import AsyncHyperBandScheduler
from trialpod_operator.engine.choices import Decision
from trialpod_operator.engine.reasons import explain, sentence

ASHA = {
    "source": "scheduler", "scheduler": "async_hyperband", "rule": "rung", "bracket": 0, "rung": 3.0, "mode": "min",
    "time_attr": "training_iteration", "time": 3, "metric": "loss", "value": 0.91234, "cutoff": 0.5, "rank": 8,
    "compared": 9,
}  # fmt: skip


def test_a_decision_is_reported_with_its_evidence() -> None:
    told = sentence(Decision(0.0, "stop", 1, 3, ASHA))
    assert told == (
        "stopped at iteration 3: async_hyperband: loss=0.9123 at training_iteration 3 is above the cutoff 0.5 of "
        "that rung (rank 8 of 9)"
    )


def test_what_asha_says_today_is_understood() -> None:
    scheduler = AsyncHyperBandScheduler(metric="score", mode="max", max_t=9, grace_period=1, reduction_factor=3)

    class View:
        status, config, last_result, checkpoint, tag = "RUNNING", {}, {}, None, ""

        def __init__(self, trial_id: str) -> None:
            self.trial_id = trial_id

    for number, score in enumerate((5.0, 1.0)):
        view: Any = View(f"t{number}")
        scheduler.on_trial_add(None, view)  # type: ignore[arg-type]
        scheduler.on_trial_result(None, view, {"training_iteration": 1, "score": score})  # type: ignore[arg-type]
    assert explain({"source": "scheduler", **scheduler.reason()}) == (
        "async_hyperband: score=1 at training_iteration 1 is below the cutoff 5 of that rung (rank 2 of 2)"
    )


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ({}, ""),
        ({"source": "user"}, "asked for by the user"),
        ({"source": "time_budget", "seconds": 60.0}, "the time budget of 60 s is used up"),
        (
            {"source": "budget", "budget": "maxGpuHours", "of": "GPU", "hours": 4.0, "used": 4.01},
            "the budget of 4 GPU hours is used up",
        ),
        ({"source": "budget", "hours": 2.5, "of": "cpu"}, "the budget of 2.5 cpu hours is used up"),
        ({"source": "fail_fast", "trial_id": "t7"}, "trial t7 failed, and failFast is set"),
        ({"source": "stopper", "stopper": "maximum_iteration", "max_iter": 5},
         "it reported 5 results, as many as the stopper allows"),
        ({"source": "stopper", "stopper": "mine", "a": 1}, "the stopper mine: a=1"),
        ({"source": "scheduler", "scheduler": "mine", "rule": "my_rule", "a": 0.123456},
         "mine by the rule my rule: a=0.1235"),
        ({"source": "plug_in", "b": [1]}, "plug in: b=[1]"),
        ({"source": "failure", "error": "ValueError: no", "failures": 2, "max_failures": -1},
         "ValueError: no (failure 2; without limit)"),
        ({"source": "lost", "error": "SIGKILL"}, "its process was lost (SIGKILL)"),
        ({"source": "resources", "resources": {"cpu": 2.0}}, "the scheduler gives it other resources: cpu 2"),
    ],
)  # fmt: skip
def test_unknown_evidence_is_shown_verbatim(reason: dict[str, Any], told: str) -> None:
    assert explain(reason) == told


def test_an_exploit_names_whom_it_follows_and_from_where() -> None:
    reason = {"source": "scheduler", "scheduler": "pbt", "source_trial": "t3", "from": "t3",
              "checkpoint": "checkpoint_000004", "from_iteration": 25}  # fmt: skip
    assert sentence(Decision(0.0, "exploit", 2, 20, reason)) == (
        "reset to t3's checkpoint_000004 (iteration 25) at iteration 20: pbt"
    )
