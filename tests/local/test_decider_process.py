"""A decider as a real process, over HTTP, killed at any moment."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from decider_support import request, settings_of

from trialpod import tune
from trialpod.protocol.messages import AttemptEnd
from trialpod.protocol.values import params_decoder, params_encoder
from trialpod.storage.directory import DirectoryStorage
from trialpod.tune.schedulers import TrialScheduler
from trialpod.tune.search.basic_variant import BasicVariantGenerator
from trialpod.tune.shipping.stored_objects import ValueFiles, read_values_from
from trialpod_operator.decider.code import pack_code
from trialpod_operator.engine.actions import Action, StartAttempt
from trialpod_operator.engine.events import AnyEvent, AttemptEnded, ResultsReceived, SettingsObserved
from trialpod_operator.experiment.decisions.stand_ins import FollowedScheduler, FollowedSearch
from trialpod_operator.experiment.durable import DurableExperiment, Shell
from trialpod_operator.experiment.plan import DecidedElsewhere, ExperimentPlan
from trialpod_operator.reports.server import ReportServer
from trialpod_operator.reports.service import ReportService, Served

TIMEOUT_S = 60.0


class Odd(tune.schedulers.FIFOScheduler):
    """Stops every second trial at iteration 2."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if result["training_iteration"] == 2:
            self.seen.append(trial.trial_id)
            if len(self.seen) % 2:
                return TrialScheduler.STOP
        return TrialScheduler.CONTINUE

    def horizons(self, trial: Any) -> Any:
        return None


class Hanging(tune.schedulers.FIFOScheduler):
    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        import threading

        threading.Event().wait(600)
        return TrialScheduler.CONTINUE

    def horizons(self, trial: Any) -> Any:
        return None


class Wrong(tune.schedulers.FIFOScheduler):
    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        raise ValueError("this scheduler is wrong")

    def horizons(self, trial: Any) -> Any:
        return None


COUNT = 1_300_000
LARGE = np.arange(float(COUNT))


class Seeing(Odd):
    """Is shown the value itself, not a reference to it."""

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        config = trial.config
        assert config["fixed"].shape == (COUNT,)
        assert config["drawn"][-1] == COUNT - 1
        config["fixed"][0] = 7.0  # changes its copy only
        super().on_trial_add(tune_controller, trial)


class Unloadable(tune.schedulers.FIFOScheduler):
    def __setstate__(self, state: Any) -> None:
        import module_that_is_not_there  # noqa: F401


class Machine(Shell):
    """An open experiment behind a report service, whose trials report by themselves."""

    def __init__(
        self,
        scheduler: Any,
        folder: Path,
        decision_timeout_s: float = 30.0,
        more: dict[str, Any] | None = None,
        given: dict[str, Any] | None = None,
        lessons: list[list[Any]] | None = None,
    ) -> None:
        space = {"x": tune.uniform(0, 1), **(more or {})}
        asked = request(param_space=space, num_samples=6, max_concurrent=2, scheduler=scheduler, **(given or {}))
        self.storage = DirectoryStorage(folder)
        self.code = pack_code(asked, ValueFiles(folder))
        self.settings = settings_of(asked)
        plan = ExperimentPlan(
            settings=self.settings,
            search=FollowedSearch(),
            scheduler=FollowedScheduler(),
            stopper=None,
            trainable=asked.trainable,
            decided=DecidedElsewhere(
                code=lambda: self.code,
                seed=7,
                decision_timeout_s=decision_timeout_s,
                read_value=self.read_value,
                lessons=lessons or [],
            ),
        )
        folder.mkdir(parents=True, exist_ok=True)
        self.experiment = DurableExperiment(plan, folder, time.time)
        self.moved = asyncio.Event()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.socket = folder / "s.sock"
        self.log = folder / "decider.log"

    def read_value(self, name: str, start: int, length: int) -> bytes:
        return self.storage.read_range(f"objects/{name}", start, length)

    def find(self, name: str) -> Served | None:
        return Served(self.experiment, None)  # type: ignore[arg-type]  # no attempt calls

    def applied(self, event: AnyEvent, position: int, *, blocks: bool) -> None:
        self.moved.set()

    def perform(self, action: Action) -> None:
        if isinstance(action, StartAttempt):
            asyncio.get_running_loop().call_soon(self._report, action.trial.trial_id, action.attempt, 1)

    def _report(self, trial_id: str, attempt: int, number: int) -> None:
        result = {"score": 0.1 * number, "training_iteration": number, "done": number == 4}
        self.experiment.apply(
            ResultsReceived(
                trial_id=trial_id,
                attempt=attempt,
                first=number,
                results=[msgspec.Raw(params_encoder.encode(result))],
            )
        )
        task = asyncio.ensure_future(self._next(trial_id, attempt, number))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _next(self, trial_id: str, attempt: int, number: int) -> None:
        waiting = self.experiment.undecided()
        if waiting is not None:
            await waiting
        answer = self.experiment.answer(trial_id, attempt)
        assert answer.received >= number
        if answer.decision == "stop" or number == 4:
            end = AttemptEnd(cause="stopped" if answer.decision else "completed")
            self.experiment.apply(AttemptEnded(trial_id=trial_id, attempt=attempt, end=end))
        else:
            self._report(trial_id, attempt, number + 1)

    def start_decider(self) -> subprocess.Popen[bytes]:
        environ = {
            **os.environ,
            "TRIALPOD_ADDRESS": f"unix:{self.socket}",
            "TRIALPOD_EXPERIMENT": "digits",
        }
        with self.log.open("ab") as log:
            process = subprocess.Popen([sys.executable, "-m", "trialpod_operator.decider"], env=environ, stderr=log)
        self.processes.append(process)
        return process

    def table(self) -> list[tuple[Any, ...]]:
        trials = self.experiment.engine.state.trials.values()
        return [(trial.trial_id, bytes(trial.params), trial.status, trial.results) for trial in trials]


