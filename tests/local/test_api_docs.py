"""The reference of the public API is made from the docstrings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.local
@pytest.mark.once
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_reference_has_the_public_names_of_every_part(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "tools/make_api_docs", tmp_path], check=True, timeout=280)
    for page, name in {
        "tune": "Tuner.fit",
        "tune/schedulers": "PopulationBasedTraining",
        "tune/search": "OptunaSearch",
        "tune/stopper": "TrialPlateauStopper",
        "testing": "SchedulerContract",
    }.items():
        assert f'id="{name}"' in (tmp_path / "trialpod" / f"{page}.html").read_text(), name
