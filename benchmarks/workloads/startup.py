"""The first seconds of a user: import, and the first result of one trivial trial, from the start of the process."""

from __future__ import annotations

import os
import time

before_import = time.perf_counter()
from system import STORAGE, begin, finish, started_at, timed_fit, tune  # noqa: E402

needed = (tune.Tuner, tune.TuneConfig, tune.RunConfig, tune.report, tune.uniform)
import_s = time.perf_counter() - before_import


def train(config: dict[str, float]) -> None:
    tune.report({"score": config["x"]})


if __name__ == "__main__":
    begin()
    tuner = tune.Tuner(
        train,
        param_space={"x": tune.uniform(0, 1)},
        run_config=tune.RunConfig(name="startup", storage_path=STORAGE, verbose=0),
    )
    grid, seconds = timed_fit(tuner)
    written = os.stat(os.path.join(grid[0].path, "result.json")).st_mtime
    finish(import_s=import_s, first_result_s=written - started_at(), end_s=time.time() - started_at())
