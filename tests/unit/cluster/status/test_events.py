"""Events: on transitions, and few."""

from __future__ import annotations

from typing import Any

from cluster_objects import NOW, Run

from trialpod_operator.api import status_models
from trialpod_operator.cluster.status.build import experiment_status
from trialpod_operator.cluster.status.conditions import Problem
from trialpod_operator.cluster.status.events import (
    MAX_DISRUPTIONS,
    MAX_TRIAL_FAILURES,
    TrialEvents,
    transition_events,
)
from trialpod_operator.engine import events


class _Story:
    """Statuses of one experiment, one after the other, with the events between them."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.status: dict[str, Any] | None = None

    def next(self, **more: Any) -> list[tuple[str, str]]:
        before = self.status
        self.status = experiment_status(self.run.engine, name="d", generation=1, now=NOW, previous=before, **more)
        return [(event.type, event.reason) for event in transition_events(before, self.status)]


def test_a_resource_that_finds_stored_results_says_so() -> None:
    status = experiment_status(Run(1).engine, name="d", generation=1, now=NOW, storage_uri="s3://tune/d")
    (event,) = transition_events(None, status, resumed=True)
    assert "resumed the experiment that s3://tune/d holds; another metadata.name starts a new one" in event.message


def test_a_life_has_one_event_for_each_turn() -> None:
    story = _Story(run := Run(1))
    assert story.next() == [("Normal", "Started")]
    assert story.next() == []
    run.result(0, 1.0)
    assert story.next() == []
    run.apply(events.SuspendRequested())
    assert story.next() == []
    run.end(0, "paused")
    assert story.next() == [("Normal", "Suspended")]
    run.apply(events.ResumeRequested())
    assert story.next() == [("Normal", "Resumed")]
    run.end(0)
    assert story.next() == [("Normal", "Succeeded")]
    assert story.next() == []


def test_a_bad_end_is_one_warning() -> None:
    story = _Story(run := Run(1))
    story.next()
    run.result(0, 1.0)
    run.end(0, "failed", "boom")
    assert story.next() == [("Warning", "Failed")]
    assert story.next() == []


def test_waiting_and_stalling_are_reported_once_per_reason() -> None:
    story = _Story(Run(2))
    story.next()
    waiting = status_models.Waiting(reason="Queued", message="a", count=2)
    assert story.next(waiting=waiting) == [("Warning", "Waiting")]
    assert story.next(waiting=status_models.Waiting(reason="Queued", message="b", count=2)) == []
    problem = Problem(reason="InvalidSpec", message="spec.x: no", stalled=True)
    assert story.next(problem=problem) == [("Warning", "Stalled")]
    assert story.next(problem=problem) == []
    assert story.next() == []


def test_failed_trials_are_reported_up_to_a_number() -> None:
    chosen = TrialEvents()
    told = [chosen.failed(f"t{index}", "same") for index in range(50)]
    assert sum(event is not None for event in told) == MAX_TRIAL_FAILURES
    assert chosen.failed("t50", "something new") is not None
    told = [chosen.failed("t", f"message {index}") for index in range(1000)]
    assert sum(event is not None for event in told) < 2 * MAX_TRIAL_FAILURES


class TestDisrupted:
    def test_one_event_for_each_trial_and_reason(self) -> None:
        chosen = TrialEvents()
        assert chosen.disrupted("a", "EvictionByEvictionAPI", "m", NOW) is not None
        assert chosen.disrupted("b", "EvictionByEvictionAPI", "m", NOW) is not None
        assert chosen.disrupted("b", "EvictionByEvictionAPI", "m", NOW + 10) is None
        assert chosen.disrupted("b", "PodVanished", "m", NOW + 10) is not None
        assert chosen.disrupted("b", "EvictionByEvictionAPI", "m", NOW + 400) is not None

    def test_number_is_bounded(self) -> None:
        chosen = TrialEvents()
        told = [chosen.disrupted(f"t{index}", "NodeLost", "m", NOW) for index in range(1000)]
        assert sum(event is not None for event in told) == MAX_DISRUPTIONS


def test_a_long_message_fits_into_an_event() -> None:
    event = TrialEvents().failed("t", "x" * 5000)
    assert event is not None
    assert len(event.message) <= 1024
