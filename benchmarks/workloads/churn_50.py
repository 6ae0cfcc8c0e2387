"""50 trivial function trials, 8 at a time, each in a process of its own: what a trial costs beside its work."""

from __future__ import annotations

from typing import Any

from system import STORAGE, begin, finish, size, timed_fit, tune


def train(config: dict[str, Any]) -> None:
    tune.report({"score": config["x"]})


if __name__ == "__main__":
    begin()
    trials = int(size("trials", 50))
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 0.2}),
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(num_samples=trials, max_concurrent_trials=8),
        run_config=tune.RunConfig(name="churn", storage_path=STORAGE, verbose=0),
    )
    grid, seconds = timed_fit(tuner)
    assert len(grid) == trials
    finish(fit_s=seconds)
