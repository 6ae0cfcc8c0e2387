"""Stand-ins for names of Ray that have no counterpart: importing them works, using them says what to do instead.

Invariants:

* A stand-in has no attributes but its own: what probes an object (``hasattr``, ``inspect``, ``copy``) finds nothing
  in it, and a script that asks for one gets the error that names it.
* A stand-in for an exception is an exception class, so that ``except`` clauses work; it is never raised.
"""

from __future__ import annotations

import functools
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn, Union

from trialpod.errors import NotOffered, NotSupportedError, TrialpodError

_EXCEPTIONS = ("Error", "Exception", "Warning")


class MissingAttributeError(NotSupportedError, AttributeError):
    """An attribute of something that is not offered."""


def _message(name: str, remedy: str) -> str:
    return f"{name} is not offered by trialpod; {remedy}"


class Unsupported(NotOffered):
    """A name without counterpart.

    Args:
        name: Ray's full name of it.
        remedy: what to do instead, as half a sentence.
    """

    def __init__(self, name: str, remedy: str) -> None:
        self.__name__ = name.rpartition(".")[2]
        self.__qualname__ = name
        self.__module__ = name.rpartition(".")[0]
        self._remedy = remedy

    def refuse(self) -> NoReturn:
        """Say what to do instead."""
        raise NotSupportedError(_message(self.__qualname__, self._remedy))

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse."""
        self.refuse()

    def __mro_entries__(self, bases: tuple[Any, ...]) -> NoReturn:
        """Refuse to be a base class."""
        self.refuse()

    def __instancecheck__(self, instance: object) -> bool:
        """Nothing is an instance of it."""
        return False

    def __subclasscheck__(self, subclass: type) -> bool:
        """Nothing derives from it."""
        return False

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise MissingAttributeError(_message(f"{self.__qualname__}.{name}", self._remedy))

    def __or__(self, other: Any) -> Any:
        """Be part of an annotation."""
        return Union[self, other]  # noqa: UP007 - the operator is what is defined here

    def __ror__(self, other: Any) -> Any:
        """Be part of an annotation."""
        return Union[other, self]  # noqa: UP007

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        """Travel by name."""
        return Unsupported, (self.__qualname__, self._remedy)

    def __repr__(self) -> str:
        return f"<{self.__qualname__}, not offered by trialpod>"


class UnsupportedModule(ModuleType, NotOffered):
    """A module of Ray without counterpart."""

    remedy: str

    def refuse(self) -> NoReturn:
        """Say what to do instead."""
        raise NotSupportedError(_message(self.__name__, self.remedy))

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: some of Ray's functions are called like its modules."""
        self.refuse()

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        """Travel by name."""
        return import_module, (self.__name__,)


@functools.cache
def stand_in(name: str, remedy: str) -> Any:
    """Return a stand-in for a name of Ray: an exception class for an exception's name."""
    short = name.rpartition(".")[2]
    if not short.endswith(_EXCEPTIONS):
        return Unsupported(name, remedy)
    body = {"__doc__": f"{name}, never raised: {remedy}.", "__module__": name.rpartition(".")[0]}
    return type(short, (TrialpodError,), {**body, "never_raised": True})
