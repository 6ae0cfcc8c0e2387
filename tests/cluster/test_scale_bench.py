"""The scale benchmark at a fiftieth of its size: what it counts, and not how long anything takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LARGE, SMALL, SMALL_TRIALS = 20 + 200, 10, 4
START_FILES = 60
"""Open files that do not come from attempts: logs, watches, the connections to API server and bucket."""

pytestmark = [pytest.mark.addon, pytest.mark.timeout(1600)]


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the benchmark found, on a control plane of its own."""
    file = tmp_path_factory.mktemp("scale") / "figures.json"
    command = [sys.executable, ROOT / "benchmarks/scale", "--scale=0.02", "--seconds=8", "--calm=16"]
    command.append(f"--small={SMALL}")
    done = subprocess.run(
        [*command, f"--json={file}"], capture_output=True, text=True, timeout=1500, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found: dict[str, Any] = json.loads(file.read_text())["figures"]
    return found


def test_a_trial_among_many_costs_few_requests(figures: dict[str, Any]) -> None:
    # Six, the review of its token, and what is written about the experiment as a whole, which few trials share here.
    assert figures["at the end"]["requests_per_trial"] < 9.0


def test_each_trial_has_one_object_and_no_pod_is_left(figures: dict[str, Any]) -> None:
    end = figures["at the end"]
    assert end["trials"] == end["tunetrials"] == LARGE + 2 * SMALL * SMALL_TRIALS
    assert end["pods"] == 0


def test_connections_of_ended_attempts_are_closed(figures: dict[str, Any]) -> None:
    assert figures["at the end"]["files"] < START_FILES


def test_a_killed_operator_continues_with_the_attempts_that_run(figures: dict[str, Any]) -> None:
    assert figures["calm: kill -9 and restart at full size"]["running"] > 0
