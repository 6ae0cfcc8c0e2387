"""What trials took and what came of it, and the budgets of hours."""

from __future__ import annotations

import pytest
from engine_support import ListSearch, ScoreStopper, Shell, TimeSlices, kinds, result

from trialpod.protocol.messages import EndCause
from trialpod.tune.schedulers.async_hyperband import AsyncHyperBandScheduler
from trialpod_operator.engine import accounting
from trialpod_operator.engine.actions import DecisionMade
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.events import AttemptStarted

GPU = "nvidia.com/gpu"


class Clocked(Shell):
    """A shell whose attempts take up their work, and time goes by."""

    def begin(self, trial_id: str, **resources: float) -> None:
        attempt = self.trial(trial_id).attempt
        self.apply(AttemptStarted(trial_id=trial_id, attempt=attempt, pid=1, resources=resources))

    def outcomes(self, resource: str = "trial") -> dict[str, float]:
        account = self.engine.state.account.outcomes
        return {name: seconds[resource] for name, seconds in account.items() if seconds.get(resource)}

    @property
    def spent(self) -> dict[str, float]:
        return self.engine.state.account.spent

    def used(self, resource: str = "trial") -> float:
        return accounting.used(self.engine.state, self.now).get(resource, 0.0)


def test_a_trial_that_completed_was_useful_from_its_beginning_on() -> None:
    shell = Clocked()
    shell.wait(50)  # for a place
    shell.begin("t0", cpu=2.0, memory=1e9)
    shell.wait(10)
    assert (shell.used(), shell.used("cpu")) == (10, 20)
    assert shell.outcomes() == {}
    shell.results("t0", result(1, 0.5))
    shell.end("t0")
    assert shell.outcomes() == {"useful": 10}
    assert shell.outcomes("cpu") == {"useful": 20}
    assert shell.spent == {"trial": 10, "cpu": 20, "memory": 1e10}
    shell.wait(100)
    assert shell.used() == 10


def test_start_and_end_count_once_when_repeated() -> None:
    shell = Clocked(max_failures=1)
    shell.begin("t0", cpu=1.0)
    shell.wait(5)
    shell.begin("t0", cpu=7.0)
    shell.wait(5)
    shell.results("t0", result(1))
    shell.end("t0")
    shell.end("t0", attempt=1)
    assert shell.spent == {"trial": 10, "cpu": 10}


@pytest.mark.parametrize(("cause", "outcome"), [("preempted", "lost"), ("lost", "lost"), ("failed", "failed")])
def test_interrupted_time_since_checkpoint_is_not_useful(cause: EndCause, outcome: str) -> None:
    shell = Clocked(max_failures=1)
    shell.begin("t0", cpu=2.0)
    shell.wait(10)
    shell.checkpoint("t0", 0, 1)
    shell.wait(4)
    shell.end("t0", cause)
    assert shell.outcomes("cpu") == {outcome: 8}
    shell.wait(2)  # for its next attempt
    shell.begin("t0", cpu=1.0)
    shell.wait(3)
    shell.results("t0", result(2, 0.5))
    shell.end("t0")
    assert shell.outcomes("cpu") == {outcome: 8, "useful": 23}
    assert shell.outcomes() == {outcome: 4, "useful": 13}
    assert shell.spent["cpu"] == 31


def test_all_that_a_trial_in_error_kept_has_failed() -> None:
    shell = Clocked(max_failures=1)
    for index in range(2):
        shell.begin("t0")
        shell.wait(10)
        shell.checkpoint("t0", index, index + 1)
        shell.wait(1)
        shell.end("t0", "failed", "boom")
        shell.wait(5)
    assert shell.status() == ["ERROR"]
    assert shell.outcomes() == {"failed": 22}


def test_retried_trial_adds_the_time_since_its_retry() -> None:
    shell = Clocked()
    shell.begin("t0")
    shell.wait(10)
    shell.end("t0", "failed", "boom")
    shell.retry()
    shell.begin("t0")
    shell.wait(3)
    shell.results("t0", result(1))
    shell.end("t0")
    assert shell.outcomes() == {"failed": 10, "useful": 3}


