"""A function with checkpoints under ASHA, written for Ray Tune: nothing in it names trialpod.

Run it with ``python -m trialpod.compat.ray examples/ray_scripts/asha_checkpoints.py``.
"""

import json
import os
import sys
import tempfile

import ray
from ray import tune
from ray.tune import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, TuneConfig, Tuner
from ray.tune.schedulers import ASHAScheduler

EPOCHS = 8


def train(config):
    from ray import tune

    weight, start = 0.0, 0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder, open(os.path.join(folder, "state.json")) as stream:
            state = json.load(stream)
        weight, start = state["weight"], state["epoch"] + 1
    for epoch in range(start, EPOCHS):
        weight += config["lr"] * 2 * (3.0 - weight)
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "state.json"), "w") as stream:
                json.dump({"weight": weight, "epoch": epoch}, stream)
            metrics = {"loss": (weight - 3.0) ** 2, "epoch": epoch}
            tune.report(metrics, checkpoint=Checkpoint.from_directory(folder))


def main(storage):
    ray.init(num_cpus=2)
    tuner = Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space={"lr": tune.grid_search([0.01, 0.1, 0.3, 0.45])},
        tune_config=TuneConfig(
            metric="loss", mode="min", scheduler=ASHAScheduler(max_t=EPOCHS, grace_period=1, reduction_factor=2)
        ),
        run_config=RunConfig(
            name="asha",
            storage_path=storage,
            verbose=0,
            checkpoint_config=CheckpointConfig(num_to_keep=2),
            failure_config=FailureConfig(max_failures=1),
        ),
    )
    results = tuner.fit()
    best = results.get_best_result()
    with best.checkpoint.as_directory() as folder, open(os.path.join(folder, "state.json")) as stream:
        state = json.load(stream)
    print(f"{len(results)} trials, {results.num_errors} failed")
    print(f"best lr {best.config['lr']}, epoch {best.metrics['epoch']}, checkpoint of epoch {state['epoch']}")
    ray.shutdown()


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "ray_results"))
