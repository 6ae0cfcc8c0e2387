"""What ended a group of pods, and when it is retried."""

from __future__ import annotations

import dataclasses

import pytest

from trialpod.protocol.messages import AttemptEnd
from trialpod_operator.cluster.pods.group import MAX_BACKOFF_S, Group, deleted_worker, of_worker, pause_s
from trialpod_operator.cluster.pods.terminated import Termination


def ending(kind: str = "failure", reason: str = "OOMKilled") -> Termination:
    cause = "failed" if kind == "failure" else "preempted"
    return Termination(kind=kind, cause=cause, reason=reason, message="it ended")  # type: ignore[arg-type]


FAILED = AttemptEnd(cause="failed", error="ConnectionResetError: a rank")


def test_head_failure_counts_after_workers_were_checked() -> None:
    group = Group(2, 600.0)
    assert group.judge_report(FAILED, 5.0) is None
    group.looked = True
    assert group.judge_report(FAILED, 8.0) == FAILED


def test_a_worker_that_was_taken_away_explains_the_heads_failure() -> None:
    group = Group(2, 600.0)
    assert group.judge_report(FAILED, 5.0) is None
    group.record([deleted_worker(2, "EvictionByEvictionAPI")], 5.5)
    told = group.judge_report(FAILED, 6.0)
    assert told is not None
    assert (told.cause, told.error) == ("preempted", "worker 2: its pod is being removed")


def test_head_failure_names_the_worker_that_caused_it() -> None:
    group = Group(2, 600.0)
    group.judge_report(FAILED, 5.0)
    first = dataclasses.replace(ending(), message="worker 1: ConnectionResetError")
    second = dataclasses.replace(ending(), message="worker 2: it ran out of memory")
    for _ in range(2):
        group.record([first, second], 6.0)
    group.looked = True
    told = group.judge_report(FAILED, 8.0)
    assert told is not None
    assert (told.cause, told.error) == ("failed", f"{FAILED.error}; worker 2: it ran out of memory")


@pytest.mark.parametrize("order", [1, -1])
def test_a_disruption_goes_before_the_failures_that_it_causes(order: int) -> None:
    group = Group(2, 600.0)
    for each in [ending(), deleted_worker(1, "")][::order]:
        group.record([each], 5.0)
    assert group.cause is not None
    assert group.cause.kind == "disruption"


def test_worker_failure_counts_after_others_were_checked() -> None:
    group = Group(2, 600.0)
    deleted = ending("disruption", "DeletedByOperator")
    group.record([ending()], 4.0)
    assert group.failed_at == 4.0
    assert group.judge_report(AttemptEnd(cause="preempted"), 5.0) is None
    assert group.judge_read(deleted, 6.0) is None
    group.looked = True
    group.record([ending(), ending("disruption", "PodVanished")], 7.0)
    read = group.judge_read(deleted, 7.0)
    assert read is not None
    assert read.reason == "PodVanished"


def test_a_head_that_was_ended_for_a_workers_failure_has_failed() -> None:
    group = Group(1, 600.0)
    group.record([ending()], 4.0)
    group.looked = True
    told = group.judge_report(AttemptEnd(cause="preempted"), 5.0)
    assert told is not None
    assert told.cause == "failed"
    read = group.judge_read(ending("disruption", "DeletedByOperator"), 5.0)
    assert read is not None
    assert read.reason == "OOMKilled"


def test_disrupted_head_is_a_disruption() -> None:
    group = Group(1, 600.0)
    group.record([ending()], 4.0)
    own = ending("disruption", "EvictionByEvictionAPI")
    assert group.judge_read(own, 5.0) is own


@pytest.mark.parametrize("cause", ["completed", "stopped", "paused", "damaged"])
def test_what_a_head_says_of_its_end_counts(cause: str) -> None:
    group = Group(1, 600.0)
    group.record([ending()], 4.0)
    end = AttemptEnd(cause=cause)  # type: ignore[arg-type]
    assert group.judge_report(end, 5.0) is end


def test_a_worker_may_be_done_before_its_head() -> None:
    assert of_worker(1, ending(reason="ExitedSilently"), begun=True) is None
    assert of_worker(1, ending(reason="ExitedSilently"), begun=False) is not None
    assert of_worker(1, ending("disruption", "DeletedByOperator"), begun=True) is None


def test_groups_that_gave_up_together_retry_apart() -> None:
    pauses = {pause_s(f"a_{index:05d}", 2) for index in range(10)}
    assert len(pauses) == 10
    assert all(5.0 <= pause <= 20.0 for pause in pauses)
    assert pause_s("a_00000", 100) <= MAX_BACKOFF_S
