"""Turns a search space into configs: which grid point, which draws, in which order.

A space is nested dicts, lists and tuples. Its leaves are constants, domains (`sample.py`) and grids
(``{"grid_search": [...]}``); values of a grid and of a choice may contain domains again, values of a grid also grids.

Invariants:

* Grid points are numbered: the first grid variable, sorted by path, changes fastest. Point `i` is computed from `i`;
  no list of points is ever made, so a grid of a billion points costs nothing.
* A config shares no dict, list or tuple with the space, nor with another config.
* The same generator state gives the same config.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Any, SupportsIndex, cast

from trialpod.compat.activation import under_ray
from trialpod.errors import InvalidInputError
from trialpod.tune.search.sample import Categorical, Constant, Domain, SearchSpaceError
from trialpod.tune.search.spaces.numpy_draws import NumpyDraws

MAX_RESOLUTION_PASSES = 20

Path = tuple[str | int, ...]


class RecursiveDependencyError(InvalidInputError):
    """A `sample_from` function needs a value that is not known (yet)."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One resolved config, and the values of its variables (domains and grids) by path."""

    config: dict[str, Any]
    resolved: dict[Path, Any]


class _Grid:
    """A grid in a space: its values and how many variants each of them is."""

    __slots__ = ("total", "values", "weights")

    def __init__(self, values: Any, path: Path) -> None:
        if not isinstance(values, (list, tuple, range)):
            raise SearchSpaceError(f"{path_text(path)}: grid_search needs a list of values, got {values!r}")
        if not values:
            raise SearchSpaceError(f"{path_text(path)}: grid_search needs at least one value")
        self.values = values
        self.weights: list[int] | None = None  # None: each value is one variant
        if not isinstance(values, range):
            weights = [
                _Level.of(value, path).count if isinstance(value, (dict, list, tuple)) else 1 for value in values
            ]
            if any(weight != 1 for weight in weights):
                self.weights = weights
        self.total = len(values) if self.weights is None else sum(self.weights)


class _Level:
    """The variables of a (part of a) space that can be seen without choosing a grid point."""

    __slots__ = ("count", "domains", "grids")

    def __init__(self) -> None:
        self.grids: list[tuple[Path, _Grid]] = []
        self.domains: list[tuple[Path, Domain]] = []
        self.count = 1

    @classmethod
    def of(cls, node: Any, path: Path = ()) -> _Level:
        """Scan `node`, which is at `path`."""
        level = cls()
        level._scan(node, path)
        level.grids.sort(key=lambda item: _sort_key(item[0]))
        for _, grid in level.grids:
            level.count *= grid.total
        return level

    def _scan(self, node: Any, path: Path) -> None:
        if is_grid(node):
            self.grids.append((path, _Grid(grid_values(node), path)))
        elif isinstance(node, Domain):
            self.domains.append((path, node))
        elif isinstance(node, dict):
            for key, value in node.items():
                self._scan(value, (*path, key))
        elif isinstance(node, (list, tuple)):
            for index, value in enumerate(node):
                self._scan(value, (*path, index))

    def decode(self, index: int) -> tuple[list[tuple[Path, Any]], int]:
        """Return the value of each grid at grid point `index`, and the index that is left for grids inside them."""
        chosen: list[tuple[Path, Any]] = []
        rest = self.count
        inner = 1
        for path, grid in reversed(self.grids):
            rest //= grid.total
            if grid.weights is None:
                digit, index = divmod(index, inner * rest)
            else:
                digit = 0
                while index >= inner * rest * grid.weights[digit]:
                    index -= inner * rest * grid.weights[digit]
                    digit += 1
                inner *= grid.weights[digit]
            chosen.append((path, grid.values[digit]))
        return chosen, index


class VariantSpace:
    """A search space, analysed once, from which any variant can be made."""

    def __init__(self, space: dict[str, Any]) -> None:
        if not isinstance(space, dict):
            raise InvalidInputError(f"the search space must be a dict of parameters, got {type(space).__name__}")
        if is_grid(space):
            # A whole space under one grid is a grid of configs.
            raise SearchSpaceError(
                "the search space itself is a grid_search; put it under a parameter's name, as in "
                "{'model': tune.grid_search([...])}"
            )
        self._space = space
        self._level = _Level.of(space)

    @property
    def grid_count(self) -> int:
        """How many grid points there are; 1 without a grid."""
        return self._level.count

    def draw_constants(self, rng: random.Random) -> dict[Path, Any]:
        """Draw every domain that depends on no grid value, to be held constant over the grid points."""
        config = copied(self._space)
        return Resolver(config, rng).resolve(self._level.domains, allow_unresolved=True)

    def variant(self, index: int, rng: random.Random, constants: dict[Path, Any] | None = None) -> Variant:
        """Return the variant at grid point `index`."""
        config: dict[str, Any] = copied(self._space)
        domains: list[tuple[Path, Domain]] = []
        grids: list[Path] = []
        level = self._level
        resolver = Resolver(config, rng)
        while True:
            domains += level.domains
            if not level.grids:
                break
            chosen, index = level.decode(index)
            inner = _Level()
            for path, value in chosen:
                grids.append(path)
                resolver.assign(path, copied(value))
                found = _Level.of(value, path)
                inner.grids += found.grids
                inner.domains += found.domains
                inner.count *= found.count
            inner.grids.sort(key=lambda item: _sort_key(item[0]))
            level = inner
        paths = grids
        if constants:
            for path, value in constants.items():
                resolver.assign(path, copied(value))
            paths = grids + list(constants)
            domains = _Level.of(resolver.config).domains
        paths += resolver.resolve(domains)
        return Variant(resolver.config, {path: get_value(resolver.config, path) for path in paths})


