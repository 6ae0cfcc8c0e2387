"""Files and calls of loggers."""

# ruff: noqa: F821  # `probe`, `raised` and `printed` come from ask.py

from __future__ import annotations

import csv
import json
import os
import pickle
from typing import Any

from ray import tune
from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback, LoggerCallback, TBXLoggerCallback


def _train(config: dict[str, Any]) -> None:
    tune.report({"loss": 1, "list": [1, 2], "text": "a,b", "none": None, "flag": True})
    tune.report({"loss": 0.1 + 0.2, "later": 5, "nan": float("nan")})


def _nested(config: dict[str, Any]) -> None:
    tune.report({"loss": 1, "deep": {"er": 2}})
    tune.report({"loss": 2, "deep": {"er": 3, "new": 1}})


def _fit(folder: str, trainable: Any = _train, space: Any = None, **kwargs: Any) -> Any:
    return tune.Tuner(
        trainable,
        param_space={"lr": 0.1, "m": {"n": 1}} if space is None else space,
        run_config=tune.RunConfig(storage_path=folder, verbose=0, **kwargs),
    ).fit()


@probe
def files(folder: str) -> dict[str, Any]:
    result = _fit(folder)[0]
    rows = [json.loads(line) for line in open(f"{result.path}/result.json")]
    table = list(csv.DictReader(open(f"{result.path}/progress.csv")))
    own = ("loss", "list", "text", "none", "flag", "later", "nan")
    fixed = {"trial_id", "date", "timestamp", "pid", "hostname", "node_ip", "time_total_s", "time_this_iter_s"}
    return {
        "result.json: own": [{key: row[key] for key in own if key in row} for row in rows],
        "result.json: order of the own": [[key for key in row if key in own] for row in rows],
        "result.json: keys": [sorted(row) for row in rows],
        "result.json: order": [[key for key in row if key not in own] for row in rows],
        "result.json: config": rows[0]["config"],
        "result.json: raw": [
            '"loss": 1, "list": [1, 2]' in open(f"{result.path}/result.json").readline(),
            "NaN" in open(f"{result.path}/result.json").read(),
        ],
        "progress.csv: header": list(table[0]),
        "progress.csv: own": [{k: v for k, v in row.items() if k.split("/")[0] in own} for row in table],
        "progress.csv: fixed": sorted(fixed & set(table[0])),
        "params.json": json.load(open(f"{result.path}/params.json")),
        "params.json: text": open(f"{result.path}/params.json").read(),
        "params.pkl": lambda: pickle.load(open(f"{result.path}/params.pkl", "rb")),
        "frame": sorted(result.metrics_dataframe.columns),
    }


@probe
def nested_metrics(folder: str) -> dict[str, Any]:
    result = _fit(folder, _nested)[0]
    row = json.loads(open(f"{result.path}/result.json").readline())
    table = list(csv.DictReader(open(f"{result.path}/progress.csv")))
    return {
        "result.json": {key: value for key, value in row.items() if key.startswith("deep")},
        "progress.csv": [{k: v for k, v in row.items() if k.startswith("deep")} for row in table],
        "progress.csv: order": list(table[0])[-2:],
        "metrics": result.metrics["deep"],
        "frame": result.metrics_dataframe["deep/er"].tolist(),
    }


@probe
def error_files(folder: str) -> dict[str, Any]:
    class OwnError(Exception):
        pass

    def fails(config: dict[str, Any]) -> None:
        tune.report({"a": 1})
        raise OwnError("of my own")

    result = _fit(folder, fails, failure_config=tune.FailureConfig(max_failures=1))[0]
    text = open(f"{result.path}/error.txt").read()

    def unpickled() -> Any:
        with open(f"{result.path}/error.pkl", "rb") as stream:
            return "of my own" in str(pickle.load(stream))

    return {
        "files": sorted(e for e in os.listdir(result.path) if e.startswith("err")),
        "error.txt": [text.count("Failure # "), "of my own" in text, text.startswith("Failure # 1 (occurred at ")],
        "error.pkl": unpickled,
        "error": ["OwnError" in str(result.error), "of my own" in str(result.error)],
    }


@probe
def own_loggers(folder: str) -> dict[str, Any]:
    class Own(LoggerCallback):
        def __init__(self) -> None:
            self.calls: list[Any] = []

        def setup(self, **info: Any) -> None:
            self.calls.append(["setup", sorted(info)])

        def log_trial_start(self, trial: Any) -> None:
            self.calls.append(["start", trial.config])

        def log_trial_restore(self, trial: Any) -> None:
            self.calls.append(["restore"])

        def log_trial_save(self, trial: Any) -> None:
            self.calls.append(["save"])

        def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
            self.calls.append(["result", result["loss"], result["training_iteration"], trial.status])

        def log_trial_end(self, trial: Any, failed: bool = False) -> None:
            self.calls.append(["end", failed, trial.status])

    own = Own()
    grid = _fit(folder, callbacks=[own])
    files = sorted(e for e in os.listdir(grid[0].path) if not e.startswith("."))
    given = _fit(folder, callbacks=[JsonLoggerCallback()])[0]

    def fails(config: dict[str, Any]) -> None:
        tune.report({"loss": 1})
        raise ValueError("x")

    failing = Own()
    _fit(folder, fails, callbacks=[failing])
    return {
        "calls": own.calls,
        "calls of a failure": failing.calls,
        "standard files beside it": [f for f in files if f.startswith(("params", "result", "progress"))],
        "json given": sorted(e for e in os.listdir(given.path) if e.endswith(("json", "csv"))),
        "classes": [
            issubclass(c, LoggerCallback) for c in (CSVLoggerCallback, JsonLoggerCallback, TBXLoggerCallback)
        ],
        "base": [
            raised(lambda: LoggerCallback().log_trial_start(None)),
            raised(lambda: LoggerCallback().log_trial_save(None)),
        ],
        "base result": raised(lambda: LoggerCallback().log_trial_result(1, None, {})),
    }


@probe
def log_to_file(folder: str) -> dict[str, Any]:
    import sys

    def prints(config: dict[str, Any]) -> None:
        print("to stdout")
        print("to stderr", file=sys.stderr)
        tune.report({"a": 1})

    both = _fit(folder, prints, log_to_file=True)[0]
    one = _fit(folder, prints, log_to_file="all.log")[0]
    two = _fit(folder, prints, log_to_file=("o.log", "e.log"))[0]

    def has(path: str, word: str) -> bool:
        return os.path.exists(path) and word in open(path).read()

    return {
        "True": [has(f"{both.path}/stdout", "to stdout"), has(f"{both.path}/stderr", "to stderr")],
        "a name": [has(f"{one.path}/all.log", "to stdout"), has(f"{one.path}/all.log", "to stderr")],
        "two names": [has(f"{two.path}/o.log", "to stdout"), has(f"{two.path}/e.log", "to stderr")],
        "three names": lambda: len(_fit(folder, prints, log_to_file=("a", "b", "c"))),
    }
