"""How fast and how small the engine is, alone: no processes, no journal, no network.

    python benchmarks/engine.py [--trials 100000] [--results 200000] [--members 1000]

Prints events and results per second, the time of many simulated trials, memory and snapshot size per trial, and how
long schedulers that pause and copy trials take for each result that they judge.
"""

from __future__ import annotations

import argparse
import gc
import time
import tracemalloc
from collections.abc import Callable

import msgspec

from trialpod.protocol.messages import AttemptEnd, CheckpointInfo
from trialpod.protocol.values import metrics_encoder
from trialpod.tune.schedulers.async_hyperband import AsyncHyperBandScheduler
from trialpod.tune.schedulers.fifo import FIFOScheduler
from trialpod.tune.schedulers.hyperband import HyperBandScheduler
from trialpod.tune.schedulers.pbt import PopulationBasedTraining
from trialpod.tune.schedulers.trial_scheduler import TrialScheduler
from trialpod.tune.search.basic_variant import BasicVariantGenerator
from trialpod.tune.search.sample import uniform
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.events import AttemptEnded, ResultsReceived, SettingsObserved
from trialpod_operator.engine.settings import Settings

MAX_T = 81
SCHEDULERS: dict[str, Callable[[], TrialScheduler]] = {
    "FIFO": FIFOScheduler,
    "ASHA": lambda: AsyncHyperBandScheduler(max_t=MAX_T, reduction_factor=3),
}
COMPLETED, STOPPED = AttemptEnd(cause="completed"), AttemptEnd(cause="stopped")
PAUSED = AttemptEnd(cause="paused")
MEMBERS: dict[str, Callable[[], TrialScheduler]] = {
    "HyperBand": lambda: HyperBandScheduler(max_t=MAX_T, reduction_factor=3),
    "PBT": lambda: _pbt(synch=False),
    "PBT synch": lambda: _pbt(synch=True),
}


def _pbt(synch: bool) -> PopulationBasedTraining:
    return PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=9,
        synch=synch,
        hyperparam_mutations={"lr": uniform(0.0, 1.0)},
    )


def make_engine(scheduler: TrialScheduler, num_samples: int) -> Engine:
    search = BasicVariantGenerator(seed=1)
    search.configure({"lr": uniform(0.0, 1.0), "layers": 3, "optimizer": "adam"}, num_samples)
    engine = Engine(search, scheduler)
    settings = Settings(
        name="bench", trainable_name="train", metric="score", num_samples=num_samples, max_concurrent=100
    )
    engine.apply(SettingsObserved(settings=settings), 1e9)
    return engine


def encoded(iteration: int, score: float, done: bool = False) -> msgspec.Raw:
    """Return a result of 15 keys, as the runner sends it."""
    result = {
        "score": score,
        "loss": 1.0 - score,
        "val/accuracy": score,
        "val/loss": 0.5,
        "epoch": iteration,
        "training_iteration": iteration,
        "time_this_iter_s": 0.01,
        "time_total_s": 0.01 * iteration,
        "time_since_restore": 0.01 * iteration,
        "iterations_since_restore": iteration,
        "timestamp": 1_700_000_000,
        "date": "2025-01-01_00-00-00",
        "done": done,
        "checkpoint_dir_name": None,
        "lr": 0.1,
    }
    return msgspec.Raw(metrics_encoder.encode(result))


