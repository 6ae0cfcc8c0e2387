"""The simulator's order on a real cluster: digits in pods, at equal CPU-seconds.

    make cluster cluster-image
    tools/cluster/exec .venv/bin/python benchmarks/quality/digits.py [--cpu-seconds 60] [--methods auto asha fifo]

One experiment after the other trains the networks of examples/digits; those that the file of results has already are
not run again. Each trial reports the processor time of its
process, imports included, and an experiment ends when its trials have used as much as each of the others. Waiting for
pods costs nothing in this unit, so a busy machine changes little. What counts is the config whose latest accuracy is
the highest at that moment: it is trained to its end here, which gives the same network as in a pod. At the end comes
the mean over seeds, with its standard deviation, at a quarter, at half and at the whole of the CPU-seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "cluster"), str(ROOT / "examples" / "digits")]

EPOCHS, FIRST_RUNG, PARALLEL = 27, 3, 4
SHARES = (0.25, 0.5, 1.0)
LIMIT_S = 300.0
"""Maximum time for one experiment; then the others are compared at what it has used."""

SOURCE = """
import time
from types import SimpleNamespace

import train
from trialpod import tune


def report(metrics, **options):
    tune.report({**metrics, "cpu_s": time.process_time()}, **options)


train.tune = SimpleNamespace(report=report, get_checkpoint=tune.get_checkpoint, Checkpoint=tune.Checkpoint)


def train_counted(config):
    train.train_digits(config)
"""

_RUNGS = {"max_t": EPOCHS, "grace_period": FIRST_RUNG, "reduction_factor": 3}
METHODS: dict[str, dict[str, Any]] = {
    "auto": {"scheduler": {"name": "auto", "parameters": _RUNGS}, "searchAlgorithm": {"name": "auto"}},
    "asha": {"scheduler": {"name": "asha", "parameters": _RUNGS}},
    "fifo": {},
}
"""What is compared: `auto`, random search with ASHA, and random search without early stopping."""


@dataclass(frozen=True)
class Report:
    """One result of a trial: when it came, what its process had used since the result before, and what it says."""

    time: float
    cpu_s: float
    trial: str
    config: dict[str, Any]
    accuracy: float
    epoch: int


def reports(results: list[list[dict[str, Any]]]) -> list[Report]:
    """Return all results of an experiment in the order in which they came.

    Args:
        results: the rows of each trial's result.json; where `cpu_s` falls, another process has continued the trial.
    """
    found = []
    for rows in results:
        before = 0.0
        for row in rows:
            used = row["cpu_s"] - before if row["cpu_s"] >= before else row["cpu_s"]
            before = row["cpu_s"]
            epoch = row["training_iteration"]
            found.append(Report(row["timestamp"], used, row["trial_id"], row["config"], row["accuracy"], epoch))
    return sorted(found, key=lambda each: (each.time, each.trial, each.epoch))


def returned(found: list[Report], cpu_s: float) -> tuple[dict[str, Any], float, int, int]:
    """Return what an experiment has when it has used so much: config, its accuracy, trials, and full trainings."""
    latest: dict[str, Report] = {}
    used = 0.0
    for each in found:
        used += each.cpu_s
        if used > cpu_s:
            break
        latest[each.trial] = each
    best = max(latest.values(), key=lambda each: each.accuracy)
    return best.config, best.accuracy, len(latest), sum(each.epoch == EPOCHS for each in latest.values())


def final_accuracy(config: dict[str, Any]) -> float:
    """Return the accuracy after a full training."""
    import train

    layers = train.new_layers([64, *[config["units"]] * config["layers"], 10])
    speeds = [[[0.0] * len(row) for row in layer] for layer in layers]
    for epoch in range(1, EPOCHS + 1):
        images = random.Random(epoch).sample(train.TRAIN, len(train.TRAIN))
        for start in range(0, len(images), config["batch_size"]):
            batch = images[start : start + config["batch_size"]]
            train.learn(layers, speeds, batch, config["lr"], config["alpha"])
    return float(train.accuracy(layers))


def mean_and_spread(values: Sequence[float]) -> str:
    """Return the mean of some accuracies with their standard deviation."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.4f} ± {spread:.4f} (n={len(values)})"


