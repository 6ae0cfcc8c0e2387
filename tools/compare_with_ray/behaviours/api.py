"""`Tuner` and `tune.run` with their options: what comes back, what lies in the folder, what is refused."""

# ruff: noqa: F821  # `probe`, `raised` and `printed` come from ask.py

from __future__ import annotations

import os
from typing import Any

from ray import tune


def _train(config: dict[str, Any]) -> None:
    for number in range(3):
        tune.report({"loss": config.get("x", 1) * number})


def _fit(folder: str, trainable: Any = _train, **kwargs: Any) -> Any:
    space, tune_config = kwargs.pop("space", {}), kwargs.pop("tune", {})
    run = {"storage_path": folder, "verbose": 0, **kwargs}
    return tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(**tune_config),
        run_config=tune.RunConfig(**run),
    ).fit()


@probe
def folder_of_an_experiment(folder: str) -> dict[str, Any]:
    grid = _fit(folder, name="one", space={"x": tune.grid_search([1, 2]), "m": {"y": 0.5}})
    entries = sorted(entry for entry in os.listdir(f"{folder}/one") if not entry.startswith("."))
    trials = sorted(r.path for r in grid)
    files = sorted(entry for entry in os.listdir(trials[0]) if not entry.startswith("."))
    return {
        "experiment path": grid.experiment_path,
        "trial folders": trials,
        "tuner.pkl": "tuner.pkl" in entries,
        "experiment state": any(entry.startswith("experiment_state") for entry in entries),
        "search state": any(entry.startswith("basic-variant-state") for entry in entries),
        "files of a trial": [name for name in files if name.startswith(("params", "result", "progress"))],
        "other files of a trial": [
            name for name in files if not name.startswith(("params", "result", "progress")) and "tfevents" not in name
        ],
        "tfevents": any("tfevents" in name for name in files),
        "params.json": open(f"{trials[0]}/params.json").read().split(),
        "configs": sorted(str(r.config) for r in grid),
        "numbers": [len(grid), grid.num_errors, grid.num_terminated],
    }


@probe
def options_of_tune_config(folder: str) -> dict[str, Any]:
    named = _fit(
        folder,
        name="named",
        space={"x": tune.grid_search([1, 2])},
        tune={
            "trial_name_creator": lambda trial: f"custom_{trial.config['x']}",
            "trial_dirname_creator": lambda trial: f"dir_{trial.config['x']}",
        },
    )
    sampled = _fit(folder, name="sampled", tune={"num_samples": 3, "max_concurrent_trials": 1})
    return {
        "folders": sorted(os.path.basename(r.path) for r in named),
        "samples": len(sampled),
        "mode without metric": raised(lambda: tune.TuneConfig(mode="up") and _fit(folder, tune={"mode": "up"})),
        "a slash in a folder": raised(
            lambda: len(_fit(folder, name="slash", tune={"trial_dirname_creator": lambda trial: "a/b"}))
        ),
        "zero samples": raised(lambda: len(_fit(folder, name="none", tune={"num_samples": 0}))),
        "bad concurrency": raised(lambda: len(_fit(folder, name="bad", tune={"max_concurrent_trials": -1}))),
        "unknown keyword": raised(lambda: tune.TuneConfig(nothing=1)),
        "unknown keyword of RunConfig": raised(lambda: tune.RunConfig(nothing=1)),
        "metric of a list": raised(lambda: tune.TuneConfig(metric=["a"], mode="max").metric),
    }


@probe
def refused_configs(folder: str) -> dict[str, Any]:
    return {
        "num_to_keep": raised(lambda: tune.CheckpointConfig(num_to_keep=0)),
        "negative num_to_keep": raised(lambda: tune.CheckpointConfig(num_to_keep=-1)),
        "frequency": raised(lambda: tune.CheckpointConfig(checkpoint_frequency=-1)),
        "order": raised(lambda: tune.CheckpointConfig(checkpoint_score_order="up")),
        "fail_fast and max_failures": raised(lambda: tune.FailureConfig(max_failures=1, fail_fast=True)),
        "fail_fast of a text": raised(lambda: tune.FailureConfig(fail_fast="no")),
        "at end of a function": raised(
            lambda: _fit(folder, checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True))
        ),
        "frequency of a function": raised(
            lambda: _fit(folder, checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1))
        ),
        "no trainable": raised(lambda: tune.Tuner(None)),
        "an unknown name": raised(lambda: _fit(folder, "never registered")),
        "a number": raised(lambda: _fit(folder, 5)),
        "param_space of a list": raised(lambda: tune.Tuner(_train, param_space=[1])),
        "get_results before fit": raised(lambda: tune.Tuner(_train).get_results()),
        "restore of nothing": raised(lambda: tune.Tuner.restore(f"{folder}/nothing", _train)),
        "can_restore of nothing": tune.Tuner.can_restore(f"{folder}/nothing"),
        "storage_path of a number": raised(lambda: tune.RunConfig(storage_path=5)),
        "a relative storage_path": raised(lambda: len(_fit("relative"))),
        "verbose": raised(lambda: tune.RunConfig(verbose=7).verbose),
        "defaults": [
            tune.RunConfig().name,
            tune.CheckpointConfig().checkpoint_score_order,
            tune.CheckpointConfig().checkpoint_frequency,
            tune.FailureConfig().max_failures,
            tune.TuneConfig().num_samples,
            tune.TuneConfig().reuse_actors,
        ],
    }


