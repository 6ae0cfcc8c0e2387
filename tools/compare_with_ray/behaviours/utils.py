"""Helpers and constants of `ray.tune` that scripts import: dicts, registries, resources, names of keys."""

# ruff: noqa: F821  # `probe`, `raised` and `printed` come from ask.py

from __future__ import annotations

import os
from typing import Any

from ray import tune


@probe
def dicts(folder: str) -> dict[str, Any]:
    from ray.tune.utils import deep_update, flatten_dict, merge_dicts, unflattened_lookup

    nested = {"a": {"b": 1, "c": {"d": 2}}, "e": [1, {"f": 2}], "g": {}}
    original = {"a": {"b": 1}, "c": 2}
    return {
        "flatten": lambda: flatten_dict(nested),
        "flatten by dots": lambda: flatten_dict(nested, delimiter="."),
        "flatten lists": lambda: flatten_dict(nested, flatten_list=True),
        "flatten a name with a slash": lambda: flatten_dict({"a/b": {"c": 1}}),
        "flatten, no slashes": lambda: flatten_dict({"a/b": {"c": 1}}, prevent_delimiter=True),
        "order of flatten": lambda: list(flatten_dict({"z": {"y": 1}, "b": 2})),
        "flatten changes nothing": lambda: [flatten_dict(nested) != nested, "a/b" in nested],
        "merge": lambda: merge_dicts(original, {"a": {"x": 5}}),
        "merge changes nothing": lambda: [merge_dicts(original, {"c": 9})["c"], original["c"]],
        "deep_update": lambda: deep_update({"a": {"b": 1}}, {"a": {"c": 2}}, new_keys_allowed=True),
        "deep_update, no new keys": lambda: deep_update({"a": 1}, {"z": 2}),
        "lookup": lambda: unflattened_lookup("a/c/d", nested),
        "lookup of nothing": lambda: unflattened_lookup("a/zz", nested),
        "lookup with a default": lambda: unflattened_lookup("a/zz", nested, default=7),
    }


@probe
def constants(folder: str) -> dict[str, Any]:
    from ray.tune import result
    from ray.tune.experiment import Trial
    from ray.tune.schedulers import TrialScheduler
    from ray.tune.search import Searcher

    names = [
        "DEFAULT_METRIC",
        "DONE",
        "EPISODES_TOTAL",
        "EXPERIMENT_TAG",
        "EXPR_ERROR_FILE",
        "EXPR_PARAM_FILE",
        "EXPR_PARAM_PICKLE_FILE",
        "EXPR_PROGRESS_FILE",
        "EXPR_RESULT_FILE",
        "HOSTNAME",
        "NODE_IP",
        "PID",
        "SHOULD_CHECKPOINT",
        "TIMESTEPS_THIS_ITER",
        "TIMESTEPS_TOTAL",
        "TIME_THIS_ITER_S",
        "TIME_TOTAL_S",
        "TRAINING_ITERATION",
        "TRIAL_ID",
    ]
    return {
        "result keys": {name: getattr(result, name) for name in names},
        "auto keys": sorted(set(result.AUTO_RESULT_KEYS)),
        "states": [Trial.PENDING, Trial.RUNNING, Trial.PAUSED, Trial.TERMINATED, Trial.ERROR],
        "decisions": [TrialScheduler.CONTINUE, TrialScheduler.PAUSE, TrialScheduler.STOP, TrialScheduler.NOOP],
        "finished": Searcher.FINISHED,
    }


@probe
def registered_and_wrapped(folder: str) -> dict[str, Any]:
    from ray.tune.registry import get_trainable_cls, register_trainable
    from ray.tune.trainable import FunctionTrainable, wrap_function
    from ray.tune.utils import wait_for_gpu

    def train(config: dict[str, Any]) -> None:
        for number in range(3):
            tune.report({"loss": number})

    register_trainable("wrapped by name", train)
    wrapped = wrap_function(train)
    return {
        "wrapped": lambda: [issubclass(wrapped, tune.Trainable), issubclass(wrapped, FunctionTrainable)],
        "its name": lambda: wrapped.__name__,
        "by name": lambda: issubclass(get_trainable_cls("wrapped by name"), tune.Trainable),
        "wait_for_gpu without one": lambda: wait_for_gpu(retry=1, delay_s=0),
    }


