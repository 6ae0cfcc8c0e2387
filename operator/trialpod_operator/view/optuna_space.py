"""Parameters as Optuna has them: one distribution for each name, wide enough for all values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from trialpod.protocol.readable import real_number

Json = dict[str, Any]


def distributions(configs: Sequence[Mapping[str, Any]], parameters: Sequence[Json]) -> dict[str, BaseDistribution]:
    """Return one distribution for each parameter that holds all of its values.

    Args:
        configs: flat maps; a conditional parameter is in some of them only.
        parameters: what is known of them besides, as `ExperimentModel.parameters` returns it.
    """
    known = {each["name"]: each for each in parameters}
    values: dict[str, list[Any]] = {}
    for config in configs:
        for name, value in config.items():
            values.setdefault(name, []).append(plain(value))
    return {name: _distribution(each, known.get(name, {})) for name, each in values.items()}


def _distribution(values: Sequence[Any], known: Json) -> BaseDistribution:
    numeric = known.get("kind") != "categorical" and all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) for value in values
    )
    if not numeric:
        choices = [plain(each) for each in known.get("choices", ())] if known.get("kind") == "categorical" else []
        return CategoricalDistribution(_distinct([*choices, *values]))
    bounds = [each for each in (known.get("low"), known.get("high")) if each is not None]
    low, high = min([*values, *bounds]), max([*values, *bounds])
    log = bool(known.get("log")) and low > 0
    if all(isinstance(value, int) for value in values) and known.get("kind", "int") == "int":
        return IntDistribution(math.floor(low), math.ceil(high), log=log and low >= 1)
    return FloatDistribution(float(low), float(high), log=log)


def _distinct(values: Sequence[Any]) -> list[Any]:
    """Return each value once; Python takes 1, 1.0 and True for the same, Optuna does too."""
    found: list[Any] = []
    for value in values:
        if not any(value == each or (value != value and each != each) for each in found):
            found.append(value)
    return found


def plain(value: Any) -> Any:
    """Return a value as Optuna stores it: None, a bool, a number or a text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    number = real_number(value)
    return number if number is not None else str(value)
