"""The import hook behind ``import ray``: modules whose names are looked up in trialpod when they are first used.

Invariants: nothing of trialpod is imported before a name of it is asked for; a module is made once, and travels in
pickles by its name, as real ones do.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType
from typing import Any

from trialpod.compat.ray import known_names, shared, table
from trialpod.compat.ray.unsupported import UnsupportedModule, stand_in
from trialpod.errors import NotOffered, nearest

_EXAMPLES = "ray.tune.examples."


class AliasFinder:
    """Finds ``ray`` and what is below it; a finder and loader of the import system."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of an alias module, None for everything else."""
        if fullname != "ray" and not fullname.startswith("ray."):
            return None
        if (example := _example(fullname)) is not None:
            return example
        if fullname in table.MODULES or _remedy(fullname) is not None or known_names.is_module(fullname):
            return ModuleSpec(fullname, self, is_package=True)  # type: ignore[arg-type]
        parent, _, name = fullname.rpartition(".")
        named = nearest(name, _names(parent)) if parent in table.MODULES else None
        guess = f"{parent}.{named}" if named else nearest(fullname, table.MODULES)
        # Without `name`: an error with it would be replaced by one that suggests nothing, in `from ray import x`.
        raise ModuleNotFoundError(
            f"there is no module or name {fullname!r} among trialpod's aliases for Ray"
            + (f"; did you mean {guess!r}?" if guess else ".")
            + " docs/ray-names.md lists them all"
        )

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make the module."""
        doc = f"trialpod's alias of {spec.name}."
        if spec.name in table.MODULES or known_names.is_module(spec.name):
            return ModuleType(spec.name, doc)
        module = UnsupportedModule(spec.name, doc)
        module.remedy = _remedy(spec.name) or table.INTERNAL
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its look-up."""
        name = module.__name__

        def __getattr__(attribute: str) -> Any:  # noqa: N807
            value = _look_up(name, attribute)
            module.__dict__[attribute] = value
            return value

        module.__dict__["__getattr__"] = __getattr__
        module.__dict__["__dir__"] = lambda: _names(name)
        if name == "ray":
            module.__dict__["__version__"] = table.VERSION


def _example(name: str) -> ModuleSpec | None:
    """Return the spec of one of Ray's examples where a Ray is installed: scripts import parts of them."""
    if not name.startswith(_EXAMPLES):
        return None
    for entry in sys.path:
        place = os.path.join(entry, *name.split("."))
        if os.path.isfile(f"{place}.py"):
            return spec_from_file_location(name, f"{place}.py")
        if os.path.isfile(os.path.join(place, "__init__.py")):
            return spec_from_file_location(
                name, os.path.join(place, "__init__.py"), submodule_search_locations=[place]
            )
    return None


def _look_up(module: str, attribute: str) -> Any:
    """Return what a name in an alias module stands for."""
    full = f"{module}.{attribute}"
    if attribute == "__all__":
        return _exported(module)
    if attribute.startswith("__"):
        raise AttributeError(f"module {module!r} has no attribute {attribute!r}")
    special = table.NAMES.get(full)
    if special is not None:
        return _named(special)
    if full in table.MODULES:
        return import_module(full)
    found = _in_targets(module, attribute)
    if found is not _NOTHING:
        return found
    if attribute == "logger":
        return logging.getLogger(module)
    remedy = table.remedy(full)
    if remedy is None and attribute in known_names.names(module):
        if attribute in shared.SHARED:
            return _named(shared.SHARED[attribute])
        remedy = table.INTERNAL
    remedy = remedy or _remedy(full)
    if remedy is None and module not in table.MODULES:
        remedy = _remedy(module) or table.INTERNAL
    # Ray's modules have lower-case names; a function among them refuses to be called just the same.
    if known_names.is_module(full) or (attribute.islower() and _remedy(full) is not None):
        return import_module(full)
    if remedy is not None:
        return stand_in(full, remedy)
    guess = nearest(attribute, _names(module))
    raise AttributeError(
        f"module {module!r} (trialpod's alias) has no attribute {attribute!r}"
        + (f"; did you mean {guess!r}?" if guess else ""),
        name=attribute,
    )


_NOTHING = object()


def _in_targets(module: str, attribute: str) -> Any:
    for target in table.MODULES.get(module, ()):
        try:
            return getattr(import_module(target), attribute)
        except AttributeError:
            continue
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith("trialpod"):
                raise
    return _NOTHING


def _remedy(full: str) -> str | None:
    """Return what to do instead of a name without counterpart; private names of Ray's count as known."""
    found = table.remedy(full)
    if found is None and any(part.startswith("_") and not part.startswith("__") for part in full.split(".")):
        return table.INTERNAL
    return found


def _exported(module: str) -> list[str]:
    """Return the names that ``from module import *`` binds: what is offered, without modules."""
    names = {full.rpartition(".")[2] for full in table.NAMES if full.rpartition(".")[0] == module}
    for target in table.MODULES.get(module, ()):
        found = import_module(target)
        listed = getattr(found, "__all__", None)
        if listed is None:
            listed = [
                name
                for name, value in vars(found).items()
                if not isinstance(value, ModuleType) and getattr(value, "__module__", target) == target
            ]
        names.update(listed)
    return sorted(name for name in names if not name.startswith("_") and _is_there(module, name))


def _is_there(module: str, name: str) -> bool:
    try:
        value = getattr(import_module(module), name)
    except (AttributeError, ModuleNotFoundError):
        return False  # a library that it needs is not installed
    return not isinstance(value, (ModuleType, NotOffered))


def _named(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


def _names(module: str) -> list[str]:
    names = {full.rpartition(".")[2] for full in (*table.NAMES, *table.MODULES) if full.rpartition(".")[0] == module}
    for target in table.MODULES.get(module, ()):
        try:
            found = import_module(target)
        except ModuleNotFoundError:
            continue
        names.update(getattr(found, "__all__", None) or (name for name in vars(found) if not name.startswith("_")))
    names.update(table.unsupported_names(module))
    names.update(known_names.names(module))
    return sorted(
        names | {name for name in vars(sys.modules.get(module, ModuleType(""))) if not name.startswith("_")}
    )
