"""Kubernetes quantities (`500m`, `2Gi`, `1e3`), parsed exactly.

The grammar is that of k8s.io/apimachinery/pkg/api/resource: a signed decimal number and one suffix, which is a binary
one (Ki, Mi, Gi, Ti, Pi, Ei), a decimal one (n, u, m, none, k, M, G, T, P, E) or an exponent (e3, E-2).

Own code in place of `kubernetes.utils.parse_quantity`: its import takes 0.64 s, which every `trialpod run` would pay,
and it accepts what the API server refuses (`5K`, `1 Gi`).
"""

from __future__ import annotations

import re
from fractions import Fraction

from trialpod.errors import InvalidInputError, nearest

EXPECTED = "a Kubernetes quantity such as 2, 500m or 2Gi"

_BINARY = {suffix: Fraction(1024**power) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)}
_DECIMAL = {
    suffix: Fraction(10) ** power
    for suffix, power in {
        "n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18,
    }.items()
}  # fmt: skip
_SCALE = _BINARY | _DECIMAL
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(.*)", re.DOTALL)
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]{1,3})")
_MAX = Fraction(10) ** 30
"""Far more than Kubernetes counts; an amount is a float too, and sums of amounts are."""
_USUAL_SLIPS = {"K": "k or Ki", "g": "G or Gi", "mb": "M or Mi", "gb": "G or Gi", "kb": "k or Ki", "tb": "T or Ti"}


def parse_quantity(value: str | int | float) -> Fraction:
    """Return the exact value of a quantity in its base unit (cores, bytes, devices).

    Raises:
        InvalidInputError: it is not a quantity, or a huge one.
    """
    parsed = _parse(value)
    if abs(parsed) > _MAX:
        raise InvalidInputError(f"{value} is too large for a Kubernetes quantity")
    return parsed


def _parse(value: str | int | float) -> Fraction:
    if (
        not isinstance(value, (str, int, float))
        or isinstance(value, bool)
        or value != value
        or value in (float("inf"), float("-inf"))
    ):
        raise InvalidInputError(f"{value} is not {EXPECTED}")
    if not isinstance(value, str):
        return Fraction(str(value))
    match = _QUANTITY.fullmatch(value)
    if match is None or len(value) > 64:
        raise InvalidInputError(f'"{value}" is not {EXPECTED}')
    number, suffix = match.groups()
    if suffix in _SCALE:
        return _fraction(number) * _SCALE[suffix]
    if exponent := _EXPONENT.fullmatch(suffix):
        return _fraction(number) * Fraction(10) ** int(exponent[1])
    hint = _USUAL_SLIPS.get(suffix) or _USUAL_SLIPS.get(suffix.lower()) or nearest(suffix, [s for s in _SCALE if s])
    advice = f'; write {hint} for "{suffix}"' if hint else ""
    raise InvalidInputError(f'"{value}" is not {EXPECTED}{advice} (no space before the suffix)')


def quantity_to_float(value: str | int | float) -> float:
    """Return `parse_quantity` as a float, the nearest one."""
    return float(parse_quantity(value))


def _fraction(number: str) -> Fraction:
    return Fraction(number.removesuffix("."))
