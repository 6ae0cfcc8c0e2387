"""A checkpoint in a storage that has no path on this machine.

Invariants: nothing is fetched until somebody wants to read it; what is fetched has been verified, file by file; a
process fetches a checkpoint once, however many objects refer to it, and removes its copies when it ends.
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

from trialpod.errors import CheckpointError, StorageError
from trialpod.protocol.messages import CheckpointInfo
from trialpod.storage.base import Storage, storage_error
from trialpod.storage.checkpoints.remote import SCRATCH_VARIABLE, RemoteCheckpoints
from trialpod.storage.registry import open_storage
from trialpod.tune.checkpoints.checkpoint import Checkpoint

_Key = tuple[str, int, float]


class StoredCheckpoint(Checkpoint):
    """A checkpoint whose directory on this machine is made when `path` is asked for.

    Args:
        trial_uri: where its trial's checkpoints are ("s3://bucket/prefix/experiment/trial").
        info: which of them it is.
        storage: that place, opened; None opens it when it is needed, as the environment says.

    Attributes:
        uri: where it is.
        path: a local copy, verified, in the folder that TRIALPOD_SCRATCH_DIR names or the system's temporary one,
            gone when this process ends; `to_directory` makes one that stays. Asking for it raises CheckpointError
            when the checkpoint is missing or damaged, StorageError when the storage or the local disk refuses.
    """

    def __init__(self, trial_uri: str, info: CheckpointInfo, storage: Storage | None = None) -> None:
        self.uri = f"{trial_uri}/{info.name}"
        self._trial_uri = trial_uri
        self._info = info
        self._storage = storage

    def __getattr__(self, attribute: str) -> str:
        if attribute != "path":
            raise AttributeError(f"{type(self).__name__} has no attribute {attribute!r}")
        self.path = _copies.get(self.uri, self._info, self._open)
        return self.path

    def __repr__(self) -> str:
        return f"Checkpoint(uri={self.uri!r})"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StoredCheckpoint):
            return self._identity == other._identity
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity)

    def __reduce__(self) -> tuple[type[StoredCheckpoint], tuple[str, CheckpointInfo]]:
        """Travel without the local copy, which is of this process."""
        return StoredCheckpoint, (self._trial_uri, self._info)

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Download the checkpoint into a directory and return its path; see `Checkpoint.to_directory`."""
        if "path" in self.__dict__:
            return super().to_directory(path)
        target = tempfile.mkdtemp(prefix="trialpod-checkpoint-") if path is None else os.fspath(path)
        try:
            os.makedirs(target, exist_ok=True)
            if os.listdir(target):
                return super().to_directory(target)  # never half of it over files of the user's
        except OSError as error:
            raise storage_error(error, "cannot make the folder", target) from error
        _download(self._open(), self._info, Path(target))
        return target

    @property
    def _identity(self) -> _Key:
        return _key(self.uri, self._info)

    def _open(self) -> Storage:
        return self._storage if self._storage is not None else open_storage(self._trial_uri)


def _key(uri: str, info: CheckpointInfo) -> _Key:
    return uri, info.attempt, info.time


def _download(storage: Storage, info: CheckpointInfo, target: Path) -> None:
    try:
        RemoteCheckpoints(storage).download(info, target)
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
        self._paths: dict[_Key, str] = {}
        self._folder = ""
        self._parent: str | None = None  # in which it was made
        self._owner = 0

    def get(self, uri: str, info: CheckpointInfo, storage: Callable[[], Storage]) -> str:
        key = _key(uri, info)
        with self._lock:
            path = self._paths.get(key)
            if path is None or not os.path.isdir(path):
                path = self._paths[key] = self._fetch(storage(), info)
            return path

    def _fetch(self, storage: Storage, info: CheckpointInfo) -> str:
        parent = os.environ.get(SCRATCH_VARIABLE) or None
        try:
            if (self._owner, self._parent) != (os.getpid(), parent) or not os.path.isdir(self._folder):
                self._folder = tempfile.mkdtemp(prefix="trialpod-fetched-", dir=parent)
                self._owner, self._parent = os.getpid(), parent
                atexit.register(self._remove, self._folder, self._owner)
            target = tempfile.mkdtemp(prefix=f"{info.name}-", dir=self._folder)
        except OSError as error:
            raise storage_error(error, "cannot make a folder in", parent or tempfile.gettempdir()) from error
        try:
            _download(storage, info, Path(target))
        except (CheckpointError, StorageError):
            os.rmdir(target)
            raise
        return target

    @staticmethod
    def _remove(folder: str, owner: int) -> None:
        if owner == os.getpid():
            shutil.rmtree(folder, ignore_errors=True)


_copies = _Copies()
