"""JSON merge patches (RFC 7396): what to send so that an object becomes another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
