"""What priors and earlier experiments are worth, and what wrong ones cost: `auto+auto` with one and without.

The good prior is centered at the best of a hundred random configs, the bad one at the worst of those that do not
diverge. A run's regret is what its value lies above the best known, as a share of the way to the median of random
configs. The earlier experiment has the same hundred configs with their final values; the misleading one has them with
the sign turned round.

    python benchmarks/quality/priors.py --tasks noise cost
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import random
import statistics
import tempfile
from math import isfinite
from pathlib import Path
from typing import Any

from simulator import Conditions, Simulation
from space import draw
from tasks.catalogue import all_tasks
from tasks.task import Config, Task
from tuners.own import TrialpodTuner

POINTS = (0.25, 0.5, 1.0)
SPREAD = 0.1


def regrets(task: Task, arguments: dict[str, Any], seeds: int) -> dict[float, float]:
    """Return the mean regret at each share of the budget."""
    found: dict[float, list[float]] = {point: [] for point in POINTS}
    for seed in range(seeds):
        tuner = TrialpodTuner("auto", "auto", searcher_arguments=arguments)
        outcome = Simulation(task, tuner, seed, Conditions()).run()
        scale = max(task.reference.median - task.reference.best, 1e-12)
        for point in POINTS:
            moment = outcome.at(point)
            final = task.reference.median if moment is None else moment.final
            found[point].append((final - task.reference.best) / scale)
    return {point: statistics.fmean(values) for point, values in found.items()}


def kinds(task: Task, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the arguments of the search for each kind of knowledge."""
    rng = random.Random(f"prior/{task.name}")
    configs = [draw(task.space, rng) for _ in range(100)]
    known = [(value, config) for value, config in zip(task.finals(configs), configs, strict=True) if isfinite(value)]
    ranked = [config for _, config in sorted(known, key=lambda each: each[0])]
    turned = [(-value, config) for value, config in known]
    return {
        "none": {},
        "good prior": {"prior": _around(ranked[0])},
        "bad prior": {"prior": _around(ranked[-1])},
        "history": {"warm_start": _stored(folder / task.name / "same", known)},
        "misleading": {"warm_start": _stored(folder / task.name / "turned", turned)},
    }


def _around(center: Config) -> dict[str, Any]:
    return {name: {"center": value, "spread": SPREAD} for name, value in center.items()}


def _stored(folder: Path, known: list[tuple[float, Config]]) -> str:
    (folder / ".trialpod").mkdir(parents=True)
    (folder / ".trialpod" / "experiment.json").write_text('{"version": 1, "name": "earlier"}')
    for number, (value, config) in enumerate(known):
        row = {"value": value, "training_iteration": 1, "config": config}
        (folder / str(number)).mkdir()
        (folder / str(number) / "result.json").write_text(json.dumps(row) + "\n")
    return str(folder)


def main() -> None:
    """Print the regrets as a table, and their geometric mean ratios to no prior."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["*"], help="names, families or patterns of development tasks")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    ratios: dict[tuple[str, float], list[float]] = {}
    for task in all_tasks(None):
        if task.held_out or not any(w == task.family or fnmatch.fnmatch(task.name, w) for w in options.tasks):
            continue
        with tempfile.TemporaryDirectory() as folder:
            rows = {kind: regrets(task, given, options.seeds) for kind, given in kinds(task, Path(folder)).items()}
        for kind, row in rows.items():
            print(f"{task.name:30} {kind:10} " + " ".join(f"{row[point]:8.4f}" for point in POINTS), flush=True)
            for point in POINTS:
                ratios.setdefault((kind, point), []).append((row[point] + 0.01) / (rows["none"][point] + 0.01))
    for (kind, point), values in ratios.items():
        print(f"{kind:10} at {point:4.0%}: {statistics.geometric_mean(values):.2f} x the regret without (+ 0.01)")


if __name__ == "__main__":
    main()
