"""Finds a scheduler, search algorithm or stopper by its name and makes it from keyword arguments.

The names that come with trialpod are looked up first; an installed package adds its own through the entry-point
groups ``trialpod.schedulers``, ``trialpod.searchers`` and ``trialpod.stoppers``. Nothing is imported before it is
asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trialpod.errors import InvalidInputError, nearest


def create(kind: str, group: str, builtin: Mapping[str, str], name: str, parameters: Mapping[str, Any]) -> Any:
    """Make the object called `name`.

    Args:
        kind: what it is, for messages: "scheduler".
        group: the entry-point group of third parties.
        builtin: name -> "module:class" of ours.
        name: as the user wrote it; case, "-" and "_" are not told apart.
        parameters: keyword arguments of the class.

    Raises:
        InvalidInputError: the name or a parameter is unknown, or the class refused a value.
    """
    cls = _find(kind, group, builtin, name)
    _check_parameters(kind, name, cls, parameters)
    return cls(**parameters)


def _find(kind: str, group: str, builtin: Mapping[str, str], name: str) -> Any:
    wanted = _canonical(name)
    for known, target in builtin.items():
        if _canonical(known) == wanted:
            return _load(target)
    from importlib.metadata import entry_points

    plugins = {point.name: point for point in entry_points(group=group)}
    for known, point in plugins.items():
        if _canonical(known) == wanted:
            return point.load()
    allowed = [*builtin, *plugins]
    guess = nearest(str(name), allowed)
    hint = f" Did you mean {guess!r}?" if guess else ""
    raise InvalidInputError(f"unknown {kind} {name!r}.{hint} Known are {', '.join(sorted(allowed))}.")


def _canonical(name: str) -> str:
    return str(name).lower().replace("-", "").replace("_", "")


def _load(target: str) -> Any:
    from importlib import import_module

    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


def _check_parameters(kind: str, name: str, cls: Any, parameters: Mapping[str, Any]) -> None:
    import inspect

    known = inspect.signature(cls).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        return
    for given in parameters:
        if given not in known:
            guess = nearest(str(given), known)
            hint = f" Did you mean {guess!r}?" if guess else ""
            listed = f"Allowed are {', '.join(sorted(known))}." if known else "It takes none."
            raise InvalidInputError(f"{kind} {name!r} has no parameter {given!r}.{hint} {listed}")
    missing = [
        parameter.name
        for parameter in known.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and parameter.name not in parameters
    ]
    if missing:
        raise InvalidInputError(f"{kind} {name!r} needs the parameter {missing[0]!r}")
