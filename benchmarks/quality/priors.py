"""What priors and earlier experiments are worth, and what wrong ones cost: `auto+auto` with one and without.

The good prior is centered at the best of a hundred random configs, the bad one at the worst of those that do not
diverge. The earlier experiment has the same hundred configs with their final values; the misleading one has them with
the sign turned round. Runs that the file of results has already are not repeated.

    python benchmarks/quality/priors.py --tasks noise cost --kinds "bad prior" misleading --seeds 5
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import random
import statistics
import tempfile
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import measure
from environments import CACHE, PACKAGES
from measure import Regrets
from runs import Data
from simulator import Conditions, Simulation
from space import draw
from tasks.references import load_reference
from tasks.task import Config, Task
from tuners.own import TrialpodTuner

POINTS = (0.25, 0.5, 1.0)
SPREAD = 0.1
NONE, KINDS = "none", ("good prior", "bad prior", "history", "misleading")


def regrets(task: Task, arguments: dict[str, Any], seed: int) -> list[float]:
    """Return the regret of one run at each share of the budget."""
    tuner = TrialpodTuner("auto", "auto", searcher_arguments=arguments)
    outcome = Simulation(task, tuner, seed, Conditions()).run()
    return [measure.regret(outcome, task.reference, point) for point in POINTS]


def kinds(task: Task, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the arguments of the search for each kind of knowledge."""
    rng = random.Random(f"prior/{task.name}")
    configs = [draw(task.space, rng) for _ in range(100)]
    known = [(value, config) for value, config in zip(task.finals(configs), configs, strict=True) if isfinite(value)]
    ranked = [config for _, config in sorted(known, key=lambda each: each[0])]
    turned = [(-value, config) for value, config in known]
    return {
        NONE: {},
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


def ratio(known: Regrets, without: Regrets, point: int) -> float:
    """Return the geometric mean over tasks of the ratio of the mean regrets, 0.01 added to both."""
    pairs = [(known[task], without[task]) for task in known]
    return statistics.geometric_mean(
        (statistics.fmean(run[point] for run in runs) + 0.01)
        / (statistics.fmean(run[point] for run in others) + 0.01)
        for runs, others in pairs
    )


def table(found: dict[str, dict[str, list[list[float]]]]) -> str:
    """Return the ratios to no prior as Markdown, each with its 95 % bootstrap interval over tasks and seeds."""
    rows = []
    for kind in found:
        if kind == NONE:
            continue
        pair: list[Regrets] = [found[kind], found[NONE]]
        cells = []
        for point in range(len(POINTS)):

            def statistic(drawn: Sequence[Regrets], point: int = point) -> float:
                return ratio(drawn[0], drawn[1], point)

            low, high = measure.interval(statistic, pair)
            cells.append(f"{statistic(pair):.2f} ({low:.2f} to {high:.2f})")
        runs = sum(map(len, found[kind].values()))
        rows.append(f"| {kind} | {len(found[kind])} | {runs} | {' | '.join(cells)} |")
    heads = " | ".join(f"{point:.0%} of the budget" for point in POINTS)
    return "\n".join([f"| known before | tasks | runs | {heads} |", "|---|---|---|---|---|---|", *rows])


def main() -> None:
    """Make the runs that are missing, and print the ratios of the regrets to those without a prior."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["*"], help="names, families or patterns of development tasks")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="what is known before")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lcbench", type=Path, help="folder with model.onnx; without it these tasks are left out")
    parser.add_argument("--out", type=Path, default=Path("build/quality/priors.jsonl"), help="file of all runs")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.touch()
    stored = [json.loads(line) for line in options.out.read_text().splitlines()]
    known = {(row["task"], row["kind"], row["seed"]): row["regrets"] for row in stored}
    tasks = [
        task
        for task in Data(options.lcbench, CACHE, PACKAGES).tasks().values()
        if not task.held_out and any(w == task.family or fnmatch.fnmatch(task.name, w) for w in options.tasks)
    ]
    chosen = [NONE, *options.kinds]
    for seed in range(options.seeds):
        for task in tasks:
            missing = [kind for kind in chosen if (task.name, kind, seed) not in known]
            if not missing:
                continue
            load_reference(task, CACHE / "references")
            with tempfile.TemporaryDirectory() as folder:
                given = kinds(task, Path(folder))
                for kind in missing:
                    row = known[task.name, kind, seed] = regrets(task, given[kind], seed)
                    with options.out.open("a") as file:
                        line = {"task": task.name, "kind": kind, "seed": seed, "regrets": row}
                        file.write(json.dumps(line) + "\n")
    found = {
        kind: {task.name: [known[task.name, kind, seed] for seed in range(options.seeds)] for task in tasks}
        for kind in chosen
    }
    print(table(found))


if __name__ == "__main__":
    main()