@asynccontextmanager
async def running(machine: Machine) -> AsyncIterator[Machine]:
    service = ReportService(machine)
    server = ReportServer(lambda path, body, _peer: service.handle(path, body))
    await server.start_unix(machine.socket)
    machine.experiment.start(machine)
    assert machine.experiment.decisions is not None
    machine.experiment.decisions.changed = machine.moved.set
    machine.experiment.apply(SettingsObserved(settings=machine.settings))
    try:
        yield machine
    finally:
        for process in machine.processes:
            process.kill()
            process.wait()
        machine.experiment.close()
        await server.close(0.0)


async def until(machine: Machine, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            machine.moved.clear()
            await machine.moved.wait()


def finished(folder: Path, kills: int, more: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
    async def run() -> list[tuple[Any, ...]]:
        async with running(Machine(Odd(), folder, more=more)) as machine:
            for _ in range(kills):
                process = machine.start_decider()
                position = machine.experiment.position
                await until(machine, lambda at=position: machine.experiment.position > at + 3)
                process.send_signal(signal.SIGKILL)
                process.wait()
                machine.experiment.decisions.end_session()
            machine.start_decider()
            await until(machine, lambda: machine.experiment.engine.finished)
            state = machine.experiment.engine.state
            assert state.flags.state == "Succeeded", state.flags.message
            return machine.table()

    return asyncio.run(run())


class TestProcess:
    def test_decides_over_http(self, tmp_path: Path) -> None:
        table = finished(tmp_path, 0)
        assert [row[3] for row in table] == [2, 4, 2, 4, 2, 4]

    def test_kill_9_changes_no_trial(self, tmp_path: Path) -> None:
        expected = finished(tmp_path / "a", 0)
        found = finished(tmp_path / "b", 3)
        assert sorted(row[:3] for row in found) == sorted(row[:3] for row in expected)
        assert sorted(row[3] for row in found) == [2, 2, 2, 4, 4, 4]


class TestEarlierExperiments:
    def test_teach_it_what_the_operator_has_read(self, tmp_path: Path) -> None:
        pytest.importorskip("threadpoolctl")
        given = {"algorithm": "auto", "warm_start": {"experiments": ["gone"]}, "stop": lambda _, result: False}

        async def run() -> list[tuple[Any, ...]]:
            machine = Machine(None, tmp_path, given=given, lessons=[["history", [{"x": 0.75}, {"x": 0.5}]]])
            async with running(machine):
                machine.start_decider()
                await until(machine, lambda: machine.experiment.engine.finished)
                state = machine.experiment.engine.state
                assert state.flags.state == "Succeeded", state.flags.message
                return machine.table()

        configs = [params_decoder.decode(row[1]) for row in asyncio.run(run())]
        assert [config["x"] for config in configs[:2]] == [0.75, 0.5]


class TestDraws:
    @pytest.mark.parametrize("kills", [0, 2])
    def test_are_those_of_the_script_that_seeded_its_generators(self, tmp_path: Path, kills: int) -> None:
        more = {
            "python": tune.sample_from(lambda: __import__("random").random()),
            "numpy": tune.sample_from(lambda spec: __import__("numpy").random.rand() + spec.config.x),
        }

        def seed() -> None:
            np.random.seed(3)
            random.seed(4)

        seed()
        here = BasicVariantGenerator()
        here.configure({"x": tune.uniform(0, 1), **more}, 6)
        expected = [here.next_suggestion().config for _ in range(6)]  # type: ignore[union-attr]
        seed()
        table = finished(tmp_path, kills, more)
        assert [params_decoder.decode(row[1]) for row in table] == expected


class TestLargeValues:
    def test_each_is_stored_once_and_read_through_the_service(self, tmp_path: Path) -> None:
        async def run() -> tuple[int, list[tuple[Any, ...]]]:
            more = {"fixed": LARGE, "drawn": tune.choice([LARGE])}
            async with running(Machine(Seeing(), tmp_path, more=more)) as machine:
                machine.start_decider()
                await until(machine, lambda: machine.experiment.engine.finished)
                state = machine.experiment.engine.state
                assert state.flags.state == "Succeeded", state.flags.message
                return len(machine.code), machine.table()

        code, table = asyncio.run(run())
        assert code < 100_000
        assert all(len(row[1]) < 1000 for row in table)
        assert [row[3] for row in table] == [2, 4, 2, 4, 2, 4]
        files = [file for file in tmp_path.rglob("*") if file.is_file() and file.stat().st_size > 1_000_000]
        assert len(files) == 1
        assert files[0].parent.name == "objects"
        read_values_from(str(tmp_path))
        for row in table:
            config = params_decoder.decode(row[1])
            assert (config["fixed"] == LARGE).all()
            assert (config["drawn"] == LARGE).all()

    def test_a_missing_one_is_named(self, tmp_path: Path) -> None:
        async def run() -> Any:
            async with running(Machine(Seeing(), tmp_path, more={"fixed": LARGE, "drawn": LARGE})) as machine:
                for file in (tmp_path / "objects").iterdir():
                    file.unlink()
                machine.start_decider()
                decisions = machine.experiment.decisions
                await until(machine, lambda: decisions.problem is not None or machine.experiment.engine.finished)
                return decisions.problem

        problem = asyncio.run(run())
        assert "of a config cannot be read" in problem.message
        assert "run the script again" in problem.message


def problem_of(scheduler: Any, folder: Path, decision_timeout_s: float = 30.0) -> Any:
    async def run() -> Any:
        async with running(Machine(scheduler, folder, decision_timeout_s)) as machine:
            process = machine.start_decider()
            decisions = machine.experiment.decisions
            await until(machine, lambda: decisions.problem is not None or machine.experiment.engine.finished)
            if decisions.problem is not None:
                assert await asyncio.to_thread(process.wait, TIMEOUT_S) == 1
            return decisions.problem or machine.experiment.engine.state.flags.message

    return asyncio.run(run())


class TestProblems:
    def test_hanging_code_is_named_with_its_line(self, tmp_path: Path) -> None:
        problem = problem_of(Hanging(), tmp_path, 1.0)
        assert "took longer than 1 s" in problem.message
        assert "on_trial_result" in problem.traceback

    def test_code_that_raises_ends_the_experiment_with_its_words(self, tmp_path: Path) -> None:
        message = problem_of(Wrong(), tmp_path)
        assert "Wrong.on_trial_result raised ValueError: this scheduler is wrong" in message
        first, *frames = message.splitlines()
        assert first.endswith("in on_trial_result)")
        assert 'raise ValueError("this scheduler is wrong")' in frames[-1]
        assert len(frames) == 2, "only the user's own"
        assert "raise ValueError" in (tmp_path / "decider.log").read_text()

    def test_missing_module_is_named_before_the_first_trial(self, tmp_path: Path) -> None:
        problem = problem_of(Unloadable(), tmp_path)
        assert "module_that_is_not_there" in problem.message
        assert "install what it imports in the image" in problem.message

    def test_other_python_is_named_with_the_remedy(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("trialpod.protocol.packed._PYTHON", "3.9.1")
        problem = problem_of(Odd(), tmp_path)
        assert "was packed by Python 3.9.1" in problem.message
        assert "use an image with the same minor version of Python" in problem.message
