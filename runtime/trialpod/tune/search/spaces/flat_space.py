"""A search space as optimisers want it: a flat list of numbers with bounds, and choices.

Each domain of the nested space becomes a `Dimension` of one of four kinds; a point is a dict of plain numbers, one
for each dimension (of a choice, the position of the option). Invariants:

* ``encode(build(values))`` gives `values` back, without the dimensions that were not active; of an option of a choice
  whose values another one has too, the first (`FlatSpace.is_ambiguous`).
* What `build` puts into a config satisfies the domain it came from, whatever numbers a library came up with.
* Quantised domains are searched over the indices of their grid, like they are drawn, so every multiple of `q` counts
  the same.

A domain inside an option of a choice is a dimension that is only active while that option is chosen; its name says
so: ``model[1]/depth``.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from trialpod.errors import InvalidInputError, nearest
from trialpod.protocol.readable import number as number_of
from trialpod.protocol.values import params_encoder, readable, same_value, text_of
from trialpod.tune.search.sample import Categorical, Constant, Domain, Float, Function, Integer
from trialpod.tune.search.spaces.variants import Path, VariantSpace, is_grid, with_items, with_values

Values = dict[str, Any]
"""A point: a number for each dimension's name."""

Kind = Literal["real", "whole", "choice", "normal"]


