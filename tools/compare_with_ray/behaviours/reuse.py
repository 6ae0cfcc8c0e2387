"""Actors that serve several trials: `reuse_actors`, `reset_config`."""

# ruff: noqa: F821  # `probe`, `raised` and `printed` come from ask.py

from __future__ import annotations

import os
from typing import Any

from ray import tune


class Resets(tune.Trainable):
    answer: Any = True

    def setup(self, config: dict[str, Any]) -> None:
        with open(config["log"], "a") as stream:
            stream.write("setup ")
        self.x = config["x"]

    def step(self) -> dict[str, Any]:
        return {"x": self.x, "pid_": os.getpid(), "iteration": self.iteration, "done": self.iteration >= 1}

    def reset_config(self, new_config: dict[str, Any]) -> Any:
        with open(new_config["log"], "a") as stream:
            stream.write("reset ")
        self.x = new_config["x"]
        return self.answer

    def cleanup(self) -> None:
        with open(self.config["log"], "a") as stream:
            stream.write("cleanup ")

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        return {"x": self.x}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.x = checkpoint["x"]


class Refuses(Resets):
    answer = False


class Lacks(tune.Trainable):
    def step(self) -> dict[str, Any]:
        return {"a": 1, "done": True}

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        return {}

    def load_checkpoint(self, checkpoint: Any) -> None:
        return None


def _fit(folder: str, trainable: Any, name: str, values: Any = (1, 2, 3), **kwargs: Any) -> Any:
    return tune.Tuner(
        trainable,
        param_space={"x": tune.grid_search(list(values)), "log": f"{folder}/{name}.log"},
        tune_config=tune.TuneConfig(reuse_actors=True, max_concurrent_trials=1),
        run_config=tune.RunConfig(name=name, storage_path=folder, verbose=0, **kwargs),
    ).fit()


@probe
def classes(folder: str) -> dict[str, Any]:
    grid = _fit(folder, Resets, "resets")
    calls = open(f"{folder}/resets.log").read().split()
    return {
        "values": [r.metrics["x"] for r in grid],
        "iterations": [r.metrics["training_iteration"] for r in grid],
        "since restore": [r.metrics["iterations_since_restore"] for r in grid],
        "iteration of the object": [r.metrics["iteration"] for r in grid],
        "one process": len({r.metrics["pid_"] for r in grid}),
        "setups": calls.count("setup"),
        "resets": calls.count("reset"),
        "log folders": sorted(os.path.basename(r.path).split("_")[2] for r in grid) is not None,
        "files of each": [sorted(e for e in os.listdir(r.path) if e.endswith(("json", "csv"))) for r in grid],
    }


@probe
def refusals(folder: str) -> dict[str, Any]:
    """Ask what becomes of a class that cannot be reset; Ray 2.60 waits forever, since it frees no CPU."""
    return {
        "refuses": lambda: sorted(bool(r.error) for r in _fit(folder, Refuses, "refuses", (1, 2))),
        "lacks": lambda: sorted(bool(r.error) for r in _fit(folder, Lacks, "lacks", (1, 2))),
    }


@probe
def functions(folder: str) -> dict[str, Any]:
    def train(config: dict[str, Any]) -> None:
        tune.report({"x": config["x"], "pid_": os.getpid(), "cwd": os.path.basename(os.getcwd())})

    grid = _fit(folder, train, "functions")
    without = tune.Tuner(
        train,
        param_space={"x": tune.grid_search([1, 2]), "log": "-"},
        run_config=tune.RunConfig(storage_path=folder, verbose=0),
    ).fit()
    return {
        "values": [r.metrics["x"] for r in grid],
        "own folders": [r.metrics["cwd"] == os.path.basename(r.path) for r in grid],
        "iterations": [r.metrics["training_iteration"] for r in grid],
        "without: processes": len({r.metrics["pid_"] for r in without}),
    }
