"""The memory of the operator's process: what it imports, and what goes back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import os
from pathlib import Path
from trialpod_operator.cluster.operator import share_arenas, trim

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

share_arenas()
blocks = [bytes(1000) for _ in range(100_000)]
kept = blocks[::1000] + [bytes(2000)]
del blocks
before = resident()
trim()
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_memory_freed_by_a_burst_is_returned() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 50_000_000


def test_operator_process_imports_no_second_api_client() -> None:
    script = "import sys, trialpod_operator.cluster.operator; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert {"kopf", "kubernetes", "requests"} & {*done.stdout.split()} == {"kopf"}


def test_api_client_can_be_imported_after_the_operator() -> None:
    script = "import trialpod_operator.cluster.operator, kubernetes.client; print(kubernetes.client.V1Pod.__name__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "V1Pod"
