"""320 trials of one second, 16 at a time, in processes that are used again. Twenty rounds of a second are ideal."""

from __future__ import annotations

import time
from typing import Any

from system import STORAGE, begin, finish, size, timed_fit, tune


def train(config: dict[str, Any]) -> None:
    time.sleep(config["length_s"])
    tune.report({"score": config["x"]})


if __name__ == "__main__":
    begin()
    trials = int(size("trials", 320))
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 0.1}),
        param_space={"x": tune.uniform(0, 1), "length_s": size("length_s", 1.0)},
        tune_config=tune.TuneConfig(
            num_samples=trials, max_concurrent_trials=16, reuse_actors=bool(size("reuse", 1))
        ),
        run_config=tune.RunConfig(name="seconds", storage_path=STORAGE, verbose=0),
    )
    grid, seconds = timed_fit(tuner)
    assert len(grid) == trials
    finish(fit_s=seconds, ideal_s=-(-trials // 16) * size("length_s", 1.0))
