"""Asks Ray Tune's own schedulers what they decide, over random histories, and writes that down as test data.

    .cache/bench-ray/venv/bin/python tools/compare_with_ray/generate.py > tests/data/ray_scheduler_decisions.json

Needs an environment with ``ray[tune]==2.60.0`` (benchmarks/scratch_environment.py makes one). No cluster is started:
the schedulers are driven directly, with stand-ins for trials and controller. Values are multiples of 1/64, so that
sums are exact and equal values are equal on both sides.
"""

# ruff: noqa: SLF001  # the point is to look inside

from __future__ import annotations

import itertools
import json
import random
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import ray
from ray.tune.execution.placement_groups import PlacementGroupFactory
from ray.tune.schedulers import pbt as ray_pbt
from ray.tune.schedulers.async_hyperband import AsyncHyperBandScheduler
from ray.tune.schedulers.hb_bohb import HyperBandForBOHB
from ray.tune.schedulers.hyperband import HyperBandScheduler
from ray.tune.schedulers.median_stopping_rule import MedianStoppingRule
from ray.tune.schedulers.pbt import PopulationBasedTraining
from ray.tune.schedulers.resource_changing_scheduler import DistributeResources, DistributeResourcesToTopJob
from ray.tune.schedulers.trial_scheduler import FIFOScheduler
from ray.tune.search import sample

WAITING = ("PENDING", "PAUSED")
LIVE = (*WAITING, "RUNNING")


class _Trial:
    """What Ray's schedulers touch of a trial."""

    is_saving = False

    def __init__(self, number: int, config: dict[str, Any]) -> None:
        self.number, self.config = number, config
        self.trial_id = self.experiment_tag = str(number)
        self.status = "PENDING"
        self.time = 0
        self.last_result: dict[str, Any] = {}
        self.checkpoint: Any = None
        self.evaluated_params: dict[str, Any] = {}
        self.temporary_state = SimpleNamespace(saving_to=None)
        keep = SimpleNamespace(num_to_keep=None)
        self.run_metadata = SimpleNamespace(checkpoint_manager=SimpleNamespace(checkpoint_config=keep))

    def is_finished(self) -> bool:
        return self.status not in LIVE

    def set_config(self, config: dict[str, Any]) -> None:
        self.config = config

    def set_experiment_tag(self, tag: str) -> None:
        self.experiment_tag = tag


class _Controller:
    """What Ray's schedulers touch of the controller; remembers what they asked for."""

    search_alg = SimpleNamespace(searcher=SimpleNamespace(on_pause=lambda _: None, on_unpause=lambda _: None))

    def __init__(self, scheduler: Any, trials: list[_Trial]) -> None:
        self.scheduler, self.trials = scheduler, trials
        self.stopped: list[int] = []

    def get_trials(self) -> list[_Trial]:
        return self.trials

    def get_live_trials(self) -> list[_Trial]:
        return [trial for trial in self.trials if trial.status in LIVE]

    def stop_trial(self, trial: _Trial) -> None:
        self.stopped.append(trial.number)
        trial.status = "TERMINATED"
        self.scheduler.on_trial_remove(self, trial)

    def pause_trial(self, trial: _Trial, should_checkpoint: bool = True) -> None:
        trial.status = "PAUSED"

    def _schedule_trial_save(self, trial: _Trial, result: dict[str, Any]) -> Any:
        return SimpleNamespace(trial=trial.number, time=trial.time)

    def start(self, slots: int) -> list[int]:
        started = []
        while sum(trial.status == "RUNNING" for trial in self.trials) < slots:
            chosen = self.scheduler.choose_trial_to_run(self)
            if chosen is None:
                break
            chosen.status = "RUNNING"
            started.append(chosen.number)
        return started


