from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialpod.errors import InvalidInputError
from trialpod_operator.api.quantity import parse_quantity, quantity_to_float


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", Fraction(1)), (2, Fraction(2)), (0.5, Fraction(1, 2)), ("500m", Fraction(1, 2)),
        ("2Gi", Fraction(2**31)),
        ("1e3", Fraction(1000)), ("1E3", Fraction(1000)), ("1E", Fraction(10**18)), ("1.5Ki", Fraction(1536)),
        ("-1k", Fraction(-1000)), ("+.5", Fraction(1, 2)), ("5.", Fraction(5)), ("100n", Fraction(1, 10**7)),
        ("1e-2", Fraction(1, 100)), ("3Ei", Fraction(3 * 2**60)),
    ],
)  # fmt: skip
def test_a_quantity_has_its_exact_value(text: str, value: Fraction) -> None:
    assert parse_quantity(text) == value
    assert quantity_to_float(text) == float(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Gi",
        "1 Gi",
        "2GB",
        "1K",
        "0x1",
        "1e",
        "1.2.3",
        "--1",
        "1e9999",
        "1e400",
        "-1e31",
        10**31,
        True,
        float("nan"),
    ],
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="quantity"):
        parse_quantity(text)


def test_the_usual_slip_gets_advice() -> None:
    with pytest.raises(InvalidInputError, match='write G or Gi for "GB"'):
        parse_quantity("2GB")


@given(st.text(alphabet="0123456789.+-eEKMGmunki", max_size=8))
def test_the_parser_accepts_nothing_that_kubernetes_refuses(text: str) -> None:
    try:
        parse_quantity(text)
    except InvalidInputError:
        return
    assert re.fullmatch(r"([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)", text)  # of its apimachinery
