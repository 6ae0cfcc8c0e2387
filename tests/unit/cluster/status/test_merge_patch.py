"""The patch between two objects makes the second out of the first."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialpod_operator.cluster.json_values import merge_patch

pytestmark = pytest.mark.once

leaf = st.integers() | st.text(max_size=3) | st.booleans()
values = st.recursive(
    leaf | st.lists(leaf, max_size=3), lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)
)
objects = st.dictionaries(st.sampled_from("abcdef"), values, max_size=4)


def apply(target: Any, patch: Any) -> Any:
    """RFC 7396, section 2."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = apply(result.get(key), value)
    return result


@given(objects, objects)
def test_the_patch_turns_one_object_into_the_other(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert apply(before, merge_patch(before, after)) == after


@given(objects)
def test_nothing_is_sent_when_nothing_changes(item: dict[str, Any]) -> None:
    assert merge_patch(item, item) == {}
