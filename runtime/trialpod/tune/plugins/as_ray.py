"""Whether a plug-in follows Ray's rules where ours are others."""

from __future__ import annotations

from typing import Any

from trialpod.compat.activation import under_ray
from trialpod.errors import InvalidInputError


def decides_as_ray(plugin: Any, compatible: bool | None) -> bool:
    """Return whether a plug-in follows Ray's rules: it was asked to, or was made under the name ``ray``.

    The latter becomes an argument that it was made with, so that it does so in other processes, too.
    """
    if compatible is not None:
        if not isinstance(compatible, bool):
            raise InvalidInputError(f"compatible must be True or False, got {compatible!r}", parameter="compatible")
        return compatible
    if not under_ray():
        return False
    arguments, named = plugin._made_with  # noqa: SLF001  # of the base of all of them
    plugin._made_with = (arguments, {**named, "compatible": True})  # noqa: SLF001
    return True
