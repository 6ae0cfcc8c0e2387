"""Parameters as JSON of a limited size."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from trialpod_operator.cluster.json_values import bounded, json_safe

_any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=60)
@given(st.dictionaries(st.text(), _any, max_size=8), st.integers(100, 600))
def test_whatever_comes_in_is_json_of_the_allowed_size(values: dict[str, Any], limit: int) -> None:
    text = json.dumps(bounded(values, limit), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    assert len(text.encode()) <= limit


@settings(max_examples=60)
@given(_any)
def test_what_is_json_stays_as_it_is(value: Any) -> None:
    once = json_safe(value)
    assert json_safe(once) == once


def test_oversized_value_says_how_much_is_missing() -> None:
    assert bounded({"a": 1, "b": "x"}, 100) == {"a": 1, "b": "x"}
    cut = bounded({f"k{index}": "v" * 50 for index in range(10)}, 200)
    assert cut["..."] == f"{10 - (len(cut) - 1)} more are left out"