@probe
def resources(folder: str) -> dict[str, Any]:
    def seen(config: dict[str, Any]) -> dict[str, Any]:
        got = tune.get_context().get_trial_resources()
        return {"cpu": got.required_resources.get("CPU"), "bundles": str(got.bundles), "strategy": got.strategy}

    plain = _fit(folder, seen)[0].metrics  # first: with_resources may mark the function itself
    half = _fit(folder, tune.with_resources(seen, {"cpu": 0.5}))[0].metrics
    factory = _fit(folder, tune.with_resources(seen, tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}])))[0].metrics
    by_config = _fit(folder, tune.with_resources(seen, lambda config: {"cpu": config["n"]}), space={"n": 2})[
        0
    ].metrics
    return {
        "half": [half["cpu"], half["bundles"]],
        "factory": [factory["cpu"], factory["bundles"], factory["strategy"]],
        "of the config": by_config["cpu"],
        "default": plain["bundles"],
        "of a text": raised(lambda: tune.with_resources(seen, "cpu")),
        "pgf str": str(tune.PlacementGroupFactory([{"CPU": 1}])),
        "pgf equal": tune.PlacementGroupFactory([{"CPU": 1}]) == tune.PlacementGroupFactory([{"CPU": 1.0}]),
        "pgf head": tune.PlacementGroupFactory([{"CPU": 1}, {"GPU": 1}]).head_cpus,
        "pgf required": tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 2, "GPU": 1}]).required_resources,
        "pgf of nothing": raised(lambda: tune.PlacementGroupFactory([])),
        "pgf of an empty head": raised(lambda: tune.PlacementGroupFactory([{}, {"CPU": 1}]).head_bundle_is_empty),
        "pgf of negative": raised(lambda: tune.PlacementGroupFactory([{"CPU": -1}]).required_resources),
    }


@probe
def tune_run(folder: str) -> dict[str, Any]:
    shown = {"storage_path": folder, "verbose": 0}
    analysis = tune.run(_train, config={"x": tune.grid_search([1, 2])}, metric="loss", mode="min", name="r", **shown)
    tune.register_trainable("by name", _train)
    named = tune.run("by name", **shown)
    failing = raised(lambda: tune.run(lambda config: 1 / 0, **shown))
    quiet = tune.run(lambda config: 1 / 0, raise_on_failed_trial=False, **shown)
    stopped = tune.run(_train, stop={"training_iteration": 2}, num_samples=2, **shown)
    again = tune.run(_train, name="r", metric="loss", mode="min", **shown)
    return {
        "type": type(analysis).__name__,
        "best": [analysis.best_config, analysis.best_result["loss"]],
        "trials": sorted(str(trial.config) for trial in analysis.trials),
        "statuses": [trial.status for trial in analysis.trials],
        "by name": [trial.trainable_name for trial in named.trials],
        "a failure": failing,
        "no raise": [trial.status for trial in quiet.trials],
        "stop": [trial.last_result["training_iteration"] for trial in stopped.trials],
        "same name again": [len(again.trials), len([e for e in os.listdir(f"{folder}/r") if e.startswith("_train")])],
        "no metric but a mode": raised(lambda: tune.run(_train, mode="up", **shown)),
        "num_samples of a text": raised(lambda: tune.run(_train, num_samples="x", **shown)),
        "config of a list": raised(lambda: tune.run(_train, config=[1], **shown)),
        "unknown keyword": raised(lambda: tune.run(_train, nothing=1, **shown)),
        "resume without a run": raised(lambda: len(tune.run(_train, name="zz", resume=True, **shown).trials)),
        "resume AUTO": raised(lambda: len(tune.run(_train, name="yy", resume="AUTO", **shown).trials)),
        "bad resume": raised(lambda: len(tune.run(_train, name="xx", resume="SOMETIMES", **shown).trials)),
        "scheduler by name": raised(
            lambda: len(tune.run(_train, scheduler="fifo", search_alg="random", **shown).trials)
        ),
        "unknown scheduler": raised(lambda: tune.run(_train, scheduler="nothing", **shown)),
        "unknown search": raised(lambda: tune.run(_train, search_alg="nothing", **shown)),
        "scheduler of a class": raised(lambda: tune.run(_train, scheduler=tune.schedulers.ASHAScheduler, **shown)),
    }


