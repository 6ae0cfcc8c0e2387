"""The fuzz tests as a part of a soak: one module at a time, with examples that nobody has tried.

Invariant: what was run is said as the command that runs it again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARE = 0.1
"""Of one worker's time."""
MORE = "5"
"""Times as many examples as in the tests."""
TIMEOUT_S = 300.0


@dataclass
class Fuzzed:
    """What came of one run.

    Attributes:
        command: runs it again.
        failed: whether a test did not hold.
        out_of_time: whether it did not come to its end.
        output: what pytest printed.
    """

    command: str
    failed: bool
    out_of_time: bool = False
    output: str = ""


class Fuzzing:
    """Runs the modules in turn, for a share of the time.

    Args:
        first: the seed of the first run; the others follow.
        modules: the modules; None for all fuzz tests.
        share: of the time.
    """

    def __init__(self, first: int, modules: list[Path] | None = None, share: float = SHARE) -> None:
        self._seed = first
        self._modules = sorted((ROOT / "tests" / "fuzz").glob("test_fuzz_*.py")) if modules is None else modules
        self._share = share
        self._next_at = time.monotonic()

    def turn(self) -> Fuzzed | None:
        """Run the next module, if it is time for that."""
        began = time.monotonic()
        if began < self._next_at:
            return None
        module, seed = self._modules[self._seed % len(self._modules)], self._seed
        self._seed += 1
        found = _run(module, seed)
        self._next_at = time.monotonic() + (time.monotonic() - began) * (1.0 / self._share - 1.0)
        return found


def _run(module: Path, seed: int) -> Fuzzed:
    arguments = ["-p", "no:xdist", "-x", "-q", f"--hypothesis-seed={seed}", str(module)]
    environment = {"HYPOTHESIS_PROFILE": "search", "FUZZ_MORE": MORE}
    said = " ".join([*(f"{name}={value}" for name, value in environment.items()), "pytest", *arguments])
    command = [sys.executable, "-m", "pytest", *arguments]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **environment},
            cwd=ROOT,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return Fuzzed(said, failed=False, out_of_time=True)
    return Fuzzed(said, failed=done.returncode == 1 and "\nFAILED " in done.stdout, output=done.stdout)
