"""JSON for the API server: values that it keeps as they are, within a size limit, and merge patches."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from trialpod.protocol.values import readable

MAX_DEPTH = 32
MAX_STRING = 1000
"""Characters that are kept of a text in what had to be cut."""

MAX_ITEMS = 20
"""Items that are kept of a list in what had to be cut."""

CUT_KEY = "..."
_MAX_INTEGER_BITS = 10_000


def json_safe(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Return a value as JSON: NaN and infinities, and whole numbers beyond 64 bits, become text.

    Anything that JSON does not know becomes the text that people are shown of it.
    """
    if not isinstance(value, (Mapping, list, tuple)):
        value = readable(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, int):
        if -(2**63) <= value < 2**63:
            return value
        return str(value) if value.bit_length() < _MAX_INTEGER_BITS else hex(value)[:MAX_STRING]
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if depth > 0 and isinstance(value, Mapping):
        return {json_safe(str(key)): json_safe(item, depth - 1) for key, item in value.items()}
    if depth > 0 and isinstance(value, list | tuple):
        return [json_safe(item, depth - 1) for item in value]
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    return json_safe(repr(value))[:MAX_STRING]


def bounded(values: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Return a mapping as JSON of at most `limit` bytes.

    What is too large has its long texts and lists cut; if that is not enough, its last entries are left out. The
    entry "..." says how many.

    Args:
        values: by name.
        limit: in bytes of the encoded form; at least 100.
    """
    safe: dict[str, Any] = json_safe(values)
    if _size(safe) <= limit:
        return safe
    cut: dict[str, Any] = _shortened(safe)
    if _size(cut) <= limit:
        return cut
    kept: dict[str, Any] = {}
    room = limit - 60
    for name, value in cut.items():
        room -= _size({name: value})
        if room < 0:
            break
        kept[name] = value
    kept[CUT_KEY] = f"{len(cut) - len(kept)} more are left out"
    return kept


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch that makes `after` out of `before`: what differs, and None for what is no longer there.

    A list is replaced as a whole. Values that are None cannot be written by a merge patch; there must be none.
    """
    patch: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            if nested := merge_patch(old, value):
                patch[key] = nested
        elif key not in before or old != value:
            patch[key] = value
    return patch


def _shortened(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_STRING:
        return f"{value[:MAX_STRING]}..."
    if isinstance(value, dict):
        return {name: _shortened(item) for name, item in value.items()}
    if isinstance(value, list):
        rest = [f"{len(value) - MAX_ITEMS} more"] if len(value) > MAX_ITEMS else []
        return [_shortened(item) for item in value[:MAX_ITEMS]] + rest
    return value


def _size(value: Any) -> int:
    # As the API server's JSON may be: encoders write some numbers one character longer than others.
    return max(len(msgspec.json.encode(value)), len(json.dumps(value, ensure_ascii=False).encode()))
