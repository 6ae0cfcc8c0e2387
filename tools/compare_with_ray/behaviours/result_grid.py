"""`ResultGrid` and `Result`."""

# ruff: noqa: F821  # `probe`, `raised` and `printed` come from ask.py

from __future__ import annotations

import os
import tempfile
from typing import Any

from ray import tune
from ray.tune import Result, ResultGrid


def _train(config: dict[str, Any]) -> None:
    for number in range(1, 4):
        with tempfile.TemporaryDirectory() as path:
            open(f"{path}/n", "w").write(str(number))
            loss = config["x"] * (number if config["x"] != 2 else 4 - number)
            tune.report({"loss": loss, "m": {"er": loss}}, checkpoint=tune.Checkpoint(path))
    if config["x"] == 3:
        raise ValueError("three")


_ATTRIBUTES = [
    "best_checkpoints",
    "checkpoint",
    "config",
    "error",
    "filesystem",
    "from_path",
    "get_best_checkpoint",
    "metrics",
    "metrics_dataframe",
    "path",
]


@probe
def of_a_fit(folder: str) -> dict[str, Any]:
    tuner = tune.Tuner(
        _train,
        param_space={"x": tune.grid_search([1, 2, 3]), "k": {"l": 5}},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(name="g", storage_path=folder, verbose=0),
    )
    grid = tuner.fit()
    by_x = {r.config["x"]: r for r in grid}
    good, bad = by_x[1], by_x[3]
    frame = grid.get_dataframe()
    again = Result.from_path(good.path)
    failed = Result.from_path(bad.path)
    return {
        "type": [type(grid).__name__, isinstance(grid, ResultGrid), isinstance(good, Result)],
        "numbers": [len(grid), grid.num_errors, grid.num_terminated],
        "errors": [type(error).__name__ for error in grid.errors],
        "order": [r.config["x"] for r in grid],
        "index": grid[0].config["x"],
        "negative index": lambda: grid[-1].config["x"],
        "index beyond": lambda: grid[7],
        "slice": lambda: len(grid[0:2]),
        "best": grid.get_best_result().config,
        "best, max": grid.get_best_result("loss", "max").config["x"],
        "scopes": lambda: [
            grid.get_best_result("loss", "max", scope).config["x"]
            for scope in ("last", "all", "avg", "last-5-avg", "last-10-avg")
        ],
        "bad scope": lambda: grid.get_best_result("loss", "max", "none"),
        "unknown metric": lambda: grid.get_best_result("zz", "max"),
        "columns": sorted(frame.columns),
        "rows": len(frame),
        "frame best": lambda: sorted(grid.get_dataframe(filter_metric="loss", filter_mode="min")["loss"]),
        "frame bad mode": lambda: grid.get_dataframe(filter_metric="loss", filter_mode="up"),
        "frame mode only": lambda: len(grid.get_dataframe(filter_mode="min")),
        "experiment_path": grid.experiment_path,
        "get_results": len(tuner.get_results()),
        "repr": repr(grid).split("(")[0],
        "repr of a result": repr(good).split("(")[0],
        "result attributes": {name: hasattr(good, name) for name in _ATTRIBUTES},
        "path": os.path.basename(good.path).split("_")[1],
        "checkpoint": open(f"{good.checkpoint.path}/n").read(),
        "best_checkpoints": lambda: [[open(f"{c.path}/n").read(), m["loss"]] for c, m in good.best_checkpoints],
        "get_best_checkpoint": lambda: open(f"{good.get_best_checkpoint('loss', 'min').path}/n").read(),
        "nested metric": lambda: open(f"{good.get_best_checkpoint('m/er', 'max').path}/n").read(),
        "bad mode": lambda: good.get_best_checkpoint("loss", "up"),
        "metrics_dataframe": lambda: good.metrics_dataframe["loss"].tolist(),
        "error": [type(bad.error).__name__, good.error],
        "error text": "three" in str(bad.error),
        "nested metrics": good.metrics["m"],
        "from_path: metrics": again.metrics["loss"],
        "from_path: nested": lambda: again.metrics["m"],
        "from_path: checkpoint": lambda: open(f"{again.checkpoint.path}/n").read(),
        "from_path: config": lambda: again.config,
        "from_path: error": [type(failed.error).__name__, again.error],
        "from_path: best": lambda: open(f"{again.get_best_checkpoint('loss', 'min').path}/n").read(),
        "from_path of nothing": lambda: Result.from_path(f"{folder}/none"),
        "from_path: frame": lambda: len(again.metrics_dataframe),
        "config": good.config,
        "files of the failed": sorted(e for e in os.listdir(bad.path) if e.startswith("err")),
    }


@probe
def of_nothing_reported(folder: str) -> dict[str, Any]:
    def fails(config: dict[str, Any]) -> None:
        raise KeyError("early")

    def silent(config: dict[str, Any]) -> None:
        return None

    def run(trainable: Any) -> Any:
        return tune.Tuner(
            trainable,
            tune_config=tune.TuneConfig(metric="loss", mode="min"),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        ).fit()

    failed = run(fails)
    return {
        "failed: metrics": sorted(failed[0].metrics),
        "failed: config": failed[0].config,
        "failed: checkpoint": failed[0].checkpoint,
        "failed: best": lambda: failed.get_best_result(),
        "failed: frame": lambda: len(failed.get_dataframe()),
        "failed: metrics_dataframe": lambda: failed[0].metrics_dataframe is None,
        "silent, with a metric": lambda: type(run(silent)).__name__,
        "files of the failed": sorted(
            e for e in os.listdir(failed[0].path) if e.startswith(("error", "params", "result", "progress"))
        ),
    }
