"""Which metrics were reported as nested dicts: results travel flat, and the names of the dicts travel once.

A flat name does not tell whether ``{"a": {"b": 1}}`` or ``{"a/b": 1}`` was reported. `NestedNames` are the flat names
of all dicts in a trial's results ("a", "a/b" of ``{"a": {"b": {"c": 1}}}``); with them `nest` restores what was
reported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

MAX_NAMES = 1000
"""Names of dicts that are kept of a trial; metrics in further ones stay flat."""

MAX_NAME = 1000
"""Characters of such a name."""


class NestedNames:
    """The names of one attempt, in the order in which they were met. One thread adds, any may read `names`."""

    __slots__ = ("_known", "names")

    def __init__(self) -> None:
        self._known: set[str] = set()
        self.names: list[str] = []

    def add(self, name: str) -> None:
        """Add the flat name of a dict."""
        if name not in self._known and len(self._known) < MAX_NAMES and len(name) <= MAX_NAME:
            self._known.add(name)
            self.names.append(name)


def nest(flat: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return a flat result as it was reported.

    Args:
        flat: values by flat names.
        names: those of the dicts.
    """
    nested: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}  # the dicts that are made here, by flat names
    for key, value in flat.items():
        group, start, end = nested, 0, key.find("/")
        while end >= 0:
            name = key[:end]
            if name in names:
                if name not in groups:
                    if key[start:end] in group:  # in this result, it is a metric
                        break
                    group[key[start:end]] = groups[name] = {}
                group, start = groups[name], end + 1
            end = key.find("/", end + 1)
        if key[start:] in group:
            nested[key] = value
        else:
            group[key[start:]] = value
    return nested


def depth(key: str, names: Collection[str]) -> int:
    """Return in how many dicts the metric of a flat name was reported."""
    return sum(key[:end] in names for end, character in enumerate(key) if character == "/")


def flatten_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line of ``result.json`` by flat names; the config stays as it is."""
    if not any(value.__class__ is dict and value and key != "config" for key, value in row.items()):
        return dict(row)
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if value.__class__ is dict and value and key != "config":
            _flatten_into(flat, key, value)
        else:
            flat[key] = value
    return flat


def _flatten_into(flat: dict[str, Any], prefix: str, nested: Mapping[str, Any]) -> None:
    for key, value in nested.items():
        name = f"{prefix}/{key}"
        if value.__class__ is dict and value:
            _flatten_into(flat, name, value)
        else:
            flat[name] = value


def find(row: Mapping[str, Any], name: str) -> Any:
    """Return what a nested or flat result has under a flat name, None if nothing."""
    if name in row:
        return row[name]
    end = name.find("/")
    while end >= 0:
        inner = row.get(name[:end])
        if isinstance(inner, Mapping) and (value := find(inner, name[end + 1 :])) is not None:
            return value
        end = name.find("/", end + 1)
    return None
