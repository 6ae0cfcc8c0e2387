"""Misspelt arguments of public classes: the error names the nearest one that there is."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

from trialpod.errors import InvalidInputError, nearest

_Class = TypeVar("_Class", bound=type)


class UnknownArgumentError(InvalidInputError, TypeError):
    """A class was called with an argument that it does not have."""


def names_nearest(cls: _Class) -> _Class:
    """Make a class refuse arguments that it does not have with the name of the nearest one."""
    original = cls.__init__  # type: ignore[misc]
    code = original.__code__
    known = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]

    @functools.wraps(original)
    def init(self: Any, *positional: Any, **named: Any) -> None:
        for name in named:
            if name not in known:
                guess = nearest(name, known)
                hint = f"; did you mean {guess!r}?" if guess else f"; there are: {', '.join(known)}"
                raise UnknownArgumentError(f"{cls.__name__} has no argument {name!r}{hint}")
        original(self, *positional, **named)

    cls.__init__ = init  # type: ignore[misc]
    return cls
