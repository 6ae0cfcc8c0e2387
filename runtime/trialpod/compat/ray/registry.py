"""The rest of ``ray.tune.registry``: what has been registered, looked up by kind and name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trialpod.compat.ray.constants import ENV_CREATOR, KNOWN_CATEGORIES, RLLIB_INPUT, TRAINABLE_CLASS
from trialpod.errors import InvalidInputError, WrongTypeError
from trialpod.tune import registry

__all__ = [
    "get_trainable_cls",
    "is_function_trainable",
    "register_input",
    "registry_contains_input",
    "registry_get_input",
    "validate_trainable",
]


def get_trainable_cls(trainable_name: str) -> Any:
    """Return the class Trainable of a registered name, also of a function.

    Raises:
        InvalidInputError: nothing is registered under that name.
    """
    return _as_class(registry.registered(trainable_name))


def validate_trainable(trainable_name: str) -> None:
    """Raise InvalidInputError unless a Trainable is registered under a name."""
    registry.resolve_trainable(trainable_name)


def is_function_trainable(trainable: Any) -> bool:
    """Return whether a Trainable, or the one that is registered under a name, is a function."""
    found = registry.resolve_trainable(trainable)
    return callable(found) and not isinstance(found, type)


def register_input(name: str, input_creator: Callable[..., Any]) -> None:
    """Give a function that makes an input reader a name.

    Raises:
        InvalidInputError: it cannot be called.
    """
    if not callable(input_creator):
        raise WrongTypeError(f"register_input({name!r}, {input_creator!r}): the second must be a function")
    _global_registry.register(RLLIB_INPUT, name, input_creator)


def registry_contains_input(name: str) -> bool:
    """Return whether `register_input` was called for a name."""
    return _global_registry.contains(RLLIB_INPUT, name)


def registry_get_input(name: str) -> Any:
    """Return what `register_input` was given.

    Raises:
        InvalidInputError: nothing of that name.
    """
    return _global_registry.get(RLLIB_INPUT, name)


def _has_trainable(trainable_name: str) -> bool:
    return registry.is_registered(trainable_name)


def _as_class(trainable: Any) -> Any:
    from trialpod.tune.trainable.function_trainable import wrap_function

    return trainable if isinstance(trainable, type) else wrap_function(trainable)


class _Registry:
    """Everything that is registered, by category and name.

    Args:
        prefix: accepted for compatibility, unused.
    """

    def __init__(self, prefix: str | None = None) -> None:
        self._others: dict[tuple[str, str], Any] = {}

    def register(self, category: str, key: str, value: Any) -> None:
        """Register a value."""
        if category == TRAINABLE_CLASS:
            registry.register_trainable(key, value)
        elif category == ENV_CREATOR:
            registry.register_env(key, value)
        elif category in KNOWN_CATEGORIES:
            self._others[category, key] = value
        else:
            raise InvalidInputError(f"category {category!r}: must be one of {', '.join(KNOWN_CATEGORIES)}")

    def contains(self, category: str, key: str) -> bool:
        """Return whether there is a value."""
        if category == TRAINABLE_CLASS:
            return registry.is_registered(key)
        return key in registry.environments() if category == ENV_CREATOR else (category, key) in self._others

    def get(self, category: str, key: str) -> Any:
        """Return a value."""
        if category == TRAINABLE_CLASS:
            return get_trainable_cls(key)
        if category == ENV_CREATOR:
            return registry.get_env(key)
        if (category, key) not in self._others:
            raise InvalidInputError(f"nothing is registered as {key!r} in the category {category!r}")
        return self._others[category, key]


_global_registry = _Registry()
