"""Tables of what came of the runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import measure
from measure import GRID, SHARES
from runs import Run
from tasks.task import Task

POINTS = [GRID.index(share) for share in SHARES]


@dataclass
class Results:
    """All runs of some methods on some tasks.

    Attributes:
        tasks: by name, with their reference values.
        methods: in the order of the tables.
        runs: each method has the same tasks and seeds.
    """

    tasks: dict[str, Task]
    methods: Sequence[str]
    runs: Sequence[Run]

    @cached_property
    def regrets(self) -> dict[str, dict[str, list[list[float]]]]:
        """Of each method and task: for each seed, the regret at each point of `GRID`."""
        found: dict[str, dict[str, dict[int, list[float]]]] = {}
        for run in self.runs:
            reference = self.tasks[run.task].reference
            row = [measure.regret(run.outcome, reference, share) for share in GRID]
            found.setdefault(run.method, {}).setdefault(run.task, {})[run.seed] = row
        return {
            method: {task: [found[method][task][seed] for seed in sorted(found[method][task])] for task in self.tasks}
            for method in self.methods
        }


def summary(results: Results) -> str:
    """Return the main table as text for a terminal."""
    regrets = results.regrets
    ranks = {point: measure.ranks(regrets, point) for point in POINTS}
    heads = "".join(f"{f'{share:.0%}':>8}" for share in SHARES)
    lines = [f"{'mean regret at':<28}{heads}   {'mean rank at':<4}{heads}{'trials':>8}{'cpu s':>7}"]
    for method in results.methods:
        runs = [run.outcome for run in results.runs if run.method == method]
        values = "".join(f"{measure.mean(regrets[method], point):>8.3f}" for point in POINTS)
        places = "".join(f"{ranks[point][method]:>8.2f}" for point in POINTS)
        trials = statistics.fmean(run.trials for run in runs)
        decide = statistics.fmean(run.decide_s for run in runs)
        lines.append(f"{method:<28}{values}   {'':<12}{places}{trials:>8.0f}{decide:>7.2f}")
    return "\n".join(lines)
