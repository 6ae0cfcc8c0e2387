"""Points of a space that no model proposes: evenly spread ones, neighbours of a good one, and one not yet tried.

All take and return points (`trialpod.tune.search.spaces.flat_space.Values`), and draw from the generator given.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Container, Mapping
from statistics import NormalDist

from trialpod.tune.search.sample import Float
from trialpod.tune.search.spaces.flat_space import Dimension, FlatSpace, Values

Parent = tuple[str, int] | None
"""A choice and an option of it; None for what is always active."""

_NORMAL = NormalDist()
_WALK = 100_000
"""Of larger spaces no list of all points is made."""


def spread(flat: FlatSpace, number: int, rng: random.Random) -> Values:
    """Return point `number` of an evenly spread sequence; `rng` shifts it and must be the same for all of them.

    Source: Roberts, "The unreasonable effectiveness of quasirandom sequences" (2018): as even as Sobol's, for any
    number of dimensions and without a table.
    """
    dimensions = flat.dimensions
    root = _root(len(dimensions))
    values = {
        d.name: at(d, (rng.random() + (number + 1) * root ** -(index + 1)) % 1.0)
        for index, d in enumerate(dimensions)
    }
    return flat.canonical(values)


def drawn(flat: FlatSpace, rng: random.Random) -> Values:
    """Return a random point."""
    return flat.canonical({d.name: d.draw(rng) for d in flat.dimensions})


def neighbour(flat: FlatSpace, values: Values, rng: random.Random, width: float) -> Values:
    """Return a point near another: each dimension changes with probability 1/2, at least one does.

    Args:
        flat: the space.
        values: the point.
        rng: draws.
        width: standard deviation of the change, as a share of the dimension's range; choices change to any option.
    """
    complete = moved(flat, flat.complete(values), rng, width)
    for d in flat.dimensions:
        if d.name not in values:
            complete[d.name] = d.draw(rng)
    return flat.canonical(complete)


def moved(flat: FlatSpace, values: Values, rng: random.Random, width: float) -> Values:
    """Return a point near a complete one, as `neighbour` does, with numbers that need not be canonical."""
    names = [d.name for d in flat.dimensions if d.name in values]
    changed = {name for name in names if rng.random() < 0.5} or {rng.choice(names)}
    return {
        d.name: _moved(d, values[d.name], rng, width) if d.name in changed else values[d.name]
        for d in flat.dimensions
    }


def untried(
    flat: FlatSpace, tried: Container[str], first: Values, rng: random.Random, propose: Callable[[], Values]
) -> Values | None:
    """Return a point that was not tried: `first`, else one near it, else a random one, else any.

    Args:
        flat: the space.
        tried: keys of points.
        first: what is wanted most.
        rng: draws.
        propose: makes another point of the same kind.

    Returns:
        The point; None when all points of the space were tried.
    """
    if key(first) not in tried:
        return first
    for attempt in range(100):
        found = propose() if attempt < 2 else neighbour(flat, first, rng, 0.05 * (1 + attempt / 10))
        if attempt >= 60:
            found = drawn(flat, rng)
        if key(found) not in tried:
            return found
    left = [found for found in every(flat) or () if key(found) not in tried]
    return rng.choice(left) if left else None


def every(flat: FlatSpace) -> list[Values] | None:
    """Return all points of a small discrete space; None of any other."""
    if any(d.kind in ("real", "normal") for d in flat.dimensions):
        return None
    active: dict[Parent, list[Dimension]] = {}
    for d in flat.dimensions:
        active.setdefault(d.parent, []).append(d)
    if _count(active, None) > _WALK:
        return None
    return [flat.canonical(point) for point in _listed(active, None)]


def _count(active: Mapping[Parent, list[Dimension]], parent: Parent) -> int:
    """Return how many points the dimensions have that are active with an option of a choice."""
    count = 1
    for d in active.get(parent, ()):
        choice = d.kind == "choice"
        count *= sum(_count(active, (d.name, n)) for n in _numbers(d)) if choice else int(d.high) - int(d.low) + 1
    return count


def _listed(active: Mapping[Parent, list[Dimension]], parent: Parent) -> list[Values]:
    """Return the points that `_count` counts; the first dimension changes fastest."""
    found = [
        [{d.name: n, **inner} for n in _numbers(d) for inner in _listed(active, (d.name, n))]
        if d.kind == "choice"
        else [{d.name: n} for n in _numbers(d)]
        for d in active.get(parent, ())
    ]
    return [{name: n for part in parts for name, n in part.items()} for parts in itertools.product(*reversed(found))]


def _numbers(d: Dimension) -> range:
    return range(int(d.low), int(d.high) + 1)


def key(values: Values) -> str:
    """Return what is equal for equal points only."""
    return json.dumps(values, sort_keys=True)


def at(d: Dimension, share: float) -> int | float:
    """Return the number at a share of a dimension's range, 0 to 1, in the scale in which it is searched."""
    if d.kind == "normal":
        assert isinstance(d.domain, Float)
        return d.domain.mean + _NORMAL.inv_cdf(min(max(share, 1e-9), 1 - 1e-9)) * d.domain.sd
    if d.kind == "choice":
        return min(int(share * (d.high + 1)), int(d.high))
    if d.kind == "whole":
        if d.log:
            low, high = math.log(max(d.low, 0.5)), math.log(d.high + 0.5)
            return min(max(round(math.exp(low + share * (high - low))), int(d.low)), int(d.high))
        return min(int(d.low) + int(share * (d.high - d.low + 1)), int(d.high))
    if d.log:
        return min(max(math.exp(math.log(d.low) + share * math.log(d.high / d.low)), d.low), d.high)
    return d.low + share * (d.high - d.low)


def share_of(d: Dimension, number: float) -> float:
    """Return where a number lies in a dimension's range, 0 to 1; the middle of its option or whole number."""
    if d.kind == "normal":
        assert isinstance(d.domain, Float)
        return _NORMAL.cdf((number - d.domain.mean) / d.domain.sd)
    if d.kind == "choice":
        return (number + 0.5) / (d.high + 1)
    if d.kind == "whole":
        if d.log:
            low, high = math.log(max(d.low, 0.5)), math.log(d.high + 0.5)
            return (math.log(max(number, 0.5)) - low) / (high - low)
        return (number - d.low + 0.5) / (d.high - d.low + 1)
    if d.log:
        return math.log(number / d.low) / math.log(d.high / d.low)
    return (number - d.low) / (d.high - d.low)


def reflected(share: float) -> float:
    """Return a share that left 0 to 1, thrown back at the ends."""
    share = abs(share) % 2.0
    return 2.0 - share if share > 1.0 else share


def _moved(d: Dimension, number: float, rng: random.Random, width: float) -> int | float:
    if d.kind == "choice":
        return rng.randrange(int(d.high) + 1)
    moved = at(d, reflected(share_of(d, number) + rng.gauss(0.0, width)))
    if d.kind == "whole" and moved == number:
        moved = min(max(number + rng.choice((-1, 1)), d.low), d.high)
    return moved


def _root(count: int) -> float:
    """Return the positive root of x ** (count + 1) = x + 1."""
    root = 2.0
    for _ in range(50):
        root = (1 + root) ** (1 / (count + 1))
    return root
