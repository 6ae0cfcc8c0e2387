"""What is believed about good values: points drawn from that belief, and how far the results bear it out.

A belief is the user's, or what the best trials of an earlier experiment have in common. That about a number is a
normal distribution around its center, cut off at the bounds, in the scale in which the number is searched. Draws
from it are a share of all suggestions that shrinks with their number, as in PriorBand (Mallik et al., 2023) and piBO
(Hvarfner et al., 2022). Unlike there it also shrinks with evidence: to nothing when the points that the belief
favours score worse than the others.

Invariants:

* A prior never changes; its draws are a function of the generator given, its trust of the scores given.
* Every point that it returns lies in the space.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, pstdev
from typing import Any

from trialpod.errors import InvalidInputError, nearest
from trialpod.tune.search.auto.points import at, share_of
from trialpod.tune.search.spaces.flat_space import Dimension, FlatSpace, Values

DEFAULT_SPREAD = 0.2
_FIELDS = ("center", "spread")
_WIDTHS = (0.05, 0.5)
"""The least and the most spread that is learned: good trials that are alike by chance narrow no search."""
_SHARE = 0.5
"""Of the points before the model, how many are drawn from the prior; after these, of as many as there were."""
_LEAST = 3
"""So many points must be favoured, and so many not, before they are compared."""
_TOLERANCE = 0.15
"""The difference of mean scores, which go from 0 to 1, from which on the trust is whole."""


@dataclass(frozen=True, slots=True)
class _Belief:
    """About one dimension: `center` is a number of it, `spread` a share of its range, or of the draws of a choice."""

    dimension: Dimension
    center: float
    spread: float

    def draw(self, rng: random.Random) -> Any:
        """Return a number."""
        d = self.dimension
        if d.kind == "choice":
            return d.draw(rng) if rng.random() < self.spread else self.center
        normal, low, high = self._cut()
        share = normal.inv_cdf(min(max(low + rng.random() * (high - low), 1e-12), 1 - 1e-12))
        return at(d, min(max(share, 0.0), 1.0))

    def density(self, number: float) -> float:
        """Return how much more often this draws a number than a uniform distribution does."""
        d = self.dimension
        if d.kind == "choice":
            return self.spread + (1 - self.spread) * (d.high + 1) * (number == self.center)
        normal, low, high = self._cut()
        return normal.pdf(share_of(d, number)) / (high - low)

    def _cut(self) -> tuple[NormalDist, float, float]:
        normal = NormalDist(share_of(self.dimension, self.center), self.spread)
        return normal, normal.cdf(0.0), normal.cdf(1.0)


class Prior:
    """A belief about some of the dimensions of a space; `given` and `learned` make one."""

    def __init__(self, flat: FlatSpace, beliefs: Mapping[str, _Belief]) -> None:
        self._flat = flat
        self._beliefs = beliefs

    @classmethod
    def given(cls, flat: FlatSpace, given: Mapping[str, Any]) -> Prior:
        """Return the prior that a user has given.

        Args:
            flat: the space.
            given: by the name of a parameter, ``{"center": value}``, with ``"spread"`` or without. Center is a value
                of the parameter. Spread, above 0 and up to 1, is the standard deviation as a share of the range, of
                the logarithms where these are searched; of a choice it is how often any option is drawn.

        Raises:
            InvalidInputError: something in `given` cannot be used; the message names it.
        """
        check_shape(given)
        dimensions = {d.name: d for d in flat.dimensions}
        beliefs: dict[str, _Belief] = {}
        for name, each in given.items():
            if name not in dimensions:
                guess = nearest(name, dimensions)
                hint = f" Did you mean {guess!r}?" if guess else f" It searches {', '.join(dimensions)}"
                raise _problem(f"prior.{name}: the search space has no such parameter to search for.{hint}")
            try:
                center = dimensions[name].encode(each["center"])
            except InvalidInputError as error:
                raise _problem(f"prior.{name}.center: {error}") from error
            beliefs[name] = _Belief(dimensions[name], center, float(each.get("spread", DEFAULT_SPREAD)))
        return cls(flat, beliefs)

    @classmethod
    def learned(cls, flat: FlatSpace, best: Sequence[Values]) -> Prior:
        """Return what good points have in common; they may lack some of the dimensions."""
        beliefs: dict[str, _Belief] = {}
        for d in flat.dimensions:
            found = [values[d.name] for values in best if d.name in values]
            if not found:
                continue
            if d.kind == "choice":
                (center, count), *_ = Counter(found).most_common()
                spread = 1 - count / (len(found) + 1)
            else:
                shares = [share_of(d, number) for number in found]
                center, spread = at(d, fmean(shares)), pstdev(shares)
            beliefs[d.name] = _Belief(d, center, min(max(spread, _WIDTHS[0]), _WIDTHS[1]))
        return cls(flat, beliefs)

    def center(self, rng: random.Random) -> Values:
        """Return the point that is believed to be the best; parameters without a belief are drawn at random."""
        return self._point(rng, {name: belief.center for name, belief in self._beliefs.items()})

    def draw(self, rng: random.Random) -> Values:
        """Return a point drawn from the belief."""
        return self._point(rng, {name: belief.draw(rng) for name, belief in self._beliefs.items()})

    def share(self, number: int, startup: int) -> float:
        """Return of how many suggestions this is to be asked at full trust, 0 to 1.

        Args:
            number: how many suggestions there were.
            startup: how many there are before the model is asked.
        """
        return _SHARE * min(1.0, startup / max(1, number))

    def trust(self, scored: Iterable[tuple[Values, float]]) -> float:
        """Return how far results bear the belief out, 0 to 1.

        Points that it favours have to score better than the others: a belief that tells nothing is trusted no more
        than a wrong one.

        Args:
            scored: points with scores from 0, the best, to 1.
        """
        favoured: list[float] = []
        others: list[float] = []
        for values, score in scored:
            (favoured if self._favours(values) else others).append(score)
        if min(len(favoured), len(others)) < _LEAST:
            return 1.0
        return min(max((fmean(others) - fmean(favoured)) / _TOLERANCE, 0.0), 1.0)

    def _favours(self, values: Values) -> bool:
        density = 1.0
        for name, belief in self._beliefs.items():
            if name in values:
                density *= belief.density(values[name])
        return density > 1.0

    def _point(self, rng: random.Random, believed: Values) -> Values:
        others = {d.name: d.draw(rng) for d in self._flat.dimensions if d.name not in believed}
        return self._flat.canonical({d.name: {**others, **believed}[d.name] for d in self._flat.dimensions})


def check_shape(given: Any) -> None:
    """Raise InvalidInputError when a prior has not the form that `Prior` takes, whatever the space is."""
    if not isinstance(given, Mapping) or not given:
        raise _problem(f"prior must name at least one parameter, as {{lr: {{center: 0.01}}}}, got {given!r:.80}")
    for name, each in given.items():
        if not isinstance(each, Mapping) or "center" not in each:
            raise _problem(f"prior.{name} must be a mapping with center, and perhaps spread, got {each!r:.80}")
        for field in each:
            if field not in _FIELDS:
                guess = nearest(str(field), _FIELDS)
                hint = f" Did you mean {guess}?" if guess else ""
                raise _problem(f"prior.{name}.{field} is unknown.{hint} Known are {' and '.join(_FIELDS)}")
        spread = each.get("spread", DEFAULT_SPREAD)
        if isinstance(spread, bool) or not isinstance(spread, (int, float)) or not 0 < spread <= 1:
            raise _problem(f"prior.{name}.spread must be above 0 and at most 1, got {spread!r}")


def _problem(message: str) -> InvalidInputError:
    return InvalidInputError(f"AutoSearch: {message}", parameter="prior")
