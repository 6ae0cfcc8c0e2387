"""The order of a search space's parameters, which decides what each draws, and which JSON objects do not keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def order_of(space: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the names of the parameters of a space, and of those in its dicts, in their order; see `in_order`."""
    names = []
    for key, value in space.items():
        names.append(f"{prefix}{key}")
        if isinstance(value, Mapping):
            names += order_of(value, f"{prefix}{key}/")
    return names


def in_order(space: dict[str, Any], order: Sequence[str]) -> dict[str, Any]:
    """Return a space whose parameters stand in that order; those that it does not name come last."""
    return _in_order(space, {name: at for at, name in enumerate(order)}, "")


def _in_order(space: dict[str, Any], places: Mapping[str, int], prefix: str) -> dict[str, Any]:
    names = sorted(space, key=lambda key: places.get(f"{prefix}{key}", len(places)))
    return {
        key: _in_order(space[key], places, f"{prefix}{key}/") if type(space[key]) is dict else space[key]
        for key in names
    }
