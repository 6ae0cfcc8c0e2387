"""What deciding costs: processor time of a suggestion and of a decision at a rung, and the state of a trial.

    python benchmarks/quality/decisions.py [--trials 1000 10000] [--decisions 100]

The search `auto` and the scheduler `auto` get that many trials of a synthetic objective with eight parameters first:
all reach the first rung, a third of them the next, and so on; the others are paused. Then each decision is measured
by itself, with eight trials running. It is processor time of this thread, so a busy machine disturbs it little.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable
from typing import Any

from trialpod import tune
from trialpod.tune.schedulers import create_scheduler
from trialpod.tune.search import create_searcher, prepare

PARAMETERS = 8
STEPS, RUNGS, WORKERS = 27, (1, 3, 9), 8


class _Trial:
    """What the scheduler sees of a trial."""

    def __init__(self, trial_id: str, config: dict[str, Any]) -> None:
        self.trial_id, self.config = trial_id, config
        self.checkpoint = object()
        self.status = "PAUSED"
        self.last_result: dict[str, Any] = {}


class _View:
    """What the scheduler sees of the experiment."""

    def __init__(self) -> None:
        self.paused: dict[str, _Trial] = {}

    def paused_trials(self, where: Callable[[_Trial], bool]) -> list[_Trial]:
        return [trial for trial in self.paused.values() if where(trial)]

    def get_trial(self, trial_id: str) -> _Trial | None:
        return self.paused.get(trial_id)

    def has_resources_for_trial(self, trial: _Trial) -> bool:
        return trial.trial_id in self.paused

    def pending_trials(self) -> list[_Trial]:
        return []

    def running_trials(self) -> list[_Trial]:
        return []

    def resources(self, trial: _Trial) -> dict[str, float]:
        return {"cpu": 1.0}


def measure(trials: int, decisions: int) -> dict[str, float]:
    """Return the costs at a number of trials, in milliseconds and bytes."""
    space = {f"x{number}": tune.uniform(0, 1) for number in range(PARAMETERS)}
    search = prepare(
        create_searcher("auto", startup=trials), space=space, num_samples=-1, metric="loss", mode="min", seed=1
    )
    searcher = search.searcher  # type: ignore[attr-defined]
    scheduler: Any = create_scheduler("auto", max_t=STEPS, grace_period=1, calibration=0)
    scheduler.set_search_properties("loss", "min")
    view: Any = _View()
    rng = random.Random(0)

    def loss(config: dict[str, Any], step: int) -> float:
        return sum((x - 0.3) ** 2 for x in config.values()) + 1 / step + rng.gauss(0, 0.01)

    def begin() -> _Trial:
        suggestion = search.next_suggestion()
        assert suggestion is not None
        trial = _Trial(suggestion.trial_id, dict(suggestion.config))
        scheduler.on_trial_add(view, trial)
        return trial

    def train(trial: _Trial, took: list[float]) -> None:
        """Train a trial from its first rung up to where it is paused or ends."""
        for step in (*RUNGS, STEPS):
            result = {"loss": loss(trial.config, step), "training_iteration": step}
            began = time.thread_time()
            decision = scheduler.on_trial_result(view, trial, result)
            took.append(time.thread_time() - began)
            if scheduler.filled_rung is not None:
                searcher.on_trial_rung(trial.trial_id, scheduler.filled_rung, result)
            if decision == scheduler.PAUSE:
                view.paused[trial.trial_id] = trial
                searcher.on_pause(trial.trial_id)
                return
        search.on_trial_complete(trial.trial_id, result)

    for _ in range(trials - WORKERS):
        train(begin(), [])
    running = [begin() for _ in range(WORKERS)]
    searcher._startup = 10  # noqa: SLF001  # from now on by the model
    suggested: list[float] = []
    judged: list[float] = []
    chosen: list[float] = []
    for _ in range(decisions):
        train(running.pop(0), judged)
        began = time.thread_time()
        scheduler.choose_trial_to_run(view)
        chosen.append(time.thread_time() - began)
        began = time.thread_time()
        running.append(begin())
        suggested.append(time.thread_time() - began)
    size = sum(len(json.dumps(part.get_state())) for part in (search, scheduler))
    return {
        "suggestion": _p95(suggested) * 1e3,
        "judgement": _p95(judged) * 1e3,
        "choice": _p95(chosen) * 1e3,
        "state": size / (trials + decisions),
    }


def _p95(values: list[float]) -> float:
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--decisions", type=int, default=100)
    options = parser.parse_args()
    print("p95 of the processor time in ms, and bytes of state for each trial")
    print(" trials  suggestion  judgement  choice  state")
    for trials in options.trials:
        cost = measure(trials, options.decisions)
        print(
            f"{trials:>7} {cost['suggestion']:>11.1f} {cost['judgement']:>10.2f} {cost['choice']:>7.2f} "
            f"{cost['state']:>6.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
