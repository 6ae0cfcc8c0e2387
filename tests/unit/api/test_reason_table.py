"""The table of reasons: what it says, where it is documented, and that the operator writes no reason beside it."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from trialpod_operator.api.crds import definitions
from trialpod_operator.api.reasons import Reason, explain, reasons_of
from trialpod_operator.api.reference import reasons_reference

ROOT = Path(__file__).parents[3]


class TestTable:
    def test_a_reason_is_its_word(self) -> None:
        assert Reason.QUOTA_EXCEEDED == "QuotaExceeded"
        assert f"{Reason.QUOTA_EXCEEDED}" == "QuotaExceeded"
        assert msgspec.json.encode({"reason": Reason.QUOTA_EXCEEDED}) == b'{"reason":"QuotaExceeded"}'
        assert Reason("QuotaExceeded") is Reason.QUOTA_EXCEEDED

    @pytest.mark.parametrize("reason", Reason)
    def test_says_where_what_and_why(self, reason: Reason) -> None:
        assert reason.places
        assert reason.meaning
        assert reason.name == re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", reason).upper()
        assert not (reason.meaning + reason.remedy).endswith(".")

    def test_kubernetes_takes_them_as_reasons(self) -> None:
        for reason in Reason:
            assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", reason)


class TestDocumentation:
    def test_page_is_committed(self) -> None:
        assert (ROOT / "docs" / "reasons.md").read_text() == reasons_reference(), "run tools/make_crds"

    def test_page_has_all(self) -> None:
        assert set(re.findall(r"^\| `(\w+)` \|", reasons_reference(), re.MULTILINE)) == {str(each) for each in Reason}

    def test_kubectl_explain_has_all(self) -> None:
        text = str(definitions())
        for place in ("condition", "waiting"):
            for reason in reasons_of(place):
                assert f"- {reason}: " in explain(place)
                assert f"- {reason}: " in text
