"""Algorithms as names and arguments: what a manifest can say of an object that a script made.

Invariant: what `arguments_of` returns makes an equal object when it is given to the class again. It is what the
object was made with, whatever happened to it since. An object that cannot tell (its class copies itself in a way of
its own) has no arguments here, rather than wrong ones.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, SupportsIndex

from trialpod.tune.arguments import unknown_argument

if TYPE_CHECKING:
    from typing import Self


class RemembersArguments:
    """Base of classes whose objects know what they were made with. It adds nothing to an object's `__dict__`."""

    if (
        not TYPE_CHECKING
    ):  # a type checker would take classes with slots for ones that nothing else can be combined with
        __slots__ = ("_made_with",)

    _made_with: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Remember the arguments; `__init__` gets them too.

        Raises:
            UnknownArgumentError: `__init__` does not have one of them; the nearest is named.
        """
        if kwargs and (known := _names_of(cls.__init__)):
            for name in kwargs:
                if name not in known:
                    raise unknown_argument(cls.__name__, name, [each for each in known if not each.startswith("_")])
        made = super().__new__(cls)
        made._made_with = (args, kwargs)
        return made

    # `inspect.signature` of a class looks at __new__ where there is no nearer __init__.
    __new__.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("cls", inspect.Parameter.POSITIONAL_ONLY)]
    )

    def __init__(self) -> None:
        """Refuse arguments of classes that take none."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Give copies the arguments, also where the class chooses by ``__getstate__`` what its copies have."""
        reduced = super().__reduce_ex__(protocol)
        if (
            isinstance(reduced, str)
            or getattr(type(self), "__getstate__", None) is _DEFAULT_GETSTATE
            or reduced[0] is not _NEW_OBJECT
        ):
            return reduced  # type: ignore[return-value]
        return _made_again, (type(self), *self._copied_arguments()), *reduced[2:]

    def _copied_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments as copies have them: a class replaces what cannot be copied."""
        return self._made_with


_DEFAULT_GETSTATE = getattr(object, "__getstate__", None)  # None before Python 3.11
_NEW_OBJECT = object().__reduce_ex__(2)[0]
"""The function by which pickles make an object without a method of its own."""


def _made_again(cls: type[RemembersArguments], args: tuple[Any, ...], kwargs: dict[str, Any]) -> RemembersArguments:
    if cls.__new__ is not RemembersArguments.__new__:
        return cls.__new__(cls, *args, **kwargs)
    made = cls.__new__(cls)  # `__init__` may have changed since, and is not called
    made._made_with = (args, kwargs)  # noqa: SLF001
    return made


@functools.cache
def _names_of(init: Any) -> tuple[str, ...]:
    """Return the names of the arguments that a function takes, () if it takes any or none."""
    parameters = list(inspect.signature(init).parameters.values())[1:]
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return ()
    return tuple(parameter.name for parameter in parameters)


def arguments_of(made: Any) -> dict[str, Any] | None:
    """Return what an object was made with, by name; None when it cannot tell."""
    args, kwargs = getattr(made, "_made_with", (None, None))
    if args is None or kwargs is None:
        return None
    try:
        bound = inspect.signature(type(made)).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return None
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            return None  # no manifest can say it
        found.update(value if kind is inspect.Parameter.VAR_KEYWORD else {name: value})
    return found
