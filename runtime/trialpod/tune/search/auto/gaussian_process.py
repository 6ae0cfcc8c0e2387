"""A Gaussian process over the scores of the view, with expected improvement: the model that needs only NumPy.

Sources: Jones et al., "Efficient Global Optimization" (1998) for the improvement; Rasmussen and Williams, "Gaussian
Processes for Machine Learning" (2006), algorithm 2.1 and section 5.4.1 for fit and gradient; MacKay's automatic
relevance determination for one length per dimension.

Scores are made normal by their ranks, so that an outlier does no harm. The lower the rung, the more noise a score is
said to have. Trials of which nothing is known yet count as their own prediction ("kriging believer"), so that
parallel suggestions differ. Nothing is kept between suggestions but the points.

A suggestion takes one thread: matrices are so small that more threads wait for each other longer than they compute,
and the trials of `trialpod run` need the cores.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from trialpod.tune.search.auto.points import at, drawn, moved, neighbour, share_of
from trialpod.tune.search.auto.view import COMPLETE, Record, View
from trialpod.tune.search.spaces.flat_space import FlatSpace, Values

_NORMAL = NormalDist()
_FIT = 120
"""So many trials the lengths are fitted to."""
_STEPS = 12
_MOST = 200
_ANYWHERE, _NEAR = 300, 200
"""Candidates: drawn from the whole space, and near the best trials."""
_NOISE = 0.05
"""Least standard deviation of the noise of a complete trial; each rung below adds `_NOISE_PER_RUNG`."""
_NOISE_PER_RUNG = 0.1


class GaussianProcessModel:
    """Proposes the candidate with the highest expected improvement.

    Args:
        flat: the space.
        most: how many trials the model is made of at most; never more than 200.
    """

    def __init__(self, flat: FlatSpace, most: int) -> None:
        self._flat = flat
        self._most = min(most, _MOST)
        self._points: dict[int, Any] = {}
        self._values: dict[int, Values] = {}

    def add(self, number: int, values: Values) -> None:
        """Note the point of a trial."""
        self._points[number] = self._row(values)
        self._values[number] = values

    @cached_property
    def _threads(self) -> ThreadpoolController:
        """What limits the threads of the libraries that are loaded now, NumPy's among them.

        To look for them takes milliseconds, and most searches that are made only repeat what they know.
        """
        return ThreadpoolController()

    def propose(self, view: View, seed: int) -> Values:
        """Return the point with the highest expected improvement among some hundred candidates."""
        with self._threads.limit(limits=1):
            return self._best_candidate(view, random.Random(seed))

    def _best_candidate(self, view: View, rng: random.Random) -> Values:
        scores = view.scores()
        known = sorted((score, number) for number, score in scores.items() if score is not None)
        running = [number for number, score in scores.items() if score is None and view.records[number].live]
        if not known:
            return drawn(self._flat, rng)
        chosen = self._selected([number for _, number in known])
        x = np.array([self._points[number] for number in chosen])
        y = _normal_scores([scores[number] or 0.0 for number in chosen])
        rungs = view.rungs
        noise = np.array([_noise(view.records[number], rungs) for number in chosen]) ** 2
        fitted = chosen if len(chosen) <= _FIT else chosen[: _FIT // 3] + chosen[_FIT // 3 :: 3][: 2 * _FIT // 3]
        rows = [chosen.index(number) for number in fitted] if len(fitted) < len(chosen) else slice(None)
        lengths, scale, jitter = _fit(x[rows], y[rows], noise[rows])
        process = _Process(x, y, noise + jitter, lengths, scale)
        if running:
            more = np.array([self._points[number] for number in running])
            mean, _ = process.predict(more)
            process = _Process(
                np.concatenate([x, more]),
                np.concatenate([y, mean]),
                np.concatenate([noise + jitter, np.full(len(running), _NOISE**2)]),
                lengths,
                scale,
            )
        candidates = self._candidates(chosen[: max(3, min(10, len(chosen) // 5))], rng)
        mean, deviation = process.predict(np.array([self._row(candidate) for candidate in candidates]))
        here, _ = process.predict(x)
        gain = _improvement(mean, deviation, float(here.min()))
        return self._flat.canonical(candidates[int(np.argmax(gain))])

    def _candidates(self, best: list[int], rng: random.Random) -> list[Values]:
        """Return points from the whole space, and some near the best trials."""
        flat, widths = self._flat, (0.2, 0.1, 0.05, 0.02)
        near = [(self._values[rng.choice(best)], rng.choice(widths)) for _ in range(_NEAR)]
        if any(d.parent is not None for d in flat.dimensions):  # which dimensions count differs
            anywhere = [drawn(flat, rng) for _ in range(_ANYWHERE)]
            return anywhere + [neighbour(flat, values, rng, width) for values, width in near]
        # Their numbers need not be exact before one of them is chosen.
        anywhere = [{d.name: at(d, rng.random()) for d in flat.dimensions} for _ in range(_ANYWHERE)]
        return anywhere + [moved(flat, values, rng, width) for values, width in near]

    def _selected(self, ranked: list[int]) -> list[int]:
        """Return the trials of the model, the best first."""
        if len(ranked) <= self._most:
            return ranked
        best = ranked[: self._most // 2]
        rest = sorted(ranked[self._most // 2 :], key=_scattered)
        kept = set(rest[: self._most - len(best)])
        return best + [number for number in ranked[self._most // 2 :] if number in kept]

    def _row(self, values: Values) -> list[float]:
        """Return a point in the unit cube: a choice has a coordinate for each option."""
        row: list[float] = []
        for d in self._flat.dimensions:
            if d.kind == "choice":
                row += [0.7 * (values.get(d.name) == option) for option in range(int(d.high) + 1)]
            else:
                row.append(share_of(d, values[d.name]) if d.name in values else 0.5)
        return row


class _Process:
    """A process with fixed lengths."""

    def __init__(self, x: Any, y: Any, noise: Any, lengths: Any, scale: float) -> None:
        self._x, self._lengths, self._scale = x / lengths, lengths, scale
        covariance = scale * _matern(_distances(self._x, self._x))
        covariance[np.diag_indices_from(covariance)] += noise
        self._factor = np.linalg.cholesky(covariance)
        self._inverse = np.linalg.inv(self._factor)
        self._weights = self._inverse.T @ (self._inverse @ y)

    def predict(self, x: Any) -> tuple[Any, Any]:
        """Return mean and standard deviation at some points."""
        cross = self._scale * _matern(_distances(x / self._lengths, self._x))
        half = cross @ self._inverse.T
        variance = self._scale - np.einsum("ij,ij->i", half, half)
        return cross @ self._weights, np.sqrt(np.maximum(variance, 1e-10))


def _scattered(number: int) -> int:
    """Return what puts the trials into another order, always the same (Knuth's multiplicative hash)."""
    return number * 2654435761 % 2**32


def _fit(x: Any, y: Any, noise: Any) -> tuple[Any, float, float]:
    """Return lengths, scale and further noise that make the scores likely, by a few steps of Rprop."""
    width = x.shape[1]
    # Logarithms: of each length, of the scale, of the noise beyond what is given.
    at = np.concatenate([np.full(width, math.log(0.5 * math.sqrt(width))), [0.0, math.log(0.05)]])
    prior_mean, prior_spread = at.copy(), np.concatenate([np.full(width, 0.8), [0.5, 1.5]])
    squares = (x[:, None, :] - x[None, :, :]) ** 2
    step, last = np.full(width + 2, 0.3), np.zeros(width + 2)
    best, best_at = math.inf, at.copy()
    for _ in range(_STEPS):
        loss, slope = _likelihood(squares, y, noise, at)
        loss += 0.5 * float((((at - prior_mean) / prior_spread) ** 2).sum())
        slope = slope + (at - prior_mean) / prior_spread**2
        if loss < best:
            best, best_at = loss, at.copy()
        agreed = np.sign(slope) * np.sign(last)
        step = np.clip(np.where(agreed > 0, step * 1.3, np.where(agreed < 0, step * 0.5, step)), 0.02, 0.8)
        at = at - np.sign(slope) * step
        last = slope
    return np.exp(best_at[:width]), math.exp(best_at[width]), math.exp(best_at[width + 1])


def _likelihood(squares: Any, y: Any, noise: Any, at: Any) -> tuple[float, Any]:
    """Return the negative logarithm of the marginal likelihood and its gradient."""
    width = squares.shape[2]
    inverse_squares = np.exp(-2 * at[:width])
    distances = np.sqrt(np.maximum(squares @ inverse_squares, 1e-20))
    scale, jitter = math.exp(at[width]), math.exp(at[width + 1])
    root = math.sqrt(5.0) * distances
    decay = np.exp(-root)
    kernel = scale * (1 + root + root**2 / 3) * decay
    covariance = kernel.copy()
    covariance[np.diag_indices_from(covariance)] += noise + jitter
    factor = np.linalg.cholesky(covariance)
    half = np.linalg.inv(factor)
    inverse = half.T @ half
    weights = inverse @ y
    loss = 0.5 * float(y @ weights) + float(np.log(np.diag(factor)).sum())
    outer = inverse - np.outer(weights, weights)
    # Of the kernel by the logarithm of length d: 5/3 scale (1 + root) exp(-root) squares_d / length_d^2.
    by_length = outer * (5 / 3 * scale * (1 + root) * decay)
    lengths = 0.5 * np.einsum("ij,ijd->d", by_length, squares) * inverse_squares
    rest = [0.5 * float((outer * kernel).sum()), 0.5 * jitter * float(np.trace(outer))]
    return loss, np.concatenate([lengths, rest])


def _distances(one: Any, other: Any) -> Any:
    squares = (one**2).sum(1)[:, None] + (other**2).sum(1)[None, :] - 2 * one @ other.T
    return np.sqrt(np.maximum(squares, 1e-20))


def _matern(distances: Any) -> Any:
    root = math.sqrt(5.0) * distances
    return (1 + root + root**2 / 3) * np.exp(-root)


def _improvement(mean: Any, deviation: Any, best: float) -> Any:
    """Return the expected improvement below `best`."""
    z = (best - mean) / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    return deviation * (z * _cumulated(z) + density)


_cumulated = np.vectorize(_NORMAL.cdf, otypes=[float])


def _normal_scores(scores: list[float]) -> Any:
    """Return what standard normal numbers of the same order would be, with mean 0 and deviation 1."""
    order = {score: index for index, score in enumerate(sorted(set(scores)))}
    made = np.array([_NORMAL.inv_cdf((order[score] + 0.5) / len(order)) for score in scores])
    return (made - made.mean()) / max(float(made.std()), 1e-9)


def _noise(record: Record, rungs: list[float]) -> float:
    if record.diverged or record.rung is None or record.rung == COMPLETE:
        return _NOISE
    return _NOISE + _NOISE_PER_RUNG * (len(rungs) - bisect_right(rungs, record.rung))
