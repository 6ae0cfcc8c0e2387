"""Variants one after the other from one generator, in the order in which Ray Tune draws them.

`VariantSpace` makes any variant by its number, which needs as many of them in each sample, and a generator for each.
Here all draws come from one generator, so that its seed gives what it gives in Ray, and a drawn value may contain a
grid: then a sample has more variants than another.

Invariants:

* From a generator that the script has, too, all variants of a sample are drawn when its first is asked for, unless
  there are more than a million.
* The state is that of the generator before the current sample, and how many of its variants were taken.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

from trialpod.tune.search.sample import Categorical, Constant, Domain
from trialpod.tune.search.spaces.numpy_draws import NumpyDraws
from trialpod.tune.search.spaces.variants import (
    MAX_RESOLUTION_PASSES,
    Path,
    RecursiveDependencyError,
    Resolver,
    Variant,
    copied,
    get_value,
    grid_values,
    is_grid,
    path_text,
    scan,
)

MAX_EAGER = 1_000_000


class VariantStream:
    """The variants of a search space, sample after sample.

    Args:
        spaces: of the first samples, which `points_to_evaluate` set in part.
        space: of all other samples.
        rng: what everything is drawn from.
        constant: draw once for a sample, and keep the values over its grid points.
        shared: others draw from `rng`, too.
    """

    def __init__(
        self,
        spaces: list[dict[str, Any]],
        space: dict[str, Any],
        rng: random.Random | NumpyDraws,
        *,
        constant: bool = False,
        shared: bool = False,
    ) -> None:
        self._shared = shared
        self._spaces = spaces
        self._space = space
        self._rng = rng
        self._constant = constant
        self._sample = 0  # the next one
        self._taken = 0  # variants of the one before it
        self._before = _state_of(rng)
        self._variants: Iterator[Variant] = iter(())
        self._next: Variant | None = None

    @property
    def is_global(self) -> bool:
        """True when the script draws from the same generator."""
        return isinstance(self._rng, NumpyDraws) and self._rng.is_global

    def ended(self, samples: int | None) -> bool:
        """Return whether `samples` samples (None: without end) have no more variants."""
        if samples is None:
            return False
        last = max(samples, len(self._spaces))
        return self._sample > last or (self._next is None and self._sample == last)

    def draw(self, samples: int | None) -> Variant | None:
        """Return the next variant; None when there is none in `samples` samples."""
        if self.ended(samples):
            return None
        if self._next is None:
            self._begin()
        found, self._next = self._next, next(self._variants, None)
        self._taken += 1
        return found

    def get_state(self) -> dict[str, Any]:
        """Return the position as JSON data."""
        return {"rng": self._before, "sample": self._sample, "taken": self._taken}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue where `get_state` was called."""
        self._rng = _generator_in(state["rng"])
        self._before = state["rng"]
        self._sample, self._taken = state["sample"], 0
        self._next = None
        if state["taken"]:
            self._sample -= 1
            self._begin()
            for _ in range(state["taken"]):
                self._next = next(self._variants, None)
            self._taken = state["taken"]

    def _begin(self) -> None:
        self._before = _state_of(self._rng)
        space = self._spaces[self._sample] if self._sample < len(self._spaces) else self._space
        self._sample += 1
        self._taken = 0
        made = (_unwrapped(variant) for variant in _variants(copied(space), self._rng, self._constant))
        self._variants = itertools.chain(list(itertools.islice(made, MAX_EAGER)), made) if self._shared else made
        self._next = next(self._variants, None)


def has_drawn_grid(node: Any) -> bool:
    """Return whether a space has a choice with a grid in it."""
    if isinstance(node, Categorical):
        return any(has_drawn_grid(value) or _contains_grid(value) for value in node.categories)
    values: Any = ()
    if isinstance(node, dict):
        values = node.values()
    elif isinstance(node, (list, tuple)):
        values = node
    return any(map(has_drawn_grid, values))


def has_domain(node: Any) -> bool:
    """Return whether anything in a space is drawn."""
    if is_grid(node):
        return any(map(has_domain, grid_values(node)))
    if isinstance(node, Domain):
        return not isinstance(node, Constant)
    values = node.values() if isinstance(node, dict) else node if isinstance(node, (list, tuple)) else ()
    return any(map(has_domain, values))


def _contains_grid(node: Any) -> bool:
    if is_grid(node):
        return True
    values = node.values() if isinstance(node, dict) else node if isinstance(node, (list, tuple)) else ()
    return any(map(_contains_grid, values))


def _variants(config: Any, rng: random.Random | NumpyDraws, constant: bool) -> Iterator[Variant]:
    domains, grids = scan(config)
    domains = [item for item in domains if not isinstance(item[1], Constant)]
    if not domains and not grids:
        yield Variant(config, {})
        return
    kept: dict[Path, Any] = {}
    if constant:
        resolver = Resolver(config, rng)
        kept = _drawn(resolver, domains, must=False)
        config = resolver.config
        domains = [item for item in domains if item[0] not in kept]
    # The first grid changes fastest.
    for values in itertools.product(*([(path, value) for value in grid] for path, grid in reversed(grids))):
        resolver = Resolver(copied(config), rng)
        for path, value in reversed(values):
            resolver.assign(path, copied(value))
        resolved = {**kept, **_drawn(resolver, domains, must=True)}
        for inner in _variants(resolver.config, rng, constant):
            values_here = {**resolved, **{path: get_value(inner.config, path) for path, _ in grids}}
            yield Variant(inner.config, {**values_here, **inner.resolved})


def _drawn(resolver: Resolver, domains: list[tuple[Path, Domain]], *, must: bool) -> dict[Path, Any]:
    """Draw each domain, those that wait for others in further passes; return the values."""
    drawn: dict[Path, Any] = {}
    pending = domains
    for _ in range(MAX_RESOLUTION_PASSES):
        waiting: list[tuple[Path, Domain]] = []
        problem: RecursiveDependencyError | None = None
        for path, domain in pending:
            try:
                drawn[path] = resolver.draw(path, domain)
            except RecursiveDependencyError as error:
                problem = error
                waiting.append((path, domain))
            else:
                resolver.assign(path, drawn[path])
        if not waiting:
            return drawn
        if len(waiting) == len(pending):
            break
        pending = waiting
    if must:
        names = ", ".join(path_text(path) for path, _ in waiting)
        raise RecursiveDependencyError(
            f"cannot resolve {names}: {problem}. Either they wait for each other, or for a value inside of a choice; "
            "make one of them independent"
        ) from problem
    return drawn


def _unwrapped(variant: Variant) -> Variant:
    resolver = Resolver(variant.config, random.Random(0))
    for path, domain in scan(variant.config)[0]:
        if isinstance(domain, Constant):
            resolver.assign(path, domain.value)
    return Variant(resolver.config, variant.resolved)


def _state_of(rng: random.Random | NumpyDraws) -> Any:
    if isinstance(rng, NumpyDraws):
        return rng.get_state()
    version, internal, gauss = rng.getstate()
    return [version, list(internal), gauss]


def _generator_in(state: Any) -> random.Random | NumpyDraws:
    if isinstance(state, str):
        return NumpyDraws.of_state(state)
    version, internal, gauss = state
    rng = random.Random()
    rng.setstate((version, tuple(internal), gauss))
    return rng
