from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialpod.errors import InvalidInputError
from trialpod_operator.api.duration import PATTERN, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2h", 7200), ("90m", 5400), ("1h30m", 5400), ("45s", 45), (90, 90), ("90", 90), ("1.5h", 5400), ("1d", 86400),
     ("250ms", 0.25), ("1m500ms", 60.5), (0.5, 0.5)],
)  # fmt: skip
def test_a_duration_has_its_seconds(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert not isinstance(text, str) or re.fullmatch(PATTERN, text)


@pytest.mark.parametrize(
    ("text", "fragment"),
    [("", "is not a duration"), ("2 h", "is not a duration"), ("2 hours", "is not a duration"), ("h", "is not"),
     ("30m1h", "out of order"), ("1h1h", "out of order"), (0, "not positive"), ("0s", "not positive"),
     (-1, "not positive"), ("99999d", "century"), (float("nan"), "is not"), ("9" * 99, "is not"), (True, "is not")],
)  # fmt: skip
def test_what_is_no_duration_is_refused(text: str | float, fragment: str) -> None:
    with pytest.raises(InvalidInputError, match=fragment):
        parse_duration(text)


@given(st.text(alphabet="0123456789.dhms ", max_size=10))
def test_the_schema_accepts_what_the_parser_accepts(text: str) -> None:
    try:
        parse_duration(text)
    except InvalidInputError:
        return
    assert re.fullmatch(PATTERN, text)
