"""Answers and horizons, extension, restarts, replays, and algorithms that break."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from engine_support import Halt, ListSearch, ScoreStopper, Shell, TimeSlices, kinds, result, starts, stored

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import Horizon
from trialpod.tune.schedulers.async_hyperband import AsyncHyperBandScheduler
from trialpod.tune.schedulers.fifo import FIFOScheduler
from trialpod_operator.engine.actions import StopAttempt, Warned
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.events import ResumeRequested, SuspendRequested
from trialpod_operator.engine.settings import RepeatRules


def asha() -> AsyncHyperBandScheduler:
    return AsyncHyperBandScheduler(max_t=9, reduction_factor=3)


def test_replay_ends_paused_trial_before_starting_next() -> None:
    shell = Shell(3, search=ListSearch(3, at_once=1), scheduler=Halt())
    shell.results("t0", result(1))
    shell.end("t0", "paused")
    assert shell.status() == ["TERMINATED", "RUNNING"]
    again = shell.replay(Engine(ListSearch(3, at_once=1), Halt()))
    assert again.snapshot() == shell.engine.snapshot()


@pytest.mark.parametrize("cause", ["failed", "lost", "preempted", "paused"])
def test_a_pause_that_was_decided_holds_however_its_attempt_ends(cause: Any) -> None:
    shell = Shell(2, scheduler=TimeSlices(), max_failures=3, max_concurrent=1)
    shell.results("t0", result(1), result(2))
    assert shell.answer("t0").decision == "pause"
    shell.end("t0", cause)
    assert shell.status() == ["PAUSED", "RUNNING"]
    assert shell.engine.state.trials["t0"].failures == (cause == "failed")
    assert shell.engine.scheduler.ran == {"t0": 2}


def test_an_attempt_that_is_not_the_latest_is_superseded() -> None:
    shell = Shell()
    shell.end("t0", "preempted")
    assert shell.answer("t0", 1).superseded
    assert not shell.answer("t0", 2).superseded
    assert shell.engine.answer("unknown", 1).superseded


def test_repeated_final_report_is_acknowledged() -> None:
    shell = Shell()
    shell.results("t0", result(1), result(2))
    shell.end("t0")
    answer = shell.answer("t0")
    assert (answer.received, answer.decision, answer.superseded) == (2, "stop", False)


def test_abandoned_attempt_is_superseded_before_next_start() -> None:
    shell = Shell()
    shell.capacity(0)
    shell.end("t0", "lost")
    assert shell.status() == ["PENDING"]
    assert shell.answer("t0", 1).superseded


def test_horizons_are_those_of_scheduler_and_stopper() -> None:
    assert Shell().answer("t0").horizons == []
    assert Shell(scheduler=asha()).answer("t0").horizons == [Horizon("training_iteration", 1.0)]
    both = Shell(scheduler=asha(), stopper=ScoreStopper()).answer("t0").horizons
    assert both == [Horizon("training_iteration", 1.0), Horizon("training_iteration", 0.0)]


@pytest.mark.parametrize("make", [asha, lambda: TimeSlices(3, stop_at=9), FIFOScheduler])
def test_batch_up_to_horizon_decides_like_single_results(make: Any) -> None:
    def run(batched: bool) -> list[tuple[Any, ...]]:
        shell = Shell(9, scheduler=make(), max_concurrent=3)
        decisions: list[tuple[Any, ...]] = []
        progress = dict.fromkeys((f"t{n}" for n in range(9)), 0)
        while not shell.engine.finished:
            for trial in shell.engine.state.running_trials():
                name, batch = trial.trial_id, []
                horizons = shell.answer(name).horizons
                while True:
                    progress[name] += 1
                    score = (int(name[1:]) * 7 % 5) + progress[name] * 0.1
                    batch.append(result(progress[name], score, done=progress[name] == 20))
                    if progress[name] == 20 or any(progress[name] >= horizon.at for horizon in horizons):
                        break
                if batched:
                    shell.results(name, *batch)
                else:
                    for item in batch:
                        assert shell.trial(name).current.decision is None
                        shell.results(name, item)
                decision = shell.answer(name).decision
                decisions.append((name, progress[name], decision, stored(trial.current.decision_reason)))
                if decision or progress[name] == 20:
                    shell.end(name, {"stop": "stopped", "pause": "paused", None: "completed"}[decision])  # type: ignore[arg-type]
        return decisions

    assert run(batched=True) == run(batched=False)


def test_a_finished_experiment_continues_when_samples_are_added() -> None:
    shell = Shell(1)
    shell.results("t0", result(1))
    shell.end("t0")
    assert shell.engine.finished
    shell.wait(500)
    assert starts(shell.edit(num_samples=3)) == [("t1", 1), ("t2", 1)]
    assert shell.engine.state.clock.active_at(shell.now) == 0.0


def test_samples_below_what_exists_only_end_the_creation() -> None:
    shell = Shell(10, max_concurrent=3)
    shell.edit(num_samples=1)
    for number in range(3):
        shell.results(f"t{number}", result(1))
        shell.end(f"t{number}")
    assert shell.outcome() == ("Succeeded", "")
    assert len(shell.engine.state.trials) == 3


def test_same_settings_leave_finished_experiment_alone() -> None:
    shell = Shell(1)
    shell.results("t0", result(1))
    shell.end("t0")
    shell.edit()
    shell.recover()
    assert shell.outcome() == ("Succeeded", "")


def test_concurrency_change_starts_more_or_drains() -> None:
    shell = Shell(6, max_concurrent=2)
    assert len(starts(shell.edit(max_concurrent=4))) == 2
    shell.edit(max_concurrent=1)
    assert len(shell.engine.state.running) == 4
    shell.results("t0", result(1))
    assert starts(shell.end("t0")) == []


def test_no_slots_start_nothing_until_there_are_some() -> None:
    shell = Shell(2, start=False)
    shell.capacity(0)
    assert starts(shell.edit()) == []
    assert not shell.engine.finished
    assert len(starts(shell.capacity(None))) == 2


def test_restart_disrupts_lost_attempts_and_keeps_live_ones() -> None:
    shell = Shell(3)
    shell.results("t0", result(1, done=True))
    actions = shell.recover(("t1", 1))
    assert shell.status() == ["TERMINATED", "RUNNING", "RUNNING"]
    assert starts(actions) == [("t2", 2)]
    assert (shell.trial("t1").attempt, shell.trial("t2").disruptions) == (1, 1)


def test_live_attempt_gets_its_decision_again_after_restart() -> None:
    shell = Shell()
    shell.stop("t0")
    assert [action.decision for action in kinds(shell.recover(("t0", 1)), StopAttempt)] == ["stop"]


def test_a_restored_scheduler_knows_metric_and_rungs() -> None:
    shell = Shell(2, scheduler=asha())
    shell.results("t0", result(1, 5.0))
    fresh = Engine(ListSearch(2), asha())
    fresh.restore(shell.engine.snapshot())
    shell.engine = fresh
    shell.results("t1", result(1, 1.0))
    assert shell.answer("t1").decision == "stop"
    assert shell.trial("t1").current.decision_reason["cutoff"] == 5.0


def test_a_restored_engine_plans_the_same_wakeup() -> None:
    shell = Shell(1, time_budget_s=100.0)
    shell.end("t0", "lost")
    shell.end("t0", "lost")
    fresh = Engine(ListSearch(1))
    fresh.restore(shell.engine.snapshot())
    assert fresh.next_wakeup() == shell.engine.next_wakeup() == shell.now + 1.0


def test_replay_uses_the_record_not_the_algorithm() -> None:
    shell = Shell(4, max_concurrent=2, scheduler=asha())
    shell.results("t0", result(1, 5.0))
    shell.results("t1", result(1, 1.0), result(2, 1.0))
    shell.end("t1", "stopped")
    shell.results("t2", result(1, 9.0, done=True))
    shell.end("t2")
    for search, scheduler, stopper in (
        (ListSearch(4, shift=100), FIFOScheduler(), None),
        (ListSearch(1), Halt(), ScoreStopper(trial=0.0, everything=0.0)),
        (ListSearch(4), TimeSlices(1), None),
    ):
        engine = shell.replay(Engine(search, scheduler, stopper))
        assert stored(list(engine.state.trials.values())) == stored(list(shell.engine.state.trials.values()))
        assert engine.state.flags.stopping is None


def test_replayed_stop_of_all_falls_at_the_same_result() -> None:
    shell = Shell(2, stopper=ScoreStopper(everything=5.0), search=(lived := ListSearch(2)))
    shell.results("t0", result(1, 1.0), result(2, 2.0), result(3, 6.0), result(4, 7.0))
    engine = shell.replay(Engine(again := ListSearch(2), None, ScoreStopper(everything=5.0)))
    assert engine.snapshot() == shell.engine.snapshot()
    assert again.heard == lived.heard
    shell.replay(Engine(other := ListSearch(2), None, None))
    assert other.heard == lived.heard


class Broken(FIFOScheduler):
    """Raises at the third result."""

    def __init__(self) -> None:
        self.results = 0

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        self.results += 1
        if self.results == 3:
            raise KeyError("momentum")
        return self.CONTINUE


def test_scheduler_error_ends_experiment_with_its_message() -> None:
    shell = Shell(5, max_concurrent=2, scheduler=Broken())
    shell.results("t0", *[result(n) for n in range(1, 6)])
    assert shell.trial("t0").results == 5
    assert shell.answer("t0").received == 5
    shell.end("t0", "stopped")
    shell.end("t1", "stopped")
    assert shell.outcome() == ("Failed", "Broken.on_trial_result raised KeyError: 'momentum'")
    assert shell.replay(Engine(ListSearch(5), Broken())).snapshot() == shell.engine.snapshot()
    replayed = shell.replay(Engine(ListSearch(5), FIFOScheduler()))
    assert replayed.state.flags.state == "Failed"


class Hesitant(FIFOScheduler):
    """Never chooses."""

    def choose_trial_to_run(self, tune_controller: Any) -> None:
        return None


def test_idle_scheduler_cannot_block_the_experiment() -> None:
    shell = Shell(2, scheduler=Hesitant())
    assert starts(shell.actions) == [("t0", 1)]
    assert "Hesitant started no trial" in kinds(shell.actions, Warned)[0].message
    shell.results("t0", result(1))
    assert starts(shell.end("t0")) == [("t1", 1)]


class Twice(ListSearch):
    """Suggests the same trial again and again."""

    def next_suggestion(self) -> Any:
        self.next = 0
        return super().next_suggestion()


def test_a_trial_that_is_suggested_twice_ends_the_experiment() -> None:
    shell = Shell(3, search=Twice(3))
    shell.end("t0", "stopped")
    assert shell.outcome() == ("Failed", "Twice suggested trial t0 twice")


def test_silent_search_does_not_block_the_end() -> None:
    shell = Shell(3, search=ListSearch(3, at_once=0))
    assert shell.outcome()[0] == "Succeeded"
    assert "has no further suggestion" in kinds(shell.actions, Warned)[0].message


def test_a_search_that_ends_early_is_said_in_the_message() -> None:
    class Small(ListSearch):
        @property
        def finished(self) -> bool:
            return self.next >= 2

    shell = Shell(5, search=Small(), max_concurrent=2, repeats=RepeatRules(top=1, times=1))
    for trial_id in ("t0", "t1", "t0r1"):
        shell.results(trial_id, result(1))
        shell.end(trial_id, "completed")
    assert shell.outcome() == ("Succeeded", "the search had no further suggestion after 2 of 5 trials")


@pytest.mark.parametrize(
    ("time_attr", "words"), [("epoc", "did you mean 'epoch'?"), ("epoch", ""), ("when", "epoch")]
)
def test_a_time_that_no_result_has_is_pointed_out(time_attr: str, words: str) -> None:
    shell = Shell(2, scheduler=AsyncHyperBandScheduler(time_attr, max_t=9))
    for trial_id in ("t0", "t1"):
        shell.results(trial_id, result(1, epoch=1), result(2, epoch=2))
    warned = [each.message for each in kinds(shell.actions, Warned)]
    if not words:
        assert warned == []
        return
    (message,) = warned
    assert f"time_attr '{time_attr}' is not in the first result" in message
    assert words in message


def test_time_slicing_scheduler_always_has_a_candidate() -> None:
    class Slicing(TimeSlices):
        time_slicing = True

    shell = Shell(5, max_concurrent=2, scheduler=Slicing(2))
    assert shell.status() == ["RUNNING", "RUNNING", "PENDING"]


class TestOtherAlgorithms:
    """A snapshot's state is taken over only by the algorithms that it is of."""

    def test_another_scheduler_is_refused(self) -> None:
        shell = Shell(2, scheduler=asha())
        with pytest.raises(InvalidInputError, match="started with the scheduler AsyncHyperBandScheduler, not FIFO"):
            Engine(ListSearch(2)).restore(shell.engine.snapshot())
        reader = Engine(ListSearch(2))
        reader.restore(shell.engine.snapshot(), by_record=True)
        assert len(reader.state.trials) == 2

    def test_state_that_does_not_fit_is_refused(self) -> None:
        shell = Shell(2)
        snapshot = msgspec.msgpack.decode(shell.engine.snapshot())
        snapshot["kinds"]["scheduler"] = "AsyncHyperBandScheduler"
        snapshot["scheduler"] = {"version": 1}
        with pytest.raises(InvalidInputError, match="the stored state does not fit AsyncHyperBandScheduler"):
            Engine(ListSearch(2), asha()).restore(msgspec.msgpack.encode(snapshot))


class SpentSearch(ListSearch):
    """Always says that it has no further suggestion."""

    @property
    def finished(self) -> bool:
        return True


class TestReplayOfReopening:
    def test_does_not_ask_a_changed_search(self) -> None:
        shell = Shell(1)
        shell.results("t0", result(1))
        shell.end("t0", "completed")
        assert shell.engine.finished
        shell.apply(SuspendRequested())
        shell.edit(num_samples=2)  # no trial is created yet, so only the reopening is recorded
        shell.apply(ResumeRequested())
        assert "t1" in shell.engine.state.running
        for search in (ListSearch(1), SpentSearch(1)):
            again = shell.replay(Engine(search))
            assert stored(list(again.state.trials.values())) == stored(list(shell.engine.state.trials.values()))
            assert not again.finished
