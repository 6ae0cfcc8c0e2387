"""Stopping one or all, suspending, the time budget, and metrics that never come."""

from __future__ import annotations

import math
from typing import Any

import pytest
from engine_support import Halt, ListSearch, Recorder, ScoreStopper, Shell, TimeSlices, kinds, result, starts

from trialpod.legacy.internals.steering import SteeredScheduler
from trialpod.tune.schedulers import AutoScheduler, ResourceChangingScheduler
from trialpod.tune.schedulers.async_hyperband import AsyncHyperBandScheduler
from trialpod.tune.schedulers.trial_scheduler import TrialScheduler
from trialpod.tune.stopper.combined import CombinedStopper
from trialpod.tune.stopper.function import FunctionStopper
from trialpod.tune.stopper.stopper import Stopper
from trialpod.tune.stopper.timeout import TimeoutStopper
from trialpod_operator.engine.actions import DecisionMade, StopAttempt, TrialRequeued, Warned
from trialpod_operator.engine.engine import Engine
from trialpod_operator.experiment.records import Record, decode_record, encode


def test_a_stopped_trial_receives_it_and_is_terminated() -> None:
    shell = Shell(2)
    stop = kinds(shell.stop("t0"), StopAttempt)[0]
    assert (stop.attempt, stop.decision, stop.reason) == (1, "stop", {"source": "user"})
    assert shell.answer("t0").decision == "stop"
    assert shell.answer("t1").decision is None
    shell.end("t0", "stopped")
    assert (shell.status("t0"), shell.trial("t0").stop_reason) == (["TERMINATED"], {"source": "user"})


@pytest.mark.parametrize("cause", ["lost", "failed", "preempted", "completed", "paused"])
def test_trial_unaware_of_its_stop_is_stopped(cause: str) -> None:
    shell = Shell(max_failures=3)
    shell.stop("t0")
    shell.results("t0", result(1))
    shell.end("t0", cause)  # type: ignore[arg-type]
    assert shell.status() == ["TERMINATED"]
    assert shell.trial("t0").failures == shell.trial("t0").disruptions == 0


class TestStopUnderAuto:
    """A trial that the user stops is none that was trained to its end: the best paused one still is."""

    def made(self, wrapper: str = "none") -> TrialScheduler:
        auto = AutoScheduler(max_t=9, reduction_factor=4, calibration=0)
        match wrapper:
            case "resource_changing":
                return ResourceChangingScheduler(auto, None)
            case "steered":
                return SteeredScheduler(auto)
        return auto

    @pytest.mark.parametrize("wrapper", ["none", "resource_changing", "steered"])
    def test_best_paused_trial_continues(self, wrapper: str) -> None:
        shell = Shell(3, scheduler=self.made(wrapper))
        for number, trial_id in enumerate(("t0", "t1")):
            shell.checkpoint(trial_id, 0, 1)
            shell.results(trial_id, result(1, number / 2))
            shell.end(trial_id, "paused")
        shell.stop("t2")
        shell.end("t2", "stopped")
        assert shell.status() == ["PAUSED", "RUNNING", "TERMINATED"]
        again = shell.replay(Engine(ListSearch(3), self.made(wrapper)))
        assert again.snapshot() == shell.engine.snapshot()
        shell.results("t1", *(result(iteration, 1.0) for iteration in range(2, 10)))
        shell.end("t1", "stopped")
        assert shell.status() == ["TERMINATED"] * 3

    def test_trial_that_ended_itself_is_one(self) -> None:
        shell = Shell(2, scheduler=self.made())
        shell.checkpoint("t0", 0, 1)
        shell.results("t0", result(1))
        shell.end("t0", "paused")
        shell.results("t1", result(1, done=True))
        shell.end("t1")
        assert shell.status() == ["TERMINATED"] * 2


def test_own_scheduler_learns_of_a_stop_as_of_an_end() -> None:
    scheduler = Recorder()
    shell = Shell(1, scheduler=scheduler)
    shell.stop("t0")
    shell.end("t0", "stopped")
    assert scheduler.heard == [("add", "t0"), ("complete", "t0")]


