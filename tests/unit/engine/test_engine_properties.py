"""The engine under random events and faults, against a model of what attempts really delivered."""

from __future__ import annotations

from collections import Counter
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from engine_support import ListSearch, Population, ScoreStopper, TimeSlices, raw, result, settings, stored
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trialpod.protocol.messages import AttemptEnd, CheckpointInfo
from trialpod.tune.schedulers.async_hyperband import AsyncHyperBandScheduler
from trialpod.tune.schedulers.auto import AutoScheduler
from trialpod.tune.schedulers.fifo import FIFOScheduler
from trialpod.tune.stopper.combined import CombinedStopper
from trialpod.tune.stopper.timeout import TimeoutStopper
from trialpod_operator.engine import accounting, events
from trialpod_operator.engine.actions import ExperimentFinished, StartAttempt, TrialCreated
from trialpod_operator.engine.choices import Choices
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.settings import RepeatRules
from trialpod_operator.engine.trial import ERROR, PAUSED, PENDING, RUNNING, STATUSES, TERMINATED

pytestmark = pytest.mark.once

SCHEDULERS = ("fifo", "asha", "auto", "auto", "slices", "sliced asha", "population", "population", "population")
CAUSES = ("completed", "stopped", "paused", "preempted", "failed", "lost", "damaged")
ENDS = {"stop": "stopped", "pause": "paused", "exploit": "paused", None: "completed"}
MOST_TRIALS = 12


class SlicedASHA(AsyncHyperBandScheduler):
    """ASHA, with one more trial kept ready."""

    time_slicing = True


def build(kind: str, at_once: int | None, stopper: str, *, other: bool = False) -> Engine:
    """The engine of a run; `other`: one whose algorithms would choose differently."""
    if other:
        others = {
            "slices": FIFOScheduler,
            "auto": FIFOScheduler,
            "asha": lambda: Population(5),
            "population": lambda: Population(3),
        }
        return Engine(
            ListSearch(0, shift=7),
            others.get(kind, lambda: TimeSlices(1))(),
            ScoreStopper(trial=3.0) if stopper == "none" else None,
        )
    scheduler = {
        "fifo": FIFOScheduler,
        "asha": lambda: AsyncHyperBandScheduler(max_t=9, reduction_factor=3),
        "auto": lambda: AutoScheduler(max_t=9, reduction_factor=2, calibration=0),
        "slices": lambda: TimeSlices(2, stop_at=6),
        "population": Population,
        "sliced asha": lambda: SlicedASHA(max_t=4, reduction_factor=2),
    }[kind]()
    chosen = {
        "none": lambda: None,
        "score": lambda: ScoreStopper(trial=8.0, everything=9.0),
        "timed": lambda: CombinedStopper(TimeoutStopper(500.0), ScoreStopper(trial=9.0)),
    }[stopper]()
    return Engine(ListSearch(0, at_once=at_once), scheduler, chosen)


