"""How a function Trainable asks to be called; trials find it out by themselves."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from trialpod.errors import InvalidInputError


def detect_checkpoint_function(train_func: Callable[..., Any], abort: bool = False, partial: bool = False) -> bool:
    """Return whether a function can be called as ``f(config, checkpoint_dir=...)``.

    Args:
        train_func: the function.
        abort: raise an error if it cannot.
        partial: whether further arguments of it may be missing, to be bound later.

    Raises:
        InvalidInputError: it cannot, and `abort` is set.
    """
    found = _binds(train_func, {}, partial=partial, checkpoint_dir="")
    if abort and not found:
        name = getattr(train_func, "__name__", type(train_func).__name__)
        raise InvalidInputError(
            f"{name}{inspect.signature(train_func)} must take the config and checkpoint_dir=None; write "
            f"def {name}(config, checkpoint_dir=None)"
        )
    return found


def detect_config_single(func: Callable[..., Any]) -> bool:
    """Return whether a function can be called as ``f(config)``."""
    return _binds(func, {})


def detect_reporter(func: Callable[..., Any]) -> bool:
    """Return whether a function can be called as ``f(config, reporter=...)``."""
    return _binds(func, {}, reporter=None)


def _binds(function: Callable[..., Any], *args: Any, partial: bool = False, **kwargs: Any) -> bool:
    try:
        signature = inspect.signature(function)
        (signature.bind_partial if partial else signature.bind)(*args, **kwargs)
    except (TypeError, ValueError):
        return False
    return True
