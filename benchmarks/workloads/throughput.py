"""Results per second from the first report until all of them are in the result.json files, default loggers on.

The trials report without pause for some seconds; sizes: ``trials``, ``length_s``.
"""

from __future__ import annotations

import os
import time
from typing import Any

from system import STORAGE, begin, count_lines, finish, size, timed_fit, tune


def train(config: dict[str, Any]) -> None:
    began = time.time()
    until = began + config["length_s"]
    step = 0
    while time.time() < until:
        step += 1
        tune.report({"score": step, "began": began})


if __name__ == "__main__":
    begin()
    trials = int(size("trials", 1))
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 0.1}),
        param_space={"length_s": size("length_s", 3.0)},
        tune_config=tune.TuneConfig(num_samples=trials, max_concurrent_trials=16),
        run_config=tune.RunConfig(name="throughput", storage_path=STORAGE, verbose=0),
    )
    grid, seconds = timed_fit(tuner)
    results = count_lines(grid)
    assert results == sum(result.metrics["training_iteration"] for result in grid)
    first = min(result.metrics["began"] for result in grid)
    last = max(os.stat(os.path.join(result.path, "result.json")).st_mtime for result in grid)
    finish(results_per_s=results / (last - first), results=results, fit_s=seconds)
