"""The standard deviation of a few numbers, careful with NaN and infinity; and such numbers as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trialpod.protocol.values import real_number
from trialpod.tune.plugins.phrases import text


def number(value: Any) -> float | None:
    """Return `value` as a float, or None when it is not a number (NaN and infinities are)."""
    found = real_number(value)
    return None if found is None else float(found)


def deviation(values: Sequence[float | None]) -> float:
    """Return the population standard deviation; infinity when a value is missing, not finite or too large."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite or len(finite) != len(values):
        return math.inf
    try:
        mean = math.fsum(finite) / len(finite)
        return math.sqrt(math.fsum((value - mean) ** 2 for value in finite) / len(finite))
    except OverflowError:
        return math.inf


def encoded(values: Iterable[float | None]) -> list[float | str | None]:
    """Return the values as JSON data; NaN and infinities become strings."""
    return [value if value is None or math.isfinite(value) else repr(value) for value in values]


def decoded(values: Iterable[float | str | None]) -> list[float | None]:
    """Return what `encoded` was given."""
    return [None if value is None else float(value) for value in values]


def levelled_off(reason: Mapping[str, Any]) -> str:
    """Return why a plateau stopper ended something."""
    return (
        f"{reason.get('metric')} has levelled off: the standard deviation of the latest values is "
        f"{text(reason.get('std'))}, not above {text(reason.get('threshold'))}"
    )
