"""Suggestions that take their time: nothing waits for them, and whatever is killed, they come out the same."""

from __future__ import annotations

import functools
import hashlib
import json
import queue
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trialpod.protocol.messages import AttemptEnd, CheckpointInfo, TrainableRef
from trialpod.protocol.values import metrics_encoder
from trialpod.storage.journal.journal import Journal
from trialpod.storage.layout import JOURNAL_DIR, TRIALPOD_DIR
from trialpod.tune.schedulers import FIFOScheduler, HyperBandScheduler, PopulationBasedTraining, TrialScheduler
from trialpod.tune.search import ConcurrencyLimiter, OptunaSearch, prepare
from trialpod.tune.search.basic_variant import BasicVariantGenerator
from trialpod.tune.search.sample import uniform
from trialpod.tune.search.search_algorithm import SearchAlgorithm, Suggestion
from trialpod_operator.engine.choices import Choices
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.events import (
    AnyEvent,
    AttemptEnded,
    CapacityObserved,
    Recovered,
    ResultsReceived,
    ResumeRequested,
    RetryRequested,
    SettingsObserved,
    StopRequested,
    SuggestionReady,
    SuspendRequested,
    TimerFired,
)
from trialpod_operator.engine.settings import Settings
from trialpod_operator.engine.trial import ERROR
from trialpod_operator.experiment import journaled_engine as host_module
from trialpod_operator.experiment.background_search import BackgroundSearcher
from trialpod_operator.experiment.journaled_engine import JournaledEngine
from trialpod_operator.experiment.plan import ExperimentPlan
from trialpod_operator.experiment.records import RecordedSearch, decode_record

PATIENCE_S = 60.0


class Remembering(SearchAlgorithm):
    """Each suggestion is a function of everything that it was told before, in order."""

    def __init__(self, num_samples: int, at_once: int = 99, before: Callable[[], None] = lambda: None) -> None:
        self.num_samples = num_samples
        self.at_once = at_once
        self.before = before
        self.told: list[Any] = []
        self.open: list[str] = []
        self.next = 0
        self.computed = 0
        self.instant = False

    @property
    def total(self) -> int | None:
        return self.num_samples

    @property
    def finished(self) -> bool:
        return self.next >= self.num_samples

    def set_num_samples(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def next_suggestion(self) -> Suggestion | None:
        self.before()
        self.computed += 1
        if self.finished or len(self.open) >= self.at_once:
            return None
        lr = int.from_bytes(hashlib.sha256(json.dumps(self.told).encode()).digest()[:4], "big") / 2**32
        suggestion = Suggestion(f"t_{self.next:05d}", {"lr": lr}, f"{self.next}_lr={lr:.4f}")
        self.adopt(suggestion)
        return suggestion

    def adopt(self, suggestion: Suggestion) -> None:
        self.next += 1
        self.told.append(["suggest", suggestion.trial_id, suggestion.config["lr"]])
        self.open.append(suggestion.trial_id)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self.told.append(["result", trial_id, result["score"]])

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self.told.append(["end", trial_id, error])
        if trial_id in self.open:
            self.open.remove(trial_id)

    def on_pause(self, trial_id: str) -> None:
        self.told.append(["pause", trial_id])

    def on_unpause(self, trial_id: str) -> None:
        self.told.append(["unpause", trial_id])

    def get_state(self) -> dict[str, Any]:
        return {"told": list(self.told), "open": list(self.open), "next": self.next}

    def set_state(self, state: dict[str, Any]) -> None:
        self.told, self.open, self.next = list(state["told"]), list(state["open"]), state["next"]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def settings(num_samples: int, **more: Any) -> Settings:
    changes = {"max_concurrent": 3, "max_failures": 1, **more}
    return Settings(name="e", trainable_name="t", metric="score", num_samples=num_samples, **changes)


def plan(search: SearchAlgorithm, scheduler: TrialScheduler, given: Settings) -> ExperimentPlan:
    return ExperimentPlan(
        settings=given, search=search, scheduler=scheduler, stopper=None, trainable=TrainableRef(entrypoint="t:t")
    )


class Driven:
    """A host whose search algorithm is called when the test says so."""

    def __init__(self, directory: Path, make: Callable[[], ExperimentPlan], clock: Clock) -> None:
        self.directory, self.make, self.clock = directory, make, clock
        self.open()

    def open(self) -> None:
        self.ready: list[SuggestionReady] = []
        self.plan = self.make()
        self.host = JournaledEngine(
            self.plan, self.directory, self.clock, lambda _action: None, deliver=self.ready.append
        )

    def crash(self) -> None:
        self.host._journal.close()
        self.open()

    @property
    def queued(self) -> BackgroundSearcher:
        assert self.host._queued is not None
        return self.host._queued

    @property
    def search(self) -> Remembering:
        found = self.plan.search
        assert isinstance(found, Remembering)
        return found

    def work(self) -> None:
        while not self.ready and self.host._queued is not None and self.host._queued.work():
            pass


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "BackgroundSearcher", functools.partial(BackgroundSearcher, threaded=False))


