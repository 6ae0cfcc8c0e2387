"""The second generation of Ray Tune's API: ``ray.air``, checkpoints made of dicts, ``checkpoint_dir``, classes.

Run it with ``python -m trialpod.compat.ray examples/ray_scripts/second_generation.py``.
"""

import json
import os
import sys

import numpy as np
import ray
from ray import air, tune
from ray.air import session
from ray.air.checkpoint import Checkpoint
from ray.tune.utils import diagnose_serialization, validate_save_restore


def score(x, a, b):
    return a * (x**0.5) + b


def with_dicts(config):
    start = 0
    loaded = session.get_checkpoint()
    if loaded:
        start = loaded.to_dict()["step"] + 1
    for step in range(start, config["epochs"]):
        metrics = {"score": score(step, config["a"], config["b"]), "step": step}
        session.report(metrics, checkpoint=Checkpoint.from_dict({"step": step}))
        if step == 1 and not loaded:
            raise RuntimeError("a bad day")


def with_folders(config, checkpoint_dir=None):
    start = config["start"]
    if checkpoint_dir:
        with open(os.path.join(checkpoint_dir, "state")) as stream:
            start = json.load(stream)["step"] + 1
    for step in range(start, 4):
        with tune.checkpoint_dir(step=step) as folder, open(os.path.join(folder, "state"), "w") as stream:
            json.dump({"step": step}, stream)
        tune.report(score=step, started_at=start)
        if step == 2 and start == 0:
            raise RuntimeError("a bad day")


class Model(tune.Trainable):
    def setup(self, config, data=None):
        self.x, self.data = 0, data

    def step(self):
        self.x += 1
        result = {"score": score(self.x, self.config["a"], self.config["b"]), "rows": len(self.data)}
        if self.x == 3:
            result["should_checkpoint"] = True
        return result

    def save_checkpoint(self, checkpoint_dir):
        return {"x": self.x}

    def load_checkpoint(self, checkpoint):
        self.x = checkpoint["x"]

    def reset_config(self, new_config):
        self.x, self.config = 0, new_config
        return True


def main(storage):
    ray.init(ignore_reinit_error=True)
    assert diagnose_serialization(with_dicts) is True
    data = np.zeros((1000, 10))
    model = tune.with_parameters(Model, data=data)
    validate_save_restore(model, config={"a": 1, "b": 2}, use_object_store=True)

    grid = tune.Tuner(
        with_dicts,
        param_space={"a": 2, "b": 4, "epochs": 4},
        run_config=air.RunConfig(
            name="dicts", local_dir=storage, verbose=0, failure_config=air.FailureConfig(max_failures=1)
        ),
    ).fit()
    print(f"dicts: step {grid[0].metrics['step']}, checkpoint {grid[0].checkpoint.to_dict()}")

    grid = tune.Tuner(
        with_folders,
        param_space={"start": 0},
        run_config=air.RunConfig(
            name="folders", local_dir=storage, verbose=0, failure_config=air.FailureConfig(max_failures=1)
        ),
    ).fit()
    print(f"folders: score {grid[0].metrics['score']}, started at {grid[0].metrics['started_at']}")

    bundles = tune.PlacementGroupFactory([{"CPU": 0.5}, {"CPU": 0.5}])
    grid = tune.Tuner(
        tune.with_resources(model, bundles),
        param_space={"a": tune.grid_search([1, 2, 3]), "b": 4},
        tune_config=tune.TuneConfig(metric="score", mode="max", reuse_actors=True, max_concurrent_trials=1),
        run_config=air.RunConfig(
            name="model",
            local_dir=storage,
            verbose=0,
            stop={"training_iteration": 5},
            checkpoint_config=air.CheckpointConfig(checkpoint_frequency=2, checkpoint_at_end=True),
        ),
    ).fit()
    best = grid.get_best_result()
    print(f"model: a={best.config['a']}, rows {best.metrics['rows']}, x {best.checkpoint.to_dict()['x']}")


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "ray_results"))
