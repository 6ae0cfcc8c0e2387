"""What a process that ended without a last word means for its attempt."""

from __future__ import annotations

import signal

import pytest

from trialpod_operator.local.processes import ExitInfo, describe_exit


def ended(status: int, *, lost: bool = False, problem: str = "") -> ExitInfo:
    return ExitInfo("t1", 7, status, lost=lost, problem=problem)


def test_a_process_that_somebody_took_away_has_not_failed() -> None:
    assert describe_exit(ended(-signal.SIGTERM)).cause == "preempted"
    assert describe_exit(ended(-signal.SIGKILL, lost=True)).cause == "lost"


@pytest.mark.parametrize(
    ("status", "words"),
    [(0, "exit status 0"), (3, "exit status 3"), (-signal.SIGKILL, "memory"), (-signal.SIGSEGV, "SIGSEGV")],
)
def test_exit_the_trial_may_have_caused_is_a_failure(status: int, words: str) -> None:
    end = describe_exit(ended(status))
    assert end.cause == "failed"
    assert words in end.error


def test_a_process_that_could_not_be_started_says_why() -> None:
    end = describe_exit(ended(1, problem="no such file"))
    assert (end.cause, "no such file" in end.error) == ("failed", True)
