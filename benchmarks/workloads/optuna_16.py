"""16 trials of 2 s with Optuna's TPE, 8 at a time. Two rounds are ideal."""

from __future__ import annotations

import time
from typing import Any

from system import STORAGE, SYSTEM, begin, finish, size, timed_fit, tune

if SYSTEM == "ray":
    from ray.tune.search.optuna import OptunaSearch
else:
    from trialpod.tune.search import OptunaSearch

PLACES = 8


def train(config: dict[str, Any]) -> None:
    """Take a while."""
    time.sleep(config["length_s"])
    tune.report({"score": (config["x"] - 0.3) ** 2 + config["y"]})


if __name__ == "__main__":
    begin()
    trials = int(size("trials", 16))
    length_s = size("length_s", 2.0)
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 0.2}),
        param_space={"x": tune.uniform(0, 1), "y": tune.loguniform(1e-4, 1), "length_s": length_s},
        tune_config=tune.TuneConfig(
            metric="score",
            mode="min",
            num_samples=trials,
            max_concurrent_trials=PLACES,
            search_alg=OptunaSearch(seed=1),
        ),
        run_config=tune.RunConfig(name="optuna", storage_path=STORAGE, verbose=0),
    )
    grid, seconds = timed_fit(tuner)
    assert len(grid) == trials
    finish(fit_s=seconds, ideal_s=-(-trials // PLACES) * length_s)
