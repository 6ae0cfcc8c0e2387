"""Several objectives: what each is, and the order of trials in all of them at once.

Source: fronts and crowding distance of Deb et al., "A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II"
(2002), and its constrained domination; for rungs as in Schmucker et al., "Multi-objective Asynchronous Successive
Halving" (2021). The fronts are found by the efficient non-dominated sort of Zhang et al. (2015).

Invariants:

* Of two trials, one that meets all thresholds is better than one that does not; of two that miss some, the one that
  misses them by less in sum, each relative to its threshold's size.
* Equal points have equal places.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from trialpod.errors import InvalidInputError, nearest
from trialpod.protocol.values import real_number

Mode = Literal["max", "min"]
MODES = ("max", "min")


class Objective(msgspec.Struct, frozen=True, omit_defaults=True):
    """One metric that is optimised.

    Attributes:
        name: of the metric.
        mode: "max" or "min".
        threshold: the worst value that is acceptable; None = any is.
    """

    name: str
    mode: Mode
    threshold: float | None = None

    def excess(self, value: float) -> float:
        """Return by how much a value misses the threshold, relative to its size; 0 for one that meets it."""
        if self.threshold is None:
            return 0.0
        return max(0.0, self.margin(value)) / max(1.0, abs(self.threshold))

    def margin(self, value: float) -> float:
        """Return the distance of a value to the threshold: 0 or less where it is met."""
        if self.threshold is None:
            return 0.0
        return self.threshold - value if self.mode == "max" else value - self.threshold

    def __str__(self) -> str:
        if self.threshold is None:
            return f"{self.mode} {self.name}"
        return f"{self.mode} {self.name} ({'>=' if self.mode == 'max' else '<='} {self.threshold:g})"


def parse_objectives(given: Any) -> list[Objective]:
    """Return objectives given as dicts.

    Args:
        given: dicts with "name", "mode" and perhaps "threshold".

    Raises:
        InvalidInputError: one cannot be used, or two contradict each other; the message begins with its place.
    """
    if not isinstance(given, (list, tuple)) or not given:
        raise InvalidInputError(
            'metrics: must be a list with a {"name": ..., "mode": "max" or "min"} for each metric, and perhaps a '
            f'"threshold", got {given!r:.80}',
            parameter="metrics",
        )
    found: list[Objective] = []
    for number, each in enumerate(given):
        objective = _parse(f"metrics[{number}]", each)
        for other in found:
            if other.name == objective.name:
                how = (
                    f"as {other.mode} and as {objective.mode}, which contradict each other; keep one of them"
                    if other.mode != objective.mode
                    else "twice; remove one of them"
                )
                raise InvalidInputError(
                    f"metrics[{number}].name: {objective.name!r} is listed {how}", parameter="metrics"
                )
        found.append(objective)
    return found


def _parse(where: str, given: Any) -> Objective:
    if isinstance(given, Objective):
        return given
    names = ("name", "mode", "threshold")
    if not isinstance(given, Mapping):
        raise InvalidInputError(
            f'{where}: must be a {{"name": ..., "mode": "max" or "min"}}, got {given!r:.80}', parameter="metrics"
        )
    for key in given:
        if key not in names:
            close = nearest(str(key), names)
            hint = f"did you mean {close!r}?" if close else f"known are {', '.join(names)}"
            raise InvalidInputError(f"{where}.{key}: is not a field; {hint}", parameter="metrics")
    name, mode, threshold = (given.get(each) for each in names)
    if not isinstance(name, str) or not name:
        raise InvalidInputError(
            f"{where}.name: must be the name of a reported metric, got {name!r:.60}", parameter="metrics"
        )
    if mode not in MODES:
        close = nearest(mode, MODES) if isinstance(mode, str) else None
        hint = (
            f"; did you mean {close!r}?" if close else f': is a large {name!r} good ("max") or a small one ("min")?'
        )
        raise InvalidInputError(f"{where}.mode: must be 'max' or 'min', got {mode!r:.60}{hint}", parameter="metrics")
    number = None if threshold is None else real_number(threshold)
    if threshold is not None and (number is None or not math.isfinite(number)):
        raise InvalidInputError(
            f"{where}.threshold: must be a finite number, the worst acceptable {name!r}, got {threshold!r:.60}",
            parameter="metrics",
        )
    return Objective(name, mode, None if number is None else float(number))


def point_of(objectives: Sequence[Objective], result: Mapping[str, Any]) -> list[float] | None:
    """Return the values of all objectives in a result; None unless each is a finite number."""
    point = []
    for objective in objectives:
        value = real_number(result.get(objective.name))
        if value is None or not math.isfinite(value):
            return None
        point.append(float(value))
    return point


def meets_thresholds(objectives: Sequence[Objective], point: Sequence[float]) -> bool:
    """Return whether every value is acceptable."""
    return all(objective.margin(value) <= 0 for objective, value in zip(objectives, point, strict=True))


def losses(objectives: Sequence[Objective], points: Sequence[Sequence[float]]) -> list[float]:
    """Return a number for each point that orders all of them, the best lowest.

    The whole part is the number of the front, from 0; within a front, points with more room around them come first.
    Points that miss a threshold come behind all others, each violation a front of its own.
    """
    found = [0.0] * len(points)
    feasible: list[int] = []
    missed: list[tuple[float, int]] = []
    for index, point in enumerate(points):
        excess = sum(objective.excess(value) for objective, value in zip(objectives, point, strict=True))
        if excess > 0:
            missed.append((excess, index))
        else:
            feasible.append(index)
    signed = {
        index: tuple(v if o.mode == "min" else -v for o, v in zip(objectives, points[index], strict=True))
        for index in feasible
    }
    fronts = _fronts(signed)
    for number, front in enumerate(fronts):
        distances = _crowding([signed[index] for index in front])
        for index, distance in zip(front, distances, strict=True):
            found[index] = number + 0.5 / (1.0 + distance)
    levels = sorted({excess for excess, _ in missed})
    for excess, index in missed:
        found[index] = float(len(fronts) + bisect_left(levels, excess))
    return found


def to_minimize(objectives: Sequence[Objective], point: Sequence[float]) -> tuple[float, ...]:
    """Return a point with the signs that make lower values better in every objective."""
    return tuple(v if o.mode == "min" else -v for o, v in zip(objectives, point, strict=True))


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether a point is nowhere worse than another and somewhere better; both as `to_minimize` makes them."""
    return tuple(one) != tuple(other) and all(a <= b for a, b in zip(one, other, strict=True))


