"""The simulator's order on a real cluster: digits in pods, at equal CPU-seconds.

    make cluster cluster-image
    tools/cluster/exec .venv/bin/python benchmarks/quality/digits.py [--cpu-seconds 30] [--seeds 1 2 3] [--minutes 15]
    python benchmarks/quality/digits.py --simulate 20

For each seed the experiments of all methods run side by side; those that the file of results has already are not run
again. Each trial of `digits_trial` reports the processor time of its process, and an experiment ends when its trials
have used as much as each of the others. Waiting for pods costs nothing in this unit. All methods begin with the same
ten configs. What counts is the config whose latest loss is the lowest at that moment: it is trained to its end here,
which gives the same network as in a pod, and its loss becomes a regret, as in the simulator. At the end come mean and
standard deviation over seeds, and the differences between methods of the same seed with their 95 % intervals.
`--simulate` prints the same table for the simulator, with the same curves, start points and number of workers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "cluster"))

import measure
from environments import CACHE, ROOT
from methods import find
from simulator import Conditions, Simulation
from space import Parameter
from tasks.digits import EPOCHS, START_S, DigitsTask, epoch_s
from tasks.references import load_reference

PARALLEL = 4
SHARES = (0.25, 0.5, 1.0)
LIMIT_S = 400.0
"""Maximum time for the experiments of a seed; then they are compared at what all have used."""

SOURCE = Path(__file__).with_name("digits_trial.py").read_text()

_RUNGS = {"max_t": EPOCHS, "grace_period": DigitsTask.first_rung, "reduction_factor": 3}
METHODS = {"auto": ("auto", "auto"), "pair": ("asha", "optuna"), "fifo": ("fifo", "random")}
"""What is compared, as scheduler and search: `auto`, ASHA with Optuna's TPE, random search without early stopping."""

_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's t for a two-sided interval of 95 %, by degrees of freedom from 1."""


@dataclass(frozen=True)
class Report:
    """One result of a trial.

    Attributes:
        time: when it came.
        cpu_s: what its process had used since the result before.
        trial: its id.
        config: its config.
        loss: the value that is minimised.
        epoch: number of epochs that the trial has had.
        starts: whether it is the first of its process.
    """

    time: float
    cpu_s: float
    trial: str
    config: dict[str, Any]
    loss: float
    epoch: int
    starts: bool

    @property
    def nominal_s(self) -> float:
        """The processor time that it takes on a free processor, by the simulator's costs."""
        return epoch_s(self.config) + (START_S if self.starts else 0.0)


def reports(results: list[list[dict[str, Any]]]) -> list[Report]:
    """Return all results of an experiment in the order in which they came.

    Args:
        results: the rows of each trial's result.json; where `cpu_s` falls, another process has continued the trial.
    """
    found = []
    for rows in results:
        before = 0.0
        for number, row in enumerate(rows):
            starts = number == 0 or row["cpu_s"] < before
            used = row["cpu_s"] if starts else row["cpu_s"] - before
            before = row["cpu_s"]
            epoch = row["training_iteration"]
            found.append(Report(row["timestamp"], used, row["trial_id"], row["config"], row["loss"], epoch, starts))
    return sorted(found, key=lambda each: (each.time, each.trial, each.epoch))


def measured(report: Report) -> float:
    """Return the processor time that a result has cost."""
    return report.cpu_s


def nominal(report: Report) -> float:
    """Return what it would have cost on a free processor."""
    return report.nominal_s


def returned(
    found: list[Report], cpu_s: float, cost: Callable[[Report], float] = measured
) -> tuple[dict[str, Any], float, int, int]:
    """Return what an experiment has when it has used so much: config, its loss, trials, and full trainings."""
    latest: dict[str, Report] = {}
    used = 0.0
    for each in found:
        used += cost(each)
        if used > cpu_s:
            break
        latest[each.trial] = each
    best = min(latest.values(), key=lambda each: each.loss)
    return best.config, best.loss, len(latest), sum(each.epoch == EPOCHS for each in latest.values())


def mean_and_spread(values: Sequence[float]) -> str:
    """Return the mean of some numbers with their standard deviation."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.3f} ± {spread:.3f}"


def difference(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean difference of pairs, at least two, with its 95 % interval by Student's t."""
    each = [a - b for a, b in zip(ours, theirs, strict=True)]
    middle, count = statistics.fmean(each), len(each)
    t = _T_95[count - 2] if count - 2 < len(_T_95) else 2.13 if count < 20 else 2.09 if count < 40 else 2.02
    half = t * statistics.stdev(each) / count**0.5
    return middle, middle - half, middle + half


