"""Folders on the local disk, for copies of checkpoints and for sockets, which do not outlive their process for long.

A folder is held by a lock (``flock``) on a file in it, which ends with the process, however that ends. The process
that makes the next folder beside it removes those that no process holds. Process ids would not do: containers that
share the disk do not see each other's.

Invariant: a folder gets its final name after its lock is held, so a folder that can be locked has no owner any more.
Until then it has a temporary name, and is removed after a minute. A folder that is removed gets another name first: a
removal that is killed halfway is completed by the next process.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from trialpod.storage.base import storage_error

logger = logging.getLogger(__name__)

PREFIX = "trialpod-checkpoints-"
RUN_PREFIX = "trialpod-run-"
"""Of the folder with the socket of a run on this machine."""
_UNFINISHED = ".trialpod-new-"
_REMOVED = ".trialpod-gone-"
_LOCK = ".lock"
_UNFINISHED_S = 60.0


class Scratch:
    """A folder of this process.

    Args:
        parent: where to make it; None for the system's temporary folder.
        prefix: what its name begins with, and those of the folders that are removed beside it.

    Raises:
        StorageError: it cannot be made.
    """

    def __init__(self, parent: Path | None, prefix: str = PREFIX) -> None:
        place = os.fspath(parent) if parent is not None else tempfile.gettempdir()
        remove_left_behind(place, prefix)
        try:
            while not self._make(place, prefix):
                logger.info("a folder in %s was removed by another process before it was complete", place)
        except OSError as error:
            raise storage_error(error, "cannot make a folder in", place) from error

    def _make(self, place: str, prefix: str) -> bool:
        new = tempfile.mkdtemp(prefix=_UNFINISHED, dir=place)
        self.path = os.path.join(place, prefix + os.path.basename(new).removeprefix(_UNFINISHED))
        try:
            self._lock = os.open(os.path.join(new, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            return False
        # On a file system without locks no other process can lock the folder, and so none removes it.
        with contextlib.suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            os.rename(new, self.path)
        except FileNotFoundError:
            os.close(self._lock)
            return False
        return True

    def folder(self, prefix: str) -> str:
        """Make a folder in it; raise StorageError if that cannot be."""
        try:
            return tempfile.mkdtemp(prefix=prefix, dir=self.path)
        except OSError as error:
            raise storage_error(error, "cannot make a folder in", self.path) from error

    def remove(self) -> None:
        """Remove it with all that is in it."""
        with contextlib.suppress(OSError):
            _remove(self.path)
        os.close(self._lock)


def remove_left_behind(place: str, prefix: str = PREFIX, wall: Callable[[], float] = time.time) -> list[str]:
    """Remove the folders in `place` with this prefix whose process has ended, and return their names.

    Args:
        place: where they are.
        prefix: what their names begin with.
        wall: seconds since the epoch.
    """
    removed = []
    try:
        found = os.listdir(place)
    except OSError:
        return []
    for name in found:
        if name.startswith(_UNFINISHED):
            _remove_unfinished(os.path.join(place, name), wall() - _UNFINISHED_S)
        elif name.startswith(_REMOVED):
            shutil.rmtree(os.path.join(place, name), ignore_errors=True)
    for name in [name for name in found if name.startswith(prefix)]:
        path = os.path.join(place, name)
        try:
            lock = os.open(os.path.join(path, _LOCK), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # another user's
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(path)
        except OSError:
            continue  # it is held
        finally:
            os.close(lock)
        removed.append(name)
    if removed:
        logger.info("removed %d folders in %s that ended processes had left behind", len(removed), place)
    return removed


def _remove(path: str) -> None:
    """Remove a folder whose lock is held here."""
    folder, name = os.path.split(path)
    gone = os.path.join(folder, _REMOVED + name)
    os.rename(path, gone)
    shutil.rmtree(gone, ignore_errors=True)


def _remove_unfinished(path: str, before: float) -> None:
    """Remove a folder whose maker was killed before it got its name; a maker that was only stopped makes another."""
    with contextlib.suppress(OSError):
        if os.lstat(path).st_mtime < before:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(path, _LOCK))
            os.rmdir(path)
