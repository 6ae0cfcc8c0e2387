"""requirements/*.txt have every dependency of pyproject.toml, in a version that it allows, with hashes, no hosts."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DEV = [*PROJECT["dependency-groups"]["dev"], *PROJECT["project"]["optional-dependencies"]["examples"]]

pytestmark = pytest.mark.once


def locked(name: str) -> dict[str, list[str]]:
    """Return the locked versions by the package's name."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "requirements" / name).read_text().splitlines():
        if match := re.match(r"([A-Za-z0-9._-]+)==([^\s;]+)", line):
            found.setdefault(canonicalize_name(match[1]), []).append(match[2])
    return found


def of_extra(extra: str) -> Iterator[str]:
    for line in PROJECT["project"]["optional-dependencies"][extra]:
        requirement = Requirement(line)
        if requirement.name == "trialpod":
            for other in requirement.extras:
                yield from of_extra(other)
        else:
            yield line


class TestLock:
    @pytest.mark.parametrize(
        ("file", "lines"), [("dev.txt", DEV), ("image.txt", list(of_extra("all")))], ids=["dev", "image"]
    )
    def test_has_what_pyproject_asks_for(self, file: str, lines: list[str]) -> None:
        versions = locked(file)
        for line in [*PROJECT["project"]["dependencies"], *lines]:
            requirement = Requirement(line)
            found = versions.get(canonicalize_name(requirement.name), [])
            assert found, f"{file} lacks {requirement.name}: run `make lock`"
            assert all(requirement.specifier.contains(each) for each in found), (
                f"{line}, not {found}: run `make lock`"
            )

    @pytest.mark.parametrize("file", ["dev.txt", "image.txt"])
    def test_has_hashes_and_names_no_host(self, file: str) -> None:
        text = (ROOT / "requirements" / file).read_text()
        assert "://" not in text
        assert "--index" not in text
        entries = re.findall(r"^[a-z0-9][^\n]*==.*\n(.*)", text, re.MULTILINE)
        assert len(entries) > 50
        assert all("--hash=sha256:" in following for following in entries)


class TestRequirementsOf:
    @staticmethod
    def run(extras: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, ROOT / "tools" / "requirements_of", extras]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def test_prints_what_an_extra_needs_and_what_that_needs(self) -> None:
        names = {line.split("==")[0] for line in self.run("operator").stdout.splitlines() if "==" in line}
        assert {"msgspec", "kopf", "aiohttp", "multidict", "cryptography", "cffi"} <= names
        assert not {"scikit-learn", "torch", "nevergrad"} & names

    def test_refuses_what_is_not_locked(self) -> None:
        done = self.run("bohb")
        assert done.returncode != 0
        assert "lacks configspace, hpbandster" in done.stderr


@pytest.mark.xdist_group("of-one-test")
def test_groups_of_tests_stay_on_one_worker(request: pytest.FixtureRequest) -> None:
    """The locked pytest and pytest-xdist fit together: the group is part of what xdist distributes by."""
    if not request.config.getoption("loadgroup", False):
        pytest.skip("not run with --dist loadgroup")
    assert request.node.nodeid.endswith("@of-one-test")
