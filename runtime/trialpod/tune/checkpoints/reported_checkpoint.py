"""A checkpoint that was reported and may still be on its way to the storage.

Invariant: nothing waits until it is read; then `path` waits for the commit and is a local directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from trialpod.tune.checkpoints.checkpoint import Checkpoint


class ReportedCheckpoint(Checkpoint):
    """A checkpoint whose directory is known only when it is asked for.

    Args:
        name: its name, "checkpoint_000003".
        locate: returns its local directory; called once, at the first use of `path`.
    """

    def __init__(self, name: str, locate: Callable[[], str | os.PathLike[str]]) -> None:
        self._name = name
        self._locate = locate

    def __getattr__(self, attribute: str) -> str:
        if attribute != "path":
            return str(super().__getattr__(attribute))
        self.path = os.fspath(self._locate())
        return self.path

    def __repr__(self) -> str:
        return f"Checkpoint(name={self._name!r})"
