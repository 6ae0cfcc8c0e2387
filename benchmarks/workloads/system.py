"""What the workloads share: the system under measurement, chosen by BENCH_SYSTEM ("trialpod" or "ray").

Workloads are written once against the API that both have: ``from system import tune``. Here is what only one of them
needs: Ray wants a cluster before it can run anything. How long that takes is a figure of its own, never added in
silently.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

SYSTEM = os.environ.get("BENCH_SYSTEM", "trialpod")

if SYSTEM == "ray":
    from ray import tune
    from ray.tune import schedulers
else:
    from trialpod import tune
    from trialpod.tune import schedulers

__all__ = [
    "STORAGE",
    "begin",
    "count_lines",
    "finish",
    "schedulers",
    "setting",
    "size",
    "started_at",
    "timed_fit",
    "tune",
]

STORAGE = os.path.abspath("storage")
CPUS = 2
"""What both systems share out, so that the same number of trials runs at once on every machine."""

_sizes: dict[str, Any] = json.loads(os.environ.get("BENCH_SIZES", "{}"))
_figures: dict[str, Any] = {}


def size(name: str, default: float) -> float:
    """Return a size of the workload, which BENCH_SIZES (a JSON object) can change."""
    found: float = _sizes.get(name, default)
    return found


def setting(name: str, default: str) -> str:
    """Return a word that tells workloads of one script apart, from BENCH_SIZES too."""
    found: str = _sizes.get(name, default)
    return found


def started_at() -> float:
    """When this process was started, in seconds since the epoch."""
    return float(os.environ.get("BENCH_STARTED_AT", _start_of_process()))


def begin() -> None:
    """Get the system ready for a Tuner; notes how long that took."""
    start = time.perf_counter()
    if SYSTEM == "ray":
        import ray

        ray.init(
            num_cpus=CPUS,
            include_dashboard=False,
            configure_logging=False,
            log_to_driver=False,
            object_store_memory=256 * 1024 * 1024,
            _temp_dir=tempfile.gettempdir(),
        )
    _figures["init_s"] = time.perf_counter() - start


def timed_fit(tuner: Any) -> tuple[Any, float]:
    """Run a Tuner; return its results and the seconds that it took."""
    start = time.perf_counter()
    grid = tuner.fit()
    seconds = time.perf_counter() - start
    if grid.errors:
        raise SystemExit(f"{len(grid.errors)} trials failed, the first with: {grid.errors[0]}")
    return grid, seconds


def count_lines(grid: Any) -> int:
    """Return how many results are in the trials' result.json files."""
    return sum(Path(result.path, "result.json").read_bytes().count(b"\n") for result in grid)


def finish(**figures: Any) -> None:
    """Print the figures, for the parent process."""
    print("FIGURES " + json.dumps({**_figures, **figures}), flush=True)


def _start_of_process() -> float:
    with open("/proc/self/stat", "rb") as file:
        ticks = int(file.read().rpartition(b")")[2].split()[19])
    with open("/proc/uptime") as file:
        uptime = float(file.read().split()[0])
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")
