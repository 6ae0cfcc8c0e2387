"""Durations as users write them: `2h`, `1h30m`, `45s`, `1.5h`, or a plain number of seconds.

The units are days, hours, minutes, seconds and milliseconds, the larger ones first. A duration is positive.
"""

from __future__ import annotations

import re
from fractions import Fraction

from trialpod.errors import InvalidInputError

PATTERN = "^([0-9.]+(d|h|m|s|ms)?)+$"
"""What the schema can check for a cost that Kubernetes 1.30 allows: numbers with units, in any order."""

EXPECTED = "a duration such as 2h, 90m, 1h30m or 45s, or a whole number of seconds"

_SECONDS = {
    "d": Fraction(86400),
    "h": Fraction(3600),
    "m": Fraction(60),
    "s": Fraction(1),
    "ms": Fraction(1, 1000),
}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(d|h|ms|m|s)")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_LONGEST = 100 * 366 * 86400


def parse_duration(value: str | int | float) -> float:
    """Return the duration in seconds.

    Args:
        value: "1h30m", or a number of seconds (as a number, or as a string).

    Raises:
        InvalidInputError: it is not a duration, is not positive, or is longer than a century.
    """
    if isinstance(value, str):
        seconds = _parse_text(value)
    elif isinstance(value, bool) or value != value or value in (float("inf"), float("-inf")):
        raise InvalidInputError(f"{value} is not {EXPECTED}")
    else:
        seconds = Fraction(value)
    if seconds <= 0:
        raise InvalidInputError(f"{value!r} is not positive; leave the field out for no limit")
    if seconds > _LONGEST:
        raise InvalidInputError(f"{value!r} is longer than a century; leave the field out for no limit")
    return float(seconds)


def _parse_text(text: str) -> Fraction:
    if len(text) <= 64 and _NUMBER.fullmatch(text):
        return Fraction(text)
    total = Fraction(0)
    position = 0
    units = list(_SECONDS)
    while match := _PART.match(text[:64], position):
        number, unit = match.groups()
        if unit not in units:
            raise InvalidInputError(f'"{text}" has its units out of order: write d, h, m, s, ms, each once')
        del units[: units.index(unit) + 1]
        total += Fraction(number) * _SECONDS[unit]
        position = match.end()
    if position == 0 or position != len(text):
        raise InvalidInputError(f'"{text}" is not {EXPECTED}')
    return total
