"""Paths into an object of any kind: ``spec.replicatedJobs[name=leader].template``, ``spec.templates[0]``. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trialpod.errors import InvalidInputError

EXPECTED = "a path such as spec.template or spec.replicatedJobs[name=leader].template.spec.template"

_SEGMENT = re.compile(r"\.?([A-Za-z_][\w-]*)|\[(\d+)\]|\[([A-Za-z_][\w-]*)=\"?([^\]\"]+)\"?\]")

Segment = str | int | tuple[str, str]
"""A field, a position in a list, or the first item of a list that has a field with this value."""


def parse_path(text: str) -> tuple[Segment, ...]:
    """Return the segments of a path.

    Raises:
        InvalidInputError: it cannot be read.
    """
    segments: list[Segment] = []
    at = 0
    while at < len(text):
        found = _SEGMENT.match(text, at)
        if found is None or (at == 0) == found[0].startswith((".", "[")):
            raise InvalidInputError(f'"{text}" cannot be read from "{text[at:]}" on; it must be {EXPECTED}')
        name, position, key, value = found.groups()
        segments.append(name if name is not None else int(position) if position is not None else (key, value))
        at = found.end()
    if not segments:
        raise InvalidInputError(f"a path is empty; it must be {EXPECTED}")
    return tuple(segments)


def find(item: Any, path: tuple[Segment, ...]) -> Any:
    """Return what is at a path, None when there is nothing."""
    for segment in path:
        item = _step(item, segment)
        if item is None:
            return None
    return item


def put(item: dict[str, Any], path: tuple[Segment, ...], value: Any) -> None:
    """Replace what is at a path; all above it is there."""
    parent: Any = find(item, path[:-1]) if len(path) > 1 else item
    last = path[-1]
    if isinstance(last, str):
        parent[last] = value
    else:
        parent[parent.index(_step(parent, last))] = value


def _step(item: Any, segment: Segment) -> Any:
    if isinstance(segment, str):
        return item.get(segment) if isinstance(item, Mapping) else None
    if not isinstance(item, list):
        return None
    if isinstance(segment, int):
        return item[segment] if segment < len(item) else None
    key, value = segment
    return next((each for each in item if isinstance(each, Mapping) and str(each.get(key)) == value), None)
