"""Regret, ranks, speed-up and their intervals.

The regret of a run at a share of the budget is ``(value - best) / (median - best)``, where value is that of a full
training of the config that the tuner would return, best the best value known of the task, and median that of random
configs. 0 is perfect, 1 no better than a median random config. Before the first report it is 1, and so is the most
that it can be: who returns a worse config than that could have drawn one blindly. A value below the best one known
counts as 0.

Intervals are percentile bootstrap intervals over tasks and, within each task, over seeds.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence

from simulator import Outcome
from tasks.task import Reference

SHARES = (0.1, 0.25, 0.5, 1.0)
"""Where results are reported, as shares of the budget."""

DRAWS = 1000
"""Bootstrap samples."""

GRID = tuple(number / 200 for number in range(1, 201))
"""The shares at which curves are compared for speed-up."""

Regrets = Mapping[str, Sequence[Sequence[float]]]
"""By task: for each seed, the regret at each point of a grid of shares."""


def regret(outcome: Outcome, reference: Reference, share: float) -> float:
    """Return the regret of a run when this share of the budget is used."""
    moment = outcome.at(share)
    return 1.0 if moment is None else normalised(moment.final, reference)


def regret_in_hand(outcome: Outcome, reference: Reference, share: float) -> float:
    """Return the regret of the best value that was reported: of the model that is in hand, partly trained or not."""
    moment = outcome.at(share)
    return 1.0 if moment is None else normalised(moment.reported, reference)


def normalised(value: float, reference: Reference) -> float:
    """Return the regret of a value, between 0 and 1."""
    span = reference.median - reference.best
    if not math.isfinite(value) or span <= 0:
        return 0.0 if value <= reference.best else 1.0
    return min(max((value - reference.best) / span, 0.0), 1.0)


def mean(regrets: Regrets, point: int) -> float:
    """Return the mean over tasks of the mean over seeds."""
    return statistics.fmean(statistics.fmean(run[point] for run in runs) for runs in regrets.values())


def ranks(methods: Mapping[str, Regrets], point: int) -> dict[str, float]:
    """Return each method's mean rank over tasks and seeds; 1 is best, ties share their ranks."""
    names = list(methods)
    sums = dict.fromkeys(names, 0.0)
    total = 0
    for task in methods[names[0]]:
        for seed in range(len(methods[names[0]][task])):
            values = {name: methods[name][task][seed][point] for name in names}
            for name in names:
                better = sum(value < values[name] - 1e-12 for value in values.values())
                equal = sum(abs(value - values[name]) <= 1e-12 for value in values.values())
                sums[name] += better + (equal + 1) / 2
            total += 1
    return {name: sums[name] / total for name in names}


def speed_up(ours: Regrets, theirs: Regrets, grid: Sequence[float] = GRID) -> float:
    """Return the factor by which we need less of the budget for their final regret.

    The curves are means over tasks and seeds. Below 1 we are slower; 0 when we do not get there within the budget.
    """
    goal = mean(theirs, len(grid) - 1)
    reached = next((share for point, share in enumerate(grid) if mean(ours, point) <= goal + 1e-12), None)
    needed = next(share for point, share in enumerate(grid) if mean(theirs, point) <= goal + 1e-12)
    return 0.0 if reached is None else needed / reached


def task_speed_up(ours: Regrets, theirs: Regrets, grid: Sequence[float] = GRID) -> float:
    """Return the geometric mean over tasks of the speed-up per task; a goal that is not reached counts as 1/2."""
    factors = []
    for task in ours:
        factor = speed_up({task: ours[task]}, {task: theirs[task]}, grid)
        factors.append(math.log(factor or 0.5))
    return math.exp(statistics.fmean(factors))


def resampled(methods: Sequence[Regrets], rng: random.Random) -> list[Regrets]:
    """Return the methods' regrets for one bootstrap draw of tasks and seeds, the same draw for all."""
    tasks = list(methods[0])
    drawn = [rng.choice(tasks) for _ in tasks]
    result: list[dict[str, Sequence[Sequence[float]]]] = [{} for _ in methods]
    for number, task in enumerate(drawn):
        count = len(methods[0][task])
        seeds = [rng.randrange(count) for _ in range(count)]
        for copy, method in zip(result, methods, strict=True):
            copy[f"{number}"] = [method[task][seed] for seed in seeds]
    return list(result)


def interval(
    statistic: Callable[[Sequence[Regrets]], float], methods: Sequence[Regrets], seed: int = 0, draws: int = DRAWS
) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a statistic of some methods' regrets."""
    rng = random.Random(f"bootstrap/{seed}")
    found = sorted(statistic(resampled(methods, rng)) for _ in range(draws))
    return found[int(0.025 * draws)], found[min(int(0.975 * draws), draws - 1)]
