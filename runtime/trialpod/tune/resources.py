"""`tune.with_resources`: says what each trial of a Trainable needs.

The Trainable that is passed in stays as it is; a copy that carries the resources is returned.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.tune.command.command import Command
from trialpod.tune.placement_groups import (
    DEFAULT_RESOURCES,
    PlacementGroupFactory,
    Resources,
    bundles_of_group,
    to_resources,
)
from trialpod.tune.registry import resolve_trainable

__all__ = ["PlacementGroupFactory", "Resources", "bundles_of", "resources_of", "with_resources"]

ResourceFunction = Callable[[dict[str, Any]], Mapping[str, Any] | PlacementGroupFactory | Resources]
ATTRIBUTE = "_trialpod_resources"

_WHERE = "tune.with_resources(resources=...)"


def with_resources(
    trainable: Any, resources: Mapping[str, Any] | PlacementGroupFactory | Resources | ResourceFunction
) -> Any:
    """Return `trainable` with the resources that each of its trials needs.

    Args:
        trainable: a function or a class Trainable.
        resources: ``{"cpu": 2, "gpu": 0.5, "memory": 2e9}`` (memory in bytes), a `PlacementGroupFactory`, a
            `Resources`, or a function that returns any of them for a trial's config.

    Raises:
        InvalidInputError: the resources cannot be met by any trial, or `trainable` is not a Trainable.
    """
    trainable = resolve_trainable(trainable)
    if isinstance(resources, (Mapping, PlacementGroupFactory)) or not callable(resources):
        to_resources(resources, _WHERE)
    if inspect.isclass(trainable):
        make: Any = type(trainable)
        derived = make(trainable.__name__, (trainable,), {"__doc__": trainable.__doc__})
        derived.__module__, derived.__qualname__ = trainable.__module__, trainable.__qualname__
        function: Any = resources
        setattr(derived, ATTRIBUTE, staticmethod(function) if _is_function(function) else resources)
        return derived
    if not callable(trainable):
        raise InvalidInputError(
            f"tune.with_resources(trainable={trainable!r}): must be a function or a subclass of tune.Trainable"
        )
    if isinstance(trainable, Command):  # a runner must find what it starts
        described = copy.copy(trainable)
        setattr(described, ATTRIBUTE, resources)
        return described
    # A partial is still recognised as a generator function and has the signature of what it wraps.
    wrapped = functools.partial(trainable)
    setattr(wrapped, ATTRIBUTE, resources)
    return wrapped


def resources_of(trainable: Any) -> tuple[dict[str, float], Callable[[dict[str, Any]], dict[str, float]] | None]:
    """Return the resources of a Trainable's trials in their plain form.

    Returns:
        The fixed resources and None; or the default ones and a function that returns those of one config.

    Raises:
        InvalidInputError: what the Trainable asks for cannot be met.
    """
    given = _declared(trainable)
    if given is None:
        return dict(DEFAULT_RESOURCES), None
    if not _is_function(given):
        return to_resources(given, _WHERE), None

    def for_config(config: dict[str, Any]) -> dict[str, float]:
        try:
            answer = given(config)
        except Exception as error:  # the user's code: one trial's failure
            what = f"{_name(given)}, which is to return the resources for {config!r},"
            raise InvalidInputError(f"{what} raised {type(error).__name__}: {error}") from error
        if answer is None:
            return dict(DEFAULT_RESOURCES)
        return to_resources(answer, f"the resources that {_name(given)} returned for {config!r}")

    return dict(DEFAULT_RESOURCES), for_config


def bundles_of(trainable: Any) -> list[dict[str, float]]:
    """Return the bundles of a Trainable whose trials are groups of pods in a cluster, in the plain form; else []."""
    return bundles_of_group(_declared(trainable), _WHERE)


def _declared(trainable: Any) -> Any:
    if inspect.isclass(trainable):
        cls: Any = trainable
        for base in cls.__mro__:
            # Whichever is further down in the class hierarchy was said last.
            if ATTRIBUTE in base.__dict__:
                return getattr(base, ATTRIBUTE)
            if "default_resource_request" in base.__dict__ and not _is_ours(base):
                return cls.default_resource_request
        return None
    while trainable is not None:
        if ATTRIBUTE in getattr(trainable, "__dict__", {}):
            return getattr(trainable, ATTRIBUTE)
        trainable = getattr(trainable, "func", None)
    return None


def _is_function(resources: Any) -> bool:
    return callable(resources) and not isinstance(resources, PlacementGroupFactory)


def _is_ours(base: type) -> bool:
    return base.__module__.partition(".")[0] == "trialpod"


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
