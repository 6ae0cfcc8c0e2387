"""Installs the aliases that the environment or a packed Trainable names."""

from __future__ import annotations

import sys

from trialpod import variables


def under_ray() -> bool:
    """Return whether ``ray`` is a name of trialpod in this process."""
    alias = sys.modules.get("trialpod.compat.ray")
    return alias is not None and bool(alias.installed())


def activate(wanted: str) -> None:
    """Install the aliases that `wanted` names, as the variable TRIALPOD_COMPAT does; "" is none."""
    if not wanted:
        return
    name = wanted.strip().lower()
    if name not in ("ray", "ray!"):
        from trialpod.errors import InvalidInputError

        raise InvalidInputError(f"variable {variables.COMPAT}={wanted!r}: 'ray', or 'ray!' to hide a real Ray")
    from trialpod.compat.ray import install

    install(replace=name.endswith("!"))
