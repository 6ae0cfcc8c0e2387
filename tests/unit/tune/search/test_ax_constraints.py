"""Constraints between parameters, which Ax evaluates."""

from __future__ import annotations

from typing import Any

import pytest

from trialpod import tune
from trialpod.errors import InvalidInputError
from trialpod.tune.search.ax_constraints import holds, renamed
from trialpod.tune.search.refit_searcher import RefitSearcher

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


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ("p0 + p1 <= 2", True),
        ("p0 + 2 * p1 <= 2", False),
        ("-1 * ( p0 - p1 ) > 0.4", True),
        ("0 <= p0 < p1", True),
        ("p0 / p1 >= 1e0", False),
        ("p0 / 0 >= 1", True),  # left to Ax
        ("p0 p1", True),
    ],
)
def test_a_point_is_judged_as_ax_does(constraint: str, expected: bool) -> None:
    assert holds(constraint, {"p0": 0.5, "p1": 1.0}) is expected


class Constrained(RefitSearcher):
    """Draws like AxSearch, without its library."""

    initial = 100

    def _allowed(self, values: dict[str, Any]) -> bool:
        return holds("p0 <= 0.1", {"p0": values["x"]})


def test_the_first_points_keep_to_the_constraints() -> None:
    search = Constrained()
    search.set_search_properties("loss", "min", {"x": tune.uniform(0, 1)}, seed=3)
    found = [search.suggest(f"t{number}") for number in range(10)]
    assert all(isinstance(each, dict) and each["x"] <= 0.1 for each in found)