def table(regrets: dict[str, list[list[float]]]) -> str:
    """Return mean regrets and paired differences as text.

    Args:
        regrets: of each method and seed, the regret at each of `SHARES`.
    """
    lines = ["regret at      " + "".join(f"{f'{share:.0%}':>17}" for share in SHARES)]
    for method, rows in regrets.items():
        cells = "".join(f"{mean_and_spread([row[n] for row in rows]):>17}" for n in range(len(SHARES)))
        lines.append(f"{method:<15}{cells}   n={len(rows)}; at the end {', '.join(f'{r[-1]:.3f}' for r in rows)}")
    for ours, theirs in combinations(regrets, 2):
        if len(regrets[ours]) < 2:
            continue
        cells = []
        for n in range(len(SHARES)):
            pair = [[row[n] for row in regrets[method]] for method in (ours, theirs)]
            middle, low, high = difference(*pair)
            cells.append(f"{middle:+.3f} ({low:+.3f} to {high:+.3f})")
        ends = [(a[-1], b[-1]) for a, b in zip(regrets[ours], regrets[theirs], strict=True)]
        wins = sum(1.0 if a < b - 1e-9 else 0.5 if a <= b + 1e-9 else 0.0 for a, b in ends)
        lines.append(f"{f'{ours} - {theirs}':<15}{', '.join(cells)}; lower in {wins:g} of {len(ends)}")
    return "\n".join(lines)


def domain(parameter: Parameter) -> dict[str, Any]:
    """Return a parameter in a manifest's form."""
    if parameter.kind == "choice":
        return {"choice": list(parameter.choices)}
    if parameter.kind == "int":
        return {"randint": [int(parameter.low), int(parameter.high) + 1]}
    return {"loguniform" if parameter.log else "uniform": [parameter.low, parameter.high]}


def manifest(namespace: Any, method: str, seed: int) -> dict[str, Any]:
    """Return the experiment of a method."""
    from experiments import storage_spec

    scheduler, search = METHODS[method]
    task = DigitsTask()
    return {
        "apiVersion": "trialpod.dev/v1alpha1",
        "kind": "TuneExperiment",
        "metadata": {"name": f"{method}-{seed}", "namespace": namespace.namespace},
        "spec": {
            "trainable": {"source": SOURCE, "attribute": "train_counted"},
            "searchSpace": {parameter.name: domain(parameter) for parameter in task.space},
            "searchAlgorithm": {"name": search, "parameters": {"points_to_evaluate": task.start_points(seed)}},
            "scheduler": {"name": scheduler, "parameters": {} if scheduler == "fifo" else _RUNGS},
            "metric": "loss",
            "mode": "min",
            "numSamples": 500,
            "maxConcurrentTrials": PARALLEL,
            "reusePods": True,
            "seed": seed,
            "checkpoint": {"numToKeep": 1},
            "storage": storage_spec(namespace),
            "resources": {"cpu": "100m", "memory": "256Mi"},
            "template": {"spec": {"terminationGracePeriodSeconds": 2}},
        },
    }


def run(namespace: Any, method: str, seed: int, cpu_s: float) -> list[Report]:
    """Run one experiment until its trials have used so much, and return its results."""
    from experiments import Experiment

    experiment = Experiment.apply(namespace, manifest(namespace, method, seed))
    deadline = time.monotonic() + LIMIT_S
    found: list[Report] = []
    while time.monotonic() < deadline:
        time.sleep(5)
        found = reports(experiment.results())
        used = sum(each.cpu_s for each in found)
        # By nominal costs too, so that both accounts reach the end.
        if min(used, sum(each.nominal_s for each in found)) >= cpu_s:
            break
        if status := experiment.status.get("completionTime"):
            raise SystemExit(f"{method} ended at {status}, after {used:.0f} CPU-seconds: {experiment.status}")
    namespace.kubectl("delete", "tuneexperiment", f"{method}-{seed}", "--wait=false")
    return found


