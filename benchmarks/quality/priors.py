"""What a user's prior is worth, and what a wrong one costs: `auto+auto` with one, against itself without.

The good prior is centered at the best of a hundred random configs, the bad one at the worst of those that do not
diverge. A run's regret is what its value lies above the best known, as a share of the way to the median of random
configs.

    python benchmarks/quality/priors.py --tasks noise cost --seeds 5
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import random
import statistics

from simulator import Conditions, Simulation
from space import draw
from tasks.catalogue import all_tasks
from tasks.task import Config, Task
from tuners.own import TrialpodTuner

POINTS = (0.25, 0.5, 1.0)
SPREAD = 0.1


def regrets(task: Task, center: Config | None, seeds: int) -> dict[float, float]:
    """Return the mean regret at each share of the budget."""
    prior = None if center is None else {name: {"center": value, "spread": SPREAD} for name, value in center.items()}
    found: dict[float, list[float]] = {point: [] for point in POINTS}
    for seed in range(seeds):
        tuner = TrialpodTuner("auto", "auto", searcher_arguments={"prior": prior})
        outcome = Simulation(task, tuner, seed, Conditions()).run()
        scale = max(task.reference.median - task.reference.best, 1e-12)
        for point in POINTS:
            moment = outcome.at(point)
            final = task.reference.median if moment is None else moment.final
            found[point].append((final - task.reference.best) / scale)
    return {point: statistics.fmean(values) for point, values in found.items()}


def centers(task: Task) -> dict[str, Config | None]:
    """Return where each kind of prior is centered."""
    rng = random.Random(f"prior/{task.name}")
    configs = [draw(task.space, rng) for _ in range(100)]
    ranked = sorted(
        ((value, number) for number, value in enumerate(task.finals(configs)) if math.isfinite(value)),
    )
    return {"none": None, "good": configs[ranked[0][1]], "bad": configs[ranked[-1][1]]}


def main() -> None:
    """Print the regrets as a table, and their geometric mean ratios to no prior."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["*"], help="names, families or patterns of development tasks")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    ratios: dict[tuple[str, float], list[float]] = {}
    for task in all_tasks(None):
        if task.held_out or not any(w == task.family or fnmatch.fnmatch(task.name, w) for w in options.tasks):
            continue
        rows = {kind: regrets(task, center, options.seeds) for kind, center in centers(task).items()}
        for kind, row in rows.items():
            print(f"{task.name:30} {kind:5} " + " ".join(f"{row[point]:8.4f}" for point in POINTS), flush=True)
            for point in POINTS:
                ratios.setdefault((kind, point), []).append((row[point] + 0.01) / (rows["none"][point] + 0.01))
    for (kind, point), values in ratios.items():
        print(f"{kind:5} at {point:4.0%}: {statistics.geometric_mean(values):.2f} x the regret without (+ 0.01)")


if __name__ == "__main__":
    main()
