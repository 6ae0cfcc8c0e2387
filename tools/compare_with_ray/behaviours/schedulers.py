"""Schedulers in experiments, their arguments and their states. Their decisions are in ray_scheduler_decisions.json."""

# ruff: noqa: F821  # `probe`, `raised` and `printed` come from ask.py

from __future__ import annotations

import json
import os
from typing import Any

from ray import tune
from ray.tune import schedulers
from ray.tune.schedulers import (
    ASHAScheduler,
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
    create_scheduler,
)


class Model(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.n, self.total = 0, 0.0

    def step(self) -> dict[str, Any]:
        self.n += 1
        self.total += self.config["x"]
        return {"score": self.total, "n": self.n}

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        return {"n": self.n, "total": self.total}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.n, self.total = checkpoint["n"], checkpoint["total"]

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.config = new_config
        return True


def _fit(folder: str, scheduler: Any, values: Any, iterations: int = 9, **kwargs: Any) -> Any:
    given = {"metric": "score", "mode": "max", **kwargs.pop("tune", {})}
    return tune.Tuner(
        Model,
        param_space={"x": tune.grid_search(list(values))},
        tune_config=tune.TuneConfig(scheduler=scheduler, **given),
        run_config=tune.RunConfig(storage_path=folder, verbose=0, stop={"training_iteration": iterations}, **kwargs),
    ).fit()


def _reached(grid: Any) -> Any:
    return sorted([r.config["x"], r.metrics["training_iteration"]] for r in grid)


_NAMES = [
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "FIFOScheduler",
    "HyperBandForBOHB",
    "HyperBandScheduler",
    "MedianStoppingRule",
    "PopulationBasedTraining",
    "PopulationBasedTrainingReplay",
    "ResourceChangingScheduler",
    "SCHEDULER_IMPORT",
    "TrialScheduler",
    "create_scheduler",
]


@probe
def in_experiments(folder: str) -> dict[str, Any]:
    one: dict[str, Any] = {"tune": {"max_concurrent_trials": 1}}
    asha = ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3)
    return {
        "asha, best first": lambda: _reached(_fit(folder, asha, (4, 3, 2, 1), **one)),
        "asha, worst first": lambda: _reached(
            _fit(folder, ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3), (1, 2, 3, 4), **one)
        ),
        "asha of max_t": lambda: _reached(_fit(folder, ASHAScheduler(max_t=4, grace_period=1), (1, 2), 9, **one)),
        "asha that does not stop at max_t": lambda: _reached(
            _fit(folder, ASHAScheduler(max_t=4, grace_period=4, stop_last_trials=False), (1,), 9, **one)
        ),
        "median": lambda: _reached(
            _fit(
                folder,
                MedianStoppingRule("training_iteration", grace_period=1, min_samples_required=2),
                (4, 3, 2, 1),
                5,
                **one,
            )
        ),
        "hyperband": lambda: _reached(_fit(folder, HyperBandScheduler(max_t=9), (1, 2, 3, 4, 5, 6), 9)),
        "fifo": lambda: _reached(_fit(folder, FIFOScheduler(), (1, 2), 3)),
    }


@probe
def population(folder: str) -> dict[str, Any]:
    pbt = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"x": [1, 2, 3, 4]},
        synch=True,
        quantile_fraction=0.5,
    )
    grid = _fit(folder, pbt, (1, 4), 6, name="pbt")
    files = sorted(name for name in os.listdir(f"{folder}/pbt") if name.startswith("pbt"))
    rows = [json.loads(line) for line in open(f"{folder}/pbt/pbt_global.txt")]
    return {
        "reached": sorted(r.metrics["training_iteration"] for r in grid),
        "files": [name.split("_")[1] for name in files],
        "rows are": [len(row) for row in rows[:2]],
        "a row": [type(item).__name__ for item in rows[0]],
        "perturbed tag": "@perturbed" in open(f"{folder}/pbt/pbt_global.txt").read(),
        "no mutations": raised(lambda: PopulationBasedTraining(time_attr="training_iteration")),
        "quantile": raised(lambda: PopulationBasedTraining(quantile_fraction=0.7, hyperparam_mutations={"x": [1]})),
        "interval": raised(
            lambda: PopulationBasedTraining(perturbation_interval=-1, hyperparam_mutations={"x": [1]})
        ),
        "a mutation of a text": raised(lambda: PopulationBasedTraining(hyperparam_mutations={"x": "a"})),
        "with a searcher": raised(
            lambda: tune.Tuner(
                Model,
                param_space={"x": tune.uniform(0, 1)},
                tune_config=tune.TuneConfig(
                    metric="score",
                    mode="max",
                    scheduler=PopulationBasedTraining(hyperparam_mutations={"x": [1, 2]}),
                    search_alg=tune.search.optuna.OptunaSearch() if hasattr(tune.search, "optuna") else "optuna",
                ),
                run_config=tune.RunConfig(storage_path=folder, verbose=0, stop={"training_iteration": 1}),
            ).fit()
        ),
    }


