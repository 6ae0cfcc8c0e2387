"""Tables and the plot of what came of the runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import measure
from measure import GRID, SHARES, Regrets
from methods import find
from runs import Run
from tasks.task import Task

POINTS = [GRID.index(share) for share in SHARES]
LAST = POINTS[-1]


@dataclass
class Results:
    """All runs of some methods on some tasks.

    Attributes:
        tasks: by name, with their reference values.
        methods: in the order of the tables; the first is compared with the others.
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

    @property
    def families(self) -> list[str]:
        """The families of the tasks, in order."""
        return list(dict.fromkeys(task.family for task in self.tasks.values()))

    def of_family(self, method: str, family: str) -> Regrets:
        """Return a method's regrets on the tasks of one family."""
        return {name: rows for name, rows in self.regrets[method].items() if self.tasks[name].family == family}


def summary(results: Results) -> str:
    """Return the main table as text for a terminal."""
    regrets = results.regrets
    ranks = {point: measure.ranks(regrets, point) for point in POINTS}
    heads = "".join(f"{f'{share:.0%}':>8}" for share in SHARES)
    lines = [f"{'mean regret at':<28}{heads}   {'mean rank at':<12}{heads}{'trials':>8}{'cpu s':>7}"]
    for method in results.methods:
        runs = [run.outcome for run in results.runs if run.method == method]
        values = "".join(f"{measure.mean(regrets[method], point):>8.3f}" for point in POINTS)
        places = "".join(f"{ranks[point][method]:>8.2f}" for point in POINTS)
        trials = statistics.fmean(run.trials for run in runs)
        decide = statistics.fmean(run.decide_s for run in runs)
        lines.append(f"{method:<28}{values}   {'':<12}{places}{trials:>8.0f}{decide:>7.2f}")
    return "\n".join(lines)


def page(results: Results, title: str, remarks: Sequence[str]) -> str:
    """Return the tables as Markdown."""
    regrets, first = results.regrets, results.methods[0]
    others = [method for method in results.methods if method != first]
    ranks = {point: measure.ranks(regrets, point) for point in POINTS}
    heads = [f"{share:.0%}" for share in SHARES]
    parts = [f"## {title}", *remarks]

    rows = []
    for method in results.methods:
        cells = [_with_interval(regrets[method], point) for point in POINTS]
        rows.append([f"`{method}`", find(method).about, *cells])
    parts += [
        "### Regret by share of the budget\n\nMean over tasks and seeds, with its 95 % interval. Lower is better.",
        _table(["method", "what it is", *heads], rows),
    ]

    rows = [[f"`{method}`", *(f"{ranks[point][method]:.2f}" for point in POINTS)] for method in results.methods]
    parts += [f"### Mean rank among these {len(results.methods)}", _table(["method", *heads], rows)]

    rows = []
    for method in others:
        pair = [regrets[first], regrets[method]]
        ratio = measure.mean(pair[0], LAST) / max(measure.mean(pair[1], LAST), 1e-9)
        low, high = measure.interval(_ratio, pair)
        speed = measure.speed_up(pair[0], pair[1])
        slow, fast = measure.interval(_speed, pair)
        wins = statistics.fmean(_better(pair[0][task], pair[1][task]) for task in results.tasks)
        speed_text = f"{speed:.2f} ({slow:.2f} to {fast:.2f})" if speed else f"not reached (to {fast:.2f})"
        rows.append([f"`{method}`", f"{ratio:.2f} ({low:.2f} to {high:.2f})", speed_text, f"{wins:.0%}"])
    explanation = (
        f"The ratio of the regrets at the end of the budget (below 1: `{first}` is better), by what factor it needs "
        "less of the budget for their final regret, and on which share of the tasks its mean regret at the end is "
        "lower; a tie counts as a half."
    )
    parts += [
        f"### `{first}` against each of the others\n\n{explanation}",
        _table(["method", "ratio of final regrets", "speed-up", "better on"], rows),
    ]

    rows = [
        [family, *(f"{measure.mean(results.of_family(method, family), LAST):.3f}" for method in results.methods)]
        for family in results.families
    ]
    parts += ["### Final regret by family", _table(["family", *(f"`{method}`" for method in results.methods)], rows)]

    rows = []
    for task in results.tasks:
        values = [statistics.fmean(run[LAST] for run in regrets[method][task]) for method in results.methods]
        best = min(values[1:], default=values[0])
        rows.append((best - values[0], [task, *(f"{value:.3f}" for value in values)]))
    rows.sort(key=lambda row: row[0])
    parts += [
        f"### Final regret by task\n\nThe largest losses of `{first}` against the best of the others first.",
        _table(["task", *(f"`{method}`" for method in results.methods)], [cells for _, cells in rows]),
    ]
    return "\n\n".join(parts) + "\n"


def plot(results: Results, file: Path) -> None:
    """Write the mean regret over the budget as an SVG."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "quality"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5))
    for number, method in enumerate(results.methods):
        values = [measure.mean(results.regrets[method], point) for point in range(len(GRID))]
        axes.plot(
            [100 * share for share in GRID], values, label=method, linewidth=2.5 if number == 0 else 1.2,
            linestyle="-" if number < 8 else "--",
        )  # fmt: skip
    axes.set_xlabel("GPU-seconds used, % of the budget")
    axes.set_ylabel("mean regret")
    axes.set_yscale("log")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def _with_interval(regrets: Regrets, point: int) -> str:
    low, high = measure.interval(lambda drawn: measure.mean(drawn[0], point), [regrets])
    return f"{measure.mean(regrets, point):.3f} ({low:.3f} to {high:.3f})"


def _ratio(drawn: Sequence[Regrets]) -> float:
    return measure.mean(drawn[0], LAST) / max(measure.mean(drawn[1], LAST), 1e-9)


def _speed(drawn: Sequence[Regrets]) -> float:
    return measure.speed_up(drawn[0], drawn[1])


def _better(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> float:
    difference = statistics.fmean(run[LAST] for run in ours) - statistics.fmean(run[LAST] for run in theirs)
    return 0.5 if abs(difference) < 1e-9 else float(difference < 0)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
