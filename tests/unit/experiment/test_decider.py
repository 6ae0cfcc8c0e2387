"""Deciding code of a user's in a decider: the same decisions as in the user's own process, whatever is killed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from decider_support import World, drawn, request, settings_of

from trialpod import tune
from trialpod.protocol.messages import AttemptEnd
from trialpod.tune.schedulers import TrialScheduler
from trialpod.tune.search import Searcher
from trialpod.tune.stopper import Stopper
from trialpod_operator.decider.code import seed_generators
from trialpod_operator.engine.events import (
    AttemptEnded,
    ResultsReceived,
    ResumeRequested,
    SettingsObserved,
    SuggestionReady,
    SuspendRequested,
)
from trialpod_operator.experiment.decisions.messages import DecisionAnswer


class Halving(tune.schedulers.FIFOScheduler):
    """Stops a trial that is below the mean at iteration 3."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if result["training_iteration"] == 3:
            self.seen.append(result["score"])
            if result["score"] < sum(self.seen) / len(self.seen):
                return TrialScheduler.STOP
        return TrialScheduler.CONTINUE

    def horizons(self, trial: Any) -> Any:
        return None


class Climber(Searcher):
    """Ray's example of a searcher: what it suggests depends on the results that it has seen."""

    def __init__(self) -> None:
        super().__init__(metric="score", mode="max")
        self.best = 0.0
        self.count = 0

    def suggest(self, trial_id: str) -> Any:
        if self.count >= 6:
            return Searcher.FINISHED
        self.count += 1
        return {"x": self.best + self.count}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        if result:
            self.best = max(self.best, result["score"] / 10)

    def save(self, checkpoint_path: str) -> None:
        Path(checkpoint_path).write_text(f"{self.best} {self.count}")

    def restore(self, checkpoint_path: str) -> None:
        best, count = Path(checkpoint_path).read_text().split()
        self.best, self.count = float(best), int(count)


class Enough(Stopper):
    """Ray's example of a stopper class."""

    def __init__(self) -> None:
        self.total = 0

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self.total += 1
        return bool(result["training_iteration"] >= 5)

    def stop_all(self) -> bool:
        return self.total >= 24


KINDS: dict[str, dict[str, Any]] = {
    "scheduler": {"scheduler": Halving(), "param_space": {"x": tune.uniform(0, 1)}, "num_samples": 6},
    "searcher": {"search_alg": Climber(), "num_samples": 6},
    "stopper": {"stop": Enough(), "param_space": {"x": tune.uniform(0, 1)}, "num_samples": 8},
    "function": {
        "stop": lambda trial_id, result: result["training_iteration"] >= 4,
        "param_space": {"x": tune.sample_from(lambda spec: 3.0), "y": tune.uniform(0, 1)},
        "num_samples": 4,
    },
    "all": {
        "search_alg": Climber(),
        "scheduler": Halving(),
        "stop": [Enough(), lambda trial_id, result: result["score"] > 1000],
        "num_samples": 6,
    },
    "warm": {
        "algorithm": "auto",
        "stop": lambda trial_id, result: result["training_iteration"] >= 4,
        "param_space": {"x": tune.uniform(0, 1)},
        "num_samples": 6,
        "warm_start": {"experiments": ["earlier"]},
    },
}
LESSONS: dict[str, list[list[Any]]] = {"warm": [["history", [{"x": 0.75}, {"x": 0.5}]]]}
"""What the operator has read of earlier experiments."""


def report(config: dict[str, Any], iteration: int) -> float:
    return float(config["x"]) * iteration


def finished(kind: str, directory: Path, kill: Any = lambda _step: "") -> World:
    if kind in LESSONS:
        pytest.importorskip("numpy")
        pytest.importorskip("threadpoolctl")

    async def run() -> World:
        seed_generators(7)  # those of the script, which its deciding code continues
        world = World(request(max_concurrent=1, **KINDS[kind]), directory, report, 8, LESSONS.get(kind))
        world.start()
        await world.run(kill)
        return world

    return asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
class TestKills:
    def test_without_kills_code_decides(self, kind: str, tmp_path: Path) -> None:
        world = finished(kind, tmp_path)
        table = world.table()
        assert len(table) >= 4
        assert all(row[2] == "TERMINATED" for row in table)
        assert world.experiment.engine.state.flags.state == "Succeeded", world.experiment.engine.state.flags.message

    @pytest.mark.parametrize("seed", range(4))
    def test_same_table_with_kills(self, kind: str, seed: int, tmp_path: Path) -> None:
        expected = finished(kind, tmp_path / "without").table()
        world = finished(kind, tmp_path / "with", drawn(seed, 0.05))
        assert world.table() == expected


class TestWarmStart:
    def test_configs_of_earlier_experiments_come_first(self, tmp_path: Path) -> None:
        trials = finished("warm", tmp_path).experiment.engine.state.trials.values()
        assert [msgspec.msgpack.decode(trial.params)["x"] for trial in trials][:2] == [0.75, 0.5]