@probe
def arguments(folder: str) -> dict[str, Any]:
    return {
        "asha max_t": raised(lambda: ASHAScheduler(max_t=0)),
        "asha grace over max_t": raised(lambda: ASHAScheduler(max_t=2, grace_period=5)),
        "asha factor": raised(lambda: ASHAScheduler(reduction_factor=1)),
        "asha brackets": raised(lambda: ASHAScheduler(brackets=0)),
        "asha mode": raised(lambda: ASHAScheduler(metric="a", mode="up")),
        "asha is async hyperband": ASHAScheduler is AsyncHyperBandScheduler,
        "hyperband max_t": raised(lambda: HyperBandScheduler(max_t=0)),
        "hyperband mode": raised(lambda: HyperBandScheduler(metric="a", mode="up")),
        "median": raised(lambda: MedianStoppingRule(metric="a", mode="up")),
        "set twice": raised(lambda: ASHAScheduler(metric="a", mode="max").set_search_properties("a", "max")),
        "set another": raised(lambda: ASHAScheduler(metric="a", mode="max").set_search_properties("b", "max")),
        "set": raised(lambda: ASHAScheduler().set_search_properties("a", "max")),
        "create": [
            type(create_scheduler(name)).__name__
            for name in ("fifo", "async_hyperband", "asynchyperband", "median_stopping_rule", "medianstopping")
        ],
        "create hyperband": type(create_scheduler("hyperband", max_t=5)).__name__,
        "create unknown": raised(lambda: create_scheduler("nothing")),
        "create with a wrong argument": raised(lambda: create_scheduler("fifo", nothing=1)),
        "constants": [TrialScheduler.CONTINUE, TrialScheduler.PAUSE, TrialScheduler.STOP, TrialScheduler.NOOP],
        "debug_string": FIFOScheduler().debug_string(),
        "metric": [ASHAScheduler(metric="a", mode="max").metric, FIFOScheduler().metric],
        "supports_buffered_results": [
            FIFOScheduler().supports_buffered_results,
            HyperBandScheduler().supports_buffered_results,
        ],
        "names": {name: hasattr(schedulers, name) for name in _NAMES},
        "bohb": raised(lambda: type(HyperBandForBOHB(metric="a", mode="max", max_t=9)).__name__),
    }


@probe
def own_schedulers(folder: str) -> dict[str, Any]:
    class Stops(FIFOScheduler):
        def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> str:
            return TrialScheduler.STOP if result["n"] >= 2 else TrialScheduler.CONTINUE

    class Whole(TrialScheduler):
        def __init__(self) -> None:
            self.calls: list[str] = []

        def on_trial_add(self, controller: Any, trial: Any) -> None:
            self.calls.append("add")

        def on_trial_error(self, controller: Any, trial: Any) -> None:
            self.calls.append("error")

        def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> str:
            self.calls.append("result")
            return TrialScheduler.CONTINUE

        def on_trial_complete(self, controller: Any, trial: Any, result: dict[str, Any]) -> None:
            self.calls.append("complete")

        def on_trial_remove(self, controller: Any, trial: Any) -> None:
            self.calls.append("remove")

        def choose_trial_to_run(self, controller: Any) -> Any:
            for trial in controller.get_trials():
                if trial.status == "PENDING":
                    return trial
            return None

        def debug_string(self) -> str:
            return "whole"

    class Pauses(FIFOScheduler):
        def __init__(self) -> None:
            super().__init__()
            self.paused: set[Any] = set()

        def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> str:
            if result["n"] == 2 and trial.trial_id not in self.paused:
                self.paused.add(trial.trial_id)
                return TrialScheduler.PAUSE
            return TrialScheduler.CONTINUE

    class Fails(FIFOScheduler):
        def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> str:
            raise ValueError("decide")

    class Backwards(FIFOScheduler):
        def choose_trial_to_run(self, controller: Any) -> Any:
            pending = [trial for trial in controller.get_trials() if trial.status == "PENDING"]
            return pending[-1] if pending else None

    whole = Whole()
    grid = _fit(folder, whole, (1,), 3)
    return {
        "stops": lambda: _reached(_fit(folder, Stops(), (1, 2), 5)),
        "calls": whole.calls,
        "reached": _reached(grid),
        "pauses": lambda: _reached(_fit(folder, Pauses(), (1,), 4)),
        "raises": lambda: _fit(folder, Fails(), (1,), 4),
        "chooses": lambda: _reached(_fit(folder, Backwards(), (1, 2, 3), 1, tune={"max_concurrent_trials": 1})),
    }


@probe
def decisions(folder: str) -> dict[str, Any]:
    def train(config: dict[str, Any]) -> None:
        for number in range(1, 10):
            tune.report({"loss": config["x"] / number})

    def lengths(scheduler: Any) -> Any:
        grid = tune.Tuner(
            train,
            param_space={"x": tune.grid_search([5, 3, 8, 1, 9, 2, 7, 4])},
            tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=scheduler, max_concurrent_trials=1),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        ).fit()
        return [[r.config["x"], r.metrics["training_iteration"]] for r in grid]

    return {
        "asha": lambda: lengths(schedulers.ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3)),
        "asha by halves": lambda: lengths(schedulers.ASHAScheduler(max_t=8, grace_period=2, reduction_factor=2)),
        "asha, last not stopped": lambda: lengths(schedulers.ASHAScheduler(max_t=4, stop_last_trials=False)),
        "median": lambda: lengths(schedulers.MedianStoppingRule(grace_period=1, min_samples_required=2)),
        "median after a while": lambda: lengths(
            schedulers.MedianStoppingRule(grace_period=4, min_samples_required=3, hard_stop=True)
        ),
    }
