"""Several objectives: what each is, and which trials no other one beats in all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import le
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
    found: list[int] = []
    for index in sorted(meeting, key=lambda index: (meeting[index], index)):
        point = meeting[index]
        # What dominates it came before. With two objectives the latest found one has the lowest second value.
        rivals = found[-1:] if len(objectives) <= 2 else reversed(found)
        if (found and meeting[found[-1]] == point) or not any(all(map(le, meeting[each], point)) for each in rivals):
            found.append(index)
    return found