def test_a_stop_function_sees_groups_config_and_id() -> None:
    seen: list[dict[str, Any]] = []

    def stop(trial_id: str, found: dict[str, Any]) -> bool:
        seen.append(found)
        return bool("eval" in found and found["eval"]["loss"] < 0.5 + found["config"]["x"])

    shell = Shell(stopper=CombinedStopper(FunctionStopper(stop), TimeoutStopper(60)))
    shell.results("t0", result(1, **{"eval/loss": 0.7}))
    assert shell.answer("t0").decision is None
    shell.results("t0", result(2, **{"eval/loss": 0.4}))
    assert shell.answer("t0").decision == "stop"
    assert {(each["trial_id"], each["config"]["x"]) for each in seen} == {("t0", 0)}


def test_a_stop_rule_from_a_mixin_sees_the_config() -> None:
    class Rule:
        def __call__(self, trial_id: str, found: dict[str, Any]) -> bool:
            return bool(found["eval"]["loss"] < found["config"]["x"])

    class Mixed(Rule, Stopper):
        def stop_all(self) -> bool:
            return False

    shell = Shell(stopper=Mixed())
    shell.results("t0", result(1, **{"eval/loss": 0.4}))
    assert shell.answer("t0").decision is None


def test_stopping_a_waiting_trial_tells_the_scheduler() -> None:
    shell = Shell(scheduler=(scheduler := Recorder()))
    shell.capacity(0)
    shell.end("t0", "lost")
    shell.stop("t0")
    assert scheduler.heard == [("add", "t0"), ("remove", "t0")]
    shell.capacity(1)
    assert shell.outcome() == ("Succeeded", "")


def test_own_scheduler_learns_of_trials_that_it_stopped() -> None:
    class Strict(Recorder):
        def on_trial_result(self, tune_controller: Any, trial: Any, found: dict[str, Any]) -> str:
            super().on_trial_result(tune_controller, trial, found)
            for other in tune_controller.get_trials():
                if other is not trial:
                    tune_controller.stop_trial(other)
            return self.STOP

    shell = Shell(3, scheduler=(scheduler := Strict()))
    shell.capacity(2)
    shell.end("t1", "preempted")
    shell.capacity(1)
    scheduler.heard.clear()
    shell.results("t0", result(1))
    assert scheduler.heard == [("result", "t0"), ("complete", "t0"), ("remove", "t1"), ("complete", "t2")]


def test_stopping_everything_creates_no_more_trials() -> None:
    shell = Shell(9, max_concurrent=2)
    shell.stop()
    assert starts(shell.end("t0", "stopped")) == []
    shell.end("t1", "stopped")
    assert shell.outcome() == ("Stopped", "stopped by the user")


def test_suspend_pauses_what_runs_and_resume_continues() -> None:
    shell = Shell(3, max_concurrent=2)
    shell.suspend()
    assert [shell.answer(t).decision for t in ("t0", "t1")] == ["pause", "pause"]
    requeued = kinds(shell.end("t0", "paused"), TrialRequeued)[0]
    assert (requeued.why, requeued.message) == ("paused", "suspend")
    shell.end("t1", "lost")
    assert shell.engine.state.flags.state == "Suspended"
    assert shell.status() == ["PENDING", "PENDING"]
    assert starts(shell.resume()) == [("t0", 2), ("t1", 2)]
    assert shell.trial("t1").disruptions == 0


def test_results_during_suspension_are_judged() -> None:
    scheduler = Recorder()
    shell = Shell(2, scheduler=scheduler, stopper=ScoreStopper(trial=5.0))
    shell.suspend()
    shell.results("t0", result(1, 5.0))
    shell.results("t1", result(1, 1.0))
    assert [shell.answer(t).decision for t in ("t0", "t1")] == ["stop", "pause"]
    assert ("result", "t1") in [heard[:2] for heard in scheduler.heard]
    shell.end("t0", "paused")
    shell.end("t1", "paused")
    assert shell.status() == ["TERMINATED", "PENDING"]
    assert starts(shell.resume()) == [("t1", 2)]


def test_suspending_trial_waits_where_it_would_wait() -> None:
    shell = Shell(stopper=ScoreStopper(trial=5.0))
    horizons = shell.answer("t0").horizons
    assert horizons
    shell.suspend()
    assert shell.answer("t0").horizons == horizons
    shell.results("t0", result(1, 5.0))
    assert (shell.answer("t0").decision, shell.answer("t0").horizons) == ("stop", [])


def test_scheduler_pauses_a_trial_being_suspended() -> None:
    shell = Shell(scheduler=TimeSlices(1))
    shell.suspend()
    shell.results("t0", result(1))
    shell.end("t0", "paused")
    assert shell.status() == ["PAUSED"]
    assert starts(shell.resume()) == [("t0", 2)]


