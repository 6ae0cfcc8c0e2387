"""Does a decider keep up? An experiment's engine and report service, and a real decider process, on this machine.

Trials are coroutines that report through the report service's `handle` about once a second each, and wait for the
answer to each result, as a scheduler without `horizons` has them. The decider is a process of its own on a Unix
socket. Measured: seconds from a report to its answer, and the CPU time of both processes.

    .venv/bin/python benchmarks/deciders.py --trials 1000 --seconds 30
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from trialpod import tune
from trialpod.protocol.messages import AttemptEnd, ReportAnswer, ReportRequest, TrainableRef, path
from trialpod.protocol.values import params_encoder
from trialpod.tune.backends import ExperimentRequest
from trialpod.tune.schedulers import TrialScheduler
from trialpod_operator.decider.code import pack_code
from trialpod_operator.engine.actions import Action, StartAttempt
from trialpod_operator.engine.events import SettingsObserved
from trialpod_operator.engine.settings import Settings
from trialpod_operator.experiment.decisions.stand_ins import FollowedScheduler, FollowedSearch
from trialpod_operator.experiment.durable import DurableExperiment, Shell
from trialpod_operator.experiment.plan import DecidedElsewhere, ExperimentPlan
from trialpod_operator.reports.server import ReportServer
from trialpod_operator.reports.service import ReportService, Served


class BelowMean(tune.schedulers.FIFOScheduler):
    """A scheduler of a user's that is asked about every result."""

    def __init__(self) -> None:
        super().__init__()
        self.sum = 0.0
        self.count = 0

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Learn, and continue."""
        self.sum += result["score"]
        self.count += 1
        return TrialScheduler.CONTINUE

    def horizons(self, trial: Any) -> Any:
        """Be asked about every result."""
        return None


class Bench(Shell):
    """The operator's side, and its trials."""

    def __init__(self, folder: Path, trials: int) -> None:
        request = ExperimentRequest(
            name="bench",
            storage_path="/",
            trainable=TrainableRef(entrypoint="train:train"),
            trainable_name="train",
            is_class=False,
            metric="score",
            mode="max",
            param_space={"x": tune.uniform(0, 1)},
            num_samples=trials,
            scheduler=BelowMean(),
        )
        code = pack_code(request)
        self.settings = Settings(name="bench", trainable_name="train", metric="score", num_samples=trials)
        plan = ExperimentPlan(
            settings=self.settings,
            search=FollowedSearch(),
            scheduler=FollowedScheduler(),
            stopper=None,
            trainable=request.trainable,
            decided=DecidedElsewhere(code=lambda: code, seed=1),
        )
        self.experiment = DurableExperiment(plan, folder, time.time)
        self.service = ReportService(self)
        self.socket = folder / "s.sock"
        self.ready = asyncio.Event()
        self.trials = trials
        self.started: list[tuple[str, int]] = []
        self.latencies: list[float] = []

    def find(self, name: str) -> Served:
        """Return the experiment, whatever its name."""
        return Served(self.experiment, self)  # type: ignore[arg-type]  # no attempt asks for work

    def attempt_ended(self, trial_id: str, attempt: int, end: AttemptEnd) -> AttemptEnd:
        """Take it as it is."""
        return end

    def perform(self, action: Action) -> None:
        """Note which trials run."""
        if isinstance(action, StartAttempt):
            self.started.append((action.trial.trial_id, action.attempt))
            if len(self.started) == self.trials:
                self.ready.set()

    async def train(self, trial_id: str, attempt: int, offset: float, until: float) -> None:
        """Report about once a second, and wait for each answer."""
        await asyncio.sleep(offset)
        number = 0
        while time.perf_counter() < until:
            number += 1
            result = {"score": offset, "loss": 0.1, "training_iteration": number, "time_total_s": 1.0 * number}
            body = msgspec.msgpack.encode(
                ReportRequest(
                    trial_id=trial_id, attempt=attempt, first=number,
                    results=[msgspec.Raw(params_encoder.encode(result))],
                )
            )  # fmt: skip
            began = time.perf_counter()
            reply = self.service.handle(path("bench", "report"), body)
            status, data = reply if isinstance(reply, tuple) else await reply
            took = time.perf_counter() - began
            assert status == 200, data
            assert msgspec.msgpack.decode(data, type=ReportAnswer).received == number
            self.latencies.append(took)
            await asyncio.sleep(max(0.0, 1.0 - took))


async def measure(folder: Path, trials: int, seconds: float) -> None:
    """Run it and print what it took."""
    bench = Bench(folder, trials)
    server = ReportServer(lambda path_, body, _peer: bench.service.handle(path_, body))
    await server.start_unix(bench.socket)
    environ = {**os.environ, "TRIALPOD_ADDRESS": f"unix:{bench.socket}", "TRIALPOD_EXPERIMENT": "bench"}
    decider = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs yet
        [sys.executable, "-m", "trialpod_operator.decider"], env=environ
    )
    bench.experiment.start(bench)
    began = time.perf_counter()
    bench.experiment.apply(SettingsObserved(settings=bench.settings))
    await bench.ready.wait()
    suggested = time.perf_counter() - began
    own = time.process_time()
    until = time.perf_counter() + seconds
    began = time.perf_counter()
    tasks = [bench.train(*each, number / trials, until) for number, each in enumerate(bench.started)]
    await asyncio.gather(*tasks)
    wall = time.perf_counter() - began
    own = time.process_time() - own
    bench.experiment.close()
    await server.close(0.0)
    decider.terminate()
    decider.wait()
    theirs = resource.getrusage(resource.RUSAGE_CHILDREN)
    latencies = sorted(bench.latencies)

    def at(share: float) -> float:
        return 1000 * latencies[int(share * (len(latencies) - 1))]

    print(f"{trials} trials started by suggestions of the decider: {suggested:.1f} s")
    print(f"{len(latencies) / wall:.0f} results/s decided; answer after p50 {at(0.5):.1f} ms, p99 {at(0.99):.1f} ms")
    print(f"CPU: operator {100 * own / wall:.0f} % (trials included), decider {theirs.ru_utime:.1f} s in all")


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), options.trials, options.seconds))


if __name__ == "__main__":
    main()
