"""Stoppers, and the ways to give a criterion."""

# ruff: noqa: F821  # `probe`, `raised` and `printed` come from ask.py

from __future__ import annotations

import datetime
from typing import Any

from ray import tune
from ray.tune.stopper import (
    CombinedStopper,
    ExperimentPlateauStopper,
    FunctionStopper,
    MaximumIterationStopper,
    NoopStopper,
    Stopper,
    TimeoutStopper,
    TrialPlateauStopper,
)


def _answers(stopper: Any, values: list[Any], key: str = "loss", trial: str = "t") -> list[bool]:
    found = []
    for number, value in enumerate(values, 1):
        found.append(bool(stopper(trial, {key: value, "training_iteration": number})))
    return found


@probe
def decisions(folder: str) -> dict[str, Any]:
    plateau = ExperimentPlateauStopper("loss", std=0.1, top=2, mode="min", patience=1)
    experiment = [_answers(plateau, [value])[0] for value in (5, 3, 3, 3, 3)]
    combined = CombinedStopper(MaximumIterationStopper(3), FunctionStopper(lambda _, result: result["loss"] > 10))
    return {
        "iterations": _answers(MaximumIterationStopper(3), [1] * 5),
        "iterations of two trials": [
            bool(MaximumIterationStopper(1)("a", {})),
            bool(MaximumIterationStopper(2)("b", {})),
        ],
        "plateau": _answers(TrialPlateauStopper("loss", std=0.01, num_results=3, grace_period=2), [5, 4, 1, 1, 1, 1]),
        "plateau, threshold": _answers(
            TrialPlateauStopper("loss", num_results=2, grace_period=0, metric_threshold=2, mode="min"), [5, 5, 1, 1]
        ),
        "plateau, threshold, max": _answers(
            TrialPlateauStopper("loss", num_results=2, grace_period=0, metric_threshold=2, mode="max"), [1, 1, 5, 5]
        ),
        "plateau, NaN": _answers(TrialPlateauStopper("loss", num_results=2, grace_period=0), [float("nan")] * 4),
        "plateau, no metric": raised(lambda: TrialPlateauStopper("loss")("t", {"x": 1})),
        "experiment plateau": experiment,
        "experiment plateau, all": bool(plateau.stop_all()),
        "combined": _answers(combined, [1, 1, 1, 20]),
        "combined, all": bool(combined.stop_all()),
        "function": _answers(FunctionStopper(lambda trial_id, result: result["loss"] > 2), [1, 3]),
        "noop": _answers(NoopStopper(), [1]),
        "timeout": [bool(TimeoutStopper(100).stop_all()), bool(TimeoutStopper(0)("t", {}))],
        "timeout of a timedelta": bool(TimeoutStopper(datetime.timedelta(seconds=5)).stop_all()),
    }


@probe
def arguments(folder: str) -> dict[str, Any]:
    return {
        "plateau mode": raised(lambda: TrialPlateauStopper("loss", metric_threshold=1)),
        "plateau bad mode": raised(lambda: TrialPlateauStopper("loss", metric_threshold=1, mode="up")),
        "experiment bad mode": raised(lambda: ExperimentPlateauStopper("loss", mode="up")),
        "experiment bad top": raised(lambda: ExperimentPlateauStopper("loss", top=0)),
        "experiment bad std": raised(lambda: ExperimentPlateauStopper("loss", std="x")),
        "experiment bad patience": raised(lambda: ExperimentPlateauStopper("loss", patience=-1)),
        "timeout of a text": raised(lambda: TimeoutStopper("5")),
        "timeout of None": raised(lambda: TimeoutStopper(None)),
        "function of no function": raised(lambda: FunctionStopper(5)),
        "is_valid_function": [FunctionStopper.is_valid_function(len), FunctionStopper.is_valid_function(5)],
        "function of a Stopper": raised(lambda: FunctionStopper.is_valid_function(NoopStopper())),
        "base call": raised(lambda: Stopper()("t", {})),
        "base stop_all": raised(lambda: Stopper().stop_all()),
        "top level names": [hasattr(tune, "Stopper"), hasattr(tune.stopper, "MaximumIterationStopper")],
    }


def _counting(config: dict[str, Any]) -> None:
    for number in range(1, 9):
        tune.report({"loss": number, "deep": {"er": number}})


def _iterations(folder: str, stop: Any, samples: int = 1, **kwargs: Any) -> Any:
    def call() -> Any:
        grid = tune.Tuner(
            _counting,
            tune_config=tune.TuneConfig(num_samples=samples, **kwargs),
            run_config=tune.RunConfig(storage_path=folder, verbose=0, stop=stop),
        ).fit()
        return [[r.metrics.get("training_iteration"), bool(r.error)] for r in grid]

    return raised(call)


class _Third(Stopper):
    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return bool(result["loss"] >= 3)

    def stop_all(self) -> bool:
        return False


class _All(Stopper):
    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self.seen += 1
        return False

    def stop_all(self) -> bool:
        return self.seen >= 4


@probe
def in_experiments(folder: str) -> dict[str, Any]:
    return {
        "a dict": _iterations(folder, {"training_iteration": 3}),
        "two keys": _iterations(folder, {"training_iteration": 7, "loss": 2}),
        "a nested key": _iterations(folder, {"deep/er": 3}),
        "a nested dict": _iterations(folder, {"deep": {"er": 3}}),
        "a function": _iterations(folder, lambda trial_id, result: result["loss"] >= 4),
        "a class": _iterations(folder, _Third()),
        "a list": _iterations(folder, [_Third(), MaximumIterationStopper(2)]),
        "all": _iterations(folder, _All(), 1),
        "zero": _iterations(folder, {"training_iteration": 0}),
        "a text": _iterations(folder, "soon"),
        "a list of dicts": _iterations(folder, [{"loss": 1}]),
        "a function of one argument": _iterations(folder, lambda result: True),
        "a stopper that raises": _iterations(folder, lambda trial_id, result: 1 / 0),
        "done": _iterations(folder, {"done": True}),
    }
