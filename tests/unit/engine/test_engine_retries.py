"""Failures, disruptions, and what is retried when."""

from __future__ import annotations

from typing import Any

import pytest
from engine_support import ListSearch, Recorder, Shell, TimeSlices, kinds, result, starts

from trialpod_operator.engine import events
from trialpod_operator.engine.actions import TrialRequeued, Warned
from trialpod_operator.engine.engine import Engine


def test_a_failure_is_retried_as_often_as_allowed() -> None:
    shell = Shell(max_failures=2, search=(search := ListSearch(1)), scheduler=(scheduler := Recorder()))
    assert starts(shell.end("t0", "failed", "boom")) == [("t0", 2)]
    shell.results("t0", result(1))
    assert starts(shell.end("t0", "failed", "boom")) == [("t0", 3)]
    shell.results("t0", result(1), result(2))
    assert starts(shell.end("t0", "failed", "boom")) == []
    assert shell.outcome() == ("Failed", "the trial failed")
    assert shell.trial("t0").failures == 3
    assert [event for event, _ in scheduler.heard if event in ("add", "error")] == ["add"] + ["error", "add"] * 2 + [
        "error"
    ]
    assert [event for event, *_ in search.heard if event != "result"] == ["error"]


def test_disruptions_never_count_as_failures() -> None:
    shell = Shell(max_failures=0)
    for cause in ("preempted", "lost", "preempted", "lost"):
        shell.end("t0", cause)  # type: ignore[arg-type]
        shell.wait(100)
    assert shell.status() == ["RUNNING"]
    assert (shell.trial("t0").disruptions, shell.trial("t0").failures) == (4, 0)


def test_first_retry_is_immediate_then_delays_double() -> None:
    for cause in ("failed", "preempted"):
        shell = Shell(max_failures=-1)
        assert starts(shell.end("t0", cause)) == [("t0", 2)]  # type: ignore[arg-type]
        for wait in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
            shell.end("t0", cause)  # type: ignore[arg-type]
            assert shell.status() == ["PENDING"]
            assert shell.engine.next_wakeup() == shell.now + wait
            assert starts(shell.wait(wait - 0.001)) == []
            assert len(starts(shell.wait(0.001))) == 1


def test_backoff_of_a_failing_trial_never_overflows() -> None:
    shell = Shell(max_failures=-1)
    for _ in range(1200):
        shell.end("t0", "failed")
        shell.wait(60)
    assert shell.trial("t0").attempt == 1201


def test_progress_makes_the_next_retry_immediate_again() -> None:
    shell = Shell(max_failures=-1)
    for _ in range(3):
        shell.end("t0", "failed")
        shell.wait(60)
    shell.results("t0", result(1))
    assert len(starts(shell.end("t0", "failed"))) == 1


def test_coming_only_as_far_as_before_is_no_progress() -> None:
    shell = Shell(max_failures=-1)
    for waits in (0, 1, 2, 4):
        shell.results("t0", result(1), result(2))
        shell.end("t0", "failed")
        assert (shell.engine.next_wakeup() or shell.now) - shell.now == waits
        shell.wait(waits)


def test_a_new_checkpoint_is_progress() -> None:
    shell = Shell()
    shell.end("t0", "lost")
    shell.checkpoint("t0", 0, 5)
    requeued = kinds(shell.end("t0", "lost"), TrialRequeued)[0]
    assert requeued.trial.checkpoint is not None
    assert requeued.trial.checkpoint.iteration == 5
    assert shell.status() == ["RUNNING"]


def test_a_waiting_trial_leaves_its_place_to_others() -> None:
    shell = Shell(3, max_concurrent=1)
    shell.end("t0", "lost")
    assert starts(shell.end("t0", "lost")) == [("t1", 1)]
    shell.wait(10)
    shell.results("t1", result(1))
    assert starts(shell.end("t1")) == [("t0", 3)]


def test_an_error_that_a_retry_cannot_help_is_not_retried() -> None:
    shell = Shell(max_failures=5)
    shell.end("t0", "failed", "no module named train", retry=False)
    assert shell.status() == ["ERROR"]


