"""Every environment variable is named in one module, which the documentation is made from."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from trialpod import variables
from trialpod.errors import InvalidInputError
from trialpod.storage.checkpoints.packing import configured
from trialpod.storage.options import StorageOptions
from trialpod_operator.local.backend import _shows_output
from trialpod_operator.local.machine_resources import Machine

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]
CODE = [*ROOT.glob("runtime/trialpod/**/*.py"), *ROOT.glob("operator/trialpod_operator/**/*.py")]
TEXTS = [
    *CODE,
    *ROOT.glob("charts/trialpod/**/*.y*ml"),
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    *(path for path in ROOT.glob("examples/**/*.*") if path.suffix != ".pyc"),
]
NAME = re.compile(r"\bTRIALPOD_[A-Z_]+[A-Z]\b")
NO_VARIABLES = {"TRIALPOD_DIR"}
"""Constants of the code that happen to begin so."""
OF_TOOLS = {"TRIALPOD_HELM", "TRIALPOD_KUBECTL", "TRIALPOD_PROMTOOL", "TRIALPOD_CLUSTER_STATE", "TRIALPOD_SOURCE_URL"}
"""Read by `tools`, for those who develop trialpod."""
KNOWN = {each.name for each in variables.VARIABLES}


class TestSwitches:
    @pytest.mark.parametrize(
        ("text", "on"), [("1", True), ("TRUE", True), (" yes ", True), ("0", False), ("off", False)]
    )
    def test_say_it_in_every_usual_word(self, text: str, on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in (variables.TRIAL_OUTPUT, variables.PACK_CHECKPOINTS):
            monkeypatch.setenv(name, text)
        assert StorageOptions().resolved({variables.CREATE_BUCKET: text}).create_bucket is on
        assert _shows_output() is on
        assert (configured() is not None) is on
        assert variables.shows_tracebacks(text) is on

    def test_without_a_word_are_as_documented(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in (variables.TRIAL_OUTPUT, variables.PACK_CHECKPOINTS):
            monkeypatch.setenv(name, "")
        assert not StorageOptions().resolved({}).create_bucket
        assert _shows_output()
        assert configured() is not None
        assert not variables.shows_tracebacks("")

    def test_wrong_words_are_refused_by_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in (variables.TRIAL_OUTPUT, variables.PACK_CHECKPOINTS):
            monkeypatch.setenv(name, "banana")
        with pytest.raises(InvalidInputError, match="TRIALPOD_CREATE_BUCKET='banana': must be 1 or 0"):
            StorageOptions().resolved({variables.CREATE_BUCKET: "banana"})
        with pytest.raises(InvalidInputError, match="TRIALPOD_TRIAL_OUTPUT='banana'"):
            _shows_output()
        with pytest.raises(InvalidInputError, match="TRIALPOD_PACK_CHECKPOINTS='banana'"):
            configured()
        with pytest.raises(InvalidInputError, match=r"TRIALPOD_GPUS='0\.5': must be a whole number"):
            Machine.detect(environ={variables.GPUS: "0.5"})


class TestVariables:
    def test_page_is_the_committed_one(self) -> None:
        page = ROOT / "docs" / "environment-variables.md"
        assert page.read_text() == variables.reference(), "run tools/make_references"

    def test_constants_have_the_names_of_the_variables(self) -> None:
        for name in KNOWN:
            assert getattr(variables, name.removeprefix("TRIALPOD_")) == name
        assert len(KNOWN) == len(variables.VARIABLES)

    def test_no_other_module_has_a_name_as_a_value(self) -> None:
        for path in CODE:
            text = path.read_text()
            if path == Path(variables.__file__) or "templates" in path.parts:  # those import nothing of it
                continue
            if "TRIALPOD_" in text:
                values = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
                assert [v for v in values if isinstance(v, str) and NAME.fullmatch(v)] == [], path

    def test_texts_name_no_unknown_variable(self) -> None:
        unknown = {
            (str(path.relative_to(ROOT)), name)
            for path in TEXTS
            for name in NAME.findall(path.read_text())
            if name not in KNOWN | NO_VARIABLES | OF_TOOLS
        }
        assert unknown == set()