def test_stopped_trial_counts_all_attempts_as_stopped() -> None:
    shell = Clocked()
    shell.begin("t0")
    shell.wait(10)
    shell.checkpoint("t0", 0, 1)
    shell.end("t0", "preempted")
    shell.wait(2)
    shell.begin("t0")
    shell.wait(5)
    shell.stop("t0")
    shell.end("t0", "stopped")
    assert shell.outcomes() == {"stopped": 15}


def test_stop_is_early_below_the_last_rung_only() -> None:
    shell = Clocked(2, scheduler=AsyncHyperBandScheduler(max_t=2, grace_period=1, reduction_factor=2))
    for trial_id, score in (("t0", 9.0), ("t1", 1.0)):
        shell.begin(trial_id)
        shell.wait(10)
        shell.results(trial_id, result(1, score))
    assert shell.trial("t1").current.decision == "stop"
    shell.end("t1", "stopped")
    shell.results("t0", result(2, 9.0))
    assert shell.trial("t0").current.decision == "stop"
    shell.end("t0", "stopped")
    assert shell.outcomes() == {"stopped": 10, "useful": 20}


def test_a_stopper_sets_the_end_that_a_trial_was_to_have() -> None:
    shell = Clocked(stopper=ScoreStopper(trial=5.0))
    shell.begin("t0")
    shell.wait(10)
    shell.results("t0", result(1, 6.0))
    shell.end("t0", "stopped")
    assert shell.outcomes() == {"useful": 10}


@pytest.mark.parametrize(("saved", "lost"), [(True, {}), (False, {"lost": 10})])
def test_a_pause_loses_what_was_not_saved(saved: bool, lost: dict[str, float]) -> None:
    shell = Clocked()
    shell.begin("t0")
    shell.wait(7)
    shell.results("t0", result(1))
    shell.suspend()
    if saved:
        shell.checkpoint("t0", 0, 1)
    shell.wait(3)
    shell.end("t0", "paused")
    assert shell.outcomes() == lost
    assert shell.spent["trial"] == 10


def test_paused_and_abandoned_trial_counts_as_stopped() -> None:
    shell = Clocked(1, scheduler=TimeSlices(1))
    shell.begin("t0")
    shell.wait(10)
    shell.results("t0", result(1))
    shell.checkpoint("t0", 0, 1)
    shell.end("t0", "paused")
    assert shell.outcomes() == {}
    shell.stop("t0")
    shell.end("t0", "stopped")
    assert shell.outcomes() == {"stopped": 10}


def test_an_attempt_that_never_took_up_its_work_took_nothing() -> None:
    shell = Clocked(max_failures=1)
    shell.wait(10)
    shell.end("t0", "lost")
    assert shell.spent == {}


def test_attempt_without_start_time_counts_from_next_result() -> None:
    shell = Clocked()
    shell.wait(10)
    shell.results("t0", result(1))
    shell.wait(5)
    shell.end("t0")
    assert shell.outcomes() == {"useful": 5}


def test_attempt_lost_with_operator_ends_when_last_seen() -> None:
    shell = Clocked()
    shell.begin("t0")
    shell.wait(10)
    shell.now += 1000
    shell.recover()
    assert shell.outcomes() == {"lost": 10}


def test_a_replay_and_a_snapshot_give_the_same_account() -> None:
    shell = Clocked(3, max_concurrent=2, max_gpu_hours=0.1, max_failures=1)
    shell.begin("t0", **{GPU: 0.5, "cpu": 3.0})
    shell.begin("t1", cpu=1.0)
    shell.wait(7.3)
    shell.checkpoint("t0", 0, 1)
    shell.wait(0.1)
    shell.end("t0", "failed", "boom")
    shell.wait(1.7)
    shell.begin("t0", **{GPU: 0.5})
    shell.wait(0.9)
    fresh = shell.replay(Engine(ListSearch(3)))
    assert fresh.snapshot() == shell.engine.snapshot()
    again = Engine(ListSearch(3))
    again.restore(shell.engine.snapshot())
    later = shell.now + 11.1
    assert accounting.used(again.state, later) == accounting.used(shell.engine.state, later)
    assert again.next_wakeup() == shell.engine.next_wakeup()