def run(namespace: Any, method: str, seed: int, cpu_s: float) -> list[Report]:
    """Run one experiment until its trials have used so much, and return its results."""
    from experiments import Experiment, storage_spec

    document = {
        "apiVersion": "trialpod.dev/v1alpha1",
        "kind": "TuneExperiment",
        "metadata": {"name": f"{method}-{seed}", "namespace": namespace.namespace},
        "spec": {
            "trainable": {"source": SOURCE, "attribute": "train_counted"},
            "searchSpace": {
                "lr": {"loguniform": [1e-3, 1]},
                "alpha": {"loguniform": [1e-6, 1e-2]},
                "units": {"qrandint": [8, 24, 8]},
                "layers": {"choice": [1, 2]},
                "batch_size": {"choice": [32, 64, 128]},
                "epochs": EPOCHS,
            },
            "metric": "accuracy",
            "mode": "max",
            "numSamples": 500,
            "maxConcurrentTrials": PARALLEL,
            "reusePods": True,
            "seed": seed,
            "checkpoint": {"numToKeep": 1},
            "storage": storage_spec(namespace),
            "resources": {"cpu": "100m", "memory": "256Mi"},
            "template": {"spec": {"terminationGracePeriodSeconds": 2}},
            **METHODS[method],
        },
    }
    experiment = Experiment.apply(namespace, document)
    deadline = time.monotonic() + LIMIT_S
    found: list[Report] = []
    while time.monotonic() < deadline:
        time.sleep(3)
        found = reports(experiment.results())
        used = sum(each.cpu_s for each in found)
        if used >= cpu_s:
            break
        if status := experiment.status.get("completionTime"):
            raise SystemExit(f"{method} ended at {status}, after {used:.0f} CPU-seconds: {experiment.status}")
    namespace.kubectl("delete", "tuneexperiment", f"{method}-{seed}", "--wait=false")
    return found


def _stored(file: Path) -> dict[tuple[str, int], list[Report]]:
    """Return the results that a file has, by method and seed."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return {(line["method"], line["seed"]): [Report(**row) for row in line["reports"]] for line in lines}


def main() -> int:
    """Run all, and print what each has found for the CPU-seconds that all have used."""
    from cluster_access import Cluster, not_inside
    from operator_release import Operator

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--cpu-seconds", type=float, default=60.0, help="for each experiment")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--out", type=Path, default=ROOT / "build/quality/digits.jsonl", help="all results")
    options = parser.parse_args()
    if reason := not_inside():
        print(reason)
        return 2
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.touch()
    known = _stored(options.out)
    wanted = [(method, seed) for seed in options.seeds for method in options.methods]
    if missing := [each for each in wanted if each not in known]:
        Operator.install(Cluster())
        namespace = Cluster().make_namespace("digits")
        try:
            for method, seed in missing:
                found = known[method, seed] = run(namespace, method, seed, options.cpu_seconds)
                with options.out.open("a") as file:
                    rows = [asdict(each) for each in found]
                    file.write(json.dumps({"method": method, "seed": seed, "reports": rows}) + "\n")
        finally:
            namespace.delete_namespace(namespace.namespace)
    trained: dict[str, float] = {}
    at_shares: dict[tuple[str, float], list[float]] = {}
    for seed in options.seeds:
        runs = {method: known[method, seed] for method in options.methods}
        equal = min([options.cpu_seconds, *(sum(each.cpu_s for each in found) for found in runs.values())])
        print(f"seed {seed}, {equal:.0f} CPU-seconds each", flush=True)
        for method, found in runs.items():
            for share in SHARES:
                config, accuracy, trials, full = returned(found, share * equal)
                key = json.dumps(config, sort_keys=True)
                final = trained[key] = trained.get(key) or final_accuracy(config)
                at_shares.setdefault((method, share), []).append(final)
            print(
                f"  {method:6} reported {accuracy:.4f}, trained to the end {final:.4f}; "
                f"{trials} trials, {full} full trainings; {config}",
                flush=True,
            )
    for method in options.methods:
        cells = ", ".join(f"{share:.0%} {mean_and_spread(at_shares[method, share])}" for share in SHARES)
        print(f"{method:6} trained to the end: {cells}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
