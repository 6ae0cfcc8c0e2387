"""`Experiment`, `run_experiments`, registered Trainables and lists of them."""

# ruff: noqa: F821  # `probe`, `raised` and `printed` come from ask.py

from __future__ import annotations

import functools
import os
from typing import Any

from ray import tune
from ray.tune.error import TuneError
from ray.tune.experiment import Experiment
from ray.tune.registry import get_trainable_cls, register_env, register_trainable


def _train(config: dict[str, Any]) -> None:
    for number in range(3):
        tune.report({"loss": number * config.get("x", 1)})


class Steps(tune.Trainable):
    def step(self) -> dict[str, Any]:
        return {"loss": 1, "done": True}

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        return {}

    def load_checkpoint(self, checkpoint: Any) -> None:
        return None


@probe
def attributes(folder: str) -> dict[str, Any]:
    def make(**kwargs: Any) -> Any:
        return Experiment("e", _train, storage_path=folder, **kwargs)

    experiment = make(config={"x": 1}, num_samples=2, stop={"training_iteration": 2})
    return {
        "name": lambda: experiment.name,
        "run_identifier": lambda: experiment.run_identifier,
        "stopper": lambda: experiment.stopper is None,
        "public_spec": lambda: sorted(experiment.public_spec),
        "spec": lambda: sorted(experiment.spec),
        "a class": lambda: Experiment("e", Steps, storage_path=folder).run_identifier,
        "a name": lambda: Experiment("e", "_train", storage_path=folder).run_identifier,
        "an unknown name": lambda: Experiment("e", "unknown", storage_path=folder).run_identifier,
        "a lambda": lambda: Experiment("e", lambda config: None, storage_path=folder).run_identifier,
        "a partial": lambda: Experiment("e", functools.partial(_train), storage_path=folder).run_identifier,
        "bad stop": lambda: make(stop=5),
        "a stop of two arguments": lambda: make(stop=lambda a, b: True).run_identifier,
        "from_json": lambda: [
            Experiment.from_json("n", {"run": "_train", "config": {"x": 2}, "storage_path": folder}).run_identifier,
        ],
        "from_json without run": lambda: Experiment.from_json("n", {"config": {}}),
        "remote_path": lambda: experiment.remote_path == f"{folder}/e",
        "num_samples": lambda: experiment.spec["num_samples"],
        "negative samples": lambda: make(num_samples=-5).name,
    }


@probe
def registry(folder: str) -> dict[str, Any]:
    register_trainable("function", _train)
    register_trainable("class", Steps)
    return {
        "a function becomes a class": issubclass(get_trainable_cls("function"), tune.Trainable),
        "a class stays": get_trainable_cls("class") is Steps,
        "an unknown one": raised(lambda: get_trainable_cls("nothing")),
        "of no callable": raised(lambda: register_trainable("bad", 5)),
        "of a foreign class": raised(lambda: register_trainable("dict", dict)),
        "an env of no function": raised(lambda: register_env("e", 5)),
        "an env": raised(lambda: register_env("e", lambda config: None)),
        "a lambda": raised(lambda: register_trainable("l", lambda config: None)),
    }


@probe
def run_experiments(folder: str) -> dict[str, Any]:
    spec = {"run": "_train", "storage_path": folder, "config": {"x": tune.grid_search([1, 2])}}
    register_trainable("_train", _train)
    trials = tune.run_experiments({"first": dict(spec)}, verbose=0)
    several = tune.run_experiments(
        [
            Experiment("a", _train, storage_path=folder, stop={"training_iteration": 1}),
            Experiment("b", Steps, storage_path=folder),
        ],
        verbose=0,
    )
    nested = tune.run([_train, Steps], storage_path=folder, verbose=0, stop={"loss": 1})
    return {
        "trials": [[trial.config, trial.status] for trial in trials],
        "several": [[trial.trainable_name, trial.last_result["training_iteration"]] for trial in several],
        "folders": sorted(entry for entry in os.listdir(folder) if entry in ("first", "a", "b")),
        "a list to tune.run": [trial.trainable_name for trial in nested.trials],
        "of nothing": raised(lambda: tune.run_experiments({}, verbose=0)),
        "of None": raised(lambda: tune.run_experiments(None, verbose=0)),
        "of a text": raised(lambda: tune.run_experiments("x", verbose=0)),
        "a failure": raised(
            lambda: tune.run_experiments({"c": {"run": lambda config: 1 / 0, "storage_path": folder}}, verbose=0)
        ),
        "TuneError is a RuntimeError": issubclass(TuneError, RuntimeError),
        "an experiment to tune.run": [
            trial.trainable_name for trial in tune.run(Experiment("d", _train, storage_path=folder), verbose=0).trials
        ],
    }


@probe
def attributes_of_trials(folder: str) -> dict[str, Any]:
    trial = tune.run(_train, config={"x": 2}, name="t", storage_path=folder, verbose=0).trials[0]
    bad = tune.run(
        lambda config: 1 / 0, name="u", storage_path=folder, verbose=0, raise_on_failed_trial=False
    ).trials[0]
    return {
        "text": str(trial).split("_")[1],
        "status": [trial.status, bad.status, trial.is_finished(), bad.is_finished()],
        "config": trial.config,
        "evaluated_params": trial.evaluated_params,
        "experiment_tag": trial.experiment_tag,
        "last_result": sorted(trial.last_result),
        "metric_analysis": sorted(trial.metric_analysis["loss"]),
        "max": trial.metric_analysis["loss"]["max"],
        "num_failures": [trial.num_failures, bad.num_failures],
        "error_file": [trial.error_file, os.path.basename(bad.error_file)],
        "pickled_error_file": os.path.basename(bad.pickled_error_file or "none"),
        "checkpoint": trial.checkpoint,
        "trainable_name": trial.trainable_name,
        "local_path": os.path.basename(trial.local_path).split("_")[1],
        "path": os.path.basename(trial.path).split("_")[1],
        "get_error": type(bad.get_error()).__name__,
        "resources": trial.placement_group_factory.required_resources,
        "stopping": trial.stopping_criterion,
        "node_ip": type(trial.node_ip).__name__,
        "should_stop": trial.should_stop({"done": True}),
        "get_trainable_cls": raised(lambda: issubclass(trial.get_trainable_cls(), tune.Trainable)),
        "custom_trial_name": trial.custom_trial_name,
        "has_reported_at_least_once": trial.has_reported_at_least_once,
    }