def _history(
    scheduler: Any,
    rng: random.Random,
    *,
    trials: int,
    steps: int,
    slots: int = 99,
    jumps: bool = False,
    ends: bool = True,
) -> dict[str, Any]:
    """Let `scheduler` decide over a random history.

    Returns:
        ``first``: which trials start at first; ``events``: rows of [kind, trial, time, value in 1/64, decision,
        others stopped, trials started then]. Kinds: r(esult), c(omplete), e(rror without a retry).
    """
    population = [_Trial(number, {"x": 1.0}) for number in range(trials)]
    controller = _Controller(scheduler, population)
    if isinstance(scheduler, PopulationBasedTraining):
        controller.search_alg = None  # type: ignore[assignment]
    for trial in population:
        scheduler.on_trial_add(controller, trial)
    first, events = controller.start(slots), []
    for _ in range(steps):
        running = [trial for trial in population if trial.status == "RUNNING"]
        if not running:
            break
        trial = rng.choice(running)
        kind = rng.choices("rce", (60, 1, 1))[0] if ends else "r"
        value = rng.choice((8, 16, 32, 32, 40, 64, rng.randrange(128)))
        trial.time += rng.choice((1, 2, 5)) if jumps else 1
        time = trial.time  # an exploit sets it back
        result = {"training_iteration": time, "score": value / 64}
        decision = ""
        if kind == "r":
            decision = scheduler.on_trial_result(controller, trial, dict(result))
            trial.last_result = result
            if trial.status == "RUNNING":
                trial.status = {"CONTINUE": "RUNNING", "PAUSE": "PAUSED", "STOP": "TERMINATED"}[decision]
        elif kind == "c":
            trial.status = "TERMINATED"
            scheduler.on_trial_complete(controller, trial, dict(result))
        else:
            trial.status = "ERROR"
            scheduler.on_trial_error(controller, trial)
        stopped, controller.stopped = controller.stopped, []
        row = [kind, trial.number, time, value, decision[:1], sorted(stopped), controller.start(slots)]
        events.append(row)
    return {"trials": trials, "slots": slots, "first": first, "events": events}


def _asha(rng: random.Random, arguments: dict[str, Any]) -> dict[str, Any]:
    np.random.seed(rng.randrange(2**31))
    scheduler = AsyncHyperBandScheduler(metric="score", **arguments)
    add, drawn = scheduler.on_trial_add, list[int]()
    numbers = {id(bracket): number for number, bracket in enumerate(scheduler._brackets)}

    def on_trial_add(controller: _Controller, trial: _Trial) -> None:
        add(controller, trial)
        drawn.append(numbers[id(scheduler._trial_info[trial.trial_id])])

    scheduler.on_trial_add = on_trial_add
    case = _history(scheduler, rng, trials=12, steps=150, jumps=rng.random() < 0.5)
    case["brackets"] = drawn
    return case


def _population(rng: random.Random, arguments: dict[str, Any]) -> dict[str, Any]:
    """Record PBT's exploits, too: [target, source, time of the source's checkpoint] for each event."""
    scheduler = PopulationBasedTraining(
        metric="score",
        time_attr="training_iteration",
        hyperparam_mutations={"x": [1.0]},
        log_config=False,
        **arguments,
    )
    exploits: list[list[int]] = []
    perform = scheduler._exploit

    def exploit(controller: _Controller, target: _Trial, source: _Trial) -> None:
        checkpoint = scheduler._trial_state[source].last_checkpoint
        exploits.append([target.number, source.number, checkpoint.time])
        target.time = checkpoint.time
        target.checkpoint = checkpoint
        perform(controller, target, source)

    def choose(sources: list[Any]) -> Any:
        # Of several top trials one that has a checkpoint: Ray skips the exploit otherwise, which is luck.
        if isinstance(sources[0], _Trial):
            ready = [source for source in sources if scheduler._trial_state[source].last_checkpoint is not None]
            return rng.choice(ready or sources)
        return sources[0]

    decide = scheduler.on_trial_result
    log: list[dict[str, Any]] = []

    def on_trial_result(controller: _Controller, trial: _Trial, result: dict[str, Any]) -> str:
        exploits.clear()
        if arguments["synch"]:
            trial.checkpoint = SimpleNamespace(trial=trial.number, time=trial.time)  # a paused trial has one
        decision = decide(controller, trial, result)
        states = scheduler._trial_state
        saved = [[t.number, states[t].last_checkpoint.time] for t in controller.trials if states[t].last_checkpoint]
        log.append({"exploits": [list(row) for row in exploits], "saved": saved})
        return decision

    scheduler._exploit, scheduler.on_trial_result = exploit, on_trial_result
    ray_pbt.random = SimpleNamespace(choice=choose, random=lambda: 0.5)
    case = _history(scheduler, rng, trials=8, steps=140, slots=8 if rng.random() < 0.7 else 5, ends=False)
    for event, entry in zip(case["events"], log, strict=True):
        event.append(entry["exploits"])
    return case


