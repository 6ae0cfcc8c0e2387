"""How a function Trainable is to be called: ``(config)``, ``(config, checkpoint_dir=None)``, ``(config, reporter)``.

Invariants: the config is the one positional argument; the two others are recognised by their names, and passed so.
A function that takes anything else is refused by its caller.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

_VARARGS = 0x04  # inspect.CO_VARARGS
CHECKPOINT_DIR = "checkpoint_dir"
_REPORTERS = ("reporter", "status_reporter", "_reporter")


class SignatureError(Exception):
    """The function cannot be called with a config; `arguments` is what it takes."""

    def __init__(self, arguments: str, reason: str = "") -> None:
        super().__init__(arguments, reason)
        self.arguments = arguments
        self.reason = reason


def legacy_arguments(function: Callable[..., Any]) -> dict[str, None]:
    """Return the names of the arguments beside the config that the runner passes to a function, each with None."""
    return dict.fromkeys(name for name in _names(function) if name == CHECKPOINT_DIR or name in _REPORTERS)


def is_reporter(name: str) -> bool:
    """Whether an argument of that name is the reporter."""
    return name in _REPORTERS


def check_call(function: Callable[..., Any]) -> dict[str, None]:
    """Return `legacy_arguments` of a function that can be called with a config and them."""
    if isinstance(function, FunctionType):
        # Importing inspect costs more than a trivial trial; plain functions are judged without it.
        code = function.__code__
        positional = code.co_varnames[: code.co_argcount]
        keyword_only = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
        legacy = legacy_arguments(function)
        defaults = len(function.__defaults__ or ())
        required = [name for name in positional[: code.co_argcount - defaults] if name not in legacy]
        missing = [
            name for name in keyword_only if name not in (function.__kwdefaults__ or {}) and name not in legacy
        ]
        free = [name for name in positional if name not in legacy]
        # The first argument is the config whatever it is called.
        if (free or code.co_flags & _VARARGS) and len(required) <= 1 and not missing:
            return legacy
        raise SignatureError(", ".join(positional + tuple(missing)))
    import inspect

    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return {}  # a callable written in C does not tell its signature
    legacy = legacy_arguments(function)
    try:
        signature.bind({}, **legacy)
    except TypeError as error:
        raise SignatureError(", ".join(signature.parameters), str(error)) from error
    return legacy


def _names(function: Callable[..., Any]) -> list[str]:
    if isinstance(function, FunctionType):
        code = function.__code__
        return list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    import inspect

    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    bound = getattr(function, "keywords", {})
    return [parameter.name for parameter in parameters if parameter.kind in named and parameter.name not in bound]
