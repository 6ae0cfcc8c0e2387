"""Functions as Trainables: signatures, reports, returns, generators, checkpoints, context."""

# ruff: noqa: F821  # `probe`, `raised` and `printed` come from ask.py

from __future__ import annotations

import functools
import json
import os
import tempfile
from typing import Any

from ray import tune


def _fit(folder: str, trainable: Any, space: Any = None, **kwargs: Any) -> Any:
    return tune.Tuner(
        trainable,
        param_space=space or {},
        run_config=tune.RunConfig(storage_path=folder, verbose=0, **kwargs),
    ).fit()


def _outcome(folder: str, trainable: Any, *keys: str) -> Any:
    """What became of it: whether it failed, iterations, and some of its last metrics."""

    def call() -> Any:
        result = _fit(folder, trainable)[0]
        metrics = result.metrics or {}
        return [type(result.error).__name__, metrics.get("training_iteration"), *[metrics.get(key) for key in keys]]

    return raised(call)


@probe
def what_a_function_returns(folder: str) -> dict[str, Any]:
    def nothing(config: dict[str, Any]) -> None:
        return None

    def fraction(config: dict[str, Any]) -> float:
        return 0.25

    def zero(config: dict[str, Any]) -> int:
        return 0

    def empty(config: dict[str, Any]) -> dict[str, Any]:
        return {}

    def text(config: dict[str, Any]) -> str:
        return "fine"

    def both(config: dict[str, Any]) -> dict[str, Any]:
        tune.report({"a": 1})
        return {"a": 2}

    def truth(config: dict[str, Any]) -> bool:
        return True

    def numbers(config: dict[str, Any]) -> list[int]:
        return [1, 2]

    return {
        "None": _outcome(folder, nothing),
        "a number": _outcome(folder, fraction, "_metric"),
        "zero": _outcome(folder, zero, "_metric"),
        "an empty dict": _outcome(folder, empty),
        "a text": _outcome(folder, text),
        "a report and a dict": _outcome(folder, both, "a"),
        "True": _outcome(folder, truth, "_metric"),
        "a list": _outcome(folder, numbers),
    }


@probe
def generators(folder: str) -> dict[str, Any]:
    def dicts(config: dict[str, Any]) -> Any:
        for number in range(3):
            yield {"a": number}

    def plain(config: dict[str, Any]) -> Any:
        yield 0.5
        yield 0.75

    def texts(config: dict[str, Any]) -> Any:
        yield "a"

    def returns(config: dict[str, Any]) -> Any:
        yield {"a": 1}
        return {"a": 9}

    return {
        "dicts": _outcome(folder, dicts, "a"),
        "numbers": _outcome(folder, plain, "_metric"),
        "texts": _outcome(folder, texts),
        "a return": _outcome(folder, returns, "a"),
    }


@probe
def signatures(folder: str) -> dict[str, Any]:
    class Object:
        def method(self, config: dict[str, Any]) -> dict[str, Any]:
            return {"a": 3}

        def __call__(self, config: dict[str, Any]) -> dict[str, Any]:
            return {"a": 4}

    def two(config: dict[str, Any], more: int) -> None:
        return None

    def default(config: dict[str, Any], more: int = 5) -> dict[str, Any]:
        return {"a": more}

    def renamed(anything: dict[str, Any]) -> dict[str, Any]:
        return {"a": 6}

    def none() -> None:
        return None

    def star(*args: Any) -> dict[str, Any]:
        return {"a": len(args)}

    return {
        "lambda": _outcome(folder, lambda config: {"a": 1}, "a"),
        "partial": _outcome(folder, functools.partial(two, more=2)),
        "method": _outcome(folder, Object().method, "a"),
        "two arguments": _outcome(folder, two),
        "default": _outcome(folder, default, "a"),
        "another name": _outcome(folder, renamed, "a"),
        "no argument": _outcome(folder, none),
        "star": _outcome(folder, star, "a"),
    }


