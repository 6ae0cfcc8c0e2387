"""How fast the page's data is with many trials: `benchmarks/read_model.py [--trials 10000] [--results 1000]`.

It makes an experiment in a temporary folder (2.6 GB by default), reads it as `trialpod ui` does, and asks for what
the page asks for first: the header, all rows and all curves.
"""

from __future__ import annotations

import argparse
import math
import random
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from trialpod.protocol.messages import AttemptEnd, TrainableRef
from trialpod.storage.layout import RESULT_FILE
from trialpod.tune.schedulers.fifo import FIFOScheduler
from trialpod.tune.search.basic_variant import BasicVariantGenerator
from trialpod.tune.search.sample import loguniform, randint, uniform
from trialpod_operator.engine import events
from trialpod_operator.engine.settings import Settings
from trialpod_operator.experiment.journaled_engine import JournaledEngine
from trialpod_operator.experiment.plan import ExperimentPlan
from trialpod_operator.experiment.stored import write_stored
from trialpod_operator.view.location import Location
from trialpod_operator.view.model import ExperimentModel

SHAPES = 50
"""Different curves; making each trial's own would take longer than reading all."""


def make(folder: Path, trials: int, results: int) -> None:
    """Make an experiment whose results are in a snapshot and in the files of its trials."""
    search = BasicVariantGenerator(seed=1)
    search.configure({"lr": loguniform(1e-5, 1e-1), "units": randint(8, 512), "dropout": uniform(0, 0.5)}, trials)
    plan = ExperimentPlan(
        settings=Settings(name="big", trainable_name="train", metric="loss", mode="min", num_samples=trials),
        search=search,
        scheduler=FIFOScheduler(),
        stopper=None,
        trainable=TrainableRef(entrypoint="m:train"),
    )
    write_stored(folder, {"name": "big", "total": trials})
    host = JournaledEngine(plan, folder, time.time, lambda _action: None)
    host.apply(events.SettingsObserved(settings=plan.settings))
    state = host.engine.state
    rng = random.Random(1)
    curves = [_curve(rng, results) for _ in range(SHAPES)]
    for number, trial in enumerate(list(state.trials.values())):
        trial_id = trial.trial_id
        host.apply(events.AttemptStarted(trial_id=trial_id, attempt=1, hostname="node", resources={"cpu": 1.0}))
        raw = [msgspec.Raw(msgspec.msgpack.encode(_result(results, 0.5)))]
        host.apply(events.ResultsReceived(trial_id=trial_id, attempt=1, first=1, results=raw))
        end = AttemptEnd(cause="completed")
        host.apply(events.AttemptEnded(trial_id=trial_id, attempt=1, end=end))
        trial.results = trial.iteration = results
        (host.files.path(trial) / RESULT_FILE).write_bytes(curves[number % SHAPES])
    host.write_snapshot()
    host.close()


def _curve(rng: random.Random, results: int) -> bytes:
    """Return the content of a ``result.json``: a noisy decay."""
    floor, pace = rng.random(), rng.random() * 0.02
    lines = [
        msgspec.json.encode(
            _result(n, floor + math.exp(-pace * n) + rng.gauss(0, 0.02)) | {"trial_id": "0a1b2_00000", "pid": 4242}
        )
        for n in range(1, results + 1)
    ]
    return b"\n".join([*lines, b""])


def _result(number: int, loss: float) -> dict[str, Any]:
    return {
        "loss": loss,
        "accuracy": 1 - loss / 2,
        "timestamp": 1_700_000_000 + number,
        "checkpoint_dir_name": None,
        "done": False,
        "training_iteration": number,
        "date": "2026-01-01_00-00-00",
        "time_this_iter_s": 1.5,
        "time_total_s": 1.5 * number,
        "hostname": "node",
    }


def timed(what: str, function: Callable[[], Any]) -> Any:
    """Print how long a call took, the best of three, and how much it answered."""
    best, found = math.inf, None
    for _ in range(3):
        begun = time.perf_counter()
        found = function()
        best = min(best, time.perf_counter() - begun)
    size = len(found) if isinstance(found, bytes) else len(msgspec.json.encode(found))
    print(f"{what:<34} {best * 1000:8.1f} ms {size / 1e6:8.2f} MB")
    return found


def main() -> None:
    """Make the experiment and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--results", type=int, default=1_000)
    parser.add_argument("--folder", type=Path, help="keep it there, and use it when it is there already")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary) / "big"
        if not folder.exists():
            make(folder, options.trials, options.results)
        model = ExperimentModel(Location(folder))
        begun = time.perf_counter()
        model.refresh(0.0)
        print(f"{'journal read':<34} {(time.perf_counter() - begun) * 1000:8.1f} ms")
        begun = time.perf_counter()
        model.header(), model.trial_rows()
        print(f"{'first header and rows':<34} {(time.perf_counter() - begun) * 1000:8.1f} ms")
        begun = time.perf_counter()
        while model.refresh():
            pass
        print(f"{'curves read from files':<34} {(time.perf_counter() - begun) * 1000:8.1f} ms")
        begun = time.perf_counter()
        model.trial_rows(), model.curves()
        print(f"{'first complete rows and curves':<34} {(time.perf_counter() - begun) * 1000:8.1f} ms")
        timed("header", model.header)
        timed("all rows", model.trial_rows)
        timed("all curves", model.curves)
        cursor = model.cursor
        timed("refresh without news", model.refresh)
        timed("rows after the cursor", lambda: model.trial_rows(cursor))
        timed("timeline", model.timeline)
        print(f"memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
