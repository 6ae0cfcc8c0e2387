"""A script with a Tuner that continues; copied as search.py into the round's folder, beside plan.json."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import train

from trialpod import tune
from trialpod.tune import CheckpointConfig, FailureConfig, RunConfig, TuneConfig, Tuner, schedulers

SCHEDULERS = {
    "asha": schedulers.ASHAScheduler,
    "asha_promotion": schedulers.PromotionASHAScheduler,
    "hyperband": schedulers.HyperBandScheduler,
    "median_stopping_rule": schedulers.MedianStoppingRule,
    "pbt": schedulers.PopulationBasedTraining,
}


def made_scheduler(spec: dict[str, Any] | None) -> Any:
    if spec is None:
        return None
    parameters = dict(spec["parameters"])
    if "hyperparam_mutations" in parameters:
        parameters["hyperparam_mutations"] = {"lr": tune.loguniform(1e-3, 3.0)}
    if spec["name"] == "pbt":
        parameters["seed"] = 5
    return SCHEDULERS[spec["name"]](**parameters)


def made_search(spec: dict[str, Any] | None, seed: int) -> Any:
    if spec is None:
        return None
    import optuna

    from trialpod.tune.search.optuna.optuna_search import OptunaSearch

    return OptunaSearch(sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=3))


def main() -> None:
    spec = json.loads(pathlib.Path("plan.json").read_text())
    storage = os.environ["PLACE"]
    path = f"{storage}/exp"
    trainable = train.Train if spec["trainable"]["entrypoint"].endswith("Train") else train.train
    if Tuner.can_restore(path):
        Tuner.restore(path, trainable).fit()
        return
    checkpoint = spec["checkpoint"]
    Tuner(
        trainable,
        param_space={"lr": tune.loguniform(1e-3, 3.0), "decay": tune.loguniform(1e-6, 1e-2)},
        tune_config=TuneConfig(
            metric="error",
            mode="min",
            num_samples=spec["numSamples"],
            max_concurrent_trials=spec["maxConcurrentTrials"],
            scheduler=made_scheduler(spec.get("scheduler")),
            search_alg=made_search(spec.get("searchAlgorithm"), spec["seed"]),
            seed=spec["seed"],
        ),
        run_config=RunConfig(
            name="exp",
            storage_path=storage,
            stop=spec.get("stop"),
            failure_config=FailureConfig(max_failures=-1),
            checkpoint_config=CheckpointConfig(checkpoint_frequency=checkpoint.get("frequency", 0)),
            verbose=0,
        ),
    ).fit()


if __name__ == "__main__":
    main()
