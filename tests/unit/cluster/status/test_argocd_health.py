"""Argo CD's health script, run by Lua over the statuses that the operator writes.

Argo CD runs Lua 5.1, and so do these tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cluster_objects import NOW, Run
from kstatus import verdict
from lupa import lua51

from trialpod_operator.api import status_models
from trialpod_operator.cluster.status.build import experiment_status, trial_status
from trialpod_operator.cluster.status.conditions import Problem
from trialpod_operator.engine import events

ROOT = Path(__file__).parents[4]
SCRIPT = (ROOT / "charts" / "trialpod" / "argocd" / "health.lua").read_text()
WAITING = status_models.Waiting(reason="Queued", message="in a queue", count=3)


def judged(resource: dict[str, Any], script: str = SCRIPT) -> tuple[str, str]:
    """Return the health and its message, as Argo CD would show them."""
    lua = lua51.LuaRuntime(register_eval=False, unpack_returned_tuples=True)
    lua.globals().obj = lua.table_from(resource, recursive=True)
    health = lua.execute(script)
    return health["status"], health["message"]


def run_to(*applied: events.AnyEvent, results: bool = True, ends: Any = (), error: str = "") -> Run:
    run = Run(1)
    if results:
        run.result(0, 0.5)
    for event in applied:
        run.apply(event)
    if ends:
        run.end(0, ends, error)
    return run


def suspended() -> Run:
    run = Run()
    run.apply(events.SuspendRequested())
    for index in range(3):
        run.end(index, "paused")
    return run


def to_be_retried() -> Run:
    run = Run(1, max_failures=1)
    run.apply(events.SuspendRequested())
    run.end(0, "failed", "boom")
    return run


EXPERIMENTS: dict[str, tuple[Run | None, dict[str, Any], str]] = {
    "starting": (None, {}, "Progressing"),
    "running": (Run(), {}, "Healthy"),
    "some wait": (Run(), {"waiting": WAITING, "held": 2}, "Healthy"),
    "all wait": (Run(), {"waiting": WAITING}, "Progressing"),
    "storage away": (Run(), {"problem": Problem(reason="StorageUnavailable", message="m")}, "Progressing"),
    "suspending": (run_to(events.SuspendRequested()), {}, "Progressing"),
    "suspended": (suspended(), {}, "Suspended"),
    "stopping": (run_to(events.StopRequested()), {}, "Healthy"),
    "succeeded": (run_to(ends="completed"), {}, "Healthy"),
    "stopped": (run_to(events.StopRequested(), ends="stopped"), {}, "Healthy"),
    "failed": (run_to(results=False, ends="failed", error="boom"), {}, "Degraded"),
    "invalid": (None, {"problem": Problem(reason="InvalidSpec", message="spec.x: no", stalled=True)}, "Degraded"),
}

AGREES = {"Healthy": "Current", "Progressing": "InProgress", "Degraded": "Failed", "Suspended": "Current"}
"""What kstatus calls it. One that is being suspended is Current there: its rules know of no such state."""


def experiment(state: str) -> dict[str, Any]:
    run, more, _ = EXPERIMENTS[state]
    status = experiment_status(run.engine if run else None, name="digits", generation=2, now=NOW, **more)
    return {"metadata": {"generation": 2}, "status": status}


@pytest.mark.parametrize("state", EXPERIMENTS)
def test_an_experiment_has_the_health_of_its_conditions(state: str) -> None:
    resource = experiment(state)
    expected = EXPERIMENTS[state][2]
    assert judged(resource) == (expected, resource["status"]["message"])
    assert verdict(resource) == ("Current" if state == "suspending" else AGREES[expected])


def _begun() -> Run:
    run = Run(2)
    for index in range(2):
        run.result(index, 0.5)
    return run


TRIALS: dict[str, tuple[Run, dict[str, Any], str]] = {
    "pending": (to_be_retried(), {}, "Progressing"),
    "starting": (Run(2), {}, "Progressing"),
    "running": (_begun(), {}, "Healthy"),
    "its pod waits": (Run(2), {"waiting": WAITING}, "Progressing"),
    "paused": (suspended(), {}, "Progressing"),
    "completed": (run_to(ends="completed"), {}, "Healthy"),
    "failed": (run_to(ends="failed", error="boom"), {}, "Healthy"),
}


def trial(state: str, **before: Any) -> dict[str, Any]:
    run, more, _ = TRIALS[state]
    found = list(run.engine.state.trials.values())[-1]
    return {
        "metadata": {"generation": 1},
        "status": trial_status(found, run.settings, NOW, generation=1, **more, **before),
    }


@pytest.mark.parametrize("state", TRIALS)
def test_a_trial_has_the_health_of_its_conditions(state: str) -> None:
    resource = trial(state)
    expected = TRIALS[state][2]
    assert judged(resource) == (expected, resource["status"]["message"])
    assert verdict(resource) == AGREES[expected]


def test_failed_trial_is_not_expected_to_become_ready() -> None:
    failed = trial("failed", previous=trial("running")["status"])
    assert {each["type"]: each["status"] for each in failed["status"]["conditions"]} == {"Failed": "True"}
    older = {"type": "Ready", "status": "False", "reason": "Failed", "message": "boom"}
    failed["status"]["conditions"].insert(0, older)  # as earlier versions wrote it
    assert judged(failed)[0] == "Healthy"


@pytest.mark.parametrize(
    "status",
    [None, {}, {"observedGeneration": status_models.NEVER_OBSERVED}, {"observedGeneration": 3}],
    ids=["no status", "empty", "never observed", "observed, nothing said yet"],
)
def test_what_no_operator_has_looked_at_is_progressing(status: dict[str, Any] | None) -> None:
    resource: dict[str, Any] = {"metadata": {"generation": 3}}
    if status is not None:
        resource["status"] = status
    assert judged(resource) == ("Progressing", "waiting for the operator")


@pytest.mark.parametrize("state", EXPERIMENTS)
def test_new_generation_progresses_until_observed(state: str) -> None:
    resource = experiment(state)
    resource["metadata"]["generation"] = 3
    assert judged(resource) == ("Progressing", "waiting for the operator")


def test_what_is_being_deleted_is_progressing() -> None:
    resource = experiment("failed")
    resource["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert judged(resource) == ("Progressing", "being deleted")


def test_conditions_of_others_do_not_count() -> None:
    resource = experiment("running")
    other = {"type": "example.com/Broken", "status": "False", "reason": "R", "message": "m"}
    resource["status"]["conditions"].insert(0, other)
    assert judged(resource)[0] == "Healthy"
