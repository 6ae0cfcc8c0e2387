"""From the first event to the last: how trials are created, started, reported on and ended."""

from __future__ import annotations

import math

import msgspec
import pytest
from engine_support import ListSearch, Recorder, Shell, kinds, raw, result, settings, starts

from trialpod.errors import InvalidInputError
from trialpod_operator.engine import events
from trialpod_operator.engine.actions import ExperimentFinished, ResultsApplied, TrialCreated, TrialEnded, Warned


def test_nothing_happens_before_the_settings_are_known() -> None:
    shell = Shell(3, start=False)
    assert shell.apply(events.TimerFired()) == []
    assert shell.recover() == []
    assert not shell.engine.finished


def test_trials_are_created_when_there_is_room_and_not_before() -> None:
    shell = Shell(5, max_concurrent=2)
    assert starts(shell.last) == [("t0", 1), ("t1", 1)]
    assert len(kinds(shell.actions, TrialCreated)) == 2
    shell.results("t0", result(1, 0.5, done=True))
    assert starts(shell.end("t0")) == [("t2", 1)]


def test_an_experiment_ends_once_when_all_trials_have_ended() -> None:
    shell = Shell(2)
    for trial_id in ("t0", "t1"):
        shell.results(trial_id, result(1, 0.5))
        shell.end(trial_id)
    shell.end("t1")
    shell.wait(5)
    assert shell.outcome() == ("Succeeded", "")
    assert len(kinds(shell.actions, ExperimentFinished)) == 1
    assert [action.trial.trial_id for action in kinds(shell.actions, TrialEnded)] == ["t0", "t1"]


def test_a_batch_that_is_sent_again_counts_once() -> None:
    shell = Shell()
    shell.results("t0", result(1), result(2))
    again = shell.results("t0", result(2), result(3), first=2)
    assert [item["training_iteration"] for item in kinds(again, ResultsApplied)[0].results] == [3]
    assert shell.trial("t0").results == 3
    assert shell.results("t0", result(1), first=1) == []
    assert shell.answer("t0").received == 3


def test_a_gap_is_refused_and_the_answer_says_what_is_missing() -> None:
    shell = Shell()
    shell.results("t0", result(1))
    assert shell.results("t0", result(4), first=4) == []
    assert shell.answer("t0").received == 1


def test_a_result_that_is_no_map_is_refused_and_changes_nothing() -> None:
    shell = Shell()
    before = shell.engine.snapshot()
    shell.now += 10
    for bad in (raw(3), msgspec.Raw(b"\xc1")):
        with pytest.raises(msgspec.DecodeError):
            shell.engine.apply(
                events.ResultsReceived(trial_id="t0", attempt=1, first=1, results=[raw(result(1)), bad]), shell.now
            )
    assert shell.engine.snapshot() == before


def test_immutable_settings_are_refused_by_name() -> None:
    shell = Shell()
    before = shell.engine.snapshot()
    shell.now += 10
    with pytest.raises(InvalidInputError, match="metric, mode of an experiment"):
        shell.engine.apply(events.SettingsObserved(settings=settings(metric="other", mode="min")), shell.now)
    assert shell.engine.snapshot() == before


def test_completed_trial_stays_completed_whatever_its_exit() -> None:
    for cause in ("lost", "preempted", "failed"):
        shell = Shell(max_failures=3)
        shell.results("t0", result(1, 0.5, done=True))
        shell.end("t0", cause, "killed")  # type: ignore[arg-type]
        assert shell.status() == ["TERMINATED"]
        assert (shell.trial("t0").failures, shell.trial("t0").disruptions) == (0, 0)
        assert len(kinds(shell.actions, Warned)) == (cause == "failed")


def test_results_after_the_last_are_counted_not_judged() -> None:
    scheduler = Recorder()
    shell = Shell(scheduler=scheduler, search=(search := ListSearch(1)))
    shell.results("t0", result(1), result(2, 1.0, done=True), result(3))
    assert shell.trial("t0").results == 3
    assert scheduler.heard == [("add", "t0"), ("result", "t0"), ("complete", "t0")]
    assert search.heard == [("result", "t0", 0.0), ("complete", "t0", 1.0)]
    shell.end("t0")
    assert [event for event, *_ in search.heard].count("complete") == 1


def test_nan_is_a_measured_metric() -> None:
    shell = Shell()
    shell.results("t0", result(1, math.nan))
    shell.end("t0")
    assert shell.status() == ["TERMINATED"]
    assert shell.trial("t0").measured
    assert math.isnan(shell.trial("t0").value or 0.0)


def test_a_clock_that_goes_backwards_is_held() -> None:
    shell = Shell(time_budget_s=10.0)
    shell.wait(5)
    shell.wait(-100)
    assert shell.engine.state.clock.active_at(shell.now) == 5.0
    shell.now = 1010.0
    shell.wait(0)
    assert shell.answer("t0").decision == "stop"


def test_an_experiment_without_a_metric_needs_none() -> None:
    shell = Shell(metric=None)
    shell.end("t0")
    assert shell.outcome() == ("Succeeded", "")


def test_completed_trial_shows_no_earlier_error() -> None:
    shell = Shell(max_failures=1)
    shell.end("t0", "failed", "ValueError: no")
    assert shell.trial("t0").error == "ValueError: no"
    shell.results("t0", result(1))
    shell.end("t0")
    assert (shell.status(), shell.trial("t0").error, shell.trial("t0").failures) == (["TERMINATED"], "", 1)
