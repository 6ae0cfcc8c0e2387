"""Memory that nobody uses goes back to the system, where the C library can do that."""

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