SCHEDULERS: dict[str, Callable[[], TrialScheduler]] = {
    "fifo": FIFOScheduler,
    "hyperband": lambda: HyperBandScheduler(max_t=9),
    "pbt": lambda: PopulationBasedTraining(
        time_attr="training_iteration", perturbation_interval=2, hyperparam_mutations={"lr": [0.1, 0.2]}
    ),
}


class Twins:
    """One experiment twice: the first is killed again and again, the second never. They may not differ."""

    def __init__(self, folder: Path, scheduler: str, rng: random.Random, instant: bool = False) -> None:
        self.rng, self.clock = rng, Clock()
        self.samples = rng.choice((5, 9, 14))
        at_once = rng.choice((2, 4, 99))
        self.settings = settings(self.samples)

        def make() -> ExperimentPlan:
            search = Remembering(self.samples, at_once)
            search.instant = instant
            return plan(search, SCHEDULERS[scheduler](), self.settings)

        self.pair = [Driven(folder / "killed", make, self.clock), Driven(folder / "spared", make, self.clock)]
        self.killed, self.spared = self.pair
        self.steps: dict[str, int] = {}
        self.saved: dict[str, int] = {}
        self.apply(SettingsObserved(settings=self.settings))

    def apply(self, event: AnyEvent) -> None:
        self.clock.now += 1.0
        for one in self.pair:
            one.host.apply(event)
        self.check()

    def check(self) -> None:
        killed, spared = self.killed.host.engine.state, self.spared.host.engine.state
        assert msgspec.to_builtins(killed.flags) == msgspec.to_builtins(spared.flags)
        assert killed.running.keys() == spared.running.keys()
        for name in ("pending", "paused"):
            assert list(getattr(killed, name)) == list(getattr(spared, name)), name
        assert [msgspec.to_builtins(trial) for trial in killed.get_trials()] == [
            msgspec.to_builtins(trial) for trial in spared.get_trials()
        ]
        schedulers = [one.host.engine.scheduler.get_state() for one in self.pair]
        assert schedulers[0] == schedulers[1]
        assert "algorithm" not in str(spared.flags.stopping)

    def answer(self) -> None:
        """Have the suggestion computed, or take the computed one in."""
        for one in self.pair:
            one.work()
        if not self.spared.ready:
            return
        assert self.killed.ready == self.spared.ready
        event = self.spared.ready.pop(0)
        self.killed.ready.pop(0)
        self.apply(event)

    def crash(self) -> None:
        self.killed.crash()
        self.check()
        self.apply(Recovered())

    def report(self) -> None:
        running = sorted(self.spared.host.engine.state.running)
        if not running:
            return
        trial = self.spared.host.engine.state.trials[self.rng.choice(running)]
        trial_id = trial.trial_id
        decision = self.spared.host.engine.answer(trial_id, trial.attempt).decision
        if decision is not None:
            cause = "stopped" if decision == "stop" else "paused"
            self.end(trial_id, trial.attempt, cause)
            return
        self.steps[trial_id] = step = (self.steps.get(trial_id, 0) if trial.current.received else trial.iteration) + 1
        done = step >= 12
        self.saved[trial_id] = index = self.saved.get(trial_id, -1) + 1
        info = CheckpointInfo(
            name=f"c{index}", index=index, iteration=step, metrics={"training_iteration": step}, attempt=1
        )
        score = self.rng.random()
        raw = metrics_encoder.encode({"training_iteration": step, "score": score, "done": done})
        self.apply(
            ResultsReceived(
                trial_id=trial_id,
                attempt=trial.attempt,
                first=trial.current.received + 1,
                results=[msgspec.Raw(raw)],
                committed=[info],
            )
        )
        if done:
            self.end(trial_id, trial.attempt, "completed")

    def end(self, trial_id: str, attempt: int, cause: Any) -> None:
        self.apply(AttemptEnded(trial_id=trial_id, attempt=attempt, end=AttemptEnd(cause=cause, error="why")))

    def fail(self) -> None:
        for trial in list(self.spared.host.engine.state.running.values())[:1]:
            self.end(trial.trial_id, trial.attempt, "failed")

    def step(self) -> None:
        roll = self.rng.random()
        if roll < 0.55:
            self.report()
        elif roll < 0.75:
            self.answer()
        elif roll < 0.83:
            self.crash()
        elif roll < 0.88:
            self.killed.host.write_snapshot()
        elif roll < 0.91:
            self.fail()
        elif roll < 0.93:
            for one in self.pair:
                if one.host._queued is not None:
                    one.host._queued.work()
        elif roll < 0.95:
            self.apply(SuspendRequested())
            self.apply(ResumeRequested())
        elif roll < 0.96:
            self.apply(StopRequested())
        elif roll < 0.98:
            self.samples += 1
            self.settings = msgspec.structs.replace(self.settings, num_samples=self.samples)
            self.apply(SettingsObserved(settings=self.settings))
        elif any(trial.status == ERROR for trial in self.spared.host.engine.state.get_trials()):
            self.apply(RetryRequested())
        else:
            self.apply(CapacityObserved(slots=self.rng.choice((1, 2, None))))

    def finish(self) -> None:
        self.apply(CapacityObserved(slots=None))
        for _ in range(4000):
            if self.spared.host.engine.finished:
                break
            self.answer()
            self.report()
            self.apply(TimerFired())
        assert self.spared.host.engine.finished
        for one in self.pair:
            one.work()

    def check_reading(self) -> None:
        """Check that a reader of the journal, without the algorithms, finds the same."""
        journal = Journal.open(self.spared.directory / TRIALPOD_DIR / JOURNAL_DIR, read_only=True)
        engine = Engine(RecordedSearch(None), FIFOScheduler())
        for data in journal.records():
            record = decode_record(data)
            engine.apply(record.event, record.now, record.choices or Choices())
        journal.close()
        found, lived = engine.state, self.spared.host.engine.state
        assert [msgspec.to_builtins(trial) for trial in found.get_trials()] == [
            msgspec.to_builtins(trial) for trial in lived.get_trials()
        ]
        assert (found.flags.finished, found.flags.state) == (lived.flags.finished, lived.flags.state)