class Resolver:
    """Draws the domains of one config in as many passes as their dependencies need."""

    def __init__(self, config: dict[str, Any], rng: random.Random | NumpyDraws) -> None:
        self.config = config
        self._rng = rng
        self._constants: list[tuple[Path, Constant]] = []

    def assign(self, path: Path, value: Any) -> None:
        """Put a value into the config."""
        if path:
            self.config = _assigned(self.config, path, value)

    def resolve(self, domains: list[tuple[Path, Domain]], *, allow_unresolved: bool = False) -> dict[Path, Any]:
        """Draw all `domains`, and those inside what was drawn; return the values of all but constants."""
        resolved: dict[Path, Any] = {}
        pending = self._without_constants(domains)
        for _ in range(MAX_RESOLUTION_PASSES):
            if not pending:
                break
            waiting: list[tuple[Path, Domain]] = []
            found: list[tuple[Path, Domain]] = []
            problem: RecursiveDependencyError | None = None
            for path, domain in pending:
                try:
                    value = self.draw(path, domain)
                except RecursiveDependencyError as error:
                    problem = error
                    waiting.append((path, domain))
                    continue
                self.assign(path, value)
                resolved[path] = value
                found += self._without_constants(self._inside(path, value))
            if len(waiting) == len(pending):
                break
            pending = found + waiting
        if not pending or allow_unresolved:
            for path, constant in self._constants:
                self.assign(path, deepcopy(constant.value))
            return resolved
        names = ", ".join(path_text(path) for path, _ in pending)
        raise RecursiveDependencyError(
            f"cannot resolve {names}: {problem or 'distributions are nested too deeply'}. Either they wait for each "
            f"other, or a chain of them is longer than {MAX_RESOLUTION_PASSES}; make one of them independent"
        ) from problem

    def _without_constants(self, domains: list[tuple[Path, Domain]]) -> list[tuple[Path, Domain]]:
        """Put constants aside: they are unwrapped last, because until then they must not be taken for grids."""
        for path, domain in domains:
            if isinstance(domain, Constant):
                self._constants.append((path, domain))
        return [item for item in domains if not isinstance(item[1], Constant)]

    def draw(self, path: Path, domain: Domain) -> Any:
        """Return a value of the domain that is at `path`; the config keeps the domain."""
        try:
            return copied(domain.draw(self._rng, _GuardedDict(self.config, ())))
        except RecursiveDependencyError:
            raise
        except Exception as error:
            raise SearchSpaceError(
                f"{path_text(path)}: drawing from {domain!r} raised {type(error).__name__}: {error}"
            ) from error

    def _inside(self, path: Path, value: Any) -> list[tuple[Path, Domain]]:
        level = _Level.of(value, path)
        if level.grids:
            raise SearchSpaceError(
                f"{path_text(level.grids[0][0])}: a grid_search inside a drawn value would make the number of trials "
                "random; use choice there, or put the grid_search outside"
            )
        return level.domains


class _GuardedDict(dict[Any, Any]):
    """A config as a `sample_from` function sees it: asking for a value that is not known yet raises.

    Attributes work like keys, and ``config``, as an attribute or a key, names the config itself.
    """

    def __init__(self, data: dict[Any, Any], path: Path) -> None:
        super().__init__(data)
        self.__dict__["_path"] = path

    def __getitem__(self, key: Any) -> Any:
        if key == "config" and key not in self and not self.__dict__["_path"]:
            return self
        return _guarded(super().__getitem__(key), (*self.__dict__["_path"], key))

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name == "config" and not self.__dict__["_path"]:
            return self
        raise AttributeError(f"the config has no parameter {name!r}")

    def get(self, key: Any, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def __iter__(self) -> Iterator[Any]:
        # Overridden so that dict(config) and {**config} go through __getitem__.
        return super().__iter__()

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]


