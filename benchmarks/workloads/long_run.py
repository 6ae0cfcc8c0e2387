"""An experiment that continues for long: many results, trials or checkpoints; `benchmarks/health.py` watches it.

    python long_run.py KIND COUNT STORAGE

The trials tell how far they are in the file that ``PROGRESS`` names: its size in bytes is what has been done.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import tempfile
from typing import Any

from trialpod import tune
from trialpod.protocol.messages import Horizon
from trialpod.tune.schedulers import ControllerView, FIFOScheduler, TrialView

PACE = 1_000


class Paced(FIFOScheduler):
    """Looks at each thousandth result, so that a trial that does nothing but report waits for the parent there.

    What waits to be sent takes memory (64 MiB at most), which has nothing to do with the length of a run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, int] = {}

    def on_trial_result(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> str:
        """Note how far the trial is."""
        self.seen[trial.trial_id] = int(result["training_iteration"])
        return self.CONTINUE

    def horizons(self, trial: TrialView) -> list[Horizon]:
        """Return the next thousandth."""
        return [Horizon("training_iteration", float((self.seen.get(trial.trial_id, 0) // PACE + 1) * PACE))]


def step() -> None:
    """Note that one more is done."""
    with open(os.environ["PROGRESS"], "ab", buffering=0) as file:
        file.write(b".")


def results(config: dict[str, Any]) -> None:
    progress = os.open(os.environ["PROGRESS"], os.O_WRONLY | os.O_APPEND)
    for number in range(config["count"]):
        tune.report({"score": number, "loss": 1.0 / (number + 1), "rate": 0.5})
        os.write(progress, b".")


def trial(config: dict[str, Any]) -> None:
    tune.report({"score": config["x"]})
    step()


def checkpoints(config: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number in range(config["count"]):
            pathlib.Path(folder, "state.json").write_text(json.dumps({"number": number}))
            pathlib.Path(folder, "weights.bin").write_bytes(os.urandom(10_000))
            tune.report({"score": number}, checkpoint=tune.Checkpoint.from_directory(folder))
            step()


def main() -> None:
    kind, count, storage = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    many = kind == "trials"
    tune.Tuner(
        tune.with_resources({"results": results, "trials": trial, "checkpoints": checkpoints}[kind], {"cpu": 0.2}),
        param_space={"x": tune.uniform(0, 1)} if many else {"count": count},
        tune_config=tune.TuneConfig(
            num_samples=count if many else 1,
            max_concurrent_trials=2,
            reuse_actors=many,
            scheduler=Paced() if kind == "results" else None,
        ),
        run_config=tune.RunConfig(
            name="long",
            storage_path=storage,
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(num_to_keep=2) if kind == "checkpoints" else None,
        ),
    ).fit()


if __name__ == "__main__":
    main()
