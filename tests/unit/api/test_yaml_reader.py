"""What a scalar without quotes means; the expected values are what `kubectl label --local -o json` prints (v1.32)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialpod_operator.api.yaml_reader import UnsupportedScalarError, read_documents, resolve_plain

KUBECTL: list[tuple[str, Any]] = [
    ("1e-4", 0.0001), ("1_000", 1000), ("0x1F", 31), ("1:30", "1:30"), ("0", 0), ("-0", 0), ("+5", 5), ("-17", -17),
    ("2001-01-01", "2001-01-01"), ("yes", True), ("y", True), ("on", True), ("N", False), ("OFF", False),
    ("~", None), ("null", None), ("1.0", 1), ("1e3", 1000), (".5", 0.5), ("0.5", 0.5), ("08.5", 8.5),
    ("5.", 5), ("1.e3", 1000), ("0o8", "0o8"), ("1E5", 100000), ("0X1f", 31), ("-0x10", -16),
    ("+.5", 0.5), ("1e", "1e"), ("0x", "0x"), ("_1", "_1"), ("1e+21", 1e21),
    ("1_rc", "1_rc"), ("1_000.5", 1000.5), ("1__0", 10),    (".5_0", 0.5), ("1_e3", 1000), ("a_1", "a_1"),
    ("99999999999999999999", 1e20), ("-0.0", 0), ("9223372036854775808", 9223372036854775808.0),
    ("0x1p3", "0x1p3"), ("1e400", "1e400"), ("1e-400", 0), ("=", "="), ("0.1e-7", 1e-8),
    ("9223372036854775807", 9223372036854775807), ("yEs", "yEs"), ("-", "-"), (".", "."), ("1.2.3", "1.2.3"),
    ("500m", "500m"), ("-9223372036854775808", -9223372036854775808),
]  # fmt: skip

MISLEADING = ["010", "0777", "-010", "08", "0o17", "0b1", "0B11", "-0b11", "0_7", "0x_1F", "-_1", "._5"]


class TestPlainScalars:
    @pytest.mark.parametrize(("text", "value"), KUBECTL, ids=[text for text, _ in KUBECTL])
    def test_mean_what_they_mean_to_kubectl(self, text: str, value: Any) -> None:
        found = resolve_plain(text)
        assert found == value
        assert type(found) is type(value)

    @pytest.mark.parametrize("text", MISLEADING)
    def test_misleading_numbers_are_refused(self, text: str) -> None:
        """kubectl reads 010 as 8, and 08 as 8; other tools do not."""
        documents, problems = read_documents(f"a: 1\nb: {text}\n")
        assert documents[0].value["a"] == 1
        (problem,) = problems
        assert (problem.path, problem.line) == ("b", 2)
        assert problem.message == (
            f'{text} is not the number that it seems to be: write it in decimal digits, or "{text}" in quotes'
        )

    def test_misleading_numbers_may_stand_in_quotes(self) -> None:
        documents, problems = read_documents("['010', \"08\"]")
        assert (documents[0].value, problems) == (["010", "08"], [])

    @pytest.mark.parametrize("text", [".inf", "-.Inf", "+.INF", ".nan", ".NaN"])
    def test_what_json_cannot_carry_is_refused(self, text: str) -> None:
        with pytest.raises(UnsupportedScalarError, match="JSON has no infinity"):
            resolve_plain(text)

    @given(st.text(alphabet="0123456789abcdefxob_.+-eE:", min_size=1, max_size=30))
    def test_are_finite(self, text: str) -> None:
        try:
            value = resolve_plain(text)
        except UnsupportedScalarError:
            return
        assert value is None or isinstance(value, str | bool | int) or abs(value) < float("inf")

    @given(st.integers(-(2**63), 2**63 - 1))
    def test_integers_stay_exact(self, number: int) -> None:
        assert resolve_plain(str(number)) == number

    def test_quotes_and_tags_decide_over_the_form(self) -> None:
        documents, problems = read_documents('["5", !!str 5, !!int "5", !!float 5, "yes", \'~\']')
        assert problems == []
        assert documents[0].value == ["5", "5", 5, 5, "yes", "~"]

    def test_as_keys_have_to_be_strings(self) -> None:
        _, problems = read_documents("010: 1\n.nan: 2\n")
        assert [problem.line for problem in problems] == [1, 2]