@pytest.mark.parametrize("scheduler", sorted(SCHEDULERS))
@pytest.mark.parametrize("instant", [False, True], ids=["beside", "inline"])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.usefixtures("by_hand")
def test_a_killed_experiment_is_the_same_as_a_spared_one(
    tmp_path: Path, scheduler: str, instant: bool, seed: int
) -> None:
    twins = Twins(tmp_path, scheduler, random.Random(f"{scheduler}/{seed}"), instant)
    for _ in range(150):
        twins.step()
    twins.finish()
    twins.check_reading()
    assert twins.killed.search.told == twins.spared.search.told
    twins.crash()
    twins.killed.work()
    assert twins.killed.search.told == twins.spared.search.told
    heard = twins.spared.search.told
    created = [trial.trial_id for trial in twins.spared.host.engine.state.get_trials()]
    suggested = [entry[1] for entry in heard if entry[0] == "suggest"]
    assert suggested[: len(created)] == created
    for trial_id in created:
        story = [entry[0] for entry in heard if entry[1] == trial_id]
        assert story[0] == "suggest"
        assert "end" in story


@pytest.mark.usefixtures("by_hand")
def test_a_restart_computes_no_suggestion_that_is_in_the_journal(tmp_path: Path) -> None:
    clock = Clock()
    driven = Driven(tmp_path, lambda: plan(Remembering(3), FIFOScheduler(), settings(3)), clock)
    driven.host.apply(SettingsObserved(settings=settings(3)))
    for _ in range(2):
        driven.work()
        driven.host.apply(driven.ready.pop())
    driven.work()
    (lost,) = driven.ready
    driven.crash()
    assert driven.search.computed == 0
    assert driven.search.next == 2
    driven.host.apply(Recovered())
    driven.work()
    assert driven.search.computed == 1
    assert driven.ready == [lost]


@pytest.mark.usefixtures("by_hand")
def test_algorithm_error_ends_experiment_with_its_message(tmp_path: Path) -> None:
    def broken() -> None:
        raise RuntimeError("no more luck")

    clock = Clock()
    driven = Driven(tmp_path, lambda: plan(Remembering(3, before=broken), FIFOScheduler(), settings(3)), clock)
    driven.host.apply(SettingsObserved(settings=settings(3)))
    driven.work()
    driven.host.apply(driven.ready.pop())
    assert driven.host.engine.finished
    message = driven.host.engine.state.flags.message
    assert message == "Remembering.next_suggestion raised RuntimeError: no more luck"
    driven.crash()
    assert driven.host.engine.state.flags.message == message


