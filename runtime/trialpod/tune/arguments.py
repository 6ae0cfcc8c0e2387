"""What public classes do with arguments that they cannot use: the error names the nearest one, or what is allowed."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

from trialpod.errors import InvalidInputError, nearest

_Class = TypeVar("_Class", bound=type)


class UnknownArgumentError(InvalidInputError, TypeError):
    """A class was called with an argument that it does not have."""


def unknown_argument(where: str, name: str, known: Sequence[str]) -> UnknownArgumentError:
    """Return the error for an argument that is none of the known ones."""
    guess = nearest(name, known)
    hint = f"; did you mean {guess!r}?" if guess else f"; there are: {', '.join(known)}"
    return UnknownArgumentError(f"{where} has no argument {name!r}{hint}")


def names_nearest(cls: _Class) -> _Class:
    """Make a class refuse arguments that it does not have with the name of the nearest one."""
    original = cls.__init__  # type: ignore[misc]
    code = original.__code__
    known = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    public = [name for name in known if not name.startswith("_")]

    @functools.wraps(original)
    def init(self: Any, *positional: Any, **named: Any) -> None:
        for name in named:
            if name not in known:
                raise unknown_argument(type(self).__name__, name, public)
        original(self, *positional, **named)

    cls.__init__ = init  # type: ignore[misc]
    return cls


def refuse(where: str, argument: str, value: object, allowed: str) -> NoReturn:
    """Raise the error for an argument that has a value it cannot have."""
    raise InvalidInputError(f"{where}({argument}={value!r}): {argument} must be {allowed}")


def is_int(value: object) -> bool:
    """Return whether a value is an integer, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def plain_int(value: Any) -> Any:
    """Return an integer of another type, such as NumPy's, as an int; anything else as it is."""
    if isinstance(value, bool):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return value


def choose(where: str, argument: str, value: object, allowed: Sequence[str]) -> None:
    """Refuse a value that is not one of `allowed`."""
    if value in allowed:
        return
    text = " or ".join(repr(name) for name in allowed)
    guess = nearest(value, allowed) if isinstance(value, str) else None
    refuse(where, argument, value, text + (f" (did you mean {guess!r}?)" if guess else ""))
