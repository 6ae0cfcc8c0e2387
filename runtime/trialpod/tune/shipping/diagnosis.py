"""Finds what keeps an object from being pickled, and says where it is.

The search walks only into what fails: an object that can be pickled is never looked into. It follows what cloudpickle
follows (closures, the globals that a function uses, defaults, attributes, items) and is bounded in depth and in the
number of objects; an object is visited once, so cycles end.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trialpod.tune.shipping.bound import BoundParameters

MAX_DEPTH = 12
MAX_OBJECTS = 2_000
MAX_CULPRITS = 10

_KNOWN_BY_NAME = frozenset({"asyncio", "concurrent", "logging", "multiprocessing", "queue", "sqlite3", "threading"})

_Child = tuple[str, str, Any]
"""(where, expression, object): "closure variable 'c' of train", "c" -- or "" to keep the parent's."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """An object that cannot be pickled, though everything in it that could be looked at can.

    Attributes:
        where: how it comes into play ("closure variable 'client' of train"); empty when `expression` says it all.
        expression: how to reach it ("client.lock").
        type_name: its type ("_thread.lock").
        reason: what pickling it says.
    """

    where: str
    expression: str
    type_name: str
    reason: str

    def __str__(self) -> str:
        if not self.where:
            return f"{self.expression}: {self.type_name}"
        if f"'{self.expression}'" in self.where:
            return f"{self.where}: {self.type_name}"
        return f"{self.where}, at {self.expression}: {self.type_name}"


def diagnose(obj: Any, name: str | None = None) -> list[Culprit]:
    """Return what keeps `obj` from being pickled; an empty list when it can be."""
    from trialpod.protocol.pickling import dumps

    return _Search(dumps).run(obj, name or _name_of(obj))


class _Search:
    def __init__(self, dumps: Callable[[Any], bytes]) -> None:
        self._dumps = dumps
        self._seen: set[int] = set()
        self._open: set[int] = set()  # on the way from the root to the present object
        self._alive: list[Any] = []  # so that no id is used twice
        self._culprits: list[Culprit] = []

    def run(self, obj: Any, name: str) -> list[Culprit]:
        self._visit("", name, obj, 0)
        return self._culprits

    def _visit(self, where: str, expression: str, obj: Any, depth: int) -> bool:
        """Look into `obj`; return whether it, or something in it, cannot be pickled."""
        if id(obj) in self._seen:
            return id(obj) not in self._open  # only what fails is in _seen; a cycle explains nothing
        reason = self._failure(obj)
        if reason is None:
            return False
        self._seen.add(id(obj))
        self._alive.append(obj)
        self._open.add(id(obj))
        blamed = False
        if depth < MAX_DEPTH and not _is_known_by_name(obj):
            for child_where, child_expression, child in _children(obj, expression):
                if len(self._culprits) >= MAX_CULPRITS or len(self._seen) >= MAX_OBJECTS:
                    break
                blamed |= self._visit(child_where or where, child_expression, child, depth + 1)
        self._open.discard(id(obj))
        if not blamed and len(self._culprits) < MAX_CULPRITS:
            self._culprits.append(Culprit(where, expression, _type_name(obj), reason))
        return True

    def _failure(self, obj: Any) -> str | None:
        try:
            self._dumps(obj)
        except RecursionError:
            return "it is nested too deeply"
        except Exception as error:  # noqa: BLE001 - whatever user code raises in __reduce__ is the answer
            return f"{type(error).__name__}: {error}"
        return None


def _is_known_by_name(obj: Any) -> bool:
    """Return whether users know an object by its name, not by what is in it: a library's function, an Event."""
    if isinstance(obj, types.FunctionType):
        file = getattr(sys.modules.get(obj.__module__ or ""), "__file__", None) or ""
        return "site-packages" in file
    if isinstance(obj, (type, functools.partial, Mapping, list, tuple, set, frozenset)):
        return False
    return type(obj).__module__.partition(".")[0] in _KNOWN_BY_NAME


def _children(obj: Any, expression: str) -> Iterator[_Child]:
    if isinstance(obj, types.MethodType):
        yield "", f"{expression}.__self__", obj.__self__
        yield "", expression, obj.__func__
    elif isinstance(obj, types.FunctionType):
        yield from _of_function(obj)
    elif isinstance(obj, functools.partial):
        yield "", expression, obj.func
        name = _name_of(obj.func)
        for index, value in enumerate(obj.args):
            yield f"positional argument {index} bound to {name}", f"args[{index}]", value
        for key, value in obj.keywords.items():
            yield f"argument '{key}' bound to {name}", key, value
        yield from _attributes(obj, expression)
    elif isinstance(obj, type):
        yield from _of_class(obj)
    elif isinstance(obj, BoundParameters):
        for key, value in obj.items():
            yield f"argument '{key}' of tune.with_parameters", key, value
    elif isinstance(obj, Mapping):
        for key, value in list(obj.items()):
            yield "", f"key {key!r} of {expression}", key
            yield "", f"{expression}[{key!r}]", value
        yield from _attributes(obj, expression)
    elif isinstance(obj, (list, tuple, set, frozenset)):
        for index, value in enumerate(list(obj)):
            yield "", f"{expression}[{index}]", value
        yield from _attributes(obj, expression)
    else:
        yield from _attributes(obj, expression)
        if not isinstance(obj, (types.ModuleType, staticmethod, classmethod, property)):
            # An instance of a class that travels by value carries that class with it.
            yield f"class of {expression}", type(obj).__name__, type(obj)


def _of_function(function: types.FunctionType) -> Iterator[_Child]:
    name = function.__name__
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f"closure variable '{variable}' of {name}", variable, cell.cell_contents
        except ValueError:  # a variable that has no value yet
            continue
    for variable in sorted(_global_names(function.__code__)):
        if variable in function.__globals__:
            yield f"global '{variable}' used by {name}", variable, function.__globals__[variable]
    arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    for argument, value in zip(arguments[len(arguments) - len(defaults) :], defaults, strict=False):
        yield f"default of argument '{argument}' of {name}", argument, value
    for argument, value in (function.__kwdefaults__ or {}).items():
        yield f"default of argument '{argument}' of {name}", argument, value
    yield from _attributes(function, name)


def _global_names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names


def _of_class(cls: type) -> Iterator[_Child]:
    for key, value in list(vars(cls).items()):
        if key in ("__dict__", "__weakref__", "__doc__", "__module__"):
            continue
        if isinstance(value, (staticmethod, classmethod)):
            yield "", f"{cls.__name__}.{key}", value.__func__
        elif isinstance(value, property):
            for function in (value.fget, value.fset, value.fdel):
                if function is not None:
                    yield "", f"{cls.__name__}.{key}", function
        elif isinstance(value, types.FunctionType):
            yield "", f"{cls.__name__}.{key}", value
        elif not isinstance(value, (types.MemberDescriptorType, types.GetSetDescriptorType)):
            yield f"attribute '{key}' of class {cls.__name__}", key, value
    for base in cls.__bases__:
        yield "", base.__name__, base


def _attributes(obj: Any, expression: str) -> Iterator[_Child]:
    for key, value in list(getattr(obj, "__dict__", {}).items()):
        yield "", f"{expression}.{key}", value
    for cls in type(obj).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot not in ("__dict__", "__weakref__") and hasattr(obj, slot):
                yield "", f"{expression}.{slot}", getattr(obj, slot)


def _name_of(obj: Any) -> str:
    if isinstance(obj, functools.partial):
        return _name_of(obj.func)
    return getattr(obj, "__name__", None) or type(obj).__name__


def _type_name(obj: Any) -> str:
    cls = type(obj)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
