"""The layout that CONTRIBUTING.md describes: no import circle, folders that a reader can survey, a complete map."""

from __future__ import annotations

import re
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest
import yaml

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"trialpod": ROOT / "runtime", "trialpod_operator": ROOT / "operator"}
MAX_MODULES_PER_FOLDER = 25


def source_files() -> list[Path]:
    return [file for name, root in PACKAGES.items() for file in (root / name).rglob("*.py")]


class TestImports:
    def test_there_is_no_import_circle(self) -> None:
        graph = grimp.build_graph(*PACKAGES, cache_dir=None)
        imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
        try:
            TopologicalSorter(imports).prepare()
        except CycleError as error:
            pytest.fail(" -> ".join(error.args[1]))

    def test_the_layer_contracts_have_no_exception(self) -> None:
        assert "ignore_imports" not in (ROOT / "pyproject.toml").read_text()


class TestFolders:
    def test_no_folder_has_too_many_modules(self) -> None:
        counts = Counter(file.parent.relative_to(ROOT) for file in source_files() if file.name != "__init__.py")
        assert {str(folder): n for folder, n in counts.items() if n > MAX_MODULES_PER_FOLDER} == {}

    def test_every_module_says_what_it_is_for(self) -> None:
        silent = [file for file in source_files() if not re.match(r'(#!.*\n)?r?"""\S', file.read_text())]
        assert [str(file.relative_to(ROOT)) for file in silent] == []


class TestModuleMap:
    def test_the_map_names_every_folder_and_no_other(self) -> None:
        text = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## The module map")[2].partition("\n## ")[0]
        named = set(re.findall(r"^\| `((?:runtime|operator)/[\w/]+)/?` \|", text, re.MULTILINE))
        folders = {str(file.parent.relative_to(ROOT)) for file in source_files() if file.name == "__init__.py"}
        assert named == folders


class TestWorkflow:
    def test_each_job_has_a_cache_of_its_own(self) -> None:
        """The first job to end writes an entry, and it stays; the jobs build different programs."""
        jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
        steps = [step for job in jobs.values() for step in job["steps"]]
        keys = [step["with"]["key"] for step in steps if step.get("uses", "").startswith("actions/cache@")]
        assert len(keys) == len(set(keys)) == len(jobs)
