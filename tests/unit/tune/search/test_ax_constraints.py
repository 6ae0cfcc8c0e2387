"""Constraints between parameters, which Ax evaluates."""

from __future__ import annotations

import pytest

from trialpod.errors import InvalidInputError
from trialpod.tune.search.ax_constraints import renamed

NAMES = {"x1": "p0", "net/width": "p1"}


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ("x1 + net/width <= 2", "p0 + p1 <= 2"),
        ("2.5e-1 * ( x1 - net/width ) >= -3", "2.5e-1 * ( p0 - p1 ) >= -3"),
        ("x1 <= net/width", "p0 <= p1"),
    ],
)
def test_parameters_get_the_names_that_ax_has(constraint: str, expected: str) -> None:
    assert renamed(constraint, NAMES) == expected


@pytest.mark.parametrize(
    "constraint",
    [
        "__import__('os').system('true') + x1 <= 2",
        "x1 + exit() <= 2",
        "x1 + x2 <= 2",
        "x1.func <= 2",
        "x1 + 9**9**9**9 <= 2",
        "x1 + 1.real <= 2",
        "x1 + ().__class__ <= 2",
        "x1 + 1j <= 2",
        "x1 + 1e99999999 <= 2",
        "x1 <= " + "1" * 1001,
    ],
)
def test_what_is_no_arithmetic_never_reaches_ax(constraint: str) -> None:
    with pytest.raises(InvalidInputError, match="parameter_constraints are parameters, numbers"):
        renamed(constraint, NAMES)
