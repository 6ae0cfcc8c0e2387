r"""Paths into a manifest: written `spec.stoppers[1].name`, held as tuples of keys and positions.

A key that is not a plain word is written in brackets and quotes: `spec.resources["nvidia.com/gpu"]`. `parse_path`
also takes such a key with its dots escaped, as Helm does: `spec.resources.nvidia\.com/gpu`.
"""

from __future__ import annotations

import json
import re

Path = tuple[str | int, ...]

_PLAIN_KEY = re.compile(r"[^\s.\[\]\"'=\\]+")
_TOKEN = re.compile(
    r"""
    (?P<dot>\.)?
    (?:
        \[(?P<index>\d{1,9})\]
      | \[(?P<quoted>"(?:[^"\\]|\\.)*"|'[^']*')\]
      | (?P<key>(?:[^\s.\[\]\"'=\\]|\\.)+)
    )
    """,
    re.VERBOSE,
)


def format_path(path: Path) -> str:
    """Return the path as it is written in messages."""
    parts: list[str] = []
    for part in path:
        if isinstance(part, int):
            parts.append(f"[{part}]")
        elif _PLAIN_KEY.fullmatch(part):
            parts.append(f".{part}" if parts else part)
        else:
            parts.append(f"[{json.dumps(part, ensure_ascii=False)}]")
    return "".join(parts)


def parse_path(text: str) -> tuple[Path, str]:
    """Read a path from the start of `text`; return it and the rest, which begins where no path can continue."""
    path: list[str | int] = []
    position = 0
    while match := _TOKEN.match(text, position):
        is_key = match["key"] is not None
        if is_key != (match["dot"] is not None) and (path or match["dot"] is not None):
            break  # a dot goes before every key but the first, and before nothing else
        if match["index"] is not None:
            path.append(int(match["index"]))
        elif is_key:
            path.append(re.sub(r"\\(.)", r"\1", match["key"]))
        else:
            path.append(_unquote(match["quoted"]))
        position = match.end()
    return tuple(path), text[position:]


def _unquote(quoted: str) -> str:
    if quoted.startswith("'"):
        return quoted[1:-1]
    try:
        return str(json.loads(quoted))
    except ValueError:
        return quoted[1:-1]