def test_three_failed_starts_end_a_fresh_experiment() -> None:
    shell = Shell(10_000, max_concurrent=2)
    for trial_id in ("t0", "t1", "t2"):
        shell.end(trial_id, "failed", "no module named train", retry=False)
    shell.end("t3", "failed", "no module named train", retry=False)
    assert shell.outcome() == ("Failed", "the first 3 trials failed before their first result: no module named train")
    assert len(shell.engine.state.trials) == 4


def test_broken_starts_do_not_end_an_experiment_whose_code_ran() -> None:
    shell = Shell(6, max_concurrent=1)
    shell.results("t0", result(1))
    shell.end("t0")
    for number in range(1, 5):
        shell.end(f"t{number}", "failed", "no module named train", retry=False)
    assert shell.status("t5") == ["RUNNING"]


def test_corrected_experiment_resumes_when_resubmitted() -> None:
    shell = Shell(10, max_concurrent=1)
    for number in range(3):
        shell.end(f"t{number}", "failed", "no module named train", retry=False)
    assert shell.engine.finished
    assert starts(shell.edit()) == [("t3", 1)]


def test_retry_request_requeues_with_a_fresh_count() -> None:
    shell = Shell(2, max_failures=1)
    for _ in range(2):
        shell.end("t0", "failed", "boom")
    shell.results("t1", result(1))
    shell.end("t1")
    assert shell.engine.finished
    assert starts(shell.retry()) == [("t0", 3)]
    assert (shell.trial("t0").failures, shell.trial("t0").error) == (0, "")
    assert starts(shell.end("t0", "failed")) == [("t0", 4)]


def test_retry_from_scratch_never_reuses_checkpoint_names() -> None:
    shell = Shell(2)
    shell.results("t0", result(1))
    shell.checkpoint("t0", 4, 1)
    shell.end("t0", "failed")
    shell.retry(from_scratch=True)
    assert (shell.trial("t0").checkpoint, shell.trial("t0").next_checkpoint_index) == (None, 5)


def test_retry_request_leaves_running_trials_alone() -> None:
    shell = Shell(2)
    shell.end("t0", "failed")
    assert starts(shell.retry()) == [("t0", 2)]
    assert shell.trial("t1").attempt == 1


def test_retry_request_during_stop_lifts_the_stop() -> None:
    shell = Shell(3, max_concurrent=2, fail_fast=True)
    shell.end("t0", "failed", "boom")
    assert shell.answer("t1").decision == "stop"
    assert starts(shell.retry()) == [("t0", 2)]
    assert starts(shell.end("t1", "stopped")) == [("t2", 1)]


def test_a_retry_without_time_left_is_refused_with_the_remedy() -> None:
    shell = Shell(2, max_concurrent=1, time_budget_s=10.0)
    shell.end("t0", "failed", "boom")
    shell.wait(10)
    shell.end("t1", "stopped")
    warnings = kinds(shell.retry(), Warned)
    assert "raise it first" in warnings[0].message
    assert (shell.status("t0"), shell.trial("t0").error) == (["ERROR"], "boom")


def test_fail_fast_stops_everything_at_the_first_error() -> None:
    shell = Shell(5, max_concurrent=2, fail_fast=True)
    shell.end("t0", "failed", "boom")
    shell.end("t1", "stopped")
    assert shell.outcome() == ("Failed", "trial t0 failed, and failFast is set")
    assert shell.status() == ["ERROR", "TERMINATED"]


def test_a_long_traceback_is_cut_from_its_beginning() -> None:
    from trialpod.protocol.messages import AttemptEnd
    from trialpod_operator.engine.events import AttemptEnded

    shell = Shell()
    end = AttemptEnd(cause="failed", error="E", traceback="x" * 100_000 + "the end")
    shell.apply(AttemptEnded(trial_id="t0", attempt=1, end=end))
    assert len(shell.trial("t0").traceback) == 20_000
    assert shell.trial("t0").traceback.endswith("the end")


