"""Values keep their types: in configs, drawn from choices, and in reports."""

# ruff: noqa: F821  # `probe`, `raised` and `printed` come from ask.py

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import pathlib
import uuid
from typing import Any

import numpy as np
from ray import tune


class Act(enum.Enum):
    RELU = 1


class Size(enum.IntEnum):
    BIG = 5


@dataclasses.dataclass
class Layer:
    width: int


Pair = collections.namedtuple("Pair", ["a", "b"])  # as scripts have them


def _function(x: int) -> int:
    return x + 1


_VALUES: dict[str, Any] = {
    "none": None,
    "bool": True,
    "int": 3,
    "float": 0.5,
    "text": "a",
    "bytes": b"b",
    "tuple": (1, (2, 3)),
    "list": [1, (2,)],
    "set": {1},
    "frozenset": frozenset({2}),
    "dict": {"k": (1,)},
    "integer keys": {5: "x"},
    "named tuple": Pair(1, 2),
    "path": pathlib.PurePosixPath("/a/b"),
    "datetime": datetime.datetime(2026, 1, 2),
    "date": datetime.date(2026, 1, 2),
    "timedelta": datetime.timedelta(days=1),
    "enum": Act.RELU,
    "int enum": Size.BIG,
    "dataclass": Layer(3),
    "decimal": decimal.Decimal("1.5"),
    "fraction": fractions.Fraction(1, 3),
    "complex": 1 + 2j,
    "range": range(3),
    "uuid": uuid.UUID(int=5),
    "array": np.arange(3),
    "float32": np.float32(0.5),
    "int64": np.int64(4),
    "numpy bool": np.bool_(True),
    "big": 2**70,
    "function": _function,
    "class": Layer,
    "type": int,
}


def _same(one: Any, other: Any) -> Any:
    """Whether two values are equal and of the same type, else which type it is."""
    if type(one).__name__ != type(other).__name__:
        return type(one).__name__
    return bool(np.array_equal(one, other)) if isinstance(other, np.ndarray) else str(one) == str(other)


@probe
def in_configs(folder: str) -> dict[str, Any]:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        return {"seen": {key: type(value).__name__ for key, value in config.items()}}

    result = tune.Tuner(
        train, param_space=dict(_VALUES), run_config=tune.RunConfig(storage_path=folder, verbose=0)
    ).fit()[0]
    seen = result.metrics["seen"]
    return {
        **{f"{key}: in the Trainable": seen[key] for key in _VALUES},
        **{
            f"{key}: in Result.config": _same(result.config[key], value)
            for key, value in _VALUES.items()
            if key not in ("function", "class", "enum", "int enum")
        },
    }


@probe
def from_choices(folder: str) -> dict[str, Any]:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        return {"seen": {key: type(value).__name__ for key, value in config.items()}}

    kept = {key: value for key, value in _VALUES.items() if key not in ("dict", "integer keys")}
    result = tune.Tuner(
        train,
        param_space={key: tune.choice([value]) for key, value in kept.items()},
        run_config=tune.RunConfig(storage_path=folder, verbose=0),
    ).fit()[0]
    return {key: result.metrics["seen"][key] for key in kept}
