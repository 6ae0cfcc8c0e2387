"""The local copies of checkpoints in a storage that has no path on this machine.

Invariants: what is fetched has been verified, file by file; a process fetches a checkpoint once, however many objects
refer to it, and removes its copies when it ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from trialpod import variables
from trialpod.errors import CheckpointError, StorageError
from trialpod.protocol.messages import CheckpointInfo
from trialpod.storage.base import Storage, storage_error
from trialpod.storage.checkpoints import open_checkpoints

Key = tuple[str, int, float]
"""URI, attempt and time: what tells a checkpoint from a later one at the same place."""


def download(storage: Storage, info: CheckpointInfo, target: Path) -> None:
    """Download a checkpoint into an empty folder, verified; on an error the folder is empty again."""
    try:
        open_checkpoints(storage).download(info, target)
    except BaseException:
        for name in os.listdir(target):
            with contextlib.suppress(OSError):
                child = target / name
                shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()
        raise


class _Copies:
    """The local copies of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paths: dict[Key, str] = {}
        self._folder = ""
        self._parent: str | None = None  # in which it was made
        self._owner = 0

    def get(self, key: Key, info: CheckpointInfo, storage: Callable[[], Storage]) -> str:
        """Return the local copy of a checkpoint, which is fetched if there is none yet."""
        with self._lock:
            path = self._paths.get(key)
            if path is None or not os.path.isdir(path):
                path = self._paths[key] = self._fetch(storage(), info)
            return path

    def _fetch(self, storage: Storage, info: CheckpointInfo) -> str:
        parent = os.environ.get(variables.SCRATCH_DIR) or None
        try:
            if (self._owner, self._parent) != (os.getpid(), parent) or not os.path.isdir(self._folder):
                self._folder = tempfile.mkdtemp(prefix="trialpod-fetched-", dir=parent)
                self._owner, self._parent = os.getpid(), parent
                atexit.register(self._remove, self._folder, self._owner)
            target = tempfile.mkdtemp(prefix=f"{info.name}-", dir=self._folder)
        except OSError as error:
            raise storage_error(error, "cannot make a folder in", parent or tempfile.gettempdir()) from error
        try:
            download(storage, info, Path(target))
        except (CheckpointError, StorageError):
            os.rmdir(target)
            raise
        return target

    @staticmethod
    def _remove(folder: str, owner: int) -> None:
        if owner == os.getpid():
            shutil.rmtree(folder, ignore_errors=True)


COPIES = _Copies()