def test_a_trial_that_pauses_after_the_resume_continues_at_once() -> None:
    shell = Shell()
    shell.suspend()
    shell.resume()
    assert starts(shell.end("t0", "paused")) == [("t0", 2)]


def test_suspend_during_stop_does_not_delay_the_end() -> None:
    shell = Shell(2)
    shell.stop()
    shell.suspend()
    assert shell.answer("t0").decision == "stop"
    shell.end("t0", "stopped")
    shell.end("t1", "stopped")
    assert shell.outcome()[0] == "Stopped"


def test_a_suspended_experiment_can_be_stopped() -> None:
    shell = Shell(2)
    shell.suspend()
    shell.end("t0", "paused")
    shell.stop()
    assert shell.answer("t1").decision == "stop"
    shell.end("t1", "stopped")
    assert shell.outcome()[0] == "Stopped"
    assert shell.status() == ["TERMINATED", "TERMINATED"]


def test_suspend_and_resume_keep_it_finished() -> None:
    shell = Shell()
    shell.results("t0", result(1))
    shell.end("t0")
    for _ in range(2):
        shell.suspend()
        shell.wait(50)
        shell.resume()
    assert shell.outcome() == ("Succeeded", "")
    assert shell.engine.state.clock.active_at(shell.now) == 0.0


def test_extended_while_suspended_stays_suspended() -> None:
    shell = Shell()
    shell.results("t0", result(1))
    shell.end("t0")
    shell.suspend()
    assert starts(shell.edit(num_samples=2)) == []
    assert shell.engine.state.flags.state == "Suspended"
    assert starts(shell.resume()) == [("t1", 1)]


def test_the_time_budget_counts_active_time_only() -> None:
    shell = Shell(time_budget_s=100.0)
    assert shell.engine.next_wakeup() == 1100.0
    shell.wait(40)
    shell.suspend()
    assert shell.engine.next_wakeup() is None
    shell.wait(1000)
    shell.resume()
    assert shell.engine.next_wakeup() == shell.now + 60
    shell.end("t0", "paused")
    shell.wait(59)
    assert shell.answer("t0").decision is None
    assert kinds(shell.wait(1), DecisionMade)[0].reason == {"source": "time_budget", "seconds": 100.0}
    shell.end("t0", "stopped")
    assert shell.outcome() == ("Stopped", "the time budget of 100 s is used up")


def test_time_without_the_shell_is_not_charged() -> None:
    shell = Shell(time_budget_s=100.0)
    shell.wait(30)
    shell.now += 5000
    shell.recover(("t0", 1))
    assert shell.engine.next_wakeup() == shell.now + 70


def test_lowered_budget_stops_and_raised_budget_lifts_it() -> None:
    shell = Shell(3, max_concurrent=1, time_budget_s=100.0)
    shell.wait(50)
    shell.edit(time_budget_s=20.0)
    assert shell.answer("t0").decision == "stop"
    shell.edit(time_budget_s=200.0)
    assert starts(shell.end("t0", "stopped")) == [("t1", 1)]
    assert shell.engine.next_wakeup() == 1200.0


def test_timeout_stopper_ends_without_any_result() -> None:
    shell = Shell(stopper=CombinedStopper(TimeoutStopper(60.0), ScoreStopper()))
    assert shell.engine.next_wakeup() == 1060.0
    shell.wait(20)
    shell.now += 900
    shell.recover(("t0", 1))
    assert shell.engine.next_wakeup() == shell.now + 40
    shell.wait(40)
    assert shell.answer("t0").decision == "stop"
    shell.end("t0", "stopped")
    assert shell.outcome()[0] == "Succeeded"


def test_stopper_ends_trial_at_the_result_that_meets_it() -> None:
    shell = Shell(stopper=ScoreStopper(trial=5.0))
    shell.results("t0", result(1, 1.0), result(2, 5.0), result(3, 7.0))
    assert shell.trial("t0").current.decision_reason == {"source": "stopper", "stopper": "score", "best": 5.0}
    assert shell.trial("t0").results == 3
    assert [verdict.number for verdict in shell.engine.choices.verdicts] == [2]


def test_a_stopper_can_end_the_experiment() -> None:
    shell = Shell(9, max_concurrent=2, stopper=ScoreStopper(everything=5.0))
    shell.results("t1", result(1, 6.0))
    assert [shell.answer(t).decision for t in ("t0", "t1")] == ["stop", "stop"]
    shell.end("t0", "stopped")
    shell.end("t1", "stopped")
    assert shell.outcome() == ("Succeeded", "the stopper score ended the experiment")


