"""Classes as Trainables: calls, counters, checkpoints, errors; in experiments and by hand."""

# ruff: noqa: F821  # `probe`, `raised` and `printed` come from ask.py

from __future__ import annotations

import json
import os
from typing import Any

from ray import tune


class Steps(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.n = 0

    def step(self) -> dict[str, Any]:
        self.n += 1
        return {"n": self.n}

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        return {"n": self.n}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.n = checkpoint["n"]


class NoSave(tune.Trainable):
    def step(self) -> dict[str, Any]:
        return {"n": 1, "done": self.iteration >= 1}


def _fit(folder: str, trainable: Any, space: Any = None, **kwargs: Any) -> Any:
    return tune.Tuner(
        trainable,
        param_space=space or {},
        run_config=tune.RunConfig(storage_path=folder, verbose=0, **kwargs),
    ).fit()


@probe
def by_hand(folder: str) -> dict[str, Any]:
    trainer = Steps({"a": 1})
    first, second = trainer.train(), trainer.train()
    saved = trainer.save(f"{folder}/ckpt")
    other = Steps()
    other.restore(saved)
    third = other.train()
    return {
        "keys": sorted(first),
        "counters": [second["training_iteration"], second["iterations_since_restore"], second["n"]],
        "done": first["done"],
        "timesteps": [first.get("timesteps_total", "none"), first.get("episodes_total", "none")],
        "saved": [hasattr(saved, "checkpoint"), saved.metrics["n"]],
        "files": sorted(e for e in os.listdir(saved.checkpoint.path) if not e.startswith(".")),
        "restored": [third["n"], third["training_iteration"], third["iterations_since_restore"]],
        "properties": [trainer.iteration, trainer.training_iteration, trainer.trial_id, trainer.trial_name],
        "config": trainer.get_config(),
        "logdir": os.path.isdir(trainer.logdir),
        "state": sorted(trainer.get_state()),
        "stop": trainer.stop(),
        "restore of nothing": raised(lambda: Steps().restore(f"{folder}/none")),
        "auto filled": sorted(trainer.get_auto_filled_metrics()),
        "auto filled debug": sorted(trainer.get_auto_filled_metrics(debug_metrics_only=True)),
        "is_actor": trainer.is_actor(),
        "resource_help": trainer.resource_help({}),
        "default_resource_request": trainer.default_resource_request({}),
        "reset": Steps().reset({"b": 1}),
        "export": raised(lambda: Steps().export_model("model", folder)),
        "export of an unknown format": raised(lambda: Steps().export_model("pickle", folder)),
        "export of two": raised(lambda: Steps().export_model(["model", "h5"], folder)),
        "buffered": [len(Steps().train_buffered(0.0, 3)), len(Steps().train_buffered(100, 3))],
        "config is a copy": raised(lambda: _copies()),
    }


def _copies() -> bool:
    config = {"a": [1]}
    trainer = Steps(config)
    trainer.config["a"].append(2)
    return bool(config == {"a": [1]})


@probe
def in_experiments(folder: str) -> dict[str, Any]:
    class Recorded(Steps):
        def setup(self, config: dict[str, Any]) -> None:
            super().setup(config)
            self.calls = ["setup"]

        def cleanup(self) -> None:
            with open(config_path, "a") as stream:
                stream.write("cleanup ")

        def log_result(self, result: dict[str, Any]) -> None:
            with open(config_path, "a") as stream:
                stream.write("log_result ")
            super().log_result(result)

        def save_checkpoint(self, checkpoint_dir: str) -> Any:
            with open(config_path, "a") as stream:
                stream.write("save ")
            return super().save_checkpoint(checkpoint_dir)

    config_path = f"{folder}/calls"
    result = _fit(
        folder,
        Recorded,
        stop={"training_iteration": 4},
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=2),
    )[0]
    rows = [json.loads(line) for line in open(f"{result.path}/result.json")]
    names = sorted(entry for entry in os.listdir(result.path) if entry.startswith("checkpoint_"))
    return {
        "calls": open(config_path).read().split(),
        "checkpoints": names,
        "files": sorted(e for e in os.listdir(f"{result.path}/{names[0]}") if not e.startswith(".")),
        "metrics": sorted(result.metrics),
        "done": [row["done"] for row in rows],
        "dir names": [row.get("checkpoint_dir_name") for row in rows],
        "last": result.metrics["n"],
        "logdir": raised(lambda: sorted(k for k in rows[0] if k not in result.metrics)),
    }