@probe
def keys_of_a_result(folder: str) -> dict[str, Any]:
    def train(config: dict[str, Any]) -> None:
        tune.report({"loss": 1, "deep": {"er": {"x": 2}}, "text": "t", "none": None, "list": [1, 2]})
        tune.report({"loss": 2, "new": 5})

    result = _fit(folder, train, {"lr": 0.1, "m": {"n": 1}})[0]
    metrics = dict(result.metrics)
    rows = [json.loads(line) for line in open(f"{result.path}/result.json")]
    header = open(f"{result.path}/progress.csv").readline().strip().split(",")
    frame = result.metrics_dataframe
    return {
        "metrics": sorted(key for key in metrics),
        "own keys first": list(metrics)[:2],
        "done": [metrics["done"], rows[0]["done"], rows[-1]["done"]],
        "config": metrics["config"],
        "iteration": [row["training_iteration"] for row in rows],
        "keys of result.json": sorted(rows[0]),
        "nested in result.json": rows[0].get("deep"),
        "order of result.json": list(rows[1])[:2],
        "progress.csv": sorted(header),
        "rows of progress.csv": len(open(f"{result.path}/progress.csv").readlines()),
        "frame": sorted(frame.columns),
        "frame values": frame["loss"].tolist(),
        "types": {
            key: type(metrics[key]).__name__
            for key in ("timestamp", "time_total_s", "pid", "hostname", "node_ip", "date", "trial_id")
        },
        "experiment_tag": metrics.get("experiment_tag"),
        "checkpoint_dir_name": metrics.get("checkpoint_dir_name", "none"),
        "iterations_since_restore": metrics["iterations_since_restore"],
    }


@probe
def values_of_reports(folder: str) -> dict[str, Any]:
    import numpy as np

    def train(config: dict[str, Any]) -> None:
        tune.report(
            {
                "np": np.float32(0.5),
                "int": np.int64(4),
                "array": np.arange(3),
                "tuple": (1, 2),
                "nan": float("nan"),
                "inf": float("inf"),
                "bool": True,
                "big": 2**70,
                "npbool": np.bool_(True),
                "set": {1},
            }
        )

    result = _fit(folder, train)[0]
    row = json.loads(open(f"{result.path}/result.json").readlines()[-1])
    return {
        "types": {
            key: type(result.metrics[key]).__name__
            for key in ("np", "int", "array", "tuple", "nan", "inf", "bool", "big", "npbool", "set")
        },
        "json": {
            key: row[key] for key in ("np", "int", "array", "tuple", "nan", "inf", "bool", "big", "npbool", "set")
        },
    }


@probe
def odd_reports(folder: str) -> dict[str, Any]:
    def of_none(config: dict[str, Any]) -> None:
        tune.report(None)

    def of_number(config: dict[str, Any]) -> None:
        tune.report(0.5)

    def of_keywords(config: dict[str, Any]) -> None:
        tune.report(loss=1)

    def empty(config: dict[str, Any]) -> None:
        tune.report({})

    def overrides(config: dict[str, Any]) -> None:
        tune.report({"training_iteration": 50, "time_this_iter_s": 7, "timestamp": 3, "trial_id": "x", "pid": 1})

    def done(config: dict[str, Any]) -> None:
        tune.report({"a": 1, "done": True})
        tune.report({"a": 2})

    def integer_keys(config: dict[str, Any]) -> None:
        tune.report({1: 2, "a": 3})

    def steps(config: dict[str, Any]) -> None:
        tune.report({"timesteps_this_iter": 10, "episodes_this_iter": 2})
        tune.report({"timesteps_this_iter": 10, "episodes_this_iter": 2})

    def slashes(config: dict[str, Any]) -> None:
        tune.report({"a/b": 1, "c": {"d/e": 2}})

    def own_checkpoint_name(config: dict[str, Any]) -> None:
        tune.report({"config": {"z": 1}, "date": "never", "hostname": "h"})

    return {
        "None": _outcome(folder, of_none),
        "a number": _outcome(folder, of_number, "_metric"),
        "keywords": _outcome(folder, of_keywords, "loss"),
        "empty": _outcome(folder, empty),
        "reserved keys": _outcome(folder, overrides, "time_this_iter_s"),
        "a timestamp": _outcome(folder, overrides, "timestamp")[-1] > 1000,
        "trial_id given": _outcome(folder, overrides, "trial_id"),
        "done": _outcome(folder, done, "a"),
        "integer keys": _outcome(folder, integer_keys, "a"),
        "timesteps": _outcome(folder, steps, "timesteps_total", "episodes_total"),
        "slashes": _outcome(folder, slashes, "a/b", "c"),
        "config given": _outcome(folder, own_checkpoint_name, "config", "date", "hostname"),
        "outside": raised(lambda: tune.report({"a": 1})),
        "context outside": raised(lambda: tune.get_context().get_trial_id()),
        "checkpoint outside": raised(lambda: tune.get_checkpoint()),
    }