def _explorations(rng: random.Random) -> list[list[Any]]:
    """Return [domain as in a manifest, old value, which of the factors or directions, Ray's new value]."""
    domains = {
        "uniform": (sample.uniform, (0.5, 4.0)),
        "loguniform": (sample.loguniform, (0.001, 1.0)),
        "randint": (sample.randint, (1, 50)),
        "qrandint": (sample.qrandint, (10, 100, 10)),
    }
    rows = []
    for name, (make, bounds) in domains.items():
        for _ in range(20):
            whole = "int" in name
            old = rng.randrange(bounds[0], bounds[1]) if whole else round(rng.uniform(bounds[0], bounds[1]), 4)
            for which in (0, 1):
                ray_pbt.random = SimpleNamespace(random=lambda: 1.0, choice=lambda options, w=which: options[w])
                new, _ = ray_pbt._explore({"x": old}, {"x": make(*bounds)}, 0.0, (1.2, 0.8), None)
                rows.append([{name: list(bounds)}, old, which, new["x"]])
    for old, which in itertools.product((1, 10, 100), (0, 1)):
        ray_pbt.random = SimpleNamespace(random=lambda: 1.0, choice=lambda options, w=which: options[w])
        new, _ = ray_pbt._explore({"x": old}, {"x": [1, 10, 100]}, 0.0, (1.2, 0.8), None)
        rows.append([[1, 10, 100], old, which, new["x"]])
    return rows


def _allocation(rng: random.Random) -> dict[str, Any]:
    """Return one question to DistributeResources or DistributeResourcesToTopJob, and Ray's answer."""
    top = rng.random() < 0.5
    base = rng.choice(({"CPU": 1}, {"CPU": 2}, {"CPU": 2, "GPU": 1}))
    total = {"CPU": rng.randrange(4, 40), "GPU": rng.randrange(2, 9) if "GPU" in base else 0}
    increase = rng.choice((None, {"CPU": 1}, {"CPU": 2})) if "GPU" not in base else rng.choice((None, {"GPU": 1}))
    times = rng.choice((-1, -1, 2, 4))
    count = rng.randrange(1, 6)
    unit = increase or ({"GPU": 1} if "GPU" in base else {"CPU": 1})
    held = [rng.randrange(0, 3) for _ in range(count)]
    scores = rng.sample(range(100), count)
    trials = []
    for number in range(count):
        bundle = {k: base.get(k, 0) + unit.get(k, 0) * held[number] for k in ("CPU", "GPU")}
        trial = _Trial(number, {})
        trial.status = "RUNNING"
        trial.placement_group_factory = PlacementGroupFactory([{k: v for k, v in bundle.items() if v}])  # type: ignore[attr-defined]
        trial.last_result = {"score": scores[number], "training_iteration": 2}
        trials.append(trial)
    controller = _Controller(None, trials)
    controller._resource_updater = SimpleNamespace(  # type: ignore[attr-defined]
        get_num_cpus=lambda: total["CPU"], get_num_gpus=lambda: total["GPU"]
    )
    options: dict[str, Any] = {"increase_by": increase, "increase_by_times": times}
    function = (
        DistributeResourcesToTopJob(metric="score", mode="max", **options) if top else DistributeResources(**options)
    )
    scheduler = SimpleNamespace(base_trial_resources=PlacementGroupFactory([base]))
    answer = function(controller, trials[0], {"training_iteration": 2}, scheduler)
    new = {k: v for k, v in answer.bundles[0].items() if v}
    return {"top": top, "base": base, "total": total, **options, "held": held, "scores": scores, "new": new}


