"""The pages of the algorithm families: what each shows runs as a manifest and as a script, and explains itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.local, pytest.mark.once, pytest.mark.slow]

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("early-stopping", "population-based-training", "random-search", "search", "stoppers")


class Page:
    """The files that a page shows, written to a folder in which its commands run."""

    def __init__(self, name: str, folder: Path) -> None:
        text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
        files = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', text, re.DOTALL | re.MULTILINE))
        for title, block in files.items():
            (folder / title).write_text(block)
        self.folder = folder
        self.experiment = next(title for title in files if title.endswith(".yaml")).removesuffix(".yaml")
        shown = text.split("## Read its decisions")[1].split("\n## ")[0]
        self.commands = re.findall(r"^trialpod (.*)$", shown, re.MULTILINE)
        blocks = re.findall(r"^```(.*)\n((?:(?!```).*\n)*)```$", shown, re.MULTILINE)
        self.explained = [" ".join(block.split()) for kind, block in blocks if not kind]

    def trialpod(self, command: str) -> str:
        return self.run(str(Path(sys.executable).with_name("trialpod")), *command.split())

    def run(self, *command: str) -> str:
        environment = {**os.environ, "HOME": str(self.folder), "COLUMNS": "120"}
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.mark.parametrize("name", PAGES)
class TestPage:
    def test_its_manifest_runs_and_is_explained(self, name: str, tmp_path: Path) -> None:
        page = Page(name, tmp_path)
        assert page.commands[0] == f"run {page.experiment}.yaml"
        said = " ".join("".join(page.trialpod(command) for command in page.commands).split())
        for block in page.explained:
            assert block in said

    def test_its_script_finds_a_good_value(self, name: str, tmp_path: Path) -> None:
        page = Page(name, tmp_path)
        best = page.run(sys.executable, f"{page.experiment}.py")
        found = re.search(r"'lr': ([0-9.e-]+)", best)
        assert found is not None, best
        assert abs(float(found[1]) - 0.1) < 0.1
