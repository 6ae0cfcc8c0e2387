"""Learning curves with bounded memory: each keeps at most `MAX_POINTS` results, the extremes of equal buckets.

Min-max buckets keep what a chart shows: the envelope and every extreme, the best value among them, exactly. A bucket
is so many consecutive results; when there are too many buckets, two become one. So a curve that grows result by
result is much the same as one that is read at once, and no result is read twice.

The first and the latest result are always kept. Values that are not finite numbers are kept only where a bucket
has no other.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence

import msgspec

MAX_POINTS = 200
"""Maximum number of points of a curve that are kept."""

SLACK = 100
"""Results are kept as they come up to so many points more; then they are put into buckets together."""


class Curve:
    """One metric of one trial.

    Attributes:
        count: how many results of the trial were taken in, also those without the metric.
        version: the number of the change that added the latest point, as the owner counts changes.
    """

    __slots__ = ("_encoded", "_numbers", "_values", "_width", "_xs", "count", "times", "version")

    def __init__(self) -> None:
        self.count = 0
        self.version = 0
        self._width = 1  # results in a bucket
        self._numbers = array("q")  # of the results that are kept
        self._xs = array("d")  # their iterations
        self.times = array("d")  # their seconds
        self._values = array("d")
        self._encoded: dict[tuple[str, int, float], msgspec.Raw] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def skip(self) -> None:
        """Take in a result without the metric."""
        self.count += 1

    def append(self, x: float, time: float, value: float) -> None:
        """Take in the next result.

        Args:
            x: its iteration.
            time: seconds that the trial had run.
            value: the metric; NaN is one.
        """
        self._numbers.append(self.count)
        self._xs.append(x)
        self.times.append(time)
        self._values.append(value)
        self.count += 1
        if self._encoded:
            self._encoded = {}
        if len(self._numbers) >= MAX_POINTS + SLACK:
            self._compress()

    def extend(self, points: Iterable[tuple[float, float, float] | None]) -> None:
        """Take in results, oldest first; None is one without the metric."""
        points = list(points)
        if len(points) > MAX_POINTS and not self._numbers:
            known = [(self.count + at, point) for at, point in enumerate(points) if point is not None]
            self.count += len(points)
            self._numbers = array("q", [number for number, _ in known])
            self._xs = array("d", [point[0] for _, point in known])
            self.times = array("d", [point[1] for _, point in known])
            self._values = array("d", [point[2] for _, point in known])
            self._compress()
            return
        for point in points:
            if point is None:
                self.skip()
            else:
                self.append(*point)

    def fill(self, xs: Sequence[float], times: Sequence[float], values: Sequence[float]) -> None:
        """Take in all results of a curve that has none yet; each has the metric."""
        self.count = len(values)
        self._numbers = array("q", range(self.count))
        self._xs, self.times, self._values = array("d", xs), array("d", times), array("d", values)
        if self.count > MAX_POINTS:
            self._compress()

    def points(self, limit: int = MAX_POINTS) -> tuple[list[float], list[float], list[float]]:
        """Return iterations, times and values of at most `limit` points (at least 4)."""
        kept = self._reduced(max(4, min(limit, MAX_POINTS)))
        return (
            [self._xs[at] for at in kept],
            [self.times[at] for at in kept],
            [self._values[at] for at in kept],
        )

    def encoded(self, x: str, limit: int, cost: float) -> msgspec.Raw:
        """Return the curve as JSON, ``{"x": [...], "y": [...], "full": ...}``, which is kept until the next result.

        Args:
            x: "iteration", "time" or "cost".
            limit: at most so many points.
            cost: of a second of the trial, for the x of that name.
        """
        key = (x, limit, cost)
        known = self._encoded.get(key)
        if known is None:
            xs, times, values = self.points(limit)
            shown = xs if x == "iteration" else times if x == "time" else [time * cost for time in times]
            known = self._encoded[key] = encode_points(shown, values, full=len(values) == self.count)
        return known

    def _compress(self) -> None:
        kept = self._reduced(MAX_POINTS)
        self._numbers = array("q", [self._numbers[at] for at in kept])
        self._xs = array("d", [self._xs[at] for at in kept])
        self.times = array("d", [self.times[at] for at in kept])
        self._values = array("d", [self._values[at] for at in kept])
        while self.count > self._width * (MAX_POINTS // 2 - 1):
            self._width *= 2

    def _reduced(self, limit: int) -> Sequence[int]:
        size = len(self._numbers)
        if size <= limit:
            return range(size)
        width = self._width
        while self.count > width * (limit // 2 - 1):
            width *= 2
        return _extremes(self._numbers, self._values, width)


def _extremes(numbers: Sequence[int], values: Sequence[float], width: int) -> list[int]:
    """Return the places of the first and the last point, and of the smallest and largest value of each bucket."""
    kept: list[int] = [0]
    size, at = len(numbers), 0
    if numbers[-1] == size - 1 and math.isfinite(sum(values)):  # every result, and each is a finite number
        for start in range(0, size, width):
            part = values[start : start + width]
            low, high = part.index(min(part)), part.index(max(part))
            kept += (start + min(low, high), start + max(low, high))
        return sorted({*kept, size - 1})
    while at < size:
        bucket = numbers[at] // width
        low = high = at
        smallest = largest = values[at]
        end = at + 1
        while end < size and numbers[end] // width == bucket:
            value = values[end]
            if value - value == 0.0:  # finite
                if smallest - smallest != 0.0:
                    low = high = end
                    smallest = largest = value
                elif value < smallest:
                    low, smallest = end, value
                elif value > largest:
                    high, largest = end, value
            end += 1
        for each in (low, high) if low < high else (high, low):
            if each != kept[-1]:
                kept.append(each)
        at = end
    if kept[-1] != size - 1:
        kept.append(size - 1)
    return kept


def encode_points(xs: Sequence[float], values: Sequence[float], *, full: bool) -> msgspec.Raw:
    """Return points as JSON with six significant digits; a chart shows no more."""
    text = f'{{"x":[{",".join(map(_x_text, xs))}],"y":[{",".join(map(_text, values))}],"full":{str(full).lower()}}}'
    return msgspec.Raw(text.encode())


def _x_text(value: float) -> str:
    return str(int(value)) if value.is_integer() else _text(value)


def _text(value: float) -> str:
    if value - value == 0.0:
        return f"{value:.6g}"
    return '"NaN"' if value != value else '"Infinity"' if value > 0 else '"-Infinity"'
