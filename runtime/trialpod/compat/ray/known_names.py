"""Which names the modules of Ray Tune have, in any of its releases: a name that is not in here is a mistake.

The list is ``ray_names.txt`` beside this file: a module, a colon, its public names. It is read when an import asks
for something that `table` does not know.
"""

from __future__ import annotations

import functools
from importlib.resources import files


@functools.cache
def _modules() -> dict[str, frozenset[str]]:
    text = files(__package__).joinpath("ray_names.txt").read_text(encoding="utf-8")
    lines = (line.partition(":") for line in text.splitlines() if line and not line.startswith("#"))
    return {module: frozenset(names.split()) for module, _, names in lines}


def is_module(name: str) -> bool:
    """Return whether Ray has, or had, such a module."""
    return name.count(".") > 0 and name in _modules()


def names(module: str) -> frozenset[str]:
    """Return the public names of a module of Ray; empty for one that is not in the list."""
    return _modules().get(module, frozenset())