@dataclass(frozen=True, slots=True)
class Dimension:
    """One number to search for.

    Attributes:
        name: path in the space, joined by "/".
        path: path in the config.
        kind: "real" and "whole" have bounds, both included; "choice" is a position from 0 to `high`; "normal" is a
            number around `mean`.
        low: of the numbers that are searched, which for a quantised domain are multiples of `q`.
        high: the same.
        log: the logarithm is what is uniform.
        q: what a number is multiplied by; None = nothing.
        domain: where it came from.
        parent: name of a choice and the option of it that this dimension belongs to.
    """

    name: str
    path: Path
    kind: Kind
    low: float
    high: float
    log: bool
    q: float | None
    domain: Domain
    parent: tuple[str, int] | None

    @property
    def options(self) -> list[Any]:
        """The values of a choice."""
        return self.domain.categories if isinstance(self.domain, Categorical) else []

    def decode(self, number: Any) -> Any:
        """Return the value in a config that stands for a number; a number out of bounds is cut back to them."""
        if self.kind == "normal":
            value = float(number)
            return value if self.q is None else round(value / self.q) * self.q
        if self.kind == "real":
            return min(max(float(number), self.low), self.high)
        index = int(min(max(round(float(number)), self.low), self.high))
        if self.kind == "choice":
            return self.options[index]
        if isinstance(self.domain, Integer):
            return index if self.q is None else index * int(self.q)
        domain = self.domain
        assert isinstance(domain, Float)
        assert self.q is not None
        return min(max(index * self.q, domain.lower), domain.upper)

    def encode(self, value: Any) -> Any:
        """Return the number that stands for a value in a config."""
        if self.kind == "choice":
            found = self.positions(value)
            if not found:
                raise InvalidInputError(f"{self.name}: {value!r} is not among {self.options!r}")
            return found[0]
        given, value = value, number_of(value)
        if value is None or isinstance(value, bool) or not math.isfinite(value):
            raise InvalidInputError(f"{self.name}: {given!r} is not a number")
        if not self.domain.is_valid(value):
            raise InvalidInputError(f"{self.name}: {value!r} is outside of {self.domain!r}")
        if self.kind in ("real", "normal"):
            return float(value)
        index = round(value / self.q) if self.q is not None else int(value)
        if not self.low <= index <= self.high or not math.isclose(index * (self.q or 1), value, abs_tol=1e-9):
            raise InvalidInputError(f"{self.name}: {value!r} is not a value of {self.domain!r}")
        return index

    def canonical(self, number: Any) -> Any:
        """Return the number of the value that `number` decodes to."""
        if self.kind == "choice":
            return int(min(max(round(float(number)), 0), self.high))
        return self.encode(self.decode(number))

    def draw(self, rng: random.Random) -> Any:
        """Return a random number, distributed as the domain is."""
        return rng.randrange(int(self.high) + 1) if self.kind == "choice" else self.encode(self.domain.draw(rng))

    @property
    def middle(self) -> Any:
        """The number that stands for an inactive dimension where a library cannot do without."""
        if self.kind == "normal":
            assert isinstance(self.domain, Float)
            return self.domain.mean
        if self.kind == "choice":
            return 0
        if self.kind == "real":
            return math.sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2
        return int((self.low + self.high) // 2)

    def positions(self, value: Any) -> list[int]:
        """Return the positions of the options that are a plain value."""
        plain = [(position, option) for position, option in enumerate(self.options) if _is_plain(option)]
        found = [position for position, option in plain if same_value(option, value)]
        if found:
            return found
        # A list for a tuple, a string for a path: as a manifest, or an older journal, has them.
        shown = _shown(value)
        return [position for position, option in plain if shown is not None and _shown(option) == shown]


class FlatSpace:
    """The dimensions of a search space, and the way back to configs.

    Args:
        space: nested dicts and lists with domains.
        user: the class that searches, for messages.
        normal: it can search without bounds (`randn`).

    Raises:
        InvalidInputError: there is something in the space that cannot be searched.
    """

    def __init__(self, space: dict[str, Any], user: str, *, normal: bool = False) -> None:
        self._space = space
        self._user = user
        self._normal = normal
        self.dimensions: list[Dimension] = []
        VariantSpace(space)
        self._collect(space, "", (), None)
        self._by_name: dict[str, Dimension] = {}
        for dimension in self.dimensions:
            name = dimension.name
            if name in self._by_name or (name in space and dimension.path != (name,)):
                raise InvalidInputError(
                    f"{name}: the search space has two parameters of this name, which {user} cannot tell apart: "
                    'keys are joined by "/" and as text. Rename one of them'
                )
            self._by_name[name] = dimension
        if not self.dimensions:
            raise InvalidInputError(
                f"{user} has nothing to search: the search space has no distribution in it; add one, or leave the "
                "search algorithm out"
            )

    def active(self, values: Values) -> list[Dimension]:
        """Return the dimensions that matter for a point."""
        found: list[Dimension] = []
        chosen: dict[str, int] = {}
        for dimension in self.dimensions:
            if dimension.parent is not None and chosen.get(dimension.parent[0]) != dimension.parent[1]:
                continue
            if dimension.kind == "choice":
                chosen[dimension.name] = int(values[dimension.name])
            found.append(dimension)
        return found

    def canonical(self, values: Values) -> Values:
        """Return a point with the numbers of its active dimensions only, each as `encode` would give it."""
        exact = {name: self._by_name[name].canonical(number) for name, number in values.items()}
        return {dimension.name: exact[dimension.name] for dimension in self.active(exact)}

    def complete(self, values: Values) -> Values:
        """Return a point with a number for every dimension."""
        return {d.name: values.get(d.name, d.middle) for d in self.dimensions}

    def build(self, values: Values, rng: random.Random) -> tuple[dict[str, Any], dict[Path, Any]]:
        """Return the config of a point, and the values of its variables by path."""
        filled: dict[str, Any] = self._filled(self._space, "", values)
        variant = VariantSpace(filled).variant(0, rng)
        resolved = dict(variant.resolved)
        for dimension in self.active(values):
            resolved[dimension.path] = _at(variant.config, dimension.path)
        return variant.config, resolved

    def encode(self, config: Any, *, partial: bool = False, fitting: bool = False) -> Values:
        """Return the point of a config; values that are not dimensions are not looked at.

        Args:
            config: of a trial, perhaps of another space.
            partial: leave out what is missing.
            fitting: leave out what is missing, and what is not a value of its dimension.
        """
        values: Values = {}
        known: dict[str, Any] = dict(config)
        for dimension in self.dimensions:
            if dimension.parent is not None and values.get(dimension.parent[0]) != dimension.parent[1]:
                continue
            try:
                value = _value_in(known, dimension)
            except (KeyError, IndexError, TypeError):
                if partial or fitting:
                    continue
                raise InvalidInputError(f"{dimension.name} is missing in {config!r}") from None
            try:
                values[dimension.name] = (
                    self._option(dimension, value) if dimension.kind == "choice" else dimension.encode(value)
                )
            except InvalidInputError:
                if not fitting:
                    raise
        return values

    def is_ambiguous(self, config: dict[str, Any]) -> bool:
        """Return whether a config may come from other points too: another option of a choice gives what it has."""
        for dimension in self.active(self.encode(config)):
            if dimension.kind == "choice":
                found = _positions(dimension, _value_in(config, dimension))
                if len(list(itertools.islice(found, 2))) > 1:
                    return True
        return False

    def check_names(self, point: dict[str, Any], where: str) -> None:
        """Raise InvalidInputError when a point has a parameter that the space has not."""
        names = {d.name for d in self.dimensions} | set(_leaves(self._space))
        roots = set(self._space)
        for key in point:
            if key not in roots and key not in names:
                guess = nearest(str(key), [*map(str, roots), *names])
                hint = f" Did you mean {guess}?" if guess else ""
                raise InvalidInputError(f"{where} sets {key}, which is not in the search space.{hint}")

    def _option(self, dimension: Dimension, value: Any) -> int:
        """Return the position of the first option that a resolved value can have come from."""
        for position in _positions(dimension, value):
            return position
        return dimension.encode(value)  # type: ignore[no-any-return]  # it raises

    def _collect(self, node: Any, name: str, path: Path, parent: tuple[str, int] | None) -> None:
        if is_grid(node):
            raise InvalidInputError(
                f"{name or 'the search space'}: {self._user} does not go through a grid_search; use choice there, or "
                'the search algorithm "grid"'
            )
        if isinstance(node, Categorical):
            if len(node.categories) > 1:
                self._add(name, path, "choice", 0, len(node.categories) - 1, False, None, node, parent)
            for position, option in enumerate(node.categories):
                inner = (name, position) if len(node.categories) > 1 else parent
                if isinstance(option, (Domain, dict, list, tuple)):
                    self._collect(option, f"{name}[{position}]", path, inner)
        elif isinstance(node, Float):
            self._collect_float(node, name, path, parent)
        elif isinstance(node, Integer):
            q = None if node.q in (None, 1) else node.q
            low = node.lower if q is None else -(-node.lower // q)
            high = node.upper - 1 if q is None else node.upper // q
            if low < high:
                self._add(name, path, "whole", low, high, node.kind == "loguniform", q, node, parent)
        elif isinstance(node, Domain):
            if not isinstance(node, (Constant, Function)):
                raise InvalidInputError(f"{name}: {self._user} cannot search {node!r}; use uniform or choice")
        elif isinstance(node, dict):
            for key, value in node.items():
                self._collect(value, _joined(name, key), (*path, key), parent)
        elif isinstance(node, (list, tuple)):
            for index, value in enumerate(node):
                self._collect(value, _joined(name, index), (*path, index), parent)

    def _collect_float(self, node: Float, name: str, path: Path, parent: tuple[str, int] | None) -> None:
        if node.kind == "normal":
            if not self._normal:
                low, high = node.mean - 3 * node.sd, node.mean + 3 * node.sd
                raise InvalidInputError(
                    f"{name}: {self._user} cannot search {node!r}, which has no bounds; "
                    f"use uniform({low:g}, {high:g})"
                )
            if node.sd > 0:
                self._add(name, path, "normal", node.lower, node.upper, False, node.q, node, parent)
            return
        log = node.kind == "loguniform"
        if node.q is None:
            self._add(name, path, "real", node.lower, node.upper, log, None, node, parent)
            return
        first, last = round(node.lower / node.q), round(node.upper / node.q)
        if first < last:
            self._add(name, path, "whole", first, last, log, node.q, node, parent)

    def _add(self, *fields: Any) -> None:
        self.dimensions.append(Dimension(*fields))

    def _filled(self, node: Any, name: str, values: Values) -> Any:
        if isinstance(node, Categorical):
            position = int(values.get(name, 0))
            option = node.categories[position]
            if isinstance(option, (Domain, dict, list, tuple)):
                return self._filled(option, f"{name}[{position}]", values)
            return option
        if isinstance(node, Domain):
            return self._by_name[name].decode(values[name]) if name in values else node
        if isinstance(node, dict):
            return with_values(node, {key: self._filled(v, _joined(name, key), values) for key, v in node.items()})
        if isinstance(node, (list, tuple)):
            return with_items(node, [self._filled(v, _joined(name, index), values) for index, v in enumerate(node)])
        return node


def _joined(name: str, part: Any) -> str:
    return f"{name}/{part}" if name else str(part)


def _positions(dimension: Dimension, value: Any) -> Iterator[int]:
    """Yield the positions of the options of a choice that a resolved value can have come from, plain ones first."""
    yield from dimension.positions(value)
    for position, option in enumerate(dimension.options):
        if not _is_plain(option) and _matches(option, value):
            yield position


def _value_in(config: dict[str, Any], dimension: Dimension) -> Any:
    return config[dimension.name] if dimension.name in config else _at(config, dimension.path)


def _at(config: Any, path: Path) -> Any:
    for part in path:
        config = config[part]
    return config


def _leaves(node: Any, name: str = "") -> list[str]:
    if isinstance(node, dict) and not is_grid(node):
        return [leaf for key, value in node.items() for leaf in _leaves(value, _joined(name, key))]
    return [name]


def _is_plain(option: Any) -> bool:
    """Return whether an option is a plain value: no domain anywhere in it."""
    if isinstance(option, Domain):
        return False
    if isinstance(option, dict):
        return all(_is_plain(value) for value in option.values())
    return all(_is_plain(value) for value in option) if isinstance(option, (list, tuple)) else True


def _matches(template: Any, value: Any) -> bool:
    """Return whether `value` can come out of `template`."""
    if isinstance(template, Categorical):
        return any(_matches(option, value) for option in template.categories)
    if isinstance(template, Domain):
        return template.is_valid(value)
    if isinstance(template, dict):
        return (
            isinstance(value, dict)
            and template.keys() == value.keys()
            and all(_matches(template[key], value[key]) for key in template)
        )
    if isinstance(template, (list, tuple)):
        return (
            isinstance(value, (list, tuple))
            and len(template) == len(value)
            and all(_matches(inner, item) for inner, item in zip(template, value, strict=True))
        )
    return same_value(template, value)


def _shown(value: Any) -> bytes | None:
    """Return the readable form of a value; None if it is only a text that stands for it."""
    form = readable(value)
    if form.__class__ is str and not isinstance(value, str) and form == text_of(value):
        return None
    return params_encoder.encode(form)