class TestFailureObserved:
    """A process of an attempt has failed, and the one that speaks for it has not ended yet."""

    @pytest.mark.parametrize("cause", ["completed", "stopped", "paused"])
    def test_later_word_does_not_hide_it(self, cause: Any) -> None:
        shell = Shell()
        shell.fail("t0")
        shell.results("t0", result(1))
        shell.end("t0", cause)
        trial = shell.trial("t0")
        assert (shell.status(), trial.failures, trial.error) == (["ERROR"], 1, "worker 1: no")

    def test_last_result_does_not_hide_it(self) -> None:
        shell = Shell(max_failures=1)
        shell.fail("t0")
        shell.results("t0", result(1, done=True))
        assert starts(shell.end("t0", "completed")) == [("t0", 2)]
        shell.results("t0", result(1, done=True))
        shell.end("t0")
        assert (shell.status(), shell.trial("t0").failures) == (["TERMINATED"], 1)

    @pytest.mark.parametrize("cause", ["preempted", "lost"])
    def test_disruption_explains_it(self, cause: Any) -> None:
        shell = Shell()
        shell.fail("t0")
        assert starts(shell.end("t0", cause)) == [("t0", 2)]
        assert (shell.trial("t0").failures, shell.trial("t0").current.failing) == (0, None)

    @pytest.mark.parametrize("cause", ["preempted", "lost"])
    def test_disruption_explains_none_that_is_confirmed(self, cause: Any) -> None:
        shell = Shell()
        shell.fail("t0")
        shell.fail("t0", "another", confirmed=True)
        shell.end("t0", cause)
        assert (shell.status(), shell.trial("t0").failures) == (["ERROR"], 1)
        assert shell.trial("t0").error == "worker 1: no"

    @pytest.mark.parametrize(("confirmed", "counted"), [(False, (0, 1)), (True, (1, 0))])
    def test_lost_in_a_restart_it_counts_if_confirmed(self, confirmed: bool, counted: tuple[int, int]) -> None:
        shell = Shell(max_failures=1)
        shell.fail("t0", confirmed=confirmed)
        shell.apply(events.Recovered(live=[]))
        assert (shell.trial("t0").failures, shell.trial("t0").disruptions) == counted

    def test_completion_before_it_counts(self) -> None:
        shell = Shell()
        shell.results("t0", result(1, done=True))
        shell.fail("t0")
        shell.end("t0")
        assert (shell.status(), shell.trial("t0").failures) == (["TERMINATED"], 0)

    def test_stop_before_it_counts(self) -> None:
        shell = Shell()
        shell.apply(events.StopRequested(trial_id="t0"))
        shell.fail("t0")
        shell.end("t0", "stopped")
        assert (shell.status(), shell.trial("t0").failures) == (["TERMINATED"], 0)

    @pytest.mark.parametrize(("max_failures", "status"), [(0, "ERROR"), (1, "TERMINATED")])
    def test_stop_after_it_saves_the_retry_only(self, max_failures: int, status: str) -> None:
        shell = Shell(max_failures=max_failures)
        shell.results("t0", result(1))
        shell.fail("t0")
        shell.apply(events.StopRequested(trial_id="t0"))
        shell.end("t0", "stopped")
        assert (shell.status(), shell.trial("t0").failures) == ([status], 1)

    def test_attempt_waits_for_no_decision(self) -> None:
        shell = Shell(scheduler=TimeSlices())
        assert shell.engine.horizons(shell.trial("t0"))
        shell.fail("t0")
        assert shell.engine.horizons(shell.trial("t0")) == []

    def test_survives_a_restart(self) -> None:
        shell = Shell()
        shell.fail("t0", confirmed=True)
        after = Engine(ListSearch(1))
        after.restore(shell.engine.snapshot())
        shell.engine = after
        shell.apply(events.Recovered(live=[]))
        assert (shell.status(), shell.trial("t0").failures) == (["ERROR"], 1)


class TestFailureAfterCompletion:
    @pytest.mark.parametrize("max_failures", [0, 3, -1])
    def test_fails_the_trial_and_is_never_retried(self, max_failures: int) -> None:
        shell = Shell(max_failures=max_failures, search=(search := ListSearch(1)))
        shell.results("t0", result(1, done=True))
        shell.export_fails("t0")
        assert shell.status() == ["ERROR"]
        assert shell.trial("t0").error == "RuntimeError: no model"
        assert [event for event, *_ in search.heard if event != "result"] == ["complete"]

    def test_of_many_trials_does_not_end_the_experiment(self) -> None:
        shell = Shell(6, max_concurrent=1)
        for number in range(6):
            shell.results(f"t{number}", result(1, done=True))
            shell.export_fails(f"t{number}")
        assert shell.status() == ["ERROR"] * 6
