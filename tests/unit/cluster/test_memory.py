"""What the operator's process takes of its machine: memory, imports, descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import platform
import resource
import subprocess
import sys

import pytest
import virtual_time

from trialpod_operator.cluster.process_memory import MIN_COLLECTION_INTERVAL_S, collect_fully

SCRIPT = """
import os
from pathlib import Path
from trialpod_operator.cluster.process_memory import share_arenas, trim

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


class TestFullCollections:
    """All else waits for a full collection."""

    @pytest.mark.parametrize(("took_s", "interval_s"), [(0.01, MIN_COLLECTION_INTERVAL_S), (0.3, 30.0)])
    def test_take_a_hundredth_of_the_time(self, took_s: float, interval_s: float) -> None:
        ends: list[float] = []

        async def test() -> None:
            loop, took = asyncio.get_running_loop(), 0.0

            def collect() -> None:
                nonlocal took
                took += took_s
                ends.append(loop.time())

            task = asyncio.ensure_future(collect_fully(lambda: loop.time() + took, collect))
            await asyncio.sleep(1000.0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

        virtual_time.run(test)
        assert ends[0] == MIN_COLLECTION_INTERVAL_S
        assert {round(after - before) for before, after in itertools.pairwise(ends)} == {interval_s}

    def test_are_not_made_by_python_itself(self) -> None:
        script = """
import gc
from trialpod_operator.cluster.process_memory import leave_out_full_collections
def begin(phase, info):
    if phase == "start":
        generations.add(info["generation"])
generations = set()
gc.callbacks.append(begin)
leave_out_full_collections()
kept = [[] for _ in range(1_000_000)]
print(*sorted(generations))
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["0", "1"]
