"""`ExperimentAnalysis`."""

# ruff: noqa: F821  # `probe`, `raised` and `printed` come from ask.py

from __future__ import annotations

import os
import tempfile
from typing import Any

from ray import tune
from ray.tune import ExperimentAnalysis


def _train(config: dict[str, Any]) -> None:
    for number in range(1, 4):
        with tempfile.TemporaryDirectory() as path:
            open(f"{path}/n", "w").write(str(number))
            loss = config["x"] * (number if config["x"] != 2 else 4 - number)
            tune.report({"loss": loss, "m": {"er": loss}}, checkpoint=tune.Checkpoint(path))


@probe
def of_a_run(folder: str) -> dict[str, Any]:
    analysis = tune.run(
        _train,
        config={"x": tune.grid_search([1, 2, 3])},
        metric="loss",
        mode="min",
        name="a",
        storage_path=folder,
        verbose=0,
    )
    again = ExperimentAnalysis(f"{folder}/a", default_metric="loss", default_mode="max")
    unset = ExperimentAnalysis(f"{folder}/a")
    frame = analysis.dataframe()
    best = analysis.get_best_trial("loss", "min", "last")
    return {
        "best_config": analysis.best_config,
        "best_result": analysis.best_result["loss"],
        "best_trial": analysis.best_trial.config,
        "best_checkpoint": lambda: open(f"{analysis.best_checkpoint.path}/n").read(),
        "best_dataframe": lambda: sorted(analysis.best_dataframe.columns),
        "best_result_df": lambda: sorted(c for c in analysis.best_result_df.columns),
        "best_logdir": lambda: os.path.basename(analysis.best_logdir).split("_")[1],
        "best_path": lambda: os.path.basename(analysis.best_path).split("_")[1],
        "results": lambda: [isinstance(analysis.results, dict), sorted(r["loss"] for r in analysis.results.values())],
        "results_df": lambda: [len(analysis.results_df), analysis.results_df.index.name],
        "results_df columns": lambda: sorted(c for c in analysis.results_df.columns),
        "experiment_path": analysis.experiment_path,
        "scopes": lambda: [
            analysis.get_best_trial("loss", "min", scope).config["x"]
            for scope in ("last", "all", "avg", "last-5-avg", "last-10-avg")
        ],
        "scopes, max": lambda: [
            analysis.get_best_trial("loss", "max", scope).config["x"]
            for scope in ("last", "all", "avg", "last-5-avg", "last-10-avg")
        ],
        "bad scope": lambda: analysis.get_best_trial("loss", "min", "first"),
        "bad mode": lambda: analysis.get_best_trial("loss", "up"),
        "unknown metric": lambda: analysis.get_best_trial("zz", "min"),
        "get_best_config": analysis.get_best_config("loss", "max"),
        "no metric": lambda: unset.get_best_trial(),
        "no metric, best_config": lambda: unset.best_config,
        "no mode": lambda: unset.get_best_trial("loss"),
        "dataframe": lambda: [sorted(frame.columns), len(frame)],
        "dataframe min": lambda: sorted(analysis.dataframe("loss", "min")["loss"]),
        "dataframe max": lambda: sorted(analysis.dataframe("loss", "max")["loss"]),
        "dataframe bad mode": lambda: analysis.dataframe("loss", "up"),
        "dataframe no mode": lambda: sorted(analysis.dataframe("loss")["loss"]),
        "trial_dataframes": lambda: sorted(len(df) for df in analysis.trial_dataframes.values()),
        "fetch": lambda: len(analysis.fetch_trial_dataframes()),
        "get_all_configs": lambda: sorted(str(config) for config in analysis.get_all_configs().values()),
        "keys of get_all_configs": lambda: sorted(type(key).__name__ for key in analysis.get_all_configs())[0],
        "get_best_checkpoint": lambda: open(f"{analysis.get_best_checkpoint(best, 'loss', 'max').path}/n").read(),
        "get_best_checkpoint min": lambda: open(f"{analysis.get_best_checkpoint(best, 'loss', 'min').path}/n").read(),
        "get_last_checkpoint": lambda: open(f"{analysis.get_last_checkpoint(best).path}/n").read(),
        "get_last_checkpoint of no trial": lambda: open(f"{analysis.get_last_checkpoint().path}/n").read(),
        "get_trial_checkpoints_paths": lambda: len(analysis.get_trial_checkpoints_paths(best, "loss")),
        "again: best_config": lambda: again.best_config,
        "again: trials": lambda: sorted(str(trial.config) for trial in again.trials),
        "again: a trial's status": lambda: again.trials[0].status,
        "of a state file": lambda: len(
            ExperimentAnalysis(
                next(f"{folder}/a/{e}" for e in os.listdir(f"{folder}/a") if e.startswith("experiment_state"))
            ).trials
        ),
        "of nothing": lambda: ExperimentAnalysis(f"{folder}/nothing"),
        "bad default mode": lambda: ExperimentAnalysis(f"{folder}/a", default_metric="loss", default_mode="up"),
        "nested metric": lambda: analysis.get_best_trial("m/er", "min").config,
        "default_metric": [analysis.default_metric, analysis.default_mode],
        "len": lambda: len(analysis),
        "set_filetype": lambda: analysis.set_filetype("json"),
    }


@probe
def with_nans(folder: str) -> dict[str, Any]:
    def train(config: dict[str, Any]) -> None:
        for value in config["values"]:
            tune.report({"loss": float(value)})

    analysis = tune.run(
        train,
        config={"values": tune.grid_search([[1, "nan"], [3, 2], ["nan", "nan"], ["inf", 5], ["-inf", "-inf"]])},
        metric="loss",
        mode="min",
        storage_path=folder,
        verbose=0,
    )
    return {
        "last, min": lambda: analysis.get_best_trial("loss", "min", "last").config["values"],
        "last, max": lambda: analysis.get_best_trial("loss", "max", "last").config["values"],
        "all, min": lambda: analysis.get_best_trial("loss", "min", "all").config["values"],
        "not filtered, max": lambda: analysis.get_best_trial("loss", "max", "last", filter_nan_and_inf=False).config[
            "values"
        ],
        "not filtered, min": lambda: analysis.get_best_trial("loss", "min", "last", filter_nan_and_inf=False).config[
            "values"
        ],
    }
