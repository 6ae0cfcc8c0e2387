from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trialpod_operator.api.yaml_reader import MAX_NODES, read_documents

pytestmark = pytest.mark.once

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


def _one(text: str) -> Any:
    documents, problems = read_documents(text)
    assert problems == []
    return documents[0].value


@given(st.dictionaries(st.text(max_size=10), JSON, min_size=1, max_size=4))
def test_json_reads_as_json(value: dict[str, Any]) -> None:
    assert _one(json.dumps(value)) == value


@given(st.dictionaries(st.text(alphabet="abcxyz_09 :#-", max_size=10), JSON, min_size=1, max_size=4))
def test_what_a_yaml_writer_quotes_reads_back(value: dict[str, Any]) -> None:
    # PyYAML's own quoting follows other rules for numbers, so it is told to quote every string.
    assert _one(yaml.safe_dump(value, default_style='"', allow_unicode=False)) is not None


@given(st.text(max_size=60))
def test_any_text_gives_documents_or_problems_and_no_exception(text: str) -> None:
    documents, problems = read_documents(text)
    json.dumps([document.value for document in documents], allow_nan=False)
    assert all(problem.message for problem in problems)


def test_every_value_knows_its_line() -> None:
    documents, _ = read_documents("a:\n  b:\n  - 1\n  - c: 2\n---\nd: 3\n")
    first, second = documents
    assert [first.line_of(path) for path in [("a",), ("a", "b"), ("a", "b", 0), ("a", "b", 1, "c")]] == [1, 2, 3, 4]
    assert first.line_of(("a", "b", 7, "missing")) == 2
    assert second.line_of(("d",)) == 6


@pytest.mark.parametrize(
    ("text", "line", "fragment"),
    [
        ("a: 1\n\tb: 2", 2, "a tab in the indentation"),
        ("a: 1\na: 2", 2, "on lines 1 and 2"),
        ("1: a\n'1': b", 2, "on lines 1 and 2"),
        ("a:\n  on: 1", 2, 'write "on" in quotes'),
        ("a:\n  ~: 1", 2, "is not a string"),
        ("? [a]\n: 1", 1, "cannot be a key"),
        ("a: 1\nb: *x", 2, "alias"),
        ("a: &x\n  b: *x", 1, "contains itself"),
        ("a: [1, .nan]", 1, "JSON has no infinity"),
        ("a: 1\nb: \x01", 2, "does not allow"),
        ("a: \ud800", None, "not valid Unicode"),
        ("a: !!python/name:os.system", 1, "not supported"),
        ("a: !!int x", 1, "is not a whole number"),
        ("b: 1\n<<: {b: 2}", 2, "put << first"),
        ("<<: 3", 1, "merges mappings only"),
        ("a: [1", 1, "not valid YAML"),
        ("- " * 5000 + "x", None, "nested"),
        ("[" * 300 + "]" * 300, 1, "nested more than"),
    ],
)
def test_a_mistake_of_form_is_a_problem_with_its_line(text: str, line: int | None, fragment: str) -> None:
    _, problems = read_documents(text)
    assert len(problems) == 1
    assert fragment in problems[0].message
    assert problems[0].line == line or fragment in ("nested", "not valid YAML")


def test_aliases_cannot_blow_a_small_file_up() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    _, problems = read_documents("\n".join(lines))
    assert any(str(MAX_NODES) in problem.message for problem in problems)


def test_a_merge_adds_what_is_missing() -> None:
    assert _one("base: &b {x: 1, y1: 2}\nother: {<<: *b, y1: 3}") == {
        "base": {"x": 1, "y1": 2},
        "other": {"x": 1, "y1": 3},
    }


def test_an_escaped_surrogate_pair_in_json_is_one_character() -> None:
    assert _one('{"a": "\\ud83d\\ude00", "b": "\\\\ud83d\\\\ude00"}') == {"a": "\U0001f600", "b": "\\ud83d\\ude00"}
