"""The reference pages say what the code says."""

from __future__ import annotations

import re
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from trialpod.cli.main import built_in_names, load_command, parser_of

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    made = ModuleType("make_references")
    made.__file__ = str(ROOT / "tools" / "make_references")
    SourceFileLoader(made.__name__, made.__file__).exec_module(made)
    return made


class TestReferencePages:
    def test_chart_page_is_the_committed_one(self, tool: ModuleType) -> None:
        page: str = tool.chart_page()
        assert (ROOT / "docs" / "chart-values.md").read_text() == page, "run tools/make_references"
        assert "| `metrics.serviceMonitor.enabled` |" in page

    def test_page_of_commands_is_the_committed_one(self, tool: ModuleType) -> None:
        assert (ROOT / "docs" / "cli-reference.md").read_text() == tool.cli_page(), "run tools/make_references"

    def test_commands_and_options_of_the_page_exist(self) -> None:
        text = (ROOT / "docs" / "cli-reference.md").read_text()
        sections = re.split(r"^## trialpod ([\w-]+)$", text, flags=re.MULTILINE)[1:]
        pages = dict(zip(sections[::2], sections[1::2], strict=True))
        assert {"run", "submit", "why", "retry"} <= set(pages) <= set(built_in_names())
        for name, section in pages.items():
            known = set(parser_of(load_command(name))._option_string_actions)
            options = {word for row in re.findall(r"^\| `(-[^`]*)` ", section, re.MULTILINE) for word in row.split()}
            assert {word.rstrip(",") for word in options if word.startswith("-")} <= known, name