class Experiment(RuleBasedStateMachine):
    """Plays the shell and all attempts."""

    @initialize(
        kind=st.sampled_from(SCHEDULERS),
        at_once=st.sampled_from((None, None, 2)),
        stopper=st.sampled_from(("none", "none", "score", "timed")),
        num_samples=st.integers(1, 6),
        max_concurrent=st.sampled_from((None, 1, 2, 3)),
        max_failures=st.sampled_from((0, 1, 2, -1)),
        fail_fast=st.sampled_from((False, False, False, True)),
        budget=st.sampled_from((None, None, 300.0)),
        max_trial_hours=st.sampled_from((None, None, None, 0.05)),
        max_gpu_hours=st.sampled_from((None, None, None, 0.02)),
        plans_budget=st.booleans(),
        repeats=st.sampled_from((None, None, RepeatRules(top=2, times=1), RepeatRules(top=1, times=2))),
        stop_when_not_worth=st.sampled_from((None, None, 0.01, 100.0)),
    )
    def begin(self, kind: str, at_once: int | None, stopper: str, budget: float | None, **spec: Any) -> None:
        self.how = (kind, at_once, stopper)
        self.now = 1000.0
        self.engine = build(*self.how)
        self.twin = build(*self.how)  # sees the same events
        self.replayed = build(*self.how)  # sees them with the recorded choices
        self.other = build(*self.how, other=True)  # so too, but would choose differently
        self.delivered: Counter[str] = Counter()
        self.received: dict[tuple[str, int], int] = {}
        self.failures: Counter[str] = Counter()
        self.disruptions: Counter[str] = Counter()
        self.ended: set[str] = set()
        self.lost: set[tuple[str, int]] = set()
        self.iteration: dict[str, int] = {}
        self.checkpoints: Counter[str] = Counter()
        self.gone: set[tuple[str, str]] = set()  # checkpoints that vanished although they may be needed
        self.began: dict[tuple[str, int], float] = {}  # when the attempts that run took up their work
        self.taken = 0.0  # by those that have ended
        self.account: dict[str, float] = dict.fromkeys(accounting.OUTCOMES, 0.0)  # as it was last seen
        self.settings = settings(time_budget_s=budget, **spec)
        self.apply(events.SettingsObserved(settings=self.settings))

    # -- the shell --

    def apply(self, event: events.AnyEvent) -> None:
        was_finished = self.engine.finished
        if isinstance(event, events.RetryRequested):
            again = {trial_id for trial_id in self.ended if self.engine.state.trials[trial_id].status == ERROR}
        else:
            again = set()
        trials = self.engine.state.trials
        running = {key for key in self.received if self.is_current(*key)}
        actions = self.engine.apply(event, self.now)
        self.record_time(event, running, trials)
        choices = msgspec.msgpack.decode(msgspec.msgpack.encode(self.engine.choices), type=Choices)
        same = self.twin.apply(event, self.now)
        assert stored(same) == stored(actions)
        assert stored(self.replayed.apply(event, self.now, choices)) == stored(actions)
        self.other.apply(event, self.now, choices)
        snapshot = self.engine.snapshot()
        assert self.twin.snapshot() == snapshot
        assert self.replayed.snapshot() == snapshot
        assert stored(list(self.other.state.trials.values())) == stored(list(self.engine.state.trials.values()))

        for trial_id in again:
            if self.engine.state.trials[trial_id].status != ERROR:
                self.ended.discard(trial_id)
                self.failures[trial_id] = 0
        for action in actions:
            if isinstance(action, TrialCreated):
                self.iteration[action.trial.trial_id] = 0
            if isinstance(action, StartAttempt):
                trial = action.trial
                assert trial.trial_id not in self.ended
                assert action.attempt == self.attempts(trial.trial_id) + 1
                self.received[trial.trial_id, action.attempt] = 0
                checkpoint = trial.checkpoint
                self.iteration[trial.trial_id] = checkpoint.iteration if checkpoint else 0
                limits = (self.settings.max_concurrent, self.engine.state.flags.slots)
                assert len(self.engine.state.running) <= min(limit for limit in (*limits, 99) if limit is not None)
        self.ended |= {trial.trial_id for trial in self.engine.state.trials.values() if trial.ended}
        finishes = sum(isinstance(action, ExperimentFinished) for action in actions)
        reopened = isinstance(event, (events.SettingsObserved, events.RetryRequested))
        if was_finished and not reopened:
            assert finishes == 0
        elif not was_finished:
            assert finishes == int(self.engine.finished)
        else:
            assert finishes <= 1

    def record_time(self, event: events.AnyEvent, running: set[tuple[str, int]], trials: Any) -> None:
        """Keep the time that attempts take, from what is said of them."""
        clock = self.engine.state.clock
        for trial_id, attempt in running:
            trial, key = trials[trial_id], (trial_id, attempt)
            heard = (trial.current.received and trial.attempt == attempt) or isinstance(event, events.AttemptStarted)
            if heard and getattr(event, "trial_id", None) == trial_id:
                self.began.setdefault(key, clock.now)
            if not self.is_current(*key) and key in self.began:
                ended = clock.previous if isinstance(event, events.Recovered) else clock.now
                self.taken += max(0.0, ended - self.began.pop(key))

    def attempts(self, trial_id: str) -> int:
        return max((attempt for known, attempt in self.received if known == trial_id), default=0)

    def running(self, data: st.DataObject) -> tuple[str, int]:
        trial_id = data.draw(st.sampled_from(sorted(self.engine.state.running)))
        return trial_id, self.engine.state.trials[trial_id].attempt

    @property
    def runs(self) -> bool:
        return bool(self.engine.state.running)

    # -- what attempts say --

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), cpus=st.sampled_from((1.0, 2.0)), gpus=st.sampled_from((0.0, 0.25, 1.0)))
    def take_up_the_work(self, data: st.DataObject, cpus: float, gpus: float) -> None:
        trial_id, attempt = self.running(data)
        resources = {"cpu": cpus, "nvidia.com/gpu": gpus}
        event = events.AttemptStarted(trial_id=trial_id, attempt=attempt, pid=7, resources=resources)
        for _ in range(2):
            self.apply(event)

    @precondition(lambda self: self.runs)
    @rule(
        data=st.data(),
        scores=st.lists(st.sampled_from((0.0, 1.0, 2.0, 3.0, 5.0, 9.0, float("nan"), "bad")), min_size=1, max_size=4),
        repeat=st.integers(0, 3),
        gap=st.sampled_from((0, 0, 0, 0, 2)),
        done=st.sampled_from((False, False, False, False, True)),
        saves=st.booleans(),
    )
    def report(self, data: st.DataObject, scores: list[Any], repeat: int, gap: int, done: bool, saves: bool) -> None:
        trial_id, attempt = self.running(data)
        known = self.received[trial_id, attempt]
        first = max(1, known + 1 - repeat + gap)
        total = known + gap + len(scores)
        start = self.iteration[trial_id]
        batch = [
            result(start + number - known, scores[number % len(scores)], done=done and number == total)
            for number in range(first, total + 1)
        ]
        if first <= known + 1:
            self.delivered[trial_id] += total - known
            self.received[trial_id, attempt] = total
            self.iteration[trial_id] = start + total - known
        committed = [self.saved(trial_id, attempt)] if saves and not gap else []
        event = events.ResultsReceived(
            trial_id=trial_id,
            attempt=attempt,
            first=first,
            results=[raw(item) for item in batch],
            committed=committed,
            nested=["a", "a/b", str(repeat)][: repeat + 1],
        )
        for _ in range(1 + (repeat == 1)):
            self.apply(event)

    def saved(self, trial_id: str, attempt: int) -> CheckpointInfo:
        """The next checkpoint of a trial."""
        index = self.checkpoints[trial_id]
        self.checkpoints[trial_id] += 1
        iteration = self.iteration[trial_id]
        return CheckpointInfo(name=f"c{index}", index=index, iteration=iteration, metrics={}, attempt=attempt)

    @precondition(lambda self: bool(self.received))
    @rule(data=st.data(), first=st.integers(1, 3))
    def report_of_an_attempt_that_is_over(self, data: st.DataObject, first: int) -> None:
        over = sorted(key for key in self.received if not self.is_current(*key))
        if over:
            trial_id, attempt = data.draw(st.sampled_from(over))
            self.apply(
                events.ResultsReceived(
                    trial_id=trial_id, attempt=attempt, first=first, results=[raw(result(1, 1.0, done=True))] * 3
                )
            )
            self.apply(events.AttemptEnded(trial_id=trial_id, attempt=attempt, end=AttemptEnd(cause="failed")))

    def is_current(self, trial_id: str, attempt: int) -> bool:
        trial = self.engine.state.trials[trial_id]
        return trial.running and trial.attempt == attempt

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), cause=st.sampled_from(CAUSES), retry=st.sampled_from((True, True, False)))
    def end(self, data: st.DataObject, cause: Any, retry: bool) -> None:
        trial_id, attempt = self.running(data)
        trial = self.engine.state.trials[trial_id]
        decision, told, failing = trial.current.decision, trial.completion_reported, trial.current.failing
        counts = cause in ("preempted", "lost") and trial.current.fails_if_lost
        said = cause
        if failing is not None and (counts or cause in ("completed", "stopped", "paused")):
            cause, retry = "failed", failing.retry
        if failing is not None and cause == "failed":
            decision, told = None, False
        if not told and decision != "stop":
            if cause == "failed":
                self.failures[trial_id] += 1
            elif cause in ("preempted", "lost") and decision is None:
                self.disruptions[trial_id] += 1
        if said == "lost":
            self.lost.add((trial_id, attempt))
        planted = trial.active_exploit
        if cause == "damaged" and planted is not None:
            self.gone.add(planted.start.key)
        may_retry = retry and not 0 <= self.settings.max_failures < self.failures[trial_id]
        self.apply(
            events.AttemptEnded(
                trial_id=trial_id, attempt=attempt, end=AttemptEnd(cause=said, error="why", retry=retry)
            )
        )
        trial = self.engine.state.trials[trial_id]
        if cause == "failed" and not told and decision != "stop" and not may_retry:
            assert trial.status == ERROR

    @property
    def exporting(self) -> list[str]:
        """The running trials that are complete: their models may be exported."""
        trials = self.engine.state.running_trials()
        return [each.trial_id for each in trials if each.completion_reported or each.current.decision == "stop"]

    @precondition(lambda self: self.exporting)
    @rule(data=st.data())
    def fail_to_export(self, data: st.DataObject) -> None:
        trial_id = data.draw(st.sampled_from(self.exporting))
        attempt = self.engine.state.trials[trial_id].attempt
        self.failures[trial_id] += 1
        end = AttemptEnd(cause="failed", error="no model", after_completion=True)
        self.apply(events.AttemptEnded(trial_id=trial_id, attempt=attempt, end=end))
        assert self.engine.state.trials[trial_id].status == ERROR

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), retry=st.sampled_from((True, True, False)), confirmed=st.booleans())
    def see_a_process_fail(self, data: st.DataObject, retry: bool, confirmed: bool) -> None:
        trial_id, attempt = self.running(data)
        trial = self.engine.state.trials[trial_id]
        counts = trial.current.failing is None and trial.current.decision is None and not trial.completion_reported
        before, error = trial.current.failing, f"rank {attempt} died"
        end = AttemptEnd(cause="failed", error=error, retry=retry)
        known = trial.current.failure_confirmed
        known = known or (confirmed and (counts or (before is not None and not trial.completion_reported)))
        event = events.FailureObserved(trial_id=trial_id, attempt=attempt, end=end, confirmed=confirmed)
        for _ in range(2):
            self.apply(event)
        trial = self.engine.state.trials[trial_id]
        assert trial.running
        assert trial.current.failing == (end if counts else before)
        assert trial.current.failure_confirmed == known

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def obey(self, data: st.DataObject) -> None:
        trial_id, attempt = self.running(data)
        decision = self.engine.answer(trial_id, attempt).decision
        if decision is not None:
            self.failures[trial_id] += self.engine.state.trials[trial_id].current.failing is not None
            self.apply(
                events.AttemptEnded(trial_id=trial_id, attempt=attempt, end=AttemptEnd(cause=ENDS[decision]))  # type: ignore[arg-type]
            )

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), drop=st.booleans(), damage=st.booleans())
    def commit(self, data: st.DataObject, drop: bool, damage: bool) -> None:
        trial_id, attempt = self.running(data)
        info = self.saved(trial_id, attempt)
        trial = self.engine.state.trials[trial_id]
        unneeded = [item.name for item in trial.checkpoints] if drop else []
        event = events.CheckpointsChanged(trial_id=trial_id, attempt=attempt, committed=[info], unneeded=unneeded)
        self.apply(event)
        self.apply(event)
        assert trial.active_exploit is None
        released = self.engine.answer(trial_id, attempt).deletable
        pinned = {name for holder, name in self.engine.state.pins if holder == trial_id}
        if unneeded:
            assert set(released) >= set(unneeded) - pinned
            assert not set(released) & pinned
        assert not {item.name for item in trial.checkpoints} & set(released)
        if unneeded and damage:
            removed = events.CheckpointsChanged(trial_id=trial_id, attempt=attempt, deleted=released)
            self.apply(removed)
            assert not trial.current.released
        if damage:
            self.gone.add((trial_id, info.name))
            self.apply(events.CheckpointDamaged(trial_id=trial_id, name=info.name))
        trial = self.engine.state.trials[trial_id]
        assert [item.index for item in trial.checkpoints] == sorted({item.index for item in trial.checkpoints})
        assert trial.next_checkpoint_index == info.index + 1

    @property
    def wanted(self) -> list[tuple[str, str]]:
        """Checkpoints that others are to start from, of trials that run."""
        return sorted(key for key in self.engine.state.pins if key[0] in self.engine.state.running)

    @precondition(lambda self: self.runs and bool(self.wanted))
    @rule(data=st.data())
    def ask_to_remove_what_others_want(self, data: st.DataObject) -> None:
        trial_id, name = data.draw(st.sampled_from(self.wanted))
        attempt = self.engine.state.trials[trial_id].attempt
        self.apply(events.CheckpointsChanged(trial_id=trial_id, attempt=attempt, unneeded=[name]))
        assert self.engine.answer(trial_id, attempt).deletable == []

    # -- what users and the cluster do --

    @rule(data=st.data(), everything=st.sampled_from((False,) * 9 + (True,)))
    def stop(self, data: st.DataObject, everything: bool) -> None:
        trials = sorted(self.engine.state.trials)
        if everything:
            self.apply(events.StopRequested())
        elif trials:
            self.apply(events.StopRequested(trial_id=data.draw(st.sampled_from(trials))))

    @rule(on=st.sampled_from((True, False, False)))
    def suspend(self, on: bool) -> None:
        self.apply(events.SuspendRequested() if on else events.ResumeRequested())

    @rule(from_scratch=st.booleans())
    def retry(self, from_scratch: bool) -> None:
        for trial in self.engine.state.trials.values():
            if from_scratch and trial.status == ERROR:
                self.gone |= {(trial.trial_id, item.name) for item in trial.checkpoints}
        self.apply(events.RetryRequested(from_scratch=from_scratch))

    @rule(slots=st.sampled_from((None, 0, 1, 2, 5)))
    def capacity(self, slots: int | None) -> None:
        self.apply(events.CapacityObserved(slots=slots))

    @rule(
        num_samples=st.integers(1, MOST_TRIALS),
        max_concurrent=st.sampled_from((None, 1, 2, 4)),
        max_failures=st.sampled_from((0, 1, -1)),
        budget=st.sampled_from((None, 100.0, 1000.0)),
    )
    def edit(self, num_samples: int, max_concurrent: int | None, max_failures: int, budget: float | None) -> None:
        self.settings = msgspec.structs.replace(
            self.settings,
            num_samples=num_samples,
            max_concurrent=max_concurrent,
            max_failures=max_failures,
            time_budget_s=budget,
        )
        self.apply(events.SettingsObserved(settings=self.settings))

    @rule(seconds=st.sampled_from((-50.0, 0.0, 0.5, 3.0, 70.0)))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.apply(events.TimerFired())

    @rule(data=st.data())
    def crash_of_the_shell(self, data: st.DataObject) -> None:
        live = []
        for trial in self.engine.state.running_trials():
            if data.draw(st.booleans()):
                live.append((trial.trial_id, trial.attempt))
            elif trial.current.fails_if_lost:
                self.failures[trial.trial_id] += 1
            else:
                self.lost.add((trial.trial_id, trial.attempt))
                if not trial.completion_reported and trial.current.decision is None:
                    self.disruptions[trial.trial_id] += 1
        fresh = build(*self.how)
        fresh.restore(self.engine.snapshot())
        assert fresh.snapshot() == self.engine.snapshot()
        assert fresh.next_wakeup() == self.engine.next_wakeup()
        self.engine = fresh
        self.now += 5.0
        self.apply(events.Recovered(live=live))

    # -- what always holds --

    @invariant()
    def queues_and_counts_agree(self) -> None:
        state = self.engine.state
        by_status = Counter(trial.status for trial in state.trials.values())
        assert {status: state.counts.get(status, 0) for status in STATUSES} == {s: by_status[s] for s in STATUSES}
        for trial in state.trials.values():
            places = [
                name for name in ("pending", "delayed", "paused", "running") if trial.trial_id in getattr(state, name)
            ]
            expected = {RUNNING: ["running"], PAUSED: ["paused"], TERMINATED: [], ERROR: []}
            assert (
                places in (["pending"], ["delayed"]) if trial.status == PENDING else places == expected[trial.status]
            )
            assert trial.running == (trial.status == RUNNING)
            if trial.trial_id in state.delayed and not (state.flags.stopping or state.flags.suspended):
                wakeup = self.engine.next_wakeup()
                assert wakeup is not None
                assert wakeup <= trial.retry_at

    @invariant()
    def what_a_trial_is_to_start_from_is_there_and_pinned(self) -> None:
        state = self.engine.state
        pins: Counter[tuple[str, str]] = Counter()
        for trial in state.trials.values():
            if trial.pending_exploit is not None:
                assert trial.running
                assert trial.current.decision in ("exploit", "pause", "stop")
            for way in (trial.pending_exploit, trial.active_exploit):
                if way is not None and way.start is not None:
                    pins[way.start.key] += 1
                    holder = state.trials[way.start.trial_id]
                    kept = {item.name for item in holder.checkpoints}
                    assert way.start.key in self.gone or way.start.checkpoint.name in kept
        assert state.pins == pins

    @invariant()
    def every_result_counts_once(self) -> None:
        for trial in self.engine.state.trials.values():
            assert trial.results == self.delivered[trial.trial_id]
            assert trial.current.received == self.received.get((trial.trial_id, trial.attempt), 0)
        assert self.engine.state.flags.results == sum(self.delivered.values())

    @invariant()
    def failures_and_disruptions_are_told_apart(self) -> None:
        for trial in self.engine.state.trials.values():
            assert trial.disruptions == self.disruptions[trial.trial_id]
            assert trial.failures == self.failures[trial.trial_id]

    @invariant()
    def what_was_taken_is_in_the_account_once(self) -> None:
        state = self.engine.state
        account = state.account
        assert abs(account.spent.get("trial", 0.0) - self.taken) < 1e-6
        for name, spent in account.spent.items():
            decided = sum(account.outcomes.get(outcome, {}).get(name, 0.0) for outcome in accounting.OUTCOMES)
            still_open = sum(trial.kept.get(name, 0.0) for trial in state.trials.values())
            assert abs(decided + still_open - spent) < 1e-6
        for trial in state.trials.values():
            assert not (trial.ended and trial.kept)
            assert trial.running or trial.current.working_since is None
        for outcome, before in self.account.items():
            self.account[outcome] = account.outcomes.get(outcome, {}).get("trial", 0.0)
            assert self.account[outcome] >= before

    @invariant()
    def a_budget_of_hours_is_kept(self) -> None:
        flags = self.engine.state.flags
        if self.engine.state.clock.active_since is None or flags.stopping:
            return
        assert accounting.used_up(self.engine.state, self.engine.state.clock.now) is None
        runs_out = accounting.runs_out_at(self.engine.state, self.engine.state.clock.now)
        wakeup = self.engine.next_wakeup()
        assert runs_out is None or (wakeup is not None and wakeup <= runs_out)

    @invariant()
    def answers_know_who_is_superseded(self) -> None:
        for trial in self.engine.state.trials.values():
            for attempt in range(1, trial.attempt + 2):
                gone = attempt != trial.attempt or (trial.trial_id, attempt) in self.lost
                assert self.engine.answer(trial.trial_id, attempt).superseded == gone

    @invariant()
    def no_algorithm_raised_an_error(self) -> None:
        assert (self.engine.state.flags.stopping or {}).get("source") != "algorithm"

    @invariant()
    def a_finished_experiment_has_nothing_left_to_do(self) -> None:
        state = self.engine.state
        if self.engine.finished:
            assert not any((state.running, state.pending, state.delayed, state.paused))
            assert self.engine.next_wakeup() is None

    def teardown(self) -> None:
        """Once faults stop, the experiment comes to its end."""
        if not hasattr(self, "engine"):
            return
        self.apply(events.CapacityObserved(slots=None))
        self.apply(events.ResumeRequested())
        for _ in range(40 * MOST_TRIALS):
            if self.engine.finished:
                break
            running = self.engine.state.running_trials()
            if not running:
                wakeup = self.engine.next_wakeup()
                assert wakeup is not None, "nothing runs, and nothing ever will"
                self.now = max(self.now, wakeup)
                self.apply(events.TimerFired())
            for trial in running:
                self.finish_honestly(trial.trial_id, trial.attempt)
        assert self.engine.finished

    def finish_honestly(self, trial_id: str, attempt: int) -> None:
        if not self.is_current(trial_id, attempt):
            return
        if self.engine.answer(trial_id, attempt).decision is None:
            self.iteration[trial_id] += 1
            self.delivered[trial_id] += 1
            self.received[trial_id, attempt] += 1
            self.apply(
                events.ResultsReceived(
                    trial_id=trial_id,
                    attempt=attempt,
                    first=self.received[trial_id, attempt],
                    results=[raw(result(self.iteration[trial_id], 1.0, done=True))],
                )
            )
        cause = ENDS[self.engine.answer(trial_id, attempt).decision]
        self.failures[trial_id] += self.engine.state.trials[trial_id].current.failing is not None
        self.apply(events.AttemptEnded(trial_id=trial_id, attempt=attempt, end=AttemptEnd(cause=cause)))  # type: ignore[arg-type]


Experiment.TestCase.settings = hypothesis_settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestAnExperimentUnderFaults = Experiment.TestCase