@pytest.mark.usefixtures("by_hand")
def test_suggestion_after_the_end_is_kept_for_more_budget(tmp_path: Path) -> None:
    clock = Clock()
    driven = Driven(tmp_path, lambda: plan(Remembering(3), FIFOScheduler(), settings(3)), clock)
    driven.host.apply(SettingsObserved(settings=settings(3)))
    driven.host.apply(StopRequested())
    assert driven.host.engine.finished
    driven.work()
    driven.host.apply(driven.ready.pop())
    assert not driven.host.engine.state.trials
    driven.host.apply(SettingsObserved(settings=settings(3, time_budget_s=100.0)))
    assert list(driven.host.engine.state.running) == ["t_00000"]


@pytest.mark.usefixtures("by_hand")
def test_exhaustion_does_not_cover_later_requests(tmp_path: Path) -> None:
    driven = Driven(tmp_path, lambda: plan(Remembering(2), FIFOScheduler(), settings(2)), Clock())
    driven.host.apply(SettingsObserved(settings=settings(2)))
    for _ in range(2):
        driven.work()
        driven.host.apply(driven.ready.pop())
    driven.work()  # there are only two
    driven.host.apply(SettingsObserved(settings=settings(4)))
    driven.host.apply(driven.ready.pop())
    driven.work()
    driven.host.apply(driven.ready.pop())
    assert list(driven.host.engine.state.trials) == ["t_00000", "t_00001", "t_00002"]


def test_study_in_a_storage_has_each_trial_once(tmp_path: Path) -> None:
    """After a kill with nothing but the journal, and the snapshot that is written with its first record."""
    optuna = pytest.importorskip("optuna")
    storage = optuna.storages.InMemoryStorage()

    def opened(host_dir: Path) -> JournaledEngine:
        limited = ConcurrencyLimiter(OptunaSearch(storage=storage, study_name="mine"), 3)
        search = prepare(limited, space={"x": uniform(0, 1)}, num_samples=3, metric="score", mode="min", seed=1)
        return JournaledEngine(plan(search, FIFOScheduler(), settings(3)), host_dir, Clock(), lambda _a: None)

    host = opened(tmp_path)
    host.apply(SettingsObserved(settings=settings(3)))
    host.apply(AttemptEnded(trial_id=min(host.engine.state.trials), attempt=1, end=AttemptEnd(cause="completed")))
    host.close()
    again = opened(tmp_path)
    assert len(again.engine.state.trials) == 3
    again.close()
    assert len(optuna.load_study(study_name="mine", storage=storage).trials) == 3


def test_a_report_is_answered_while_a_suggestion_is_computed(tmp_path: Path) -> None:
    gate = threading.Semaphore(1)
    arrived: queue.Queue[SuggestionReady] = queue.Queue()

    def wait() -> None:
        assert gate.acquire(timeout=PATIENCE_S)

    search = Remembering(2, before=wait)
    host = JournaledEngine(
        plan(search, FIFOScheduler(), settings(2)), tmp_path, Clock(), lambda _a: None, deliver=arrived.put
    )
    host.apply(SettingsObserved(settings=settings(2)))
    host.apply(arrived.get(timeout=PATIENCE_S))  # the second one is being computed from now on
    raw = msgspec.Raw(metrics_encoder.encode({"training_iteration": 1, "score": 1.0}))
    host.apply(ResultsReceived(trial_id="t_00000", attempt=1, first=1, results=[raw]))
    assert host.engine.answer("t_00000", 1).received == 1
    assert search.told == [["suggest", "t_00000", search.told[0][2]]]
    host.write_snapshot()  # put off
    assert host._journal.size_since_snapshot > 0
    gate.release()
    host.apply(arrived.get(timeout=PATIENCE_S))
    assert host.engine.state.running.keys() == {"t_00000", "t_00001"}
    host.close()
    again = JournaledEngine(
        plan(fresh := Remembering(2), FIFOScheduler(), settings(2)),
        tmp_path,
        Clock(),
        lambda _a: None,
        deliver=arrived.put,
    )
    assert fresh.told[:3] == search.told[:3]
    assert again.replayed <= 1
    again.close()


def test_quick_algorithms_have_no_thread(tmp_path: Path) -> None:
    search = BasicVariantGenerator(seed=1)
    search.configure({"x": 1}, 2)
    host = JournaledEngine(
        plan(search, FIFOScheduler(), settings(2)), tmp_path, Clock(), lambda _a: None, deliver=lambda _e: None
    )
    host.apply(SettingsObserved(settings=settings(2)))
    assert len(host.engine.state.running) == 2
    assert host.engine.search is search
    host.close()
