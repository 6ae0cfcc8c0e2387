"""Names for things that the user registers: Trainables and environments.

Invariant: what was registered before an experiment starts is known in its trials, too: it travels with the Trainable
(`shipped`), whether the trials are forked here or run elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from trialpod.compat.activation import under_ray
from trialpod.errors import InvalidInputError, WrongTypeError, nearest, refuse_stand_ins

log = logging.getLogger(__name__)

MAX_REGISTERED_BYTES = 1024 * 1024
"""Bytes of something registered that still travels with every Trainable of the script."""


_trainables: dict[str, Any] = {}
_environments: dict[str, Callable[..., Any]] = {}


def register_trainable(name: str, trainable: Any, warn: bool = True) -> None:
    """Give a Trainable a name, by which a `Tuner` of this process finds it.

    Args:
        name: the name; trials are called after it. One that is taken is given to the new Trainable.
        trainable: a function or a subclass of `tune.Trainable`.
        warn: whether to log that a callable of an unknown kind is taken as a function.

    Raises:
        InvalidInputError: it cannot be a Trainable, or the name is not valid; `WrongTypeError` for what is neither a
            function nor a class Trainable.
    """
    from trialpod.tune.trainable.checks import inspect_trainable

    if not isinstance(name, str) or not name or "/" in name:
        raise InvalidInputError(f"tune.register_trainable(name={name!r}): must be a non-empty string without slashes")
    if isinstance(trainable, str):
        raise WrongTypeError(f"tune.register_trainable({name!r}, {trainable!r}): give a function or a class")
    try:
        if not _is_class_trainable(trainable):  # whether a class is complete is checked when it is to run
            inspect_trainable(trainable)
    except InvalidInputError as error:
        if isinstance(trainable, type) or not callable(trainable):
            raise WrongTypeError(str(error)) from error
        raise
    if warn and not isinstance(trainable, type) and not hasattr(trainable, "__name__"):
        log.info("%s is registered as a function: it is a callable of type %s", name, type(trainable).__name__)
    _trainables[name] = trainable


def _is_class_trainable(trainable: Any) -> bool:
    from trialpod.tune.trainable.trainable import Trainable

    return isinstance(trainable, type) and issubclass(trainable, Trainable)


def resolve_trainable(trainable: Any) -> Any:
    """Return the Trainable that a registered name stands for; anything but a string as it is.

    Raises:
        InvalidInputError: nothing is registered under that name.
        NotSupportedError: it is a stand-in for something that is not offered.
    """
    refuse_stand_ins(trainable)
    if not isinstance(trainable, str):
        # A class that `wrap_function` made is run as the function that it wraps.
        return getattr(trainable, "_wrapped_function", trainable) if isinstance(trainable, type) else trainable
    return _named(resolve_trainable(registered(trainable)), trainable)


def registered(name: str) -> Any:
    """Return the very object that was registered under a name.

    Raises:
        InvalidInputError: nothing is.
    """
    if name in _trainables:
        return _trainables[name]
    guess = nearest(name, _trainables)
    raise InvalidInputError(
        f"no Trainable is registered as {name!r}"
        + (f"; did you mean {guess!r}?" if guess else "")
        + f". Registered: {', '.join(sorted(_trainables)) or 'none'}. tune.register_trainable(name, trainable) does"
        " that" + ("; the algorithms of RLlib need Ray itself" if under_ray() and guess is None else "")
    )


def _named(trainable: Any, name: str) -> Any:
    """Return a copy that is called `name`, as its trials are to be."""
    from trialpod.tune.trainable.checks import trainable_name

    if trainable_name(trainable) == name:
        return trainable
    if isinstance(trainable, type):
        copy: Any = type(trainable)(
            trainable.__name__, (trainable,), {"__doc__": trainable.__doc__, "__module__": trainable.__module__}
        )
        copy.__qualname__ = trainable.__qualname__
    else:
        import functools

        copy = functools.partial(trainable)
    copy._name = name  # noqa: SLF001 - by which `trainable_name` finds it
    return copy


def is_registered(name: str) -> bool:
    """Return whether a Trainable is registered under a name."""
    return name in _trainables


class Shipped:
    """A Trainable with the names that were registered where it comes from; it is unpickled as the Trainable.

    Args:
        trainable: the Trainable.
    """

    def __init__(self, trainable: Any) -> None:
        self.func = trainable
        others = {name: other for name, other in _trainables.items() if not _is_made_from(trainable, other)}
        self.trainables = _that_travel(others, "Trainable")
        self.environments = _that_travel(_environments, "environment")

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Travel as the Trainable."""
        return _arrived, (self.func, self.trainables, self.environments)


def _is_made_from(trainable: Any, other: Any) -> bool:
    """Return whether a Trainable is `other`, or that with a name, resources or arguments."""
    if isinstance(trainable, type):
        return other in trainable.__mro__
    while trainable is not None and trainable is not other:
        trainable = getattr(trainable, "func", None)
    return trainable is not None


def shipped(trainable: Any) -> Any:
    """Return what to pickle for a Trainable: itself, or with the registered names where there are any."""
    found = Shipped(trainable)
    return found if found.trainables or found.environments else trainable


def _that_travel(named: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return what can be pickled and is not large; the rest is known here only."""
    import cloudpickle

    kept = {}
    for name, value in named.items():
        try:
            cloudpickle.dump(value, _Limit())
        except Exception as error:  # noqa: BLE001 - whatever user code raises there; trials may never ask for it
            # A trial rarely asks for another Trainable than its own.
            log.log(
                logging.INFO if kind == "Trainable" else logging.WARNING,
                "the %s that is registered as %r is not known in trials: it cannot be sent (%s: %s)",
                kind, name, type(error).__name__, error,
            )  # fmt: skip
        else:
            kept[name] = value
    return kept


class _Limit:
    """Takes up to `MAX_REGISTERED_BYTES` bytes and keeps nothing."""

    def __init__(self) -> None:
        self._left = MAX_REGISTERED_BYTES

    def write(self, data: Any) -> int:
        """Count the bytes."""
        self._left -= len(memoryview(data).cast("B"))
        if self._left < 0:
            raise ValueError(f"it is larger than {MAX_REGISTERED_BYTES:,} bytes")
        return MAX_REGISTERED_BYTES


def _arrived(trainable: Any, trainables: dict[str, Any], environments: dict[str, Any]) -> Any:
    for known, more in ((_trainables, trainables), (_environments, environments)):
        for name, value in more.items():
            known.setdefault(name, value)
    return trainable


def register_env(name: str, env_creator: Callable[..., Any]) -> None:
    """Give a function that makes an environment a name, for code here and in trials that asks `get_env` for it.

    Raises:
        WrongTypeError: it cannot be called.
    """
    if not callable(env_creator):
        raise WrongTypeError(f"tune.register_env({name!r}, {env_creator!r}): the second argument must be a function")
    _environments[name] = env_creator


def get_env(name: str) -> Callable[..., Any]:
    """Return the function that `register_env` was given.

    Raises:
        InvalidInputError: there is none of that name.
    """
    if name not in _environments:
        raise InvalidInputError(f"no environment is registered as {name!r}; tune.register_env(name, creator) does it")
    return _environments[name]


def environments() -> Mapping[str, Callable[..., Any]]:
    """Return what `register_env` was given, by name."""
    return _environments
