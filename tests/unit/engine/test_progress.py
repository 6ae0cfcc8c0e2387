"""Attempts that report nothing: a warning after half of the deadline, then the attempt has failed."""

from __future__ import annotations

from typing import Any

import pytest
from engine_support import ListSearch, Shell, kinds, result, starts

from trialpod_operator.engine import events
from trialpod_operator.engine.actions import Action, StopAttempt, Warned
from trialpod_operator.engine.engine import Engine


def started(shell: Shell, trial_id: str = "t0") -> None:
    """The trial's process begins."""
    attempt = shell.trial(trial_id).attempt
    shell.apply(events.AttemptStarted(trial_id=trial_id, attempt=attempt, pid=7))


def told(actions: list[Action]) -> list[Action]:
    """The warnings, and the attempts that are to end."""
    return [*kinds(actions, Warned), *kinds(actions, StopAttempt)]


def running(**changes: Any) -> Shell:
    shell = Shell(**{"progress_deadline_s": 100.0, **changes})
    started(shell)
    return shell


class TestProgressDeadline:
    def test_warns_at_half_and_ends_at_the_whole(self) -> None:
        shell = running()
        assert shell.engine.next_wakeup() == shell.now + 50.0
        (warning,) = kinds(shell.wait(50.00056), Warned)
        assert "t0 has reported nothing for 50 s; its attempt fails after 100 s" in warning.message
        assert shell.engine.next_wakeup() == pytest.approx(shell.now + 49.99944)
        assert kinds(shell.wait(50), StopAttempt)
        assert shell.status() == ["RUNNING"]

    @pytest.mark.parametrize("cause", ["preempted", "lost", "stopped", "completed", "paused"])
    def test_attempt_has_failed_however_it_ends(self, cause: Any) -> None:
        shell = running()
        shell.wait(100)
        shell.end("t0", cause)
        assert (shell.status(), shell.trial("t0").failures) == (["ERROR"], 1)
        assert "reported nothing for 100 s (spec.progressDeadline)" in shell.trial("t0").error

    def test_failure_is_retried(self) -> None:
        shell = running(max_failures=1)
        shell.wait(100)
        assert starts(shell.end("t0", "preempted")) == [("t0", 2)]
        assert (shell.trial("t0").current.deadline_missed, shell.trial("t0").current.silence_warned) == (False, False)
        started(shell)
        assert not kinds(shell.wait(40), Warned)

    @pytest.mark.parametrize("how", ["result", "checkpoint"])
    def test_progress_starts_it_again(self, how: str) -> None:
        shell = running()
        shell.wait(90)
        if how == "result":
            shell.results("t0", result(1))
        else:
            shell.checkpoint("t0", 0, 1)
        assert not told(shell.wait(49))
        assert kinds(shell.wait(1), Warned)

    def test_time_before_the_process_runs_does_not_count(self) -> None:
        shell = Shell(progress_deadline_s=100.0)
        assert not told(shell.wait(1000))
        started(shell)
        assert not told(shell.wait(40))

    def test_trial_that_is_to_stop_is_left_alone(self) -> None:
        shell = running()
        shell.apply(events.StopRequested(trial_id="t0"))
        assert not told(shell.wait(1000))
        shell.end("t0", "stopped")
        assert shell.status() == ["TERMINATED"]

    def test_can_be_raised_and_set_later(self) -> None:
        shell = running(progress_deadline_s=None)
        shell.wait(60)
        assert kinds(shell.edit(progress_deadline_s=100.0), Warned)
        shell.edit(progress_deadline_s=1000.0)
        assert not kinds(shell.wait(100), StopAttempt)

    def test_absence_of_the_operator_does_not_count(self) -> None:
        shell = running()
        shell.wait(40)
        after = Engine(ListSearch(1))
        after.restore(shell.engine.snapshot())
        shell.engine, shell.now = after, shell.now + 500.0
        assert not told(shell.apply(events.Recovered(live=[("t0", 1)])))
        assert kinds(shell.wait(50), Warned)

    def test_new_operator_ends_it_again(self) -> None:
        shell = running()
        shell.wait(100)
        after = Engine(ListSearch(1))
        after.restore(shell.engine.snapshot())
        shell.engine = after
        assert kinds(shell.apply(events.Recovered(live=[("t0", 1)])), StopAttempt)

    def test_replay_gives_the_same(self) -> None:
        shell = running(num_samples=3)
        for trial_id in ("t1", "t2"):
            shell.wait(20)
            started(shell, trial_id)
        shell.results("t1", result(1))
        for _ in range(6):
            shell.wait(25)
        copy = shell.replay(Engine(ListSearch(3)))
        assert copy.snapshot() == shell.engine.snapshot()