def test_missing_metric_warns_once_with_a_suggestion() -> None:
    shell = Shell(2)
    shell.results("t0", {"training_iteration": 1, "scores": 1.0})
    shell.results("t1", {"training_iteration": 1, "scores": 1.0})
    (warning,) = kinds(shell.actions, Warned)
    assert "the metric 'score' is not in the first result" in warning.message
    assert "did you mean 'scores'?" in warning.message


def test_three_trials_without_the_metric_end_the_experiment() -> None:
    shell = Shell(100, max_concurrent=1)
    for number in range(3):
        shell.results(f"t{number}", {"training_iteration": 1, "scores": 1.0})
        shell.end(f"t{number}")
    state, message = shell.outcome()
    assert state == "Failed"
    assert message.startswith("the metric 'score' was never reported; reported metrics: scores")
    assert shell.status() == ["ERROR"] * 3


def test_a_number_without_a_name_gets_a_remedy() -> None:
    shell = Shell(1)
    shell.results("t0", {"training_iteration": 1, "_metric": 1.0})
    (warning,) = kinds(shell.actions, Warned)
    assert warning.message.endswith("but a number without a name; report {'score': number}")


def test_metric_missing_in_one_trial_fails_that_trial_only() -> None:
    shell = Shell(6, max_concurrent=1)
    shell.results("t0", result(1))
    shell.end("t0")
    for number in range(1, 5):
        shell.end(f"t{number}")
    assert "without reporting anything" in shell.trial("t4").error
    assert shell.status("t5") == ["RUNNING"]


def test_paused_trials_give_their_place_away_and_come_back() -> None:
    shell = Shell(2, max_concurrent=1, scheduler=TimeSlices(2, stop_at=4))
    shell.results("t0", result(1), result(2))
    assert shell.answer("t0").decision == "pause"
    assert starts(shell.end("t0", "paused")) == [("t1", 1)]
    assert shell.status() == ["PAUSED", "RUNNING"]
    shell.results("t1", result(1), result(2))
    assert starts(shell.end("t1", "paused")) == [("t0", 2)]


def test_trials_left_paused_are_ended_at_the_end() -> None:
    shell = Shell(2, scheduler=Halt())
    for trial_id in ("t0", "t1"):
        shell.results(trial_id, result(1))
        shell.end(trial_id, "paused")
    assert shell.outcome() == ("Succeeded", "")
    assert shell.trial("t0").stop_reason == {"source": "scheduler", "rule": "left paused"}


def test_paused_trials_wait_while_the_cluster_has_no_room() -> None:
    shell = Shell(1, scheduler=TimeSlices(2))
    shell.capacity(0)
    shell.results("t0", result(1), result(2))
    shell.end("t0", "paused")
    assert shell.status() == ["PAUSED"]
    assert starts(shell.capacity(1)) == [("t0", 2)]


def flops(shell: Shell, trial_id: str, score: int) -> None:
    shell.results(trial_id, {"training_iteration": 1, "flops": 3 * 10**19, "score": score})


def test_integers_beyond_64_bits_are_stored_as_evidence() -> None:
    def asha() -> AsyncHyperBandScheduler:
        return AsyncHyperBandScheduler(time_attr="flops", max_t=10**21, grace_period=10**19, reduction_factor=10)

    shell = Shell(2, scheduler=asha(), max_concurrent=2)
    flops(shell, "t0", 10**22)
    flops(shell, "t1", 10**20)
    assert [decision.kind for decision in shell.trial("t1").decisions] == ["stop"]
    for record in shell.journal:
        decode_record(encode(Record(*record)))
    again = Engine(ListSearch(2), asha(), None)
    again.restore(shell.engine.snapshot())
    assert again.state.trials["t1"].decisions == shell.trial("t1").decisions


def test_reasons_of_own_stoppers_may_hold_integers_of_any_size() -> None:
    shell = Shell(1, stopper=ScoreStopper(trial=10**20))
    flops(shell, "t0", 10**400)
    (reason,) = [verdict.reason for _, _, choices in shell.journal for verdict in choices.verdicts]
    assert reason == {"source": "stopper", "stopper": "score", "best": math.inf}
    for record in shell.journal:
        decode_record(encode(Record(*record)))