def run_missing(wanted: Sequence[tuple[str, int]], cpu_s: float, minutes: float, out: Path) -> None:
    """Run what the file of results has not, seed by seed, until the time is over; add it to the file."""
    from cluster_access import Cluster
    from operator_release import Operator

    began = time.monotonic()
    Operator.install(Cluster())
    namespace = Cluster().make_namespace("digits")
    try:
        for seed in dict.fromkeys(seed for _, seed in wanted):
            if time.monotonic() - began > 60 * minutes:
                print(f"seed {seed} and those after it were not run: {minutes:g} minutes are over")
                return
            methods = [method for method, its in wanted if its == seed]
            with ThreadPoolExecutor(len(methods)) as pool:
                runs = list(pool.map(lambda method, s=seed: run(namespace, method, s, cpu_s), methods))
            with out.open("a") as file:
                for method, found in zip(methods, runs, strict=True):
                    rows = [asdict(each) for each in found]
                    file.write(json.dumps({"method": method, "seed": seed, "reports": rows}) + "\n")
            print(f"seed {seed}: {time.monotonic() - began:.0f} s after the beginning", flush=True)
    finally:
        namespace.delete_namespace(namespace.namespace)


def stored(file: Path) -> dict[tuple[str, int], list[Report]]:
    """Return the results that a file has, by method and seed."""
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {(line["method"], line["seed"]): [Report(**row) for row in line["reports"]] for line in lines}


def print_runs(task: DigitsTask, known: dict[tuple[str, int], list[Report]], options: argparse.Namespace) -> None:
    """Print what each method has found for what all have used, by measured and by nominal processor time."""
    seeds = [seed for seed in options.seeds if all((method, seed) in known for method in options.methods)]
    for name, cost in (("measured", measured), ("nominal", nominal)):
        regrets: dict[str, list[list[float]]] = {method: [] for method in options.methods}
        for seed in seeds:
            runs = {method: known[method, seed] for method in options.methods}
            equal = min([options.cpu_seconds, *(sum(map(cost, found)) for found in runs.values())])
            cells = []
            for method, found in runs.items():
                configs = [returned(found, share * equal, cost)[0] for share in SHARES]
                regrets[method].append([measure.normalised(task.final(each), task.reference) for each in configs])
                _, _, trials, full = returned(found, equal, cost)
                cells.append(f"{method} {trials} trials, {full} full")
            print(f"seed {seed}, {equal:.1f} {name} CPU-seconds each: {'; '.join(cells)}")
        print(table(regrets), flush=True)
    for method in options.methods:
        rows = [each for seed in seeds for each in known[method, seed]]
        if rows:
            ratio = sum(map(measured, rows)) / sum(map(nominal, rows))
            print(f"{method}: measured processor time is {ratio:.2f} times the nominal one, {len(rows)} results")


def simulate(
    task: DigitsTask, methods: Sequence[str], seeds: Sequence[int], cpu_s: float
) -> dict[str, list[list[float]]]:
    """Return the regrets that the simulator says."""
    unit = task.reference.full_training_s
    conditions = Conditions(workers=PARALLEL, budget=cpu_s / unit, overhead=START_S / unit)
    found: dict[str, list[list[float]]] = {}
    for method in methods:
        tuner = find("+".join(METHODS[method])).make()
        outcomes = [Simulation(task, tuner, seed, conditions).run() for seed in seeds]
        found[method] = [[measure.regret(each, task.reference, share) for share in SHARES] for each in outcomes]
        trials = statistics.fmean(each.trials for each in outcomes)
        full = statistics.fmean(each.completed for each in outcomes)
        print(f"{method}: {trials:.0f} trials, {full:.0f} full trainings", flush=True)
    return found


def main() -> int:
    """Run all, and print what each has found for the CPU-seconds that all have used."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--cpu-seconds", type=float, default=30.0, help="for each experiment")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(1, 11)))
    parser.add_argument("--minutes", type=float, default=60.0, help="after these no further seed is started")
    parser.add_argument("--out", type=Path, default=ROOT / "build/quality/digits.jsonl", help="all results")
    parser.add_argument("--simulate", type=int, metavar="N", help="print what the simulator says for seeds 1 to N")
    options = parser.parse_args()
    task = DigitsTask()
    load_reference(task, CACHE / "references")
    if options.simulate:
        seeds = range(1, options.simulate + 1)
        print(f"budget: {options.cpu_seconds / task.reference.full_training_s:.1f} full trainings; {task.reference}")
        print(table(simulate(task, options.methods, seeds, options.cpu_seconds)))
        return 0
    options.out.parent.mkdir(parents=True, exist_ok=True)
    wanted = [(method, seed) for seed in options.seeds for method in options.methods]
    known = stored(options.out)
    if missing := [each for each in wanted if each not in known]:
        from cluster_access import not_inside

        if reason := not_inside():
            print(reason)
            return 2
        run_missing(missing, options.cpu_seconds, options.minutes, options.out)
        known = stored(options.out)
    print_runs(task, known, options)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
