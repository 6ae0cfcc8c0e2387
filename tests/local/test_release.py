"""What a release publishes is made by one command."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.local,
    pytest.mark.slow,
    pytest.mark.once,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("release"),
]


@pytest.fixture(scope="module")
def folder() -> Path:
    """What `make release` has made."""
    made = subprocess.run(
        [ROOT / "tools" / "release"],
        env={**os.environ, "DRAFT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return ROOT / "build" / "release"


class TestRelease:
    def test_makes_everything_with_checksums(self, folder: Path) -> None:
        subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=folder, check=True, capture_output=True)
        listed = {line.split()[1] for line in (folder / "SHA256SUMS").read_text().splitlines()}
        assert listed == {file.name for file in folder.iterdir()} - {"SHA256SUMS"}
        for ending in (".whl", ".tar.gz", ".tgz", "-crds.yaml", ".cdx.json", "-site.tar.gz", "notes.md"):
            assert any(name.endswith(ending) for name in listed), ending

    def test_every_requirement_has_version_and_licence(self, folder: Path) -> None:
        (sbom,) = folder.glob("*.cdx.json")
        listed = {each["name"].lower().replace("_", "-"): each for each in json.loads(sbom.read_text())["components"]}
        requirements = subprocess.run(
            [ROOT / "tools" / "requirements_of", "operator"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        wanted = {line.split("==")[0] for line in requirements if "==" in line and ";" not in line}
        assert wanted <= set(listed)
        assert [name for name, each in listed.items() if not each.get("version")] == []
        assert [name for name, each in listed.items() if not each.get("licenses")] == []
