"""What a release publishes is made by one command."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.local, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(900)]


class TestRelease:
    def test_makes_everything_with_checksums(self) -> None:
        made = subprocess.run(
            [ROOT / "tools" / "release"],
            env={**os.environ, "DRAFT": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stdout + made.stderr
        folder = ROOT / "build" / "release"
        subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=folder, check=True, capture_output=True)
        listed = {line.split()[1] for line in (folder / "SHA256SUMS").read_text().splitlines()}
        assert listed == {file.name for file in folder.iterdir()} - {"SHA256SUMS"}
        for ending in (".whl", ".tar.gz", ".tgz", "-crds.yaml", ".cdx.json", "-site.tar.gz", "notes.md"):
            assert any(name.endswith(ending) for name in listed), ending
