from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialpod_operator.api.paths import Path, format_path, parse_path


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("spec", "stoppers", 1, "name"), "spec.stoppers[1].name"),
        (("spec", "resources", "nvidia.com/gpu"), 'spec.resources["nvidia.com/gpu"]'),
        (("spec", "", 0), 'spec[""][0]'),
        ((), ""),
    ],
)
def test_a_path_is_written_readably_and_read_back(path: Path, text: str) -> None:
    assert format_path(path) == text
    assert parse_path(text) == (path, "")


def test_a_dot_in_a_key_can_be_escaped() -> None:
    assert parse_path(r"spec.resources.nvidia\.com/gpu=1") == (("spec", "resources", "nvidia.com/gpu"), "=1")


@given(st.lists(st.text(max_size=8) | st.integers(0, 99)), st.text(max_size=8))
def test_every_path_reads_back(rest: list[str | int], first: str) -> None:
    path = (first, *rest)
    assert parse_path(format_path(path)) == (path, "")


@given(st.text(max_size=30))
def test_any_text_can_be_read(text: str) -> None:
    path, rest = parse_path(text)
    assert text.endswith(rest)
    assert isinstance(path, tuple)
