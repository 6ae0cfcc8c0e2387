"""The table of reasons: what it says, where it is documented, and that the operator writes no reason beside it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import msgspec
import pytest

from trialpod_operator.api.crds import definitions
from trialpod_operator.api.reasons import Reason, explain, reasons_of
from trialpod_operator.api.reference import reasons_reference

pytestmark = pytest.mark.once

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


class TestUse:
    CLUSTER = sorted((ROOT / "operator/trialpod_operator/cluster").rglob("*.py"))

    def test_every_reason_is_used(self) -> None:
        code = "".join(path.read_text() for path in self.CLUSTER)
        assert {reason.name for reason in Reason} - set(re.findall(r"\bReason\.(\w+)", code)) == set()

    @pytest.mark.parametrize("path", CLUSTER, ids=lambda path: path.stem)
    def test_code_writes_no_reason_as_a_string(self, path: Path) -> None:
        """Only calls and keywords count: condition types and pod phases are spelled like reasons."""
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            texts = [each.value for each in node.keywords if each.arg == "reason"]
            if name in {"Problem", "StorageProblemError", "KubernetesEvent", "_event", "_failure", "_disruption"}:
                texts += node.args[:2]
            for text in texts:
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    assert " " in text.value or text.value in ("Normal", "Warning"), f"{path}: {text.value}"


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
