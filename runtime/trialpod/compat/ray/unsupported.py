"""Stand-ins for names of Ray that have no counterpart: importing them works, using them says what to do instead."""

from __future__ import annotations

from typing import Any, NoReturn

from trialpod.errors import NotSupportedError


class Unsupported:
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

    def _refuse(self) -> NoReturn:
        raise NotSupportedError(f"{self.__qualname__} is not offered by trialpod; {self._remedy}")

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse."""
        self._refuse()

    def __mro_entries__(self, bases: tuple[Any, ...]) -> NoReturn:
        """Refuse to be a base class."""
        self._refuse()

    def __instancecheck__(self, instance: object) -> bool:
        """Nothing is an instance of it."""
        return False

    def __subclasscheck__(self, subclass: type) -> bool:
        """Nothing derives from it."""
        return False

    def __getattr__(self, name: str) -> Unsupported:
        if name.startswith("_"):
            raise AttributeError(name)
        return Unsupported(f"{self.__qualname__}.{name}", self._remedy)

    def __reduce__(self) -> tuple[type[Unsupported], tuple[str, str]]:
        """Travel by name."""
        return Unsupported, (self.__qualname__, self._remedy)

    def __repr__(self) -> str:
        return f"<{self.__qualname__}, not offered by trialpod>"
