"""The local half of checkpoints that go to a remote storage: snapshots on this machine's disk, and their hashes.

A snapshot stays until its commit is done and its blocks are hashed: by the hashes the next commit finds out what it
need not send. A thread of its own does that beside the training, where it delays nothing but the next commit.

Invariant: no snapshot is changed once it is taken; everything is in one folder, which goes when the store is closed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from trialpod.errors import CheckpointError, StorageError
from trialpod.storage.checkpoints.deduplication import StoredFiles
from trialpod.storage.checkpoints.packing import Packing, pack_small_files
from trialpod.storage.checkpoints.staging import LocalFile, Staged, Staging
from trialpod.storage.file_tree import Tree, copy_tree
from trialpod.storage.layout import checkpoint_name
from trialpod.storage.scratch import Scratch

logger = logging.getLogger(__name__)


class Snapshots:
    """The snapshots of one store, and what is known of the checkpoint that it committed last.

    Args:
        parent: where to make the folder for local copies; None for the system's temporary folder.
        packing: when small files share a file; None leaves them apart.
    """

    def __init__(self, parent: Path | None, packing: Packing | None) -> None:
        self.staging = Staging(lambda index: self.make_folder(checkpoint_name(index)), self._copy)
        self._packing = packing
        self._parent = parent
        self._scratch: Scratch | None = None
        self._lock = threading.Lock()
        self._latest: StoredFiles | None = None  # what was committed last, once it is hashed
        self._hashing: threading.Thread | None = None
        self._closed = threading.Event()

    def take(self, index: int, source: Path | None) -> int:
        """Copy into a folder on the local disk, many small files into one; see `CheckpointStore.snapshot`."""
        try:
            return self.staging.snapshot(index, source)
        except StorageError:
            # The snapshot before may still be in the way, because it is being hashed.
            if self._hashing is None or source is None:
                raise
            self.wait_hashed()
            return self.staging.snapshot(index, source)

    def make_folder(self, name: str) -> str:
        """Make a local folder whose name begins so."""
        with self._lock:
            if self._scratch is None:
                self._scratch = Scratch(self._parent)
            return self._scratch.folder(f"{name}-")

    def latest(self) -> StoredFiles | None:
        """Return what the checkpoint that was committed last holds; None if none was. Waits until it is hashed."""
        self.wait_hashed()
        return self._latest

    def hash_then_remove(self, staged: Staged, hash_files: Callable[[Callable[[], bool]], StoredFiles]) -> None:
        """Hash what was committed, beside what comes next, and remove its snapshot then.

        Args:
            staged: the snapshot.
            hash_files: reads it; it is given a function that tells when to stop.
        """

        def run() -> None:
            try:
                self._latest = hash_files(self._closed.is_set)
            except CheckpointError as error:
                logger.debug("the next checkpoint is sent as a whole: %s", error)
                self._latest = StoredFiles()
            finally:
                staged.remove()

        thread = threading.Thread(target=run, name="trialpod-hash", daemon=True)
        with self._lock:  # a reader that sees it can wait for it
            thread.start()
            self._hashing = thread

    @property
    def has_latest(self) -> bool:
        """Whether an earlier checkpoint of this store has been hashed."""
        return self._latest is not None

    def wait_hashed(self) -> None:
        """Return when no snapshot is being hashed."""
        with self._lock:
            thread = self._hashing
        if thread is not None:
            thread.join()

    def close(self) -> None:
        """Remove the local folder with all that is in it."""
        self._closed.set()
        self.wait_hashed()
        with self._lock:
            scratch, self._scratch = self._scratch, None
        if scratch is not None:
            scratch.remove()

    def _copy(self, source: str, target: str, tree: Tree) -> list[LocalFile]:
        packed = pack_small_files(source, target, tree, self._packing)
        copy_tree(source, target, tree)
        return packed
