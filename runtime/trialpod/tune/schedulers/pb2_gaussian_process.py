"""The model behind PB2: a Gaussian process whose correlation fades with time, and the choice of the next point.

Sources: Parker-Holder et al., "Provably Efficient Online Hyperparameter Optimization with Population-Based Bandits"
(2020); Bogunovic, Scarlett, Cevher, "Time-Varying Gaussian Process Bandit Optimization" (2016) for the kernel;
Desautels, Krause, Burdick, "Parallelizing Exploration-Exploitation Tradeoffs" (2014) for the points that still run.

The kernel of points with times t and coordinates x is
``variance * exp(-|x - x'|**2 / lengthscale) * (1 - epsilon)**(|t - t'| / 2)``.

Invariants:

* NumPy is imported when it is first needed, and is all that is needed.
* Times, coordinates and targets come in as they are and are scaled here; coordinates are scaled by their bounds.
* The same input and generator give the same point. The most recent `MAX_POINTS` points are used.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from trialpod.errors import InvalidInputError

MAX_POINTS = 200
"""A model of so many points is fitted within a few tens of milliseconds."""

_LENGTHSCALES = (0.05, 0.2, 0.5, 1.0, 3.0)
_EPSILONS = (0.001, 0.05, 0.2, 0.5)
_NOISES = (1e-4, 1e-2, 0.1)
_CANDIDATES = 512
_REFINEMENTS = (0.1, 0.03, 0.01)


def require_numpy() -> Any:
    """Return NumPy."""
    try:
        import numpy as np
    except ImportError:
        raise InvalidInputError(
            "the pb2 scheduler needs NumPy, which is not installed where it runs; install it with: pip install numpy"
        ) from None
    return np


def next_point(
    rows: Sequence[tuple[float, float, Sequence[float]]],
    targets: Sequence[float],
    fixed: tuple[float, float],
    bounds: Sequence[tuple[float, float]],
    running: Sequence[Sequence[float]],
    rng: random.Random,
) -> list[float]:
    """Return the point within the bounds whose improvement is expected to be greatest, given its uncertainty."""
    np = require_numpy()
    rows, targets = rows[-MAX_POINTS:], targets[-MAX_POINTS:]
    times = np.array([row[0] for row in rows], dtype=float)
    before = np.array([row[1] for row in rows], dtype=float)
    low = np.array([bound[0] for bound in bounds], dtype=float)
    span = np.array([max(bound[1] - bound[0], 1e-12) for bound in bounds], dtype=float)
    points = (np.array([list(row[2]) for row in rows], dtype=float) - low) / span
    scaled = np.column_stack([_unit(np, times, times), _unit(np, before, before), points])
    context = np.array([_unit(np, times, fixed[0]), _unit(np, before, fixed[1])], dtype=float)
    values = np.array(targets, dtype=float)
    values = np.clip((values - values.mean()) / (values.std() + 1e-8), -2.0, 2.0)
    model = _fitted(np, scaled, values)
    spread = model
    if running:
        others = (np.array([list(point) for point in running], dtype=float) - low) / span
        padded = np.column_stack([np.tile(context, (len(others), 1)), others])
        # Their outcome is open, but it does not matter to the variance.
        spread = _Model(np, np.vstack([scaled, padded]), np.zeros(len(scaled) + len(padded)), *model.parameters)
    kappa = math.sqrt(0.2 + max(0.0, math.log(0.4 * len(scaled))))

    def score(candidates: Any) -> Any:
        full = np.column_stack([np.tile(context, (len(candidates), 1)), candidates])
        return model.mean(full) + kappa * np.sqrt(spread.variance(full))

    size = len(bounds)
    candidates = np.array([[rng.random() for _ in range(size)] for _ in range(_CANDIDATES)])
    best = candidates[int(np.argmax(score(candidates)))]
    for width in _REFINEMENTS:
        steps = np.array([[rng.gauss(0.0, width) for _ in range(size)] for _ in range(_CANDIDATES // 8)])
        near = np.clip(np.vstack([best, best + steps]), 0.0, 1.0)
        best = near[int(np.argmax(score(near)))]
    chosen = low + best * span
    return [min(max(float(value), bound[0]), bound[1]) for value, bound in zip(chosen, bounds, strict=True)]


def _unit(np: Any, data: Any, value: Any) -> Any:
    """Scale by the range of `data`."""
    return (value - np.min(data)) / (np.max(data) - np.min(data) + 1e-8)


def _fitted(np: Any, points: Any, values: Any) -> _Model:
    """Return the model of greatest likelihood over a grid of its parameters; the variance follows from the rest."""
    best: tuple[float, tuple[float, float, float, float]] | None = None
    for lengthscale in _LENGTHSCALES:
        for epsilon in _EPSILONS:
            for noise in _NOISES:
                model = _Model(np, points, values, 1.0, lengthscale, epsilon, noise)
                variance = max(float(values @ model.weights) / len(values), 1e-6)
                likelihood = -0.5 * len(values) * math.log(variance) - model.log_determinant
                if best is None or likelihood > best[0]:
                    best = likelihood, (variance, lengthscale, epsilon, noise)
    parameters = (1.0, 1.0, 0.1, 0.01) if best is None else best[1]
    return _Model(np, points, values, *parameters)


class _Model:
    """A Gaussian process with given parameters; `noise` is relative to `variance`."""

    def __init__(
        self, np: Any, points: Any, values: Any, variance: float, lengthscale: float, epsilon: float, noise: float
    ) -> None:
        self.parameters = (variance, lengthscale, epsilon, noise)
        self._np, self._points = np, points
        self._factor = np.linalg.cholesky(self._correlation(points) + noise * np.eye(len(points)))
        half = np.linalg.solve(self._factor, values)
        self.weights = np.linalg.solve(self._factor.T, half)
        self.log_determinant = float(np.log(np.diag(self._factor)).sum())

    def mean(self, points: Any) -> Any:
        return self._correlation(points) @ self.weights

    def variance(self, points: Any) -> Any:
        explained = self._np.linalg.solve(self._factor, self._correlation(points).T)
        return self.parameters[0] * self._np.maximum(1.0 - (explained**2).sum(axis=0), 1e-12)

    def _correlation(self, points: Any) -> Any:
        np, ours = self._np, self._points
        _, lengthscale, epsilon, _ = self.parameters
        squares = ((points[:, None, 1:] - ours[None, :, 1:]) ** 2).sum(axis=2)
        gaps = np.abs(points[:, None, 0] - ours[None, :, 0])
        return np.exp(-squares / lengthscale) * (1.0 - epsilon) ** (0.5 * gaps)
