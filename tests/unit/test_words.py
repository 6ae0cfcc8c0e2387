"""The language check of `make lint`: it finds each kind of finding where it is, and nothing in this tree."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.once

TOOL = Path(__file__).resolve().parents[2] / "tools/check_words"


@pytest.fixture(scope="module")
def tool() -> Any:
    loader = SourceFileLoader("check_words", str(TOOL))
    module = ModuleType(loader.name)
    module.__file__ = loader.path
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.setitem(sys.modules, loader.name, module)
        loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rules(tool: Any) -> list[Any]:
    found: list[Any] = tool.read_rules("keeps on\tcontinues\tall\nnoted\trecorded\tcode\n")
    return found


class TestCheck:
    def test_names_line_phrase_and_remedy(self, tool: Any, rules: list[Any]) -> None:
        found = tool.check("docs/a.md", "one\nIt keeps on, and keeps on.\n", rules)
        assert found == ['docs/a.md:2: "keeps on": write continues'] * 2

    def test_reads_names_as_words(self, tool: Any, rules: list[Any]) -> None:
        assert len(tool.check("tests/a.py", "def test_trial_keeps_on() -> None: ...\n", rules)) == 1

    @pytest.mark.parametrize("text", ["It keeps\non.\n", "# It keeps\n    # on.\n", "keeps_on = 1\n"])
    def test_reads_across_lines_and_underscores(self, tool: Any, rules: list[Any], text: str) -> None:
        assert len(tool.check("runtime/a.py", text, rules)) == 1

    def test_ignores_longer_words_and_other_scopes(self, tool: Any, rules: list[Any]) -> None:
        assert tool.check("docs/a.md", "He keeps only what was noted.\n", rules) == []
        assert len(tool.check("runtime/a.py", "# it is noted\n", rules)) == 1

    @pytest.mark.parametrize(
        "text", ["X is no number", "`X` are no\n    # numbers", '"X" was no_number', "X would be no number"]
    )
    def test_expressions_match_whole_words(self, tool: Any, rules: list[Any], text: str) -> None:
        rule = tool.read_rules(tool.RULES.read_text())[-1:]
        assert [each.partition(":")[0] for each in tool.check("docs/a.md", text, rule)] == ["docs/a.md"]

    def test_expressions_leave_correct_english(self, tool: Any) -> None:
        rule = tool.read_rules(tool.RULES.read_text())[-1:]
        text = "There is no X. It is no longer there, is no other, is no better. There may be no X. They are no-ops."
        assert tool.check("docs/a.md", text, rule) == []

    def test_names_the_line_across_separators(self, tool: Any, rules: list[Any]) -> None:
        assert tool.check("a.md", "one\n\n\n## two\n\n  keeps\n  on\n", rules)[0].startswith("a.md:6:")

    @pytest.mark.parametrize(("length", "findings"), [(60, 0), (61, 1)])
    def test_bounds_test_names(self, tool: Any, length: int, findings: int) -> None:
        text = f"class TestA:\n    async def {'test_'.ljust(length, 'x')}(self) -> None: ...\n"
        assert len(tool.check("tests/a.py", text, [])) == findings

    def test_finds_nothing_in_this_tree(self) -> None:
        done = subprocess.run([sys.executable, TOOL], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "")
