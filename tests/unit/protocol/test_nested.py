from __future__ import annotations

from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from trialpod.protocol.nested import MAX_NAME, MAX_NAMES, NestedNames, depth, find, flatten_row, nest
from trialpod.tune.report_values import flatten

KEYS = st.text("ab/", min_size=1, max_size=4)
METRICS = st.recursive(
    st.integers() | st.just({}), lambda inner: st.dictionaries(KEYS, inner, min_size=1, max_size=4), max_leaves=8
)


def leaves(metrics: Any) -> int:
    return sum(map(leaves, metrics.values())) if isinstance(metrics, dict) and metrics else 1


def names_of(*results: dict[str, Any]) -> list[str]:
    names = NestedNames()
    for result in results:
        flatten(result, names)
    return names.names


class TestNest:
    @given(st.dictionaries(KEYS, METRICS, min_size=1, max_size=4))
    def test_restores_what_was_reported(self, metrics: dict[str, Any]) -> None:
        """Also with slashes in keys, unless two keys have the same flat name or one stands for both forms."""
        names = NestedNames()
        flat = flatten(metrics, names)
        assume(len(flat) == leaves(metrics))
        nested = nest(flat, names.names)
        assert flatten(nested) == flat
        if not any(depth(key, names.names) != _depth(metrics, key) for key in flat):
            assert nested == metrics

    def test_a_slash_in_a_key_is_no_dict(self) -> None:
        reported = {"train/loss": 1, "eval": {"top/1": 2, "deep": {"x": 3}}, "none": {}}
        names = names_of(reported)
        assert names == ["eval", "eval/deep"]
        assert nest(flatten(reported), names) == reported

    def test_a_name_may_be_a_metric_in_another_result(self) -> None:
        names = names_of({"loss": {"train": 1}})
        assert nest({"loss": 2, "loss/train": 3}, names) == {"loss": 2, "loss/train": 3}
        assert nest({"loss": 2}, names) == {"loss": 2}

    def test_names_are_bounded(self) -> None:
        names = names_of({"x" * (MAX_NAME + 1): {"y": 1}}, {f"n{n}": {"y": 1} for n in range(2 * MAX_NAMES)})
        assert len(names) == MAX_NAMES
        assert max(map(len, names)) < 10


def _depth(metrics: dict[str, Any], key: str) -> int:
    for name, value in metrics.items():
        if isinstance(value, dict) and value and key.startswith(f"{name}/"):
            inner = _depth(value, key[len(name) + 1 :])
            if inner >= 0:
                return inner + 1
        elif name == key:
            return 0
    return -1


class TestRows:
    def test_a_row_by_flat_names_keeps_its_config(self) -> None:
        row = {"a": {"b": {"c": 1}, "d": {}}, "config": {"lr": {"x": 1}}, "e": 2}
        assert flatten_row(row) == {"a/b/c": 1, "a/d": {}, "config": {"lr": {"x": 1}}, "e": 2}

    def test_find_takes_every_form(self) -> None:
        row = {"a": {"b/c": 1, "d": {"e": 2}}, "f/g": {"h": 3}, "i/j": 4}
        found = [find(row, name) for name in ("a/b/c", "a/d/e", "f/g/h", "i/j", "a/x", "z")]
        assert found == [1, 2, 3, 4, None, None]
