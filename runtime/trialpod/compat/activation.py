"""Installs the aliases that the environment or a packed Trainable names."""

from __future__ import annotations

from trialpod import variables


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