class _GuardedList(list[Any]):
    """A list in a config as a `sample_from` function sees it."""

    def __init__(self, data: Any, path: Path) -> None:
        super().__init__(data)
        self._path = path

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        return _guarded(super().__getitem__(index), (*self._path, int(index)))

    def __iter__(self) -> Iterator[Any]:
        return (self[position] for position in range(len(self)))


def _guarded(value: Any, path: Path) -> Any:
    if isinstance(value, Constant):
        return value.value
    if isinstance(value, Domain) or is_grid(value):
        raise RecursiveDependencyError(f"{path_text(path)} is needed but has no value yet")
    if type(value) is dict:
        return _GuardedDict(value, path)
    if type(value) in (list, tuple):
        level = _Level.of(value)
        if level.domains or level.grids:
            return _GuardedList(value, path)
    return value


def is_grid(node: Any) -> bool:
    """Return whether `node` is a grid: a dict whose only key is ``grid_search``, or a `Categorical.grid`."""
    return (isinstance(node, dict) and len(node) == 1 and "grid_search" in node) or (
        isinstance(node, Domain) and node.is_grid()
    )


def grid_values(grid: Any) -> Any:
    """Return the values of what `is_grid` takes for a grid."""
    values = grid.categories if isinstance(grid, Categorical) else grid["grid_search"]
    if not under_ray():
        return values  # what is not a list is refused with its path
    if isinstance(values, str):
        return list(values)
    if not hasattr(values, "__iter__"):
        raise InvalidInputError(f"grid_search needs a list of values, got {values!r}")
    return values


def scan(node: Any) -> tuple[list[tuple[Path, Domain]], list[tuple[Path, Any]]]:
    """Return the domains of a space in their order, and its grids, sorted by path, each with its values."""
    level = _Level.of(node)
    return level.domains, [(path, grid.values) for path, grid in level.grids]


def has_variables(node: Any) -> bool:
    """Return whether there is a domain or a grid in a space."""
    if isinstance(node, Domain) or is_grid(node):
        return True
    values = node.values() if isinstance(node, dict) else node if isinstance(node, (list, tuple)) else ()
    return any(map(has_variables, values))


def same_space(one: Any, other: Any) -> bool:
    """Return whether two spaces have the same domains, grids and constants."""
    if isinstance(one, Domain) or isinstance(other, Domain):
        return type(one) is type(other) and same_space(vars(one), vars(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_space(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same_space, one, other))
    return one is other or bool(one == other)


def path_text(path: Path) -> str:
    """Return a path in words: ``optimizer/momentum``."""
    return "/".join(str(part) for part in path) or "the search space"


def _sort_key(path: Path) -> list[tuple[bool, int, str]]:
    return [(False, part, "") if isinstance(part, int) else (True, 0, str(part)) for part in path]


def copied(node: Any) -> Any:
    """Copy dicts, lists and tuples; share the leaves. Grids and domains are leaves."""
    if isinstance(node, dict):
        return node if is_grid(node) else with_values(node, {key: copied(value) for key, value in node.items()})
    if isinstance(node, (list, tuple)):
        return with_items(node, [copied(value) for value in node])
    return node


def with_values(node: dict[Any, Any], values: dict[Any, Any]) -> dict[Any, Any]:
    """Return a dict of the type of `node` with other values; an OrderedDict or a defaultdict stays one."""
    if type(node) is dict:
        return values
    made = copy(node)
    for key, value in values.items():
        made[key] = value
    return made


def with_items(node: list[Any] | tuple[Any, ...], items: list[Any]) -> list[Any] | tuple[Any, ...]:
    """Return a list or tuple of the type of `node` with other items; a named tuple stays one."""
    kind = type(node)
    if kind is list:
        return items
    if kind is tuple:
        return tuple(items)
    if isinstance(node, list):
        made = copy(node)
        made[:] = items
        return made
    if hasattr(kind, "_make"):
        return kind._make(items)  # type: ignore[no-any-return]
    unchanged = all(mine is theirs for mine, theirs in zip(node, items, strict=True))
    return node if unchanged else kind(items)


def get_value(node: Any, path: Path) -> Any:
    """Return the value at a path."""
    for part in path:
        node = node[part]
    return node


def _assigned(node: Any, path: Path, value: Any) -> Any:
    """Return `node` with `value` at `path`: changed in place, but for tuples, which are recreated."""
    if not path:
        return value
    part = path[0]
    changed = _assigned(node[part], path[1:], value)
    if isinstance(node, tuple):
        position = cast(int, part)
        return with_items(node, [*node[:position], changed, *node[position + 1 :]])
    if changed is not node[part]:
        node[part] = changed
    return node
