"""The arguments that `tune.with_parameters` has bound to a Trainable, and how they travel with it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from trialpod.tune.shipping.stored_objects import Stored


class BoundParameters(dict[str, Any]):
    """The arguments that a Trainable has been given, by name."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Travel with the large ones stored by themselves."""
        return BoundParameters, ({name: Stored(value) for name, value in self.items()},)


class BoundFunction(functools.partial[Any]):
    """A function with further arguments; it is recognised as what it wraps, as any partial is."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        # A partial of a partial without attributes would take this one's arguments over, and store them inside.
        self.stores = True

    @property
    def __name__(self) -> str:
        """The name of the function, which trials are called after."""
        return getattr(self.func, "__name__", type(self.func).__name__)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel with the large arguments stored by themselves."""
        return _bound, (self.func, self.args, BoundParameters(self.keywords), dict(self.__dict__))


def _bound(
    function: Any, args: tuple[Any, ...], keywords: dict[str, Any], attributes: dict[str, Any]
) -> BoundFunction:
    bound = BoundFunction(function, *args, **keywords)
    bound.__dict__.update(attributes)
    return bound
