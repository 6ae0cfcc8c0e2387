"""Search spaces of the benchmark, as plain data: every tuner gets the same one in its own library's form."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Config = dict[str, Any]


@dataclass(frozen=True)
class Parameter:
    """One hyperparameter.

    Attributes:
        name: key in a config.
        kind: "float", "int" (both bounds included) or "choice".
        low: lower bound of a number.
        high: upper bound of a number.
        log: whether a number is drawn uniformly on a logarithmic scale.
        choices: the values of a choice.
    """

    name: str
    kind: str
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    choices: tuple[Any, ...] = ()

    def at(self, unit: float) -> Any:
        """Return the value at a position of the unit interval."""
        if self.kind == "choice":
            return self.choices[min(int(unit * len(self.choices)), len(self.choices) - 1)]
        low, high = (self.low - 0.5, self.high + 0.5) if self.kind == "int" else (self.low, self.high)
        if self.log:
            value = math.exp(math.log(low) + unit * (math.log(high) - math.log(low)))
        else:
            value = low + unit * (high - low)
        if self.kind == "int":
            return int(min(max(round(value), self.low), self.high))
        return min(max(value, self.low), self.high)

    def position(self, value: Any) -> float:
        """Return where a value lies in the unit interval; a choice by its index."""
        if self.kind == "choice":
            return (self.choices.index(value) + 0.5) / len(self.choices)
        if self.log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def as_data(self) -> dict[str, Any]:
        """Return the parameter as JSON data."""
        if self.kind == "choice":
            return {"name": self.name, "kind": self.kind, "choices": list(self.choices)}
        return {"name": self.name, "kind": self.kind, "low": self.low, "high": self.high, "log": self.log}


Space = Sequence[Parameter]


def real(name: str, low: float, high: float, *, log: bool = False) -> Parameter:
    """Return a real parameter."""
    return Parameter(name, "float", low, high, log)


def whole(name: str, low: int, high: int, *, log: bool = False) -> Parameter:
    """Return an integer parameter, both bounds included."""
    return Parameter(name, "int", low, high, log)


def one_of(name: str, *choices: Any) -> Parameter:
    """Return a categorical parameter."""
    return Parameter(name, "choice", choices=choices)


def draw(space: Space, rng: random.Random) -> Config:
    """Draw a config uniformly."""
    return {parameter.name: parameter.at(rng.random()) for parameter in space}


def neighbour(space: Space, config: Config, rng: random.Random, width: float) -> Config:
    """Return a config near another one: each parameter moves with probability one half."""
    moved = dict(config)
    for parameter in space:
        if rng.random() < 0.5:
            if parameter.kind == "choice":
                moved[parameter.name] = rng.choice(parameter.choices)
            else:
                unit = parameter.position(config[parameter.name]) + rng.gauss(0.0, width)
                moved[parameter.name] = parameter.at(min(max(unit, 0.0), 1.0))
    return moved
