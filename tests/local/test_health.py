"""Over a long run no process of trialpod grows, in memory or in open files: the benchmark's runs, shortened."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

import pytest
from minio_server import ACCESS_KEY, SECRET_KEY, MinioServer

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from health import Health, watch

pytestmark = [pytest.mark.local, pytest.mark.once, pytest.mark.slow]

ALLOWANCE = 1_500_000
"""Bytes by which a process may grow at any time: Python's allocator takes memory in arenas of 1,048,576 bytes."""
EACH_TRIAL = 2_000
"""Bytes that the shell remembers of a trial, as long as the experiment continues."""


CONNECTIONS = 8
"""As many may be kept to a bucket, opened when so many requests meet. One lost for every checkpoint would be 100."""


def assert_flat(health: Health, *roles: str, each: float = 0.0, connections: int = 0) -> None:
    for role in roles:
        later = health.after_warm_up(role)
        assert len(later) > 10
        growth = health.growth(role)
        assert growth < ALLOWANCE + each * health.count, f"the {role} has grown by {growth:,} bytes"
        half = len(later) // 2
        first, last = later[:half], later[half:]
        # Connections come and go: it counts what is open most of the time.
        assert median(s.descriptors for s in last) <= max(s.descriptors for s in first) + connections, role
        assert median(s.threads for s in last) <= max(s.threads for s in first), role


def test_many_results_of_one_trial(tmp_path: Path) -> None:
    health = watch("results", 20_000, tmp_path, str(tmp_path / "storage"))
    assert_flat(health, "shell", "fork server", "runner")


def test_many_short_trials_in_the_same_processes(tmp_path: Path) -> None:
    health = watch("trials", 500, tmp_path, str(tmp_path / "storage"))
    assert_flat(health, "shell", each=EACH_TRIAL)
    assert_flat(health, "fork server", "runner")


def test_many_checkpoints_to_a_bucket(tmp_path: Path) -> None:
    with MinioServer(tmp_path / "minio") as server:
        server.storage("s3://long/here")
        keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
        env = {"AWS_ENDPOINT_URL": server.endpoint, **keys}
        health = watch("checkpoints", 200, tmp_path, "s3://long/here", env)
        assert_flat(health, "shell", "fork server", "runner", connections=CONNECTIONS)
