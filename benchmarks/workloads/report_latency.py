"""How long `tune.report` keeps a trial waiting, with the default loggers.

Once in an experiment in which no result leads to a decision, once with a stop function that has to see every result
before the trial may continue.
"""

from __future__ import annotations

import time
from typing import Any

from system import STORAGE, begin, finish, size, timed_fit, tune


def train(config: dict[str, Any]) -> None:
    clock, times = time.perf_counter, []
    for step in range(config["reports"]):
        start = clock()
        tune.report({"score": step})
        times.append(clock() - start)
    times.sort()
    tune.report({"p50_us": 1e6 * times[len(times) // 2], "p99_us": 1e6 * times[len(times) * 99 // 100]})


def never(_trial_id: str, _result: dict[str, Any]) -> bool:
    return False


def measure(name: str, stop: Any) -> dict[str, Any]:
    tuner = tune.Tuner(
        train,
        param_space={"reports": int(size("reports", 2000))},
        run_config=tune.RunConfig(name=name, storage_path=STORAGE, stop=stop, verbose=0),
    )
    metrics: dict[str, Any] = timed_fit(tuner)[0][0].metrics
    return metrics


if __name__ == "__main__":
    begin()
    free, judged = measure("free", None), measure("judged", never)
    finish(p50_us=free["p50_us"], p99_us=free["p99_us"], judged_us=judged["p50_us"], judged_p99_us=judged["p99_us"])