@probe
def context_of_a_trial(folder: str) -> dict[str, Any]:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        context = tune.get_context()
        return {
            "experiment": context.get_experiment_name(),
            "name": context.get_trial_name(),
            "id": context.get_trial_id(),
            "dir": os.path.basename(context.get_trial_dir()),
            "cwd is dir": os.path.realpath(os.getcwd()) == os.path.realpath(context.get_trial_dir()),
            "orig": os.environ.get("TUNE_ORIG_WORKING_DIR"),
            "rank": raised(context.get_world_rank),
            "size": raised(context.get_world_size),
            "metadata": raised(context.get_metadata),
            "storage": raised(lambda: type(context.get_storage()).__name__),
        }

    result = _fit(folder, train, {"x": tune.grid_search([1])}, name="ctx")[0]
    metrics = result.metrics
    kept = ("experiment", "name", "id", "dir", "cwd is dir", "orig", "rank", "size", "metadata", "storage")
    return {key: metrics.get(key) for key in kept}


@probe
def checkpoints(folder: str) -> dict[str, Any]:
    def train(config: dict[str, Any]) -> None:
        start = tune.get_checkpoint()
        begin = 0
        if start:
            with start.as_directory() as path:
                begin = int(open(f"{path}/n").read())
        for number in range(begin + 1, 5):
            with tempfile.TemporaryDirectory() as path:
                open(f"{path}/n", "w").write(str(number))
                tune.report(
                    {"score": -abs(number - 2), "begin": begin}, checkpoint=tune.Checkpoint.from_directory(path)
                )
            if number == 3 and not start:
                raise RuntimeError("once")

    kept = _fit(
        folder,
        train,
        failure_config=tune.FailureConfig(max_failures=1),
        checkpoint_config=tune.CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="score"),
    )[0]
    entries = sorted(entry for entry in os.listdir(kept.path) if entry.startswith("checkpoint_"))
    best = kept.get_best_checkpoint("score", "max")
    metadata = kept.checkpoint.get_metadata()
    kept.checkpoint.update_metadata({"a": 1})
    with kept.checkpoint.as_directory() as path:
        inside = sorted(os.listdir(path))
    return {
        "kept": entries,
        "resumed at": [kept.metrics["begin"], kept.metrics["training_iteration"]],
        "since restore": kept.metrics["iterations_since_restore"],
        "dir name": kept.metrics["checkpoint_dir_name"],
        "latest": open(f"{kept.checkpoint.path}/n").read(),
        "best": open(f"{best.path}/n").read(),
        "best list": [m["score"] for _, m in kept.best_checkpoints],
        "metadata": metadata,
        "metadata after": kept.checkpoint.get_metadata(),
        "files": inside,
        "equal": tune.Checkpoint(kept.checkpoint.path) == kept.checkpoint,
        "text": str(kept.checkpoint).split("/")[0],
        "to_directory": sorted(os.listdir(kept.checkpoint.to_directory(f"{folder}/copy"))),
        "of nothing": raised(lambda: tune.Checkpoint(f"{folder}/none").to_directory(f"{folder}/copy2")),
        "unknown metric": raised(lambda: kept.get_best_checkpoint("zz", "max")),
        "a file as a checkpoint": raised(lambda: tune.Checkpoint.from_directory(f"{folder}/copy/n").path),
    }