def test_used_up_trial_hours_end_gracefully_with_reason() -> None:
    shell = Clocked(9, max_concurrent=2, max_trial_hours=0.01)
    shell.begin("t0")
    shell.wait(10)
    shell.begin("t1")
    wakeup = shell.engine.next_wakeup()
    assert wakeup == pytest.approx(shell.now + 13)  # 36 s of two trials, of which 10 s are gone
    shell.now = wakeup or 0.0
    decisions = kinds(shell.wait(0), DecisionMade)
    assert [each.decision for each in decisions] == ["stop", "stop"]
    assert decisions[0].reason["budget"] == "maxTrialHours"
    shell.wait(2)
    shell.end("t0", "stopped")
    shell.end("t1", "stopped")
    assert shell.outcome() == (
        "Stopped",
        "the budget of 0.01 trial hours is used up: 0.01111 were used; to continue, raise spec.maxTrialHours",
    )
    assert shell.outcomes() == {"stopped": pytest.approx(40)}
    assert len(shell.engine.state.trials) == 2


def test_gpu_hours_count_shares_and_devices_by_all_their_names() -> None:
    shell = Clocked(2, max_concurrent=2, max_gpu_hours=0.01)
    shell.begin("t0", gpu=0.5, cpu=64.0)
    shell.begin("t1", **{"nvidia.com/mig-1g.5gb": 1.0})
    assert shell.engine.next_wakeup() == pytest.approx(shell.now + 24)
    shell.wait(23)
    assert shell.trial("t0").current.decision is None
    shell.wait(1)
    assert (shell.trial("t0").current.decision, shell.trial("t1").current.decision) == ("stop", "stop")


def test_trials_without_gpus_never_use_up_gpu_hours() -> None:
    shell = Clocked(max_gpu_hours=0.001)
    shell.begin("t0", cpu=4.0)
    assert shell.engine.next_wakeup() is None
    shell.wait(1e6)
    assert shell.trial("t0").current.decision is None


def test_a_raised_budget_continues_before_the_end_and_after_it() -> None:
    shell = Clocked(3, max_concurrent=1, max_trial_hours=0.01)
    shell.begin("t0")
    shell.wait(36)
    assert shell.trial("t0").current.decision == "stop"
    shell.edit(max_trial_hours=0.02)  # the trial that has been told ends, and others follow
    shell.end("t0", "stopped")
    assert shell.trial("t1").running
    shell.begin("t1")
    shell.wait(36)
    shell.end("t1", "stopped")
    assert shell.engine.finished
    shell.edit(max_trial_hours=0.015)
    assert shell.engine.finished
    shell.edit(max_trial_hours=None)
    assert shell.trial("t2").running


def test_a_lowered_budget_ends_the_experiment_at_once() -> None:
    shell = Clocked()
    shell.begin("t0")
    shell.wait(100)
    shell.edit(max_trial_hours=0.01)
    assert shell.trial("t0").current.decision == "stop"


def test_used_up_budget_prevents_retries() -> None:
    shell = Clocked(max_trial_hours=0.01)
    shell.begin("t0")
    shell.wait(30)
    shell.wait(6)
    shell.end("t0", "failed")
    shell.retry()
    assert shell.engine.finished


def test_the_table_has_hours_and_gibibyte_hours() -> None:
    shell = Clocked()
    shell.begin("t0", memory=2.0 * 1024**3, cpu=0.5)
    shell.wait(7200)
    shell.results("t0", result(1))
    shell.end("t0")
    account = shell.engine.state.account
    table = accounting.hours(account.outcomes, account.spent)
    assert list(table) == ["trial", "cpu", "memory"]
    assert table["memory"] == {"used": 4.0, "useful": 4.0, "stopped": 0.0, "lost": 0.0, "failed": 0.0}
    assert (table["cpu"]["used"], table["trial"]["useful"]) == (1.0, 2.0)
