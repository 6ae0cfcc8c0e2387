"""The expected values are what kubectl v1.32 printed for the same scalars (`kubectl label --local -o json`)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialpod_operator.api.document import read_documents
from trialpod_operator.api.yaml_numbers import NotFiniteError, resolve_plain

KUBECTL: list[tuple[str, Any]] = [
    ("1e-4", 0.0001), ("1_000", 1000), ("010", 8), ("0o17", 15), ("0x1F", 31), ("0b1", 1), ("1:30", "1:30"),
    ("2001-01-01", "2001-01-01"), ("yes", True), ("y", True), ("on", True), ("N", False), ("OFF", False),
    ("~", None), ("null", None), ("1.0", 1), ("1e3", 1000), ("08", 8), ("1_000.5", 1000.5), (".5", 0.5), ("+5", 5),
    ("5.", 5), ("1.e3", 1000), ("0o8", "0o8"), ("1E5", 100000), ("0X1f", 31), ("0B11", 3), ("-0b11", -3),
    ("+.5", 0.5), ("1e", "1e"), ("0x", "0x"), ("1__0", 10), ("_1", "_1"), ("-_1", -1), ("1e+21", 1e21),
    ("99999999999999999999", 1e20), ("-0.0", 0), ("9223372036854775808", 9223372036854775808.0), ("._5", "._5"),
    (".5_0", 0.5), ("0x1p3", "0x1p3"), ("0x_1F", 31), ("1e400", "1e400"), ("1e-400", 0), ("=", "="), ("0777", 511),
    ("-010", -8), ("0_7", 7), ("0.1e-7", 1e-8), ("018446744073709551616", 18446744073709551616.0), ("1_e3", 1000),
    ("9223372036854775807", 9223372036854775807), ("yEs", "yEs"), ("-", "-"), (".", "."), ("1.2.3", "1.2.3"),
    ("500m", "500m"), ("-9223372036854775808", -9223372036854775808),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), KUBECTL, ids=[text for text, _ in KUBECTL])
def test_a_plain_scalar_means_what_it_means_to_kubectl(text: str, value: Any) -> None:
    found = resolve_plain(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", [".inf", "-.Inf", "+.INF", ".nan", ".NaN"])
def test_what_json_cannot_carry_is_refused(text: str) -> None:
    with pytest.raises(NotFiniteError):
        resolve_plain(text)


@given(st.text(alphabet="0123456789abcdefxob_.+-eE:", min_size=1, max_size=30))
def test_any_scalar_is_a_finite_value(text: str) -> None:
    try:
        value = resolve_plain(text)
    except NotFiniteError:
        return
    assert value is None or isinstance(value, str | bool | int) or abs(value) < float("inf")


@given(st.integers(-(2**63), 2**63 - 1))
def test_an_integer_stays_exact(number: int) -> None:
    assert resolve_plain(str(number)) == number


def test_quotes_and_tags_decide_over_the_form() -> None:
    documents, problems = read_documents('["5", !!str 5, !!int "5", !!float 5, "yes", \'~\']')
    assert problems == []
    assert documents[0].value == ["5", "5", 5, 5, "yes", "~"]
