"""Loads a Trainable as a trial would, in a process of its own, and says whether that works: `python -m` this module.

The standard input has a `TrainableRef` as JSON. Exit status 0, or 1 with the reason in the last line of standard
error.
"""

from __future__ import annotations

import subprocess
import sys

import msgspec

from trialpod.errors import TrialpodError
from trialpod.protocol.messages import TrainableRef
from trialpod.runner.load import load_trainable

IMPORT_TIMEOUT_S = 300.0
_MARK = "trialpod import check: "


def problem_of(ref: TrainableRef, timeout_s: float = IMPORT_TIMEOUT_S) -> str | None:
    """Return why a Trainable cannot be loaded on this machine, None when it can.

    Its module is imported in another process, whose output is not shown.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "trialpod.runner.import_check"],
            input=msgspec.json.encode(ref),
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"loading it takes more than {timeout_s:.0f} s"
    if done.returncode == 0:
        return None
    said = [line for line in done.stderr.decode(errors="replace").splitlines() if line.startswith(_MARK)]
    return said[-1].removeprefix(_MARK) if said else f"loading it ended the process (status {done.returncode})"


def main() -> int:
    """Load what the standard input names."""
    ref = msgspec.json.decode(sys.stdin.buffer.read(), type=TrainableRef)
    try:
        load_trainable(ref)
    except TrialpodError as error:
        sys.stderr.write(f"\n{_MARK}{' '.join(str(error).split())}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