def pareto_front(objectives: Sequence[Objective], points: Sequence[Sequence[float]]) -> list[int]:
    """Return the places of the points that meet all thresholds and that no other such point dominates.

    The best in the first objective comes first; of equal points all are on it.
    """
    meeting = {
        index: to_minimize(objectives, point)
        for index, point in enumerate(points)
        if meets_thresholds(objectives, point)
    }
    fronts = _fronts(meeting)
    return sorted(fronts[0], key=lambda index: (meeting[index], index)) if fronts else []


def _fronts(points: Mapping[int, tuple[float, ...]]) -> list[list[int]]:
    """Return the keys by front, the best front first; lower values are better."""
    fronts: list[list[int]] = []
    lowest: list[float] = []  # of two objectives: the lowest second value of each front, which ascends
    last: tuple[tuple[float, ...], int] | None = None
    for key in sorted(points, key=lambda each: (points[each], each)):
        point = points[key]
        if last is not None and last[0] == point:
            place = last[1]
        elif len(point) == 1:
            place = len(fronts)
        elif len(point) == 2:
            place = bisect_right(lowest, point[1])
        else:
            place = _first_open(fronts, points, point)
        if place == len(fronts):
            fronts.append([])
            lowest.append(math.inf)
        fronts[place].append(key)
        lowest[place] = min(lowest[place], point[-1])
        last = (point, place)
    return fronts


def _first_open(
    fronts: Sequence[Sequence[int]], points: Mapping[int, tuple[float, ...]], point: tuple[float, ...]
) -> int:
    """Return the first front with no point that dominates `point`; fronts have all points before it in order."""
    low, high = 0, len(fronts)
    while low < high:
        middle = (low + high) // 2
        if any(all(a <= b for a, b in zip(points[key], point, strict=True)) for key in reversed(fronts[middle])):
            low = middle + 1
        else:
            high = middle
    return low


def _crowding(front: Sequence[tuple[float, ...]]) -> list[float]:
    """Return the crowding distance of each point of a front; equal points share one."""
    unique = sorted(set(front))
    distance = dict.fromkeys(unique, 0.0)
    for axis in range(len(unique[0]) if unique else 0):
        order = sorted(unique, key=lambda point: point[axis])
        span = order[-1][axis] - order[0][axis]
        distance[order[0]] = distance[order[-1]] = math.inf
        for before, point, after in zip(order, order[1:], order[2:], strict=False):
            if span > 0:
                distance[point] += (after[axis] - before[axis]) / span
    return [distance[point] for point in front]
