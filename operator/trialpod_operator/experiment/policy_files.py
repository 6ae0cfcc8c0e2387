"""The history of exploits as files in the experiment's directory, for schedulers that keep one (`policy_log`).

A file is replaced as a whole, and holds the same again after a restart: its content follows from the scheduler's
state. One that cannot be written ends no experiment; it is tried again, and `warn` is told once.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from trialpod.storage.base import storage_error
from trialpod.tune.schedulers.trial_scheduler import TrialScheduler


class PolicyFiles:
    """Writes what the scheduler's history gained. Owned by the experiment's host.

    Args:
        directory: the experiment's.
        scheduler: whose history; any, also one that keeps none.
        warn: told in one sentence when a file cannot be written.
    """

    def __init__(self, directory: Path, scheduler: TrialScheduler, warn: Callable[[str], None]) -> None:
        self._directory = directory
        self._scheduler = scheduler
        self._warn = warn
        self._warned = False
        self._written = 0  # exploits that are in the files

    def flush(self) -> None:
        """Bring the files up to date."""
        count = int(getattr(self._scheduler, "num_perturbations", 0) or 0)
        policy_log = getattr(self._scheduler, "policy_log", None)
        if count <= self._written or policy_log is None:
            return
        for name, lines in policy_log(self._written).items():
            if not self._write(name, lines):
                return
        self._written = count

    def _write(self, name: str, lines: list[str]) -> bool:
        path = self._directory / name
        text = "".join(f"{line}\n" for line in lines)
        passing = path.with_name(f".{path.name}.new")
        try:
            passing.write_text(text, encoding="utf-8")
            os.replace(passing, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                passing.unlink()
            if not self._warned:
                self._warned = True
                self._warn(str(storage_error(error, "cannot write", path, len(text))))
            return False
        return True
