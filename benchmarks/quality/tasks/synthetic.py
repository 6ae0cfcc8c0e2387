"""Functions with a known optimum, whose learning curves cross, are noisy, diverge or differ in cost.

The value after step t is ``f + (start - f) * (1 - (t / T) ** a) + noise``, where f is the function's value at
the config, so that a training ends exactly at f, and the exponent a depends on the config. How a is coupled to f is
the knob `agreement`: at 1 good configs also learn fast, at 0 speed is independent of quality, at -1 good configs are
the slow ones, and the first rungs mislead.

Sources of the functions: Hartmann 3 and 6, Branin (Surjanovic & Bingham's collection), Rosenbrock, Rastrigin.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from space import Config, one_of, real

from tasks.task import Curve, Task, config_seed

STEPS = 27

_HARTMANN_6 = (
    (10, 3, 17, 3.5, 1.7, 8),
    (0.05, 10, 17, 0.1, 8, 14),
    (3, 3.5, 1.7, 10, 17, 8),
    (17, 8, 0.05, 10, 0.1, 14),
)
_CENTRES_6 = (
    (0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886),
    (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991),
    (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650),
    (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381),
)
_HARTMANN_3 = ((3, 10, 30), (0.1, 10, 35), (3, 10, 30), (0.1, 10, 35))
_CENTRES_3 = (
    (0.3689, 0.1170, 0.2673),
    (0.4699, 0.4387, 0.7470),
    (0.1091, 0.8732, 0.5547),
    (0.0381, 0.5743, 0.8828),
)
_WEIGHTS = (1.0, 1.2, 3.0, 3.2)


def hartmann(units: Sequence[float]) -> float:
    """Return Hartmann 3 or 6, shifted to a minimum of about 0 and scaled to 1."""
    shape, centres = (_HARTMANN_6, _CENTRES_6) if len(units) == 6 else (_HARTMANN_3, _CENTRES_3)
    lowest = 3.32237 if len(units) == 6 else 3.86278
    total = sum(
        weight * math.exp(-sum(a * (x - c) ** 2 for a, x, c in zip(row, units, centre, strict=True)))
        for weight, row, centre in zip(_WEIGHTS, shape, centres, strict=True)
    )
    return 1.0 - total / lowest


def branin(units: Sequence[float]) -> float:
    """Return Branin over its usual domain, shifted to a minimum of 0 and scaled to about 1."""
    x, y = 15 * units[0] - 5, 15 * units[1]
    value = (y - 5.1 * x**2 / (4 * math.pi**2) + 5 * x / math.pi - 6) ** 2
    return (value + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10 - 0.397887) / 300.0


def rosenbrock(units: Sequence[float]) -> float:
    """Return Rosenbrock over [-1, 2], on a logarithmic scale: what counts is the valley."""
    x = [3 * unit - 1 for unit in units]
    value = sum(100 * (b - a * a) ** 2 + (1 - a) ** 2 for a, b in itertools.pairwise(x))
    return math.log10(1 + value) / 4


def rastrigin(units: Sequence[float]) -> float:
    """Return Rastrigin over [-2, 3]: many local minima."""
    x = [5 * unit - 2 for unit in units]
    return sum(10 + a * a - 10 * math.cos(2 * math.pi * a) for a in x) / (25 * len(x))


FUNCTIONS: dict[str, tuple[Callable[[Sequence[float]], float], int]] = {
    "hartmann6": (hartmann, 6),
    "hartmann3": (hartmann, 3),
    "branin": (branin, 2),
    "rosenbrock4": (rosenbrock, 4),
    "rastrigin4": (rastrigin, 4),
}


@dataclass(frozen=True)
class Knobs:
    """How the curves of a task behave.

    Attributes:
        agreement: -1 to 1, how far good configs are also those that learn fast.
        noise: standard deviation of a report, as a share of the function's range.
        divergence: share of the space in which trainings report NaN from some step on.
        spread: the most expensive config takes so many times as long as the cheapest.
    """

    agreement: float = 0.5
    noise: float = 0.01
    divergence: float = 0.0
    spread: float = 1.0


FAMILIES = {
    "crossing": Knobs(agreement=0.0),
    "opposed": Knobs(agreement=-0.5),
    "noise": Knobs(noise=0.1),
    "divergence": Knobs(divergence=0.1),
    "cost": Knobs(spread=20.0),
}


class SyntheticTask(Task):
    """One function under one set of knobs."""

    steps = STEPS

    def __init__(self, function: str, family: str, knobs: Knobs) -> None:
        self.name, self.family = f"{family}-{function}", family
        self._value, self._dimensions = FUNCTIONS[function]
        self._knobs = knobs
        self.space = (*(real(f"x{number}", 0.0, 1.0) for number in range(self._dimensions)), one_of("kind", "a", "b"))

    def final(self, config: Config) -> float:
        """Return the function's value; kind "b" is a little worse everywhere. NaN where trainings diverge."""
        return math.nan if self._diverges(config) else self._asymptote(config)

    def curve(self, config: Config) -> Curve:
        """Return the curve of a config."""
        knobs, rng = self._knobs, random.Random(config_seed(self.name, config))
        level = self._asymptote(config)
        quality = 1.0 - min(level, 1.0)
        own = rng.random()
        coupled = quality if knobs.agreement >= 0 else 1.0 - quality
        share = abs(knobs.agreement)
        speed = share * coupled + (1 - share) * own
        exponent = 1.2 - speed  # 0.2 learns early, 1.2 late
        start = 1.5
        values = [
            level + (start - level) * (1 - (step / STEPS) ** exponent) + rng.gauss(0.0, knobs.noise)
            for step in range(1, STEPS + 1)
        ]
        if self._diverges(config):
            first = rng.randrange(2, STEPS)
            values[first:] = [math.nan] * (STEPS - first)
        position = config["x0"] if self._dimensions else 0.0
        return Curve(values, [knobs.spread**position] * STEPS)

    def _asymptote(self, config: Config) -> float:
        value = self._value([config[f"x{number}"] for number in range(self._dimensions)])
        return value + (0.05 if config["kind"] == "b" else 0.0)

    def _diverges(self, config: Config) -> bool:
        return config[f"x{self._dimensions - 1}"] > 1.0 - self._knobs.divergence


def synthetic_tasks() -> list[Task]:
    """Return every function under every family's knobs."""
    return [SyntheticTask(function, family, knobs) for family, knobs in FAMILIES.items() for function in FUNCTIONS]