def _partial_bands() -> tuple[list[Any], list[Any]]:
    """Return histories of brackets that are not full, and of trials that jump over rungs."""
    found: tuple[list[Any], list[Any]] = ([], [])
    for seed in range(24):
        rng = random.Random(1000 + seed)
        max_t, eta = rng.choice(((9, 3), (8, 2), (16, 4), (100, 4), (10, 3)))
        arguments = {
            "mode": ("min", "max")[seed % 2],
            "max_t": max_t,
            "reduction_factor": eta,
            "stop_last_trials": seed % 4 != 3,
        }
        for cases, cls in zip(found, (HyperBandScheduler, HyperBandForBOHB), strict=True):
            trials, slots, jumps = rng.randrange(3, 16), rng.choice((99, 4)), seed % 3 == 0
            try:
                case = _history(
                    cls(metric="score", **arguments),
                    rng,
                    trials=trials,
                    steps=150,
                    slots=slots,
                    jumps=jumps,
                    ends=cls is HyperBandScheduler,
                )
            except (AssertionError, KeyError, TypeError, ray.tune.TuneError):
                continue  # Ray gives up
            cases.append({"arguments": arguments, **case})
    return found


def main() -> None:
    """Write the test data to the standard output."""
    cases: dict[str, list[Any]] = {"fifo": [], "asha": [], "median": [], "hyperband": [], "hb_bohb": [], "pbt": []}
    for seed in range(12):
        rng = random.Random(seed)
        mode = ("min", "max")[seed % 2]
        cases["fifo"].append({"arguments": {}, **_history(FIFOScheduler(), rng, trials=6, steps=30, slots=3)})
        for brackets in (1, 3):
            arguments = {
                "mode": mode,
                "max_t": rng.choice((9, 27, 30)),
                "grace_period": rng.choice((1, 2)),
                "reduction_factor": rng.choice((2, 3, 4)),
                "brackets": brackets,
                "stop_last_trials": seed % 3 != 0,
            }
            cases["asha"].append({"arguments": arguments, **_asha(rng, arguments)})
        arguments = {
            "mode": mode,
            "time_attr": "training_iteration",
            "grace_period": rng.choice((1, 3, 5)),
            "min_samples_required": rng.choice((1, 2, 3)),
            "min_time_slice": rng.choice((0, 2)),
            "hard_stop": seed % 3 != 0,
        }
        scheduler = MedianStoppingRule(metric="score", **arguments)
        slots = rng.choice((3, 5, 8))
        case = _history(scheduler, rng, trials=8, steps=120, slots=slots, jumps=seed % 4 == 0)
        cases["median"].append({"arguments": arguments, **case})
        for name, cls in (("hyperband", HyperBandScheduler), ("hb_bohb", HyperBandForBOHB)):
            max_t, eta = ((9, 3), (8, 2), (16, 4))[seed % 3]
            arguments = {"mode": mode, "max_t": max_t, "reduction_factor": eta, "stop_last_trials": seed % 4 != 3}
            band = {(9, 3): 17, (8, 2): 22, (16, 4): 25}[max_t, eta]
            slots = rng.choice((99, 7))
            case = _history(
                cls(metric="score", **arguments),
                rng,
                trials=band,
                steps=190,
                slots=slots,
                ends=name == "hyperband" and seed % 2 == 1,
            )
            cases[name].append({"arguments": arguments, **case})
        arguments = {
            "mode": mode,
            "perturbation_interval": rng.choice((2, 3, 4)),
            "burn_in_period": rng.choice((0, 0, 5)),
            "quantile_fraction": rng.choice((0.125, 0.25, 0.5)),
            "synch": seed % 3 == 0,
        }
        cases["pbt"].append({"arguments": arguments, **_population(rng, arguments)})
    cases["hyperband_partial"], cases["hb_bohb_partial"] = _partial_bands()
    rng = random.Random(1)
    document = {
        "ray": ray.__version__,
        "cases": cases,
        "explorations": _explorations(rng),
        "allocations": [_allocation(rng) for _ in range(300)],
    }
    json.dump(document, sys.stdout, separators=(",", ":"))
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
