"""`tune.with_parameters`: hands large or unusual objects to every trial of a Trainable.

The objects are stored once for the experiment, and not once for each trial as a value in the search space would be:
small ones in the Trainable's pickle, large ones by themselves (`trialpod.tune.shipping.stored_objects`).
"""

from __future__ import annotations

import inspect
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.tune.registry import resolve_trainable
from trialpod.tune.shipping.bound import BoundFunction, BoundParameters
from trialpod.tune.trainable.function_call import legacy_arguments


def with_parameters(trainable: Any, **kwargs: Any) -> Any:
    """Return `trainable` with further arguments bound to it.

    A function is called as ``fn(config, **kwargs)``; a class has its ``setup(config, **kwargs)`` called.

    Args:
        trainable: a function or a subclass of `tune.Trainable`.
        **kwargs: objects that can be pickled. NumPy arrays and the like are mapped into the trials' memory, so that
            trials of one machine share what none of them changes.

    Raises:
        InvalidInputError: the function, or the class's `setup`, does not take these arguments.
    """
    trainable = resolve_trainable(trainable)
    if inspect.isclass(trainable):
        return _class_with_parameters(trainable, kwargs)
    if not callable(trainable):
        raise InvalidInputError(
            f"tune.with_parameters(trainable={trainable!r}): must be a function or a subclass of tune.Trainable"
        )
    _check_takes(trainable, ({},), {**kwargs, **legacy_arguments(trainable)}, _name(trainable))
    return BoundFunction(trainable, **kwargs)


def _class_with_parameters(trainable: type, kwargs: dict[str, Any]) -> type:
    setup_of_base: Any = getattr(trainable, "setup", None)
    if setup_of_base is None:
        raise InvalidInputError(
            f"tune.with_parameters(trainable={trainable.__name__}): the class has no setup(); a class Trainable "
            "must be a subclass of tune.Trainable"
        )
    _check_takes(setup_of_base, (None, {}), kwargs, f"{trainable.__name__}.setup")

    bound_parameters = BoundParameters(kwargs)

    def setup(self: Any, config: dict[str, Any], **more: Any) -> None:
        setup_of_base(self, config, **{**bound_parameters, **more})

    body = {"setup": setup, "__doc__": trainable.__doc__, "__module__": trainable.__module__}
    make: Any = type(trainable)
    bound: type = make(trainable.__name__, (trainable,), body)
    bound.__qualname__ = trainable.__qualname__
    return bound


def _check_takes(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> None:
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        given = ", ".join(f"{key}=..." for key in kwargs if key not in ("checkpoint_dir", "reporter"))
        raise InvalidInputError(
            f"tune.with_parameters({name}, {given}): {name} cannot be called as (config, {given}): {error}"
        ) from error
    except ValueError:
        return  # a callable written in C does not tell its signature


def _name(function: Any) -> str:
    return getattr(function, "__name__", None) or type(function).__name__