class TestUndecided:
    """An attempt's report is answered when it is decided about, whatever becomes of events around it."""

    def test_withdrawn_suggestion_answers_no_earlier_report(self, tmp_path: Path) -> None:
        async def run() -> None:
            world = World(request(max_concurrent=1, **KINDS["searcher"]), tmp_path, report, 8)
            world.start()
            assert world.decider is not None
            while not world.attempts:
                await world.decider.step()
            while await world.decider.step():
                pass
            decisions = world.experiment.decisions
            assert decisions is not None
            (trial_id, (attempt, _)) = next(iter(world.attempts.items()))
            trial = world.experiment.engine.state.trials[trial_id]
            end = AttemptEnd(cause="completed")
            world.experiment.apply(AttemptEnded(trial_id=trial_id, attempt=attempt, end=end))
            waiting = decisions.undecided()
            assert waiting is not None
            world.experiment.apply(SuggestionReady())
            world.kill_decider()
            await asyncio.sleep(0)
            assert not waiting.done()
            assert not trial.ended
            await world.run()
            assert waiting.done()

        asyncio.run(run())


class TestSettings:
    def test_edit_while_a_decision_is_awaited_is_kept(self, tmp_path: Path) -> None:
        """The settings before it were observed once more, and wait for the decision too."""

        async def run() -> World:
            space = {"x": tune.uniform(0, 1)}
            given = request(param_space=space, num_samples=2, max_concurrent=1, stop=lambda _, result: False)
            world = World(given, tmp_path, report, 3)
            world.start()
            decisions = world.experiment.decisions
            assert decisions is not None

            def waits() -> bool:
                return any(isinstance(item.record.event, ResultsReceived) for item in decisions._in_flight)

            for _ in range(1000):
                await asyncio.sleep(0)
                if waits():
                    break
                if world.decider is None or not await world.decider.step():
                    world.train()
            assert waits()
            world.experiment.apply(SettingsObserved(settings=settings_of(given)))
            world.request = replace(given, num_samples=4)
            world.experiment.apply(SettingsObserved(settings=settings_of(world.request)))
            await world.run()
            return world

        assert len(asyncio.run(run()).table()) == 4


class TestSuspend:
    def test_of_an_experiment_that_was_being_resumed_can_be_undone(self, tmp_path: Path) -> None:
        """The first resume still waits for its decision when the second one is asked for."""

        async def run() -> World:
            given = request(param_space={"x": tune.uniform(0, 1)}, num_samples=2, stop=lambda _, result: False)
            world = World(given, tmp_path, report, 3)
            world.start()
            decisions = world.experiment.decisions
            assert decisions is not None
            assert world.decider is not None
            while not world.experiment.engine.state.running:
                await asyncio.sleep(0)
                await world.decider.step()
            world.experiment.apply(SuspendRequested())
            for _ in range(100):
                await asyncio.sleep(0)
                await world.decider.step()
            world.experiment.apply(ResumeRequested())
            while not any(isinstance(item.record.event, ResumeRequested) for item in decisions._in_flight):
                await asyncio.sleep(0)
                if world.decider.waiting is None:
                    await world.decider.step()
            world.experiment.apply(SuspendRequested())
            world.experiment.apply(ResumeRequested())
            for _ in range(100):
                await asyncio.sleep(0)
                await world.decider.step()
            return world

        assert not asyncio.run(run()).experiment.engine.state.flags.suspended


class TestSuggestions:
    def test_of_an_ended_session_are_dropped_while_all_is_over(self, tmp_path: Path) -> None:
        """It came before the choices that ask for it, for samples that were added to a finished experiment."""

        async def run() -> World:
            given = request(param_space={"x": tune.uniform(0, 1)}, num_samples=2, stop=lambda _, result: False)
            world = World(given, tmp_path, report, 3)
            world.start()
            await world.run()
            world.request = replace(given, num_samples=4)
            world.experiment.apply(SettingsObserved(settings=settings_of(world.request)))
            world.kill_decider()
            await world.decider.suggest_before_deciding()
            world.kill_decider()
            while world.experiment.engine.finished:
                assert await world.decider.step()
            await world.run()
            return world

        world = asyncio.run(run())
        flags = world.experiment.engine.state.flags
        assert (len(world.table()), flags.state) == (4, "Succeeded"), flags.message


class TestEndOfSession:
    """A held poll is answered when its session is over; only the next session's decider starts again."""

    def test_of_another_session_restarts(self, tmp_path: Path) -> None:
        async def run() -> None:
            world = World(request(max_concurrent=1, **KINDS["scheduler"]), tmp_path, report, 8)
            world.start()
            held = await self.poll(world)
            world.experiment.decisions.end_session()
            answer = await held
            assert (bool(answer.ended), answer.restart) == (True, True)

        asyncio.run(run())

    def test_of_a_finished_experiment_does_not(self, tmp_path: Path) -> None:
        async def run() -> None:
            world = World(request(max_concurrent=1, **KINDS["scheduler"]), tmp_path, report, 8)
            world.start()
            await world.run()
            held = await self.poll(world)
            world.experiment.close()
            answer = await held
            assert (bool(answer.ended), answer.restart) == (True, False)

        asyncio.run(run())

    async def poll(self, world: World) -> asyncio.Future[DecisionAnswer]:
        assert world.decider is not None
        while world.decider.waiting is None:
            await world.decider.step()
        return world.decider.waiting