def results_per_second(scheduler: TrialScheduler, total: int, batch: int) -> tuple[float, float]:
    """Return events and results per second, one answer to each event included; no result reaches a new rung."""
    engine = make_engine(scheduler, 16)
    now, count = 1e9, 0
    trials = list(engine.state.running)
    prepared: list[ResultsReceived] = []
    for number in range(0, total, batch):
        trial_id = trials[(number // batch) % len(trials)]
        first = number // (batch * len(trials)) * batch + 1
        raws = [encoded(2, 0.5)] * batch
        prepared.append(ResultsReceived(trial_id=trial_id, attempt=1, first=first, results=raws))
    started = time.perf_counter()
    for event in prepared:
        now += 1e-4
        engine.apply(event, now)
        engine.answer(event.trial_id, 1)
        count += 1
    took = time.perf_counter() - started
    if engine.state.flags.results != count * batch:
        raise SystemExit("some results were not counted")
    return count / took, count * batch / took


def run_trials(engine: Engine) -> None:
    """Run all trials to their end, 100 at a time, in batches up to the next horizon."""
    now = 1e9
    progress: dict[str, int] = {}
    cache = {(i, s): encoded(i, s / 97, i == MAX_T) for i in range(1, MAX_T + 1) for s in range(97)}
    scores: dict[str, int] = {}
    while not engine.finished:
        for trial_id, trial in list(engine.state.running.items()):
            now += 1e-4
            if trial_id not in scores:
                scores[trial_id] = trial.index * 31 % 97
            score, done = scores[trial_id], progress.get(trial_id, 0)
            horizons = engine.answer(trial_id, 1).horizons
            until = min((int(horizon.at) for horizon in horizons), default=MAX_T)
            batch = [cache[i, score] for i in range(done + 1, until + 1)]
            progress[trial_id] = until
            event = ResultsReceived(trial_id=trial_id, attempt=1, first=done + 1, results=batch)
            engine.apply(event, now)
            decision = engine.answer(trial_id, 1).decision
            if decision is not None or until == MAX_T:
                end = STOPPED if decision else COMPLETED
                engine.apply(AttemptEnded(trial_id=trial_id, attempt=1, end=end), now)
                del progress[trial_id], scores[trial_id]


def run_members(engine: Engine) -> int:
    """Run trials that are paused, copied and continue, to their end; return how many results were judged."""
    now, judged = 1e9, 0
    while not engine.finished:
        for trial_id, trial in list(engine.state.running.items()):
            if not trial.running:
                continue
            now += 1e-4
            attempt, checkpoint = trial.attempt, trial.checkpoint
            reached = (
                trial.iteration if trial.current.received else (checkpoint.iteration if checkpoint is not None else 0)
            )
            horizons = engine.answer(trial_id, attempt).horizons
            until = min((int(horizon.at) for horizon in horizons), default=MAX_T)
            until = min(max(until, reached + 1), MAX_T)
            score = trial.index * 31 % 97 / 97
            batch = [encoded(i, score, i == MAX_T) for i in range(reached + 1, until + 1)]
            index = trial.next_checkpoint_index
            saved = CheckpointInfo(
                name=f"c{index}", index=index, iteration=until, metrics={"training_iteration": until}, attempt=attempt
            )
            first = trial.current.received + 1
            event = ResultsReceived(trial_id=trial_id, attempt=attempt, first=first, results=batch, committed=[saved])
            engine.apply(event, now)
            judged += 1
            decision = engine.answer(trial_id, attempt).decision
            if decision is not None or until == MAX_T:
                end = {"stop": STOPPED, None: COMPLETED}.get(decision, PAUSED)
                engine.apply(AttemptEnded(trial_id=trial_id, attempt=attempt, end=end), now)
    return judged


def memory_per_trial(make: Callable[[], TrialScheduler], trials: int) -> float:
    """Return the bytes that are held for one trial once all have ended."""
    run_trials(make_engine(make(), 200))
    gc.collect()
    tracemalloc.start()
    engine = make_engine(make(), trials)
    run_trials(engine)
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / trials


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100_000, help="simulated trials per scheduler")
    parser.add_argument("--results", type=int, default=200_000, help="results per measurement of throughput")
    parser.add_argument("--members", type=int, default=1_000, help="trials of the schedulers that pause and copy")
    parser.add_argument("--memory-trials", type=int, default=5_000, help="trials of the memory measurement")
    options = parser.parse_args()

    print(f"{'scheduler':<10}{'batch':>6}{'events/s':>12}{'results/s':>12}")
    for name, make in SCHEDULERS.items():
        for batch in (1, 100):
            events, results = results_per_second(make(), options.results, batch)
            print(f"{name:<10}{batch:>6}{events:>12,.0f}{results:>12,.0f}")

    print(
        f"\n{'scheduler':<10}{'trials':>8}{'seconds':>9}{'results':>12}{'snapshot':>11}{'B/trial':>9}{'encode s':>9}"
    )
    for name, make in SCHEDULERS.items():
        engine = make_engine(make(), options.trials)
        started = time.perf_counter()
        run_trials(engine)
        took = time.perf_counter() - started
        started = time.perf_counter()
        size = len(engine.snapshot())
        encode = time.perf_counter() - started
        print(
            f"{name:<10}{options.trials:>8}{took:>9.1f}{engine.state.flags.results:>12,}"
            f"{size / 1e6:>8.1f} MB{size / options.trials:>9.0f}{encode:>6.2f}"
        )

    print(f"\n{'scheduler':<10}{'members':>8}{'seconds':>9}{'judged':>9}{'us each':>9}")
    for name, make in MEMBERS.items():
        engine = make_engine(make(), options.members)
        started = time.perf_counter()
        judged = run_members(engine)
        took = time.perf_counter() - started
        print(f"{name:<10}{options.members:>8}{took:>9.2f}{judged:>9,}{1e6 * took / judged:>9,.0f}")

    print(f"\n{'scheduler':<10}{'trials':>8}{'bytes of memory per finished trial':>36}")
    for name, make in SCHEDULERS.items():
        print(f"{name:<10}{options.memory_trials:>8}{memory_per_trial(make, options.memory_trials):>36,.0f}")


if __name__ == "__main__":
    main()