@probe
def resources(folder: str) -> dict[str, Any]:
    from ray.tune.execution.placement_groups import PlacementGroupFactory, resource_dict_to_pg_factory

    return {
        "from a dict": lambda: resource_dict_to_pg_factory({"cpu": 2, "gpu": 1}).bundles,
        "of nothing": lambda: resource_dict_to_pg_factory(None).bundles,
        "bundles": lambda: PlacementGroupFactory([{"CPU": 1, "GPU": 0}, {"CPU": 2}]).bundles,
        "strategy": lambda: PlacementGroupFactory([{"CPU": 1}], strategy="SPREAD").strategy,
        "equal": lambda: PlacementGroupFactory([{"CPU": 1}]) == PlacementGroupFactory([{"CPU": 2}]),
        "hash": lambda: hash(PlacementGroupFactory([{"CPU": 1}])) == hash(PlacementGroupFactory([{"CPU": 1}])),
        "head_bundle_is_empty": lambda: PlacementGroupFactory([{}, {"CPU": 1}]).head_bundle_is_empty,
        "a slash in a name": lambda: PlacementGroupFactory([{"accelerator_type:A100": 0.001}]).required_resources,
        "a set": lambda: PlacementGroupFactory({"CPU": 1}),
    }


@probe
def names_of_modules(folder: str) -> dict[str, Any]:
    import importlib

    wanted = {
        "ray": "init shutdown is_initialized get put wait remote kill cancel nodes cluster_resources",
        "ray.tune": (
            "Callback CheckpointConfig Checkpoint CLIReporter Experiment ExperimentAnalysis FailureConfig "
            "JupyterNotebookReporter PlacementGroupFactory ProgressReporter ResultGrid ResumeConfig RunConfig Stopper "
            "SyncConfig Trainable TuneConfig TuneError Tuner choice create_scheduler create_searcher get_checkpoint "
            "get_context grid_search lograndint loguniform qlograndint qloguniform qrandint qrandn quniform randint "
            "randn register_env register_trainable report run run_experiments sample_from uniform with_parameters "
            "with_resources"
        ),
        "ray.tune.search": "BasicVariantGenerator ConcurrencyLimiter Repeater Searcher create_searcher",
        "ray.tune.stopper": (
            "CombinedStopper ExperimentPlateauStopper FunctionStopper MaximumIterationStopper NoopStopper Stopper "
            "TimeoutStopper TrialPlateauStopper"
        ),
        "ray.tune.logger": "CSVLoggerCallback JsonLoggerCallback LoggerCallback TBXLoggerCallback pretty_print",
        "ray.air.integrations.wandb": "WandbLoggerCallback setup_wandb",
        "ray.air.integrations.mlflow": "MLflowLoggerCallback setup_mlflow",
        "ray.tune.utils": "date_str deep_update flatten_dict merge_dicts unflattened_lookup wait_for_gpu",
        "ray.exceptions": "RayActorError RayError RayTaskError GetTimeoutError",
    }
    return {
        module: {name: hasattr(importlib.import_module(module), name) for name in names.split()}
        for module, names in wanted.items()
    }


@probe
def variables(folder: str) -> dict[str, Any]:
    def cwd(config: dict[str, Any]) -> dict[str, Any]:
        return {"same": os.path.realpath(os.getcwd()) == os.path.realpath(config["home"])}

    def where(variable: str, value: str) -> Any:
        os.environ[variable] = value
        try:
            return (
                tune.Tuner(
                    cwd,
                    param_space={"home": os.getcwd()},
                    run_config=tune.RunConfig(storage_path=folder, verbose=0, name="v"),
                )
                .fit()[0]
                .metrics["same"]
            )
        finally:
            del os.environ[variable]

    return {"RAY_CHDIR_TO_TRIAL_DIR=1": lambda: where("RAY_CHDIR_TO_TRIAL_DIR", "1")}
