"""Runs one workload once, in a process and a folder of its own, for a limited time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rows import Workload
from workloads.leftovers import kill_descendants

_TAIL_LINES = 15


@dataclass
class Measured:
    """The figures of one run, or in `problem` why there are none."""

    figures: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


def measure(workload: Workload, system: str, python: Path, work: Path, timeout_s: float | None = None) -> Measured:
    """Run a workload on a system ("trialpod" or "ray") and return what it printed.

    Args:
        workload: what to run.
        system: on what.
        python: of the environment that has the system.
        work: a folder on a real disk; the run's own folder in it is removed afterwards.
        timeout_s: instead of the workload's own limit.
    """
    limit = timeout_s or workload.timeout_s
    work.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{workload.name}-", dir=work))
    scratch = Path(tempfile.mkdtemp(prefix="bench-"))  # short: sockets are made in it
    env = {key: value for key, value in os.environ.items() if not key.startswith(("TRIALPOD_", "TUNE_", "RAY_"))}
    env |= {
        "BENCH_SYSTEM": system,
        "BENCH_SIZES": json.dumps(workload.sizes),
        "TMPDIR": str(scratch),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Or Ray kills trials for what other processes of the machine take.
        "RAY_memory_monitor_refresh_ms": "0",
    }
    log = folder / "output.txt"
    script = Path(__file__).parent / "workloads" / workload.script
    try:
        with open(log, "wb") as output:
            env["BENCH_STARTED_AT"] = repr(time.time())
            process = subprocess.Popen(
                [str(python), str(script)], cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT
            )
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                return Measured(problem=f"over {limit:.0f} s")
            finally:
                kill_descendants()
        text = log.read_text(errors="replace")
        found = [line for line in text.splitlines() if line.startswith("FIGURES ")]
        if status != 0 or not found:
            tail = "\n".join(text.splitlines()[-_TAIL_LINES:])
            print(f"{workload.name} on {system} ended with status {status}:\n{tail}", file=sys.stderr)
            return Measured(problem=f"failed (status {status})")
        return Measured(json.loads(found[-1].removeprefix("FIGURES ")))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
