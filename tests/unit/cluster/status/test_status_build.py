"""The statuses of an experiment and of a trial, from the engine's state."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from cluster_objects import Run, at

from trialpod.protocol.messages import AttemptEnd
from trialpod_operator.api import status_models
from trialpod_operator.api.status_models import TuneExperimentStatus
from trialpod_operator.api.trial_models import TuneTrialStatus
from trialpod_operator.cluster.status.build import experiment_status, same_status, trial_status
from trialpod_operator.engine import events
from trialpod_operator.engine.reasons import describe_decision


def _status(run: Run, **more: Any) -> dict[str, Any]:
    return experiment_status(run.engine, name="digits", generation=1, now=run.now, **more)


def _trial(run: Run, index: int = 0, **more: Any) -> dict[str, Any]:
    return trial_status(run.trial(index), run.settings, run.now, **more)


def test_counts_failures_and_the_best_trial() -> None:
    run = Run(3, max_failures=1)
    run.result(0, 0.25)
    run.result(1, 0.75, iteration=2)
    run.checkpoint(1, 4, 2)
    run.end(0)
    run.end(2, "failed", "boom")
    run.end(1, "lost")
    status = _status(run, storage_uri="s3://tune/digits", seed=7, uri_of=lambda trial: f"s3://tune/{trial.index}")
    best_id = run.trial(1).trial_id
    assert status["trials"]["terminated"] == 1
    assert (status["trials"]["done"], status["trials"]["total"], status["trials"]["progress"]) == (1, 3, "1/3")
    assert (status["failures"], status["disruptions"]) == (1, 1)
    assert status["best"] == {
        "trial": f"digits-{best_id.replace('_', '-')}",
        "trialId": best_id,
        "value": "0.75",
        "iteration": 2,
        "params": {"x": 1},
        "checkpoint": "s3://tune/1/checkpoint_000004",
    }
    assert (status["storageUri"], status["seed"], status["startTime"]) == ("s3://tune/digits", 7, at())
    assert "completionTime" not in status
    assert msgspec.convert(status, TuneExperimentStatus).best is not None


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_a_value_that_is_no_number_is_never_the_best(score: float) -> None:
    run = Run(1)
    run.result(0, score)
    assert "best" not in _status(run)
    assert _trial(run)["value"] in ("NaN", "Inf")


def test_times_are_kept_from_the_status_before() -> None:
    run = Run(1)
    first = _status(run)
    run.now += 100
    run.result(0, 1.0)
    run.end(0)
    second = _status(run, previous=first)
    assert (second["startTime"], second["completionTime"]) == (at(), at(100))
    run.now += 100
    third = _status(run, previous=second)
    assert same_status(second, third)
    assert same_status(third, json.loads(json.dumps(third)))
    assert not same_status(first, third)


def test_status_is_bounded_for_large_parameters() -> None:
    space = {f"p{index}": "v" * 400 for index in range(200)}
    run = Run(space={"huge": list(range(50_000)), **space, "x": {"grid_search": [1]}})
    run.result(0, 1.0)
    waiting = status_models.Waiting(reason="Queued", message="m" * 50_000)
    status = _status(run, waiting=waiting)
    assert len(json.dumps(status["best"]["params"])) < 8500
    assert "left out" in status["best"]["params"]["..."]
    assert len(status["message"]) <= 2000
    assert len(json.dumps(status)) < 15_000


def test_a_trial_shows_attempt_value_and_checkpoint() -> None:
    run = Run(1)
    run.result(0, 0.5, iteration=3)
    run.checkpoint(0, 2, 3)
    status = _trial(run, pod_name="digits-a-1", node_name="node-1")
    assert (status["state"], status["attempt"], status["iteration"], status["value"]) == ("RUNNING", 1, 3, "0.5")
    assert status["checkpoint"] == {"name": "checkpoint_000002", "iteration": 3, "size": 10}
    assert (status["podName"], status["nodeName"], status["startTime"]) == ("digits-a-1", "node-1", at())
    assert (status["failures"], status["disruptions"], status["bestValue"]) == (0, 0, "0.5")
    msgspec.convert(status, TuneTrialStatus)


def test_a_negative_iteration_of_a_trainable_is_shown_as_none() -> None:
    run = Run(1)
    run.result(0, 0.5, iteration=-1)
    assert run.trial(0).iteration == -1
    assert _trial(run)["iteration"] == 0


def test_the_best_value_is_remembered_through_the_status_before() -> None:
    run = Run(1)
    run.result(0, 0.9)
    status = _trial(run)
    run.result(0, 0.4, iteration=2)
    status = _trial(run, previous=status)
    assert (status["value"], status["bestValue"]) == ("0.4", "0.9")
    run.result(0, math.nan, iteration=3)
    assert _trial(run, previous=status)["bestValue"] == "0.9"
    assert _trial(run, previous=status, best_value=0.95)["bestValue"] == "0.95"


def test_a_node_is_forgotten_with_its_pod() -> None:
    run = Run(1)
    before = _trial(run, pod_name="a", node_name="n1")
    assert _trial(run, previous=before)["nodeName"] == "n1"
    assert "nodeName" not in _trial(run, previous=before, pod_name="b")


def test_disrupted_trial_counts_restart_and_wait_reason() -> None:
    run = Run(1)
    run.result(0, 0.5)
    run.end(0, "lost", "node gone")
    waiting = status_models.Waiting(reason="Unschedulable", message="no room", count=1)
    status = _trial(run, waiting=waiting)
    assert (status["state"], status["attempt"], status["disruptions"], status["restarts"]) == ("PENDING", 2, 1, 1)
    assert (status["message"], status["conditions"][0]["reason"]) == ("no room", "Unschedulable")


def test_a_failed_trial_says_its_error() -> None:
    run = Run(1)
    run.result(0, 0.5)
    run.end(0, "failed", "ValueError: bad")
    status = _trial(run)
    assert (status["state"], status["message"]) == ("ERROR", "ValueError: bad")
    assert [each["type"] for each in status["conditions"]] == ["Failed"]
    assert status["completionTime"] == at()


def test_attempt_that_has_failed_is_not_ready_while_it_ends() -> None:
    run = Run(1)
    run.result(0, 0.5)
    end = AttemptEnd(cause="failed", error="worker 1: ValueError: bad")
    run.apply(events.FailureObserved(trial_id=run.trial(0).trial_id, attempt=1, end=end))
    status = _trial(run)
    ready = status["conditions"][0]
    assert (status["state"], ready["status"], ready["reason"]) == ("RUNNING", "False", "AttemptFailed")
    assert "worker 1: ValueError: bad" in ready["message"]


def test_a_decision_carries_its_evidence_and_keeps_its_time() -> None:
    run = Run(1)
    run.result(0, 0.5)
    run.apply(events.StopRequested(trial_id=run.trial(0).trial_id))
    before = _trial(run)
    assert before["lastDecision"]["kind"] == "stop"
    assert before["lastDecision"]["reason"] == "user"
    assert before["lastDecision"]["time"] == at()
    run.now += 50
    run.end(0, "stopped")
    after = _trial(run, previous=before)
    assert after["lastDecision"] == before["lastDecision"]
    assert after["message"] == "stopped: asked for by the user"


def test_a_decision_is_explained_as_by_trialpod_explain() -> None:
    run = Run(1)
    run.result(0, 0.5)
    run.apply(events.StopRequested(trial_id=run.trial(0).trial_id))
    assert _trial(run)["lastDecision"]["message"] == describe_decision("stop", {"source": "user"})
