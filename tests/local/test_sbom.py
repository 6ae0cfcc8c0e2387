"""The list of what an image contains."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.local, pytest.mark.slow, pytest.mark.once]


def test_every_requirement_has_version_and_licence() -> None:
    made = subprocess.run([ROOT / "tools" / "make_sbom"], capture_output=True, text=True, check=False, timeout=300)
    assert made.returncode == 0, made.stderr
    listed = {
        each["name"].lower().replace("_", "-"): each
        for each in json.loads((ROOT / made.stdout.strip()).read_text())["components"]
    }
    requirements = subprocess.run(
        [ROOT / "tools" / "requirements_of", "operator"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    wanted = {line.split("==")[0] for line in requirements if "==" in line and ";" not in line}
    assert wanted <= set(listed)
    assert [name for name, each in listed.items() if not each.get("version")] == []
    assert [name for name, each in listed.items() if not each.get("licenses")] == []
