"""What the searchers have in common that fit a model to all results again for each suggestion.

Their suggestion is a function of the points, their losses and a seed. The first ones are drawn at random. A trial
that failed counts like the worst one, so that the model looks elsewhere. A loss beyond `_MAX_LOSS` counts like it.
"""

from __future__ import annotations

import random
from typing import ClassVar

from trialpod.tune.search.library_searcher import Ending, LibrarySearcher
from trialpod.tune.search.spaces.flat_space import Values

_DRAWS = 100
"""Maximum number of random points that are looked at for a suggestion: a new one, which is allowed."""

_MAX_LOSS = 1e100
"""Maximum size of a loss in a model: the square of a diverged trial's, say 1e200, is more than a float can hold."""


class RefitSearcher(LibrarySearcher):
    """Base of model-based adapters. Subclasses implement `_propose`.

    Attributes:
        initial: how many results there must be before the model is asked.
        patience: how many suggestions that repeat an earlier point are thrown away before the search is over; None
            lets them pass.
    """

    _OBJECTS: ClassVar = ("_losses", "_seen")
    initial: int = 10
    patience: int | None = None

    def _propose(self, points: list[Values], losses: list[float], pending: list[Values], seed: int) -> Values:
        """Return a promising point."""
        raise NotImplementedError

    def _allowed(self, values: Values) -> bool:
        """Return whether a random point may be tried; where none is found, one is tried all the same."""
        return True

    def _open(self) -> None:
        self._losses: dict[int, float | None] = {}
        self._seen: dict[int, Values] = {}

    def _ask(self, number: int, seed: int) -> Values | str | None:
        known = [loss for loss in self._losses.values() if loss is not None]
        by_model = len(known) >= self.initial
        worst = max(known, default=0.0)
        points = [self.flat.complete(self._seen[n]) for n in self._losses]
        losses = [min(max(worst if loss is None else loss, -_MAX_LOSS), _MAX_LOSS) for loss in self._losses.values()]
        pending = [self.flat.complete(values) for n, values in self._seen.items() if n not in self._losses]
        tries = 1 if self.patience is None else max(1, self.patience)
        for attempt in range(tries if by_model else _DRAWS):
            if by_model:
                found = self._propose(points, losses, pending, seed + attempt)
            else:
                rng = random.Random(f"{seed}/{attempt}")
                found = {d.name: d.draw(rng) for d in self.flat.dimensions}
                if attempt < _DRAWS - 1 and not self._allowed(self.flat.canonical(found)):
                    continue
            values = self.flat.canonical(found)
            if self.patience is None or values not in self._seen.values():
                self._take(number, values)
                return values
        return self.FINISHED

    def _take(self, number: int, values: Values) -> None:
        self._seen[number] = values

    def _tell(self, number: int, values: Values, ending: Ending) -> None:
        self._losses[number] = self._loss(ending)
