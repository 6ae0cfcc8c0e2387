"""Nested dicts as one, with names such as "layers/width"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flattened(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested dicts as one; an empty one inside stays as it is."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping) and value:
            flat.update(flattened(value, f"{prefix}{name}/"))
        else:
            flat[f"{prefix}{name}"] = value
    return flat
