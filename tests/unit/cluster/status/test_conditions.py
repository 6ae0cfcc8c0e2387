"""Conditions: when their times change, and what programs that know only the conventions make of them."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_objects import NOW, Run, at
from kstatus import verdict

from trialpod_operator.api import status_models
from trialpod_operator.cluster.status.build import experiment_status
from trialpod_operator.cluster.status.conditions import Observation, Problem, set_condition, update_conditions
from trialpod_operator.engine import events


def _ready(status: str, reason: str = "Running") -> Observation:
    return Observation("Ready", status, reason, "words")  # type: ignore[arg-type]


def test_the_transition_time_changes_only_with_the_status() -> None:
    first = set_condition([], _ready("False", "Starting"), generation=1, now=NOW)
    assert first[0]["lastTransitionTime"] == at()
    second = set_condition(first, _ready("False", "QuotaExceeded"), generation=2, now=NOW + 60)
    assert (second[0]["lastTransitionTime"], second[0]["reason"]) == (at(), "QuotaExceeded")
    assert second[0]["observedGeneration"] == 2
    third = set_condition(second, _ready("True"), generation=2, now=NOW + 90)
    assert third[0]["lastTransitionTime"] == at(90)
    assert first[0]["reason"] == "Starting"


def test_conditions_of_others_stay_and_ours_that_are_over_go() -> None:
    before = [
        {"type": "example.com/Seen", "status": "True", "reason": "R", "message": "", "lastTransitionTime": at()},
        {"type": "Stalled", "status": "True", "reason": "R", "message": "", "lastTransitionTime": at()},
    ]
    found = update_conditions(before, [_ready("True")], generation=1, now=NOW)
    assert [condition.type for condition in found] == ["Ready", "example.com/Seen"]


def _finished(**changes: Any) -> Run:
    run = Run(1, **changes)
    run.result(0, 0.5)
    return run


def _states() -> dict[str, tuple[Run | None, dict[str, Any]]]:
    waiting = status_models.Waiting(reason="Queued", message="in a queue", count=3)
    running, suspending, suspended, stopping = Run(), Run(), Run(), Run()
    suspending.apply(events.SuspendRequested())
    suspended.apply(events.SuspendRequested())
    for index in range(3):
        suspended.end(index, "paused")
    stopping.apply(events.StopRequested())
    good, bad, stopped = _finished(), _finished(), _finished()
    good.end(0)
    bad.end(0, "failed", "boom")
    stopped.apply(events.StopRequested())
    stopped.end(0, "stopped")
    return {
        "starting": (None, {}),
        "running": (running, {}),
        "some wait": (running, {"waiting": waiting, "held": 2}),
        "all wait": (running, {"waiting": waiting}),
        "storage away": (running, {"problem": Problem(reason="StorageUnavailable", message="m")}),
        "suspending": (suspending, {}),
        "suspended": (suspended, {}),
        "stopping": (stopping, {}),
        "succeeded": (good, {}),
        "failed": (bad, {}),
        "stopped": (stopped, {}),
        "invalid": (None, {"problem": Problem(reason="InvalidSpec", message="spec.x: no", stalled=True)}),
    }


EXPECTED = {
    "starting": ("InProgress", "Starting", {"Ready": "False"}),
    "running": ("Current", "Running", {"Ready": "True"}),
    "some wait": ("Current", "Running", {"Ready": "True"}),
    "all wait": ("InProgress", "Queued", {"Ready": "False"}),
    "storage away": ("InProgress", "StorageUnavailable", {"Ready": "False"}),
    "suspending": ("Current", "Suspending", {"Ready": "True", "Suspended": "False"}),
    "suspended": ("Current", "Suspended", {"Ready": "True", "Suspended": "True"}),
    "stopping": ("Current", "Stopping", {"Ready": "True"}),
    "succeeded": ("Current", "Succeeded", {"Ready": "True", "Succeeded": "True"}),
    "failed": ("Failed", "Failed", {"Ready": "False", "Stalled": "True", "Failed": "True"}),
    "stopped": ("Current", "Stopped", {"Ready": "True", "Succeeded": "True"}),
    "invalid": ("Failed", "InvalidSpec", {"Ready": "False", "Stalled": "True"}),
}


@pytest.mark.parametrize("state", EXPECTED)
def test_every_state_has_its_conditions_and_the_right_verdict(state: str) -> None:
    run, more = _states()[state]
    status = experiment_status(run.engine if run else None, name="digits", generation=2, now=NOW, **more)
    conditions = {condition["type"]: condition for condition in status["conditions"]}
    found = verdict({"metadata": {"generation": 2}, "status": status})
    shown = {kind: condition["status"] for kind, condition in conditions.items()}
    assert (found, conditions["Ready"]["reason"], shown) == EXPECTED[state]
    assert conditions["Ready"]["message"]
    assert status["message"] == conditions["Ready"]["message"]


def test_what_no_operator_has_looked_at_is_in_progress() -> None:
    status = {"observedGeneration": status_models.NEVER_OBSERVED}
    assert verdict({"metadata": {"generation": 1}, "status": status}) == "InProgress"


def test_a_new_generation_is_in_progress_until_it_is_observed() -> None:
    run = Run()
    status = experiment_status(run.engine, name="digits", generation=1, now=NOW)
    assert verdict({"metadata": {"generation": 2}, "status": status}) == "InProgress"
