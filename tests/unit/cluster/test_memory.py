"""What the operator's process takes of its machine: memory, imports, descriptors."""

from __future__ import annotations

import platform
import resource
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


@pytest.mark.parametrize(("most", "connections"), [(20_000, 16_384), (4096, 3072), (1024, 512)])
def test_descriptors_of_the_process_bound_its_connections(most: int, connections: int) -> None:
    script = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, {most}))
from trialpod_operator.cluster.operator import allow_connections
print(allow_connections(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < most:
        pytest.skip(f"this machine allows fewer than {most} descriptors")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(connections), str(most), str(most)]
