"""What an event costs the engine does not depend on how many trials there are."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_steps import count
from trialpod.protocol.messages import AttemptEnd
from trialpod.tune.plugins.objectives import Objective, pareto_front
from trialpod.tune.schedulers.async_hyperband import AsyncHyperBandScheduler
from trialpod.tune.schedulers.fifo import FIFOScheduler
from trialpod.tune.schedulers.median_stopping_rule import MedianStoppingRule
from trialpod.tune.schedulers.trial_scheduler import TrialScheduler
from trialpod.tune.search.basic_variant import BasicVariantGenerator
from trialpod.tune.search.sample import uniform
from trialpod_operator.cluster.status.build import experiment_status
from trialpod_operator.engine.accounting import in_use, used
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.events import (
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    ResultsReceived,
    RetryRequested,
    SettingsObserved,
    TimerFired,
)
from trialpod_operator.engine.repeats import front, ranked, winner
from trialpod_operator.engine.settings import Settings
from trialpod_operator.engine.snapshot import Snapshot
from trialpod_operator.engine.state import State
from trialpod_operator.engine.trial import TERMINATED, Trial

pytestmark = pytest.mark.once

RUNNING = 8


def make_scheduler(name: str) -> TrialScheduler:
    if name == "asha":
        return AsyncHyperBandScheduler(max_t=8, grace_period=1, reduction_factor=2)
    return MedianStoppingRule(grace_period=1, min_samples_required=3) if name == "median" else FIFOScheduler()


def make_engine(scheduler: str, samples: int) -> Engine:
    search = BasicVariantGenerator(seed=1)
    search.configure({"lr": uniform(0.0, 1.0)}, samples)
    return Engine(search, make_scheduler(scheduler))


def with_finished(scheduler: str, finished: int, objectives: Sequence[Objective] = ()) -> Engine:
    """Return an engine with running trials and so many more that have finished, as a restart has it."""
    samples = finished + 100
    first = make_engine(scheduler, samples)
    plan = Settings(
        name="e",
        trainable_name="t",
        metric="score",
        num_samples=samples,
        max_concurrent=RUNNING,
        progress_deadline_s=600.0,
        objectives=[*objectives],
    )
    first.apply(SettingsObserved(settings=plan), 1e9)
    stored = msgspec.msgpack.decode(first.snapshot(), type=Snapshot)
    (pattern, *_) = stored.trials
    for number in range(finished):
        ended = msgspec.structs.replace(
            pattern,
            trial_id=f"other_{number:05d}",
            index=RUNNING + number,
            status=TERMINATED,
            running=False,
            value=float(number % 97),
            ended_at=1e9,
        )
        stored.trials.append(ended)
    engine = make_engine(scheduler, samples)
    engine.restore(msgspec.msgpack.encode(stored))
    return engine


def result(trial: Trial, score: float, iteration: int = 1) -> ResultsReceived:
    raw = msgspec.Raw(msgspec.msgpack.encode({"score": score, "training_iteration": iteration}))
    first = trial.current.received + 1
    return ResultsReceived(trial_id=trial.trial_id, attempt=trial.attempt, first=first, results=[raw])


def steps(scheduler: str, finished: int) -> dict[str, int]:
    """Return the lines for each kind of event, and for what is asked about all trials."""
    engine = with_finished(scheduler, finished)
    found: dict[str, int] = {}

    def apply(name: str, event: AnyEvent) -> None:
        found[name] = count(lambda: engine.apply(event, 1e9 + len(found)))

    def status() -> object:
        return experiment_status(engine, name="e", generation=1, now=1e9 + 9)

    status()  # makes the order of the values, once
    trial = next(iter(engine.state.running.values()))
    apply("start", AttemptStarted(trial_id=trial.trial_id, attempt=1, pid=1))
    apply("result", result(trial, 0.5))
    found["answer"] = count(lambda: engine.answer(trial.trial_id, 1))
    apply("end, and the next one's start", AttemptEnded(trial_id=trial.trial_id, attempt=1, end=COMPLETED))
    apply("time", TimerFired())
    found["next time"] = count(engine.next_wakeup)
    found["status"] = count(status)
    return found


COMPLETED = AttemptEnd(cause="completed")


@pytest.mark.parametrize("scheduler", ["fifo", "asha", "median"])
def test_events_cost_the_same_with_10_and_10000_trials(scheduler: str) -> None:
    few, many = steps(scheduler, 10), steps(scheduler, 10_000)
    # Caches are filled on the way: a few lines more or less.
    assert {name: lines for name, lines in many.items() if abs(lines - few[name]) > 10} == {}


class TestStandings:
    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 2**32), st.sampled_from(["max", "min"]))
    def test_equal_a_pass_over_all_trials(self, seed: int, mode: str) -> None:
        choose = random.Random(seed)
        engine = make_engine("fifo", 12)
        plan = Settings(
            name="e",
            trainable_name="t",
            metric="score",
            mode=mode,  # type: ignore[arg-type]  # one of the two
            num_samples=12,
            max_concurrent=4,
            max_failures=2,
        )
        engine.apply(SettingsObserved(settings=plan), 1e9)
        for step in range(60):
            live = list(engine.state.running.values())
            if not live:
                break
            trial = choose.choice(live)
            score = choose.choice([choose.uniform(-2, 2), 0.5, math.nan, math.inf])
            cause = choose.choice(["completed", "failed", "lost", "preempted"])
            events: list[AnyEvent] = [
                AttemptStarted(
                    trial_id=trial.trial_id,
                    attempt=trial.attempt,
                    pid=choose.choice([0, 7]),
                    resources=choose.choice([{}, {"cpu": 0.1}, {"cpu": 0.7, "nvidia.com/gpu": 1.0}]),
                ),
                result(trial, score, choose.randint(1, 5)),
                AttemptEnded(trial_id=trial.trial_id, attempt=trial.attempt, end=AttemptEnd(cause=cause)),  # type: ignore[arg-type]  # a cause
            ]
            engine.apply(choose.choices(events, (1, 3, 1))[0], 1e9 + step)
            if choose.random() < 0.1:
                engine.apply(RetryRequested(from_scratch=choose.random() < 0.5, token=str(step)), 1e9 + step)
            if choose.random() < 0.1:
                before, engine = engine, make_engine("fifo", 12)
                engine.restore(before.snapshot())
            check(engine.state)


OBJECTIVES = [Objective("score", "max"), Objective("loss", "min", threshold=4.0), Objective("cost", "min")]


def pointed(trial: Trial, *values: float) -> ResultsReceived:
    names = ("score", "loss", "cost")
    raw = msgspec.Raw(msgspec.msgpack.encode({**dict(zip(names, values, strict=True)), "training_iteration": 1}))
    first = trial.current.received + 1
    return ResultsReceived(trial_id=trial.trial_id, attempt=trial.attempt, first=first, results=[raw])


class TestFront:
    @pytest.mark.parametrize("count", [2, 3])
    @settings(max_examples=60, deadline=None)
    @given(seed=st.integers(0, 2**32))
    def test_equals_a_pass_over_all_trials(self, count: int, seed: int) -> None:
        choose, objectives = random.Random(seed), OBJECTIVES[:count]
        engine = make_engine("fifo", 12)
        plan = Settings(
            name="e", trainable_name="t", metric="score", num_samples=12, max_concurrent=12, objectives=objectives
        )
        engine.apply(SettingsObserved(settings=plan), 1e9)
        for step in range(40):
            trial = choose.choice(list(engine.state.running.values()))
            values = [choose.choice([0.0, 1.0, 2.0, 3.0, 5.0, math.inf]) for _ in range(3)]
            engine.apply(pointed(trial, *values), 1e9 + step)
            if choose.random() < 0.7:
                have = [each for each in engine.state.get_trials() if each.point]
                places = pareto_front(objectives, [each.point for each in have])
                assert front(engine.state) == [have[place] for place in places]

    def test_status_costs_the_same_with_10_and_10000_trials(self) -> None:
        found = []
        for finished in (10, 10_000):
            engine = with_finished("fifo", finished, OBJECTIVES[:2])
            first, second, *_ = engine.state.running.values()
            engine.apply(pointed(first, 1.0, 1.0, 0.0), 1e9 + 1)
            front(engine.state)  # is made, once
            engine.apply(pointed(second, 2.0, 2.0, 0.0), 1e9 + 2)
            found.append(count(lambda engine=engine: front(engine.state)))
            assert front(engine.state) == [second, first]
        assert abs(found[0] - found[1]) < 5, found


def check(state: State) -> None:
    trials = state.get_trials()
    order = ranked(state)
    assert winner(state) == (order[0] if order else None, None)
    assert state.standings.failures == sum(trial.failures for trial in trials)
    assert state.standings.disruptions == sum(trial.disruptions for trial in trials)
    assert state.standings.starting == {
        trial.trial_id for trial in trials if trial.running and not (trial.current.pid or trial.current.received)
    }
    assert state.standings.iterations == sum(trial.max_iteration for trial in trials)
    assert state.standings.measured == sum(trial.value is not None and math.isfinite(trial.value) for trial in trials)
    own_ends = [trial.iteration for trial in trials if trial.status == TERMINATED and not trial.stopped]
    assert state.standings.longest == max(own_ends, default=0)
    working = [trial for trial in trials if trial.running and trial.current.working_since is not None]
    amounts: dict[str, float] = {}
    for name, amount in [each for trial in working for each in trial.current.resources.items()]:
        amounts[name] = amounts.get(name, 0) + amount
    assert in_use(state) == pytest.approx(amounts)
    now, spent = state.clock.now + 5, state.account.spent
    taken = {name: spent.get(name, 0.0) for name in {*spent, *amounts}}
    for trial in working:
        for name, amount in trial.current.resources.items():
            taken[name] += amount * (now - (trial.current.working_since or 0))
    assert used(state, now) == pytest.approx(taken)
