"""Suggestions a second of OptunaSearch beside plain Optuna, one by one and 16 at a time.

    python benchmarks/search.py [--trials 100 1000 10000] [--suggestions 20] [--parallel 1 16]

Both get the same finished trials first. Then each suggestion is asked for and told; with 16 in parallel, 16 trials
are unfinished all the time. Plain Optuna is ask and tell on its own storage in memory, with the same TPE.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import time
from collections import deque
from typing import Any

from trialpod import tune
from trialpod.tune.search import OptunaSearch, prepare

SPACE = {
    "lr": tune.loguniform(1e-5, 1e-1),
    "momentum": tune.uniform(0, 1),
    "layers": tune.randint(1, 9),
    "kind": tune.choice(["a", "b", "c"]),
}


def _point(rng: random.Random) -> dict[str, Any]:
    return {
        "lr": 10 ** rng.uniform(-4.9, -1.1),
        "momentum": rng.random(),
        "layers": rng.randint(1, 8),
        "kind": rng.choice("abc"),
    }


def ours(trials: int, suggestions: int, parallel: int) -> dict[str, float]:
    """Measure OptunaSearch; `restore_s` is the time to build the study from its state."""
    rng = random.Random(0)
    searcher = OptunaSearch()
    search = prepare(searcher, space=SPACE, num_samples=-1, metric="loss", mode="min", seed=1)
    for _ in range(trials):
        searcher.add_evaluated_point(_point(rng), rng.random())
    live = deque(search.next_suggestion() for _ in range(parallel - 1))
    live.append(search.next_suggestion())  # the first one sets things up
    live.popleft()
    started = time.perf_counter()
    for _ in range(suggestions):
        live.append(search.next_suggestion())
        first = live.popleft()
        assert first is not None
        search.on_trial_complete(first.trial_id, {"loss": rng.random()})
    each = (time.perf_counter() - started) / suggestions
    started = time.perf_counter()
    state = json.dumps(search.get_state())
    restored = prepare(OptunaSearch(), space=SPACE, num_samples=-1, metric="loss", mode="min", seed=1)
    restored.set_state(json.loads(state))
    _ = restored.searcher.study  # type: ignore[attr-defined]
    return {"ms": each * 1e3, "restore_s": time.perf_counter() - started, "state_mb": len(state) / 1e6}


def plain(trials: int, suggestions: int, parallel: int) -> dict[str, float]:
    """Measure Optuna itself."""
    import optuna

    logging.getLogger("optuna").setLevel(logging.ERROR)
    rng = random.Random(0)
    made = {
        "lr": optuna.distributions.FloatDistribution(1e-5, 1e-1, log=True),
        "momentum": optuna.distributions.FloatDistribution(0, 1),
        "layers": optuna.distributions.IntDistribution(1, 8),
        "kind": optuna.distributions.CategoricalDistribution(["a", "b", "c"]),
    }
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1))
    study.add_trials(
        [optuna.trial.create_trial(params=_point(rng), distributions=made, value=rng.random()) for _ in range(trials)]
    )
    live = deque(study.ask(made) for _ in range(parallel - 1))
    live.append(study.ask(made))
    live.popleft()
    started = time.perf_counter()
    for _ in range(suggestions):
        live.append(study.ask(made))
        study.tell(live.popleft(), rng.random())
    return {"ms": (time.perf_counter() - started) / suggestions * 1e3}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--suggestions", type=int, default=20)
    parser.add_argument("--parallel", type=int, nargs="+", default=[1, 16])
    options = parser.parse_args()
    print(" trials parallel   plain/s    ours/s ours/plain  state MB restore s")
    for trials in options.trials:
        for parallel in options.parallel:
            reference = plain(trials, options.suggestions, parallel)
            own = ours(trials, options.suggestions, parallel)
            print(
                f"{trials:>7} {parallel:>8} {1e3 / reference['ms']:>9.1f} {1e3 / own['ms']:>9.1f} "
                f"{reference['ms'] / own['ms']:>10.2f} {own['state_mb']:>9.2f} {own['restore_s']:>9.2f}"
            )


if __name__ == "__main__":
    main()
