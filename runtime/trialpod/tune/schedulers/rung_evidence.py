"""Whether the order of trials at one rung predicts their order at the next: Kendall's tau with a bootstrap interval.

Source of the idea: Li et al., "Hyper-Tune" (2022), which weighs rungs by how often their pairs are in the same order.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

RESAMPLES = 200
_TAIL = 0.05  # on either side of the interval


@dataclass(frozen=True, slots=True)
class Evidence:
    """How well one rung predicts the next.

    Attributes:
        tau: Kendall's tau-a of the values at both rungs, -1 to 1; a tie counts as neither.
        low: the lower end of its 90 % bootstrap interval.
        high: the upper end.
        trials: how many trials have reached both.
    """

    tau: float
    low: float
    high: float
    trials: int

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {
            "tau": round(self.tau, 3),
            "low": round(self.low, 3),
            "high": round(self.high, 3),
            "trials": self.trials,
        }


def evidence(pairs: Sequence[tuple[float, float]], rng: random.Random) -> Evidence:
    """Return the evidence in the values of trials at a rung and at the next.

    Args:
        pairs: of each trial, two or more of them.
        rng: draws the resamples.
    """
    count = len(pairs)
    agreement = [[_agreement(one, other) for other in pairs] for one in pairs]
    resampled = []
    for _ in range(RESAMPLES):
        drawn = [rng.randrange(count) for _ in range(count)]
        # A trial that was drawn twice says nothing about itself.
        found = [agreement[i][j] for n, i in enumerate(drawn) for j in drawn[:n] if i != j]
        resampled.append(sum(found) / len(found) if found else 0.0)
    resampled.sort()
    every = [agreement[i][j] for i in range(count) for j in range(i)]
    return Evidence(
        sum(every) / len(every), resampled[int(_TAIL * RESAMPLES)], resampled[-1 - int(_TAIL * RESAMPLES)], count
    )


def _agreement(one: tuple[float, float], other: tuple[float, float]) -> int:
    return _sign(one[0] - other[0]) * _sign(one[1] - other[1])


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
