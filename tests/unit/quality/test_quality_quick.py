"""The quick form of the quality benchmark: what a build machine runs."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

QUALITY = Path(__file__).parents[3] / "benchmarks" / "quality"

pytestmark = [pytest.mark.local, pytest.mark.once, pytest.mark.slow, pytest.mark.timeout(900)]

SECONDS = 120
"""The most processor time that it may take; the wall clock measures what else the machine does."""


class TestQuickForm:
    def test_it_ends_in_time_and_auto_is_not_worse_than_random(self, tmp_path):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, QUALITY, "--quick", "--out", tmp_path], capture_output=True, text=True, check=False
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0, done.stderr
        assert (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime) < SECONDS
        runs = [json.loads(line) for line in (tmp_path / "development.jsonl").read_text().splitlines()]
        methods = {run["method"] for run in runs}
        assert methods == {"auto+auto", "asha+optuna", "fifo+random"}
        assert len(runs) == len(methods) * len({run["task"] for run in runs})
        assert (tmp_path / "development.svg").stat().st_size > 10_000
        final = {line.split()[0]: float(line.split()[4]) for line in done.stdout.splitlines() if "+" in line[:12]}
        assert final["auto+auto"] < 1.1 * final["fifo+random"]  # the same numbers in every run of the same code
