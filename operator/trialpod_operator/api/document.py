"""A manifest as plain data that remembers the line of every value, and how deeply it may be nested.

The API server keeps objects of up to 10,000 levels, and any user who may create a TuneExperiment or a TuneTrial can
make one. Python's decoders raise RecursionError from 1,000 on; a list with one such object could not be read at all.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trialpod_operator.api.paths import Path, format_path, parse_path
from trialpod_operator.api.problems import Problem

MAX_DEPTH = 100
"""Levels of a manifest."""

RECURSION_LIMIT = 12_000
"""More than the API server keeps; msgspec's decoder overflows a stack of 8 MiB at 22,000 levels (Python 3.11)."""


@dataclass(frozen=True)
class Document:
    """One document of a file; `value` holds only what JSON can carry, with string keys."""

    value: Any
    lines: Mapping[Path, int] = field(default_factory=dict)  # 1-based, of a mapping's key or a list's item
    overridden: Mapping[Path, str] = field(default_factory=dict)  # values that do not come from the file
    unquoted_words: Mapping[Path, str] = field(default_factory=dict)  # booleans as they were written

    def line_of(self, path: Path) -> int | None:
        """Return the line of `path`, or of its nearest parent; None when it does not come from the file."""
        while path not in self.lines:
            if not path or path in self.overridden:
                return None
            path = path[:-1]
        return self.lines[path]

    def problem(self, path: Path, message: str) -> Problem:
        """Return a problem at `path` with its line, or with the override that it comes from."""
        for end in range(len(path), -1, -1):
            if override := self.overridden.get(path[:end]):
                return Problem(format_path(path), f"{message} (from --set {override})")
        return Problem(format_path(path), message, self.line_of(path))

    @property
    def line(self) -> int | None:
        """The line on which the document's content begins."""
        return self.lines.get(())

    def locate(self, problem: Problem) -> Problem:
        """Give a problem that another part found its line, from its written path (keys may stand unquoted)."""
        if problem.line is not None:
            return problem
        path, _ = parse_path(problem.path)
        for known in self.lines:
            if _unquoted(known) == problem.path:
                path = known
                break
        else:
            if format_path(path) != problem.path:  # a path that cannot be read back is kept as it is written
                return Problem(problem.path, problem.message, self.line_of(path))
        return self.problem(path, problem.message)


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


def _unquoted(path: Path) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
