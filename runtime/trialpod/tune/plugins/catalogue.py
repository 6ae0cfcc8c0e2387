"""Schedulers, search algorithms and stoppers by their names: those that come with trialpod, and installed ones.

An algorithm is one file. The decorator `algorithm` gives its class names; attributes of the class say what
validation, docs and explanations have to know: `needs_metric`, `learns`, `changes_configs`, `ABOUT` and
`describe_reason`. Nothing else lists it. The names are read from the text of the files, and a look-up imports only
the one that it finds: reading takes 5 ms, importing all of them 70 ms.

An installed package brings its own through the entry-point groups ``trialpod.schedulers``, ``trialpod.searchers`` and
``trialpod.stoppers``; its classes may have the same attributes.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from trialpod.errors import InvalidInputError, nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_Class = TypeVar("_Class", bound=type)

logger = logging.getLogger(__name__)
_DECLARATION = re.compile(r"^@algorithm\(([^)]*)\)\n(?:@[^\n]*\n)*class (\w+)", re.MULTILINE)


def algorithm(*names: str, by_name: bool = True) -> Callable[[_Class], _Class]:
    """Register a class under its names; the first is what manifests that are made from objects say.

    Args:
        *names: literals, as the file's text is searched for them.
        by_name: False for one that cannot be created by its name, whose decisions are explained all the same.
    """

    def register(cls: _Class) -> _Class:
        cls.REGISTERED = (names, by_name)  # type: ignore[attr-defined]
        return cls

    return register


@dataclass(frozen=True)
class _Declared:
    target: str  # "module:class"
    by_name: bool


@functools.cache
def _declared(package: str) -> Mapping[str, _Declared]:
    """Return what the files of a package register, by name."""
    from importlib import import_module

    found: dict[str, _Declared] = {}
    for root in import_module(package).__path__:
        for folder, folders, files in os.walk(root):
            folders.sort()
            prefix = ".".join([package, *os.path.relpath(folder, root).split(os.sep)]).removesuffix("..")
            for file in sorted(files):
                if not file.endswith(".py"):
                    continue
                with open(os.path.join(folder, file), encoding="utf-8") as stream:
                    text = stream.read()
                for arguments, name in _DECLARATION.findall(text):
                    declared = _Declared(f"{prefix}.{file[:-3]}:{name}", "by_name=False" not in arguments)
                    found.update(dict.fromkeys(re.findall(r'"([^"]+)"', arguments), declared))
    return found


def canonical(name: str) -> str:
    """Return a name as it is compared: case, "-" and "_" are ignored."""
    return str(name).lower().replace("-", "").replace("_", "")


@dataclass(frozen=True)
class Catalogue:
    """All algorithms of one kind.

    Attributes:
        kind: what they are, for messages.
        package: where ours are.
        group: the entry-point group of installed ones.
    """

    kind: str
    package: str
    group: str

    def builtin(self) -> dict[str, str]:
        """Return our names, each with "module:class"."""
        return {name: each.target for name, each in _declared(self.package).items() if each.by_name}

    def installed(self) -> dict[str, EntryPoint]:
        """Return the entry points of installed packages by name."""
        from importlib.metadata import entry_points

        return {point.name: point for point in entry_points(group=self.group)}

    def names(self) -> list[str]:
        """Return all names that `create` knows."""
        return sorted({*self.builtin(), *self.installed()})

    def homes(self) -> dict[str, str]:
        """Return the module of each of our classes by its name."""
        targets = (each.target.partition(":") for each in _declared(self.package).values())
        return {name: module for module, _, name in targets}

    def find(self, name: str) -> Any:
        """Return the class called `name`.

        Raises:
            InvalidInputError: there is none.
        """
        found = self._find(name, self.builtin())
        if found is None:
            allowed = self.names()
            guess = nearest(str(name), allowed)
            hint = f" Did you mean {guess!r}?" if guess else ""
            raise InvalidInputError(f"unknown {self.kind} {name!r}.{hint} Known are {', '.join(allowed)}.")
        return found

    def create(self, name: str, parameters: Mapping[str, Any]) -> Any:
        """Make the algorithm called `name`.

        Raises:
            InvalidInputError: the name or a parameter is unknown, or the class refused a value.
        """
        cls = self.find(name)
        _check_parameters(self.kind, name, cls, parameters)
        return cls(**parameters)

    def fitting(self, name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of the parameters that the algorithm called `name` has, with a warning of the others."""
        known = inspect.signature(self.find(name)).parameters
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
            return dict(parameters)
        if unknown := sorted(map(str, parameters.keys() - known.keys())):
            logger.warning("%s %r has no parameter %s; left out", self.kind, name, ", ".join(unknown))
        return {key: value for key, value in parameters.items() if key in known}

    def name_of(self, made: Any) -> str | None:
        """Return the name by which a manifest calls the class of an object; None when it has none."""
        cls = type(made)
        target = f"{cls.__module__}:{cls.__qualname__}"
        for name, known in self.builtin().items():
            if known == target:
                return name
        return next((name for name, point in self.installed().items() if point.value == target), None)

    def describe(self, name: str, reason: Mapping[str, Any]) -> str | None:
        """Return why the algorithm called `name` decided something, in its own words; None where it has none."""
        targets = {known: each.target for known, each in _declared(self.package).items()}
        try:
            describe = getattr(self._find(name, targets), "describe_reason", None)
            return None if describe is None else str(describe(reason))
        except Exception:  # noqa: BLE001 - a plug-in's own code: its evidence is shown as it is instead
            return None

    def table(self) -> list[str]:
        """Return a row of Markdown for each of our classes: its names, the class, and what that says about itself."""
        rows: dict[str, list[str]] = {}
        for name, target in self.builtin().items():
            rows.setdefault(target, []).append(name)
        made = []
        for target, names in rows.items():
            cells = [", ".join(f"`{name}`" for name in names), f"`{target.partition(':')[2]}`", *_load(target).ABOUT]
            made.append(f"| {' | '.join(cells)} |")
        return sorted(made)

    def _find(self, name: str, builtin: Mapping[str, str]) -> Any:
        wanted = canonical(name)
        for known, target in builtin.items():
            if canonical(known) == wanted:
                return _load(target)
        for known, point in self.installed().items():
            if canonical(known) == wanted:
                return point.load()
        return None


SCHEDULERS = Catalogue("scheduler", "trialpod.tune.schedulers", "trialpod.schedulers")
SEARCHERS = Catalogue("search algorithm", "trialpod.tune.search", "trialpod.searchers")
STOPPERS = Catalogue("stopper", "trialpod.tune.stopper", "trialpod.stoppers")


def _load(target: str) -> Any:
    from importlib import import_module

    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


@functools.cache
def _known_parameters(cls: Any) -> Mapping[str, inspect.Parameter]:
    import inspect

    return inspect.signature(cls).parameters


def _check_parameters(kind: str, name: str, cls: Any, parameters: Mapping[str, Any]) -> None:
    known = _known_parameters(cls)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        return
    for given in parameters:
        if given not in known:
            guess = nearest(str(given), known)
            hint = f" Did you mean {guess!r}?" if guess else ""
            listed = f"Allowed are {', '.join(sorted(known))}." if known else "It takes none."
            raise InvalidInputError(f"{kind} {name!r} has no parameter {given!r}.{hint} {listed}", parameter=given)
    missing = [
        parameter.name
        for parameter in known.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and parameter.name not in parameters
    ]
    if missing:
        raise InvalidInputError(f"{kind} {name!r} needs the parameter {missing[0]!r}", parameter=missing[0])