@probe
def ends(folder: str) -> dict[str, Any]:
    def status(trainable: Any, **kwargs: Any) -> Any:
        def call() -> Any:
            result = _fit(folder, trainable, **kwargs)[0]
            return [type(result.error).__name__, (result.metrics or {}).get("training_iteration")]

        return raised(call)

    class ReturnsNone(Steps):
        def step(self) -> Any:
            return None

    class ReturnsList(Steps):
        def step(self) -> Any:
            return [1]

    class SetupFails(Steps):
        def setup(self, config: dict[str, Any]) -> None:
            raise ValueError("setup")

    class SaveFails(Steps):
        def save_checkpoint(self, checkpoint_dir: str) -> Any:
            raise ValueError("save")

    class SaveText(Steps):
        def save_checkpoint(self, checkpoint_dir: str) -> Any:
            return "elsewhere"

    class SaveDir(Steps):
        def save_checkpoint(self, checkpoint_dir: str) -> Any:
            open(f"{checkpoint_dir}/x", "w").write("1")
            return checkpoint_dir

    class SaveNothing(Steps):
        def save_checkpoint(self, checkpoint_dir: str) -> Any:
            open(f"{checkpoint_dir}/x", "w").write("1")

    class CleanupFails(Steps):
        def cleanup(self) -> None:
            raise ValueError("cleanup")

    class Reports(Steps):
        def step(self) -> Any:
            tune.report({"n": 1})
            return {"n": 2, "done": True}

    class Exits(Steps):
        def step(self) -> Any:
            os._exit(3)

    class ShouldCheckpoint(Steps):
        def step(self) -> Any:
            self.n += 1
            return {"n": self.n, "should_checkpoint": self.n == 1}

    class ExportFails(Steps):
        def _export_model(self, export_formats: list[str], export_dir: str) -> Any:
            raise ValueError("export")

    two = {"stop": {"training_iteration": 2}}
    wanted = _fit(folder, ShouldCheckpoint, **two)[0]
    exported = raised(
        lambda: [
            trial.status
            for trial in tune.run(
                ExportFails,
                storage_path=folder,
                verbose=0,
                stop={"training_iteration": 1},
                export_formats=["model"],
                raise_on_failed_trial=False,
            ).trials
        ]
    )
    return {
        "step returns None": status(ReturnsNone),
        "step returns a list": status(ReturnsList),
        "setup fails": status(SetupFails),
        "save fails": status(SaveFails, **two),
        "save returns another path": status(SaveText, **two),
        "save returns its folder": status(SaveDir, **two),
        "save returns None": status(SaveNothing, **two),
        "cleanup fails": status(CleanupFails, **two),
        "report in a class": status(Reports),
        "the process exits": status(Exits),
        "no save": status(NoSave),
        "no save, not asked": status(NoSave, checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False)),
        "should_checkpoint": sorted(e for e in os.listdir(wanted.path) if e.startswith("checkpoint_")),
        "export fails": exported,
    }


@probe
def resources(folder: str) -> dict[str, Any]:
    class Asks(Steps):
        @classmethod
        def default_resource_request(cls, config: dict[str, Any]) -> Any:
            return tune.PlacementGroupFactory([{"CPU": config["cpus"]}])

        def step(self) -> Any:
            return {"cpus": self.trial_resources.required_resources["CPU"], "done": True}

    return {
        "asked": _fit(folder, Asks, {"cpus": 2})[0].metrics["cpus"],
        "with_resources": raised(
            lambda: _fit(folder, tune.with_resources(Asks, {"cpu": 3}), {"cpus": 2})[0].metrics["cpus"]
        ),
        "resources_per_trial beside it": raised(
            lambda: (
                tune.run(Asks, config={"cpus": 2}, resources_per_trial={"cpu": 1}, storage_path=folder, verbose=0)
                .trials[0]
                .last_result["cpus"]
            )
        ),
    }
