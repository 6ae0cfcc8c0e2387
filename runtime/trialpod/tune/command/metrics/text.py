"""Numbers with names in a line of text: ``loss=0.3``, ``name: value``, ``'loss': 0.3``, or one JSON object.

A name begins at the start of the line, after white space or after one of ``,;|([{'"``, and ends right before its
``=`` or ``:``, which white space may surround. A number ends where no letter, digit, colon nor decimal follows:
``12:30``, ``1.2.3``, ``2024-01-02`` and ``12s`` are none; ``3/10`` is 3 and ``93%`` is 93. The time is linear in the
length of the line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

Number = int | float

_PAIR = re.compile(
    r"""(?<![^\s,;|(\[{'"])(?P<name>[A-Za-z_][\w./@-]*)['"]?[ \t]*[=:][ \t]*"""
    r"""(?P<value>[+-]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|(?i:nan|inf(?:inity)?)))(?![\w:]|[.\-]\d)"""
)
_MAX_DEPTH = 8


def number(text: str) -> Number | None:
    """Return a text as a number, whole ones as int; None when it is none."""
    if "_" in text:  # Python takes 1_000
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None


def pairs(line: str) -> dict[str, Number]:
    """Return the numbers with names in a line; of a name that occurs twice, the last."""
    if "=" not in line and ":" not in line:
        return {}
    found = {}
    for match in _PAIR.finditer(line):
        value = number(match["value"])
        if value is not None:
            found[match["name"].rstrip("./@-")] = value
    return found


def json_numbers(line: str) -> dict[str, Number] | None:
    """Return the numbers in a line that is one JSON object, nested ones as a/b; None when it is not such a line.

    A text that is a number counts: some programs write all values as texts. NaN and Infinity are taken as Python
    writes them.
    """
    if not (line.startswith("{") and line.endswith("}")):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return dict(_numbers(value, "", 0)) if isinstance(value, dict) else None


def _numbers(value: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Number]]:
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if isinstance(inner, bool):
            continue
        if isinstance(inner, (int, float)):
            yield name, inner
        elif isinstance(inner, str) and (parsed := number(inner)) is not None:
            yield name, parsed
        elif isinstance(inner, dict) and depth < _MAX_DEPTH:
            yield from _numbers(inner, f"{name}/", depth + 1)
