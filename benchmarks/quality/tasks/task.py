"""What a task is, its reference values, and the split into development and held-out tasks."""

from __future__ import annotations

import hashlib
import math
import random
import statistics
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from space import Config, Space, draw, neighbour

RANDOM_CONFIGS = 1000
"""How many random configs the reference values are made of."""

CLIMBERS, ROUNDS, MOVES = 10, 12, 20
"""The search for the best known value: from so many configs, so often, so many neighbours of each."""


@dataclass(frozen=True)
class Curve:
    """One full training.

    Attributes:
        values: what is reported after each step; lower is better; NaN when the training has diverged.
        seconds: how long each step takes on one GPU.
    """

    values: Sequence[float]
    seconds: Sequence[float]


@dataclass(frozen=True)
class Reference:
    """What results of a task are measured against; none of it depends on a tuner.

    Attributes:
        best: the lowest final value known.
        median: the median final value of random configs; a diverged one counts as the worst.
        worst: the highest finite final value of random configs.
        full_training_s: the median duration of a full training of random configs, in seconds: the unit of budgets.
    """

    best: float
    median: float
    worst: float
    full_training_s: float


class Task(ABC):
    """One tuning problem: minimise the value that is reported after the last step.

    Attributes:
        name: unique.
        family: tasks of one family are alike.
        space: the search space.
        steps: number of reports of a full training.
        first_rung: where early stopping may begin, in steps; for tuners that have to be told.
    """

    name: str
    family: str
    space: Space
    steps: int
    first_rung: int = 1
    data: str = ""
    """What the task is made of, when other tasks are made of the same: they fall on the same side of the split."""
    contents: str = ""
    """Changes when the stored data of the task changes."""

    @abstractmethod
    def curve(self, config: Config) -> Curve:
        """Return the training of a config; always the same for the same config."""

    def final(self, config: Config) -> float:
        """Return the value that counts: of a full training, without the noise of a single report."""
        return self.curve(config).values[-1]

    def finals(self, configs: Sequence[Config]) -> list[float]:
        """Return `final` of several configs."""
        return [self.final(config) for config in configs]

    @cached_property
    def reference(self) -> Reference:
        """The reference values."""
        return self.find_reference()

    def find_reference(self) -> Reference:
        """Return the reference values, by random and local search from a fixed seed."""
        rng = random.Random(f"reference/{self.name}")
        configs = [draw(self.space, rng) for _ in range(RANDOM_CONFIGS)]
        finals = self.finals(configs)
        worst = max(value for value in finals if math.isfinite(value))
        finals = [value if math.isfinite(value) else worst for value in finals]
        durations = [sum(self.curve(config).seconds) for config in configs[:200]]
        known = sorted(zip(finals, range(len(configs)), configs, strict=True))[:CLIMBERS]
        best = known[0][0]
        for climb in range(ROUNDS):
            width = 0.2 * 0.75**climb
            for number, (value, _, config) in enumerate(known):
                around = [neighbour(self.space, config, rng, width) for _ in range(MOVES)]
                for found, candidate in zip(self.finals(around), around, strict=True):
                    if found < value:
                        value, config = found, candidate
                known[number] = (value, number, config)
                best = min(best, value)
        return Reference(best, statistics.median(finals), worst, statistics.median(durations))

    @property
    def held_out(self) -> bool:
        """Whether the task is reported only at the end, and never looked at while defaults are chosen."""
        return hashlib.sha256(f"trialpod quality {self.data or self.name}".encode()).digest()[0] % 2 == 1

    def start_points(self, seed: int, count: int = 10) -> list[Config]:
        """Return the configs that every tuner tries first."""
        rng = random.Random(f"start/{self.name}/{seed}")
        return [draw(self.space, rng) for _ in range(count)]


def config_seed(task: str, config: Config) -> int:
    """Return a seed that depends only on the task and the config, for noise that repeats."""
    text = f"{task}/{sorted((name, repr(value)) for name, value in config.items())}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
