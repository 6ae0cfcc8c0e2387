"""The decorators of ``ray.util.annotations``, which mark what is public; they return what they are given."""

from __future__ import annotations

from typing import Any


class RayDeprecationWarning(DeprecationWarning):
    """Never issued; a name for filters."""


class RayDeprecatedAnnotation(RayDeprecationWarning):
    """Never issued; a name for filters."""


def PublicAPI(*args: Any, **_options: Any) -> Any:  # noqa: N802 - Ray's name
    """Mark something, as ``@PublicAPI`` or ``@PublicAPI(stability="beta")``."""
    if len(args) == 1 and callable(args[0]):
        return args[0]
    return lambda marked: marked


DeveloperAPI = Deprecated = PublicAPI
