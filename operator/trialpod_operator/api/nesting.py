"""How deeply a manifest may be nested, and reading what is nested deeper.

The API server keeps objects of up to 10,000 levels, and any user who may create a TuneExperiment or a TuneTrial can
make one. Python's decoders raise RecursionError from 1,000 on; a list with one such object could not be read at all.
"""

from __future__ import annotations

import sys
from typing import Any

from trialpod_operator.api.paths import Path

MAX_DEPTH = 100
"""Levels of a manifest."""

RECURSION_LIMIT = 12_000
"""More than the API server keeps; msgspec's decoder overflows a stack of 8 MiB at 22,000 levels (Python 3.11)."""


def allow_deep_json() -> None:
    """Let this process decode all that the API server keeps; with Python 3.12 and newer less is possible."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), RECURSION_LIMIT))


def deeper_than(value: Any, levels: int) -> Path | None:
    """Return the path of a part that is nested more than so many levels deep, None when there is none."""
    waiting: list[tuple[Any, Path]] = [(value, ())]
    while waiting:
        part, path = waiting.pop()
        if not isinstance(part, (dict, list)):
            continue
        if len(path) > levels:
            return path
        parts = part.items() if isinstance(part, dict) else enumerate(part)
        waiting.extend((each, (*path, key)) for key, each in parts if isinstance(each, (dict, list)))
    return None