@probe
def failures(folder: str) -> dict[str, Any]:
    def sometimes(config: dict[str, Any]) -> None:
        tune.report({"loss": 1})
        if config["x"] == 2:
            raise ValueError("two is wrong")

    grid = _fit(folder, sometimes, name="f", space={"x": tune.grid_search([1, 2])})
    bad = next(r for r in grid if r.error)
    retried = _fit(folder, sometimes, name="g", space={"x": 2}, failure_config=tune.FailureConfig(max_failures=2))
    fast = raised(
        lambda: _fit(
            folder, sometimes, name="h", space={"x": 2}, failure_config=tune.FailureConfig(fail_fast="raise")
        )
    )
    stopped = _fit(
        folder,
        sometimes,
        name="i",
        space={"x": tune.grid_search([2, 1, 1, 1, 1, 1])},
        tune={"max_concurrent_trials": 1},
        failure_config=tune.FailureConfig(fail_fast=True),
    )
    text = open(f"{retried[0].path}/error.txt").read()
    return {
        "numbers": [len(grid), grid.num_errors, grid.num_terminated, len(grid.errors)],
        "error": [type(bad.error).__name__, "two is wrong" in str(bad.error)],
        "last metrics": [bad.metrics["loss"], bad.metrics["training_iteration"], bad.metrics.get("done")],
        "files": sorted(n for n in os.listdir(bad.path) if n.startswith("error")),
        "retries in error.txt": text.count("Failure #"),
        "first line of error.txt": text.splitlines()[0].split("(")[0],
        "reports of retries": retried.get_dataframe()["training_iteration"].tolist(),
        "fail_fast raise": fast,
        "fail_fast": [stopped.num_errors, stopped.num_terminated],
        "best with an error": grid.get_best_result("loss", "min").config["x"],
    }


@probe
def metric_is_missing(folder: str) -> dict[str, Any]:
    os.environ.pop("TUNE_DISABLE_STRICT_METRIC_CHECKING", None)
    return {
        "a metric never reported": raised(lambda: _fit(folder, tune={"metric": "acc", "mode": "max"}).num_errors),
        "metric of a scheduler": raised(
            lambda: (
                _fit(folder, tune={"scheduler": tune.schedulers.ASHAScheduler(metric="acc", mode="max")}).num_errors
            )
        ),
        "a scheduler without": raised(lambda: _fit(folder, tune={"scheduler": tune.schedulers.ASHAScheduler()})),
        "best without a metric": raised(lambda: _fit(folder).get_best_result()),
        "best of an unknown metric": raised(lambda: _fit(folder).get_best_result("zz", "min")),
    }


@probe
def parameters(folder: str) -> dict[str, Any]:
    import numpy as np

    def with_data(config: dict[str, Any], data: Any = None, other: Any = 1) -> dict[str, Any]:
        return {"sum": float(data.sum()), "other": other}

    class Model(tune.Trainable):
        def setup(self, config: dict[str, Any], data: Any = None) -> None:
            self.total = float(data.sum())

        def step(self) -> dict[str, Any]:
            return {"sum": self.total, "done": True}

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            return None

        def load_checkpoint(self, checkpoint: Any) -> None:
            return None

    first = _fit(folder, tune.with_parameters(with_data, data=np.ones(4), other=7))[0].metrics
    second = _fit(folder, tune.with_parameters(Model, data=np.ones(5)))[0].metrics
    return {
        "function": [first["sum"], first["other"]],
        "class": second["sum"],
        "name": tune.with_parameters(with_data, data=1).__name__,
        "name of a class": tune.with_parameters(Model, data=1).__name__,
        "of no callable": raised(lambda: tune.with_parameters("a", data=1)),
        "both": raised(
            lambda: _fit(folder, tune.with_resources(tune.with_parameters(with_data, data=np.ones(2)), {"cpu": 2}))[
                0
            ].metrics["sum"]
        ),
        "an argument that is missing": raised(
            lambda: _fit(folder, tune.with_parameters(with_data, nothing=np.ones(2))).num_errors
        ),
    }
