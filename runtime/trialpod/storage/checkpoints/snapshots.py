"""The local half of checkpoints that go to a remote storage: snapshots on this machine's disk, and what they teach.

A snapshot stays until its commit is done and what it holds is known: by the samples and the SHA-256 of its blocks the
next one finds out what it need not send. That is read in a thread of its own, beside the training, where it delays
nothing but the next commit.

Invariant: no snapshot is changed once it is taken; everything is in one folder, which goes when the store is closed.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path

from trialpod.errors import CheckpointError, StorageError
from trialpod.storage.base import Storage
from trialpod.storage.checkpoints.deduplication import Facts, LocalFile, Stored, learn
from trialpod.storage.checkpoints.packing import PACK_PREFIX, Packing, pack_small_files
from trialpod.storage.checkpoints.store import CheckpointStore
from trialpod.storage.checkpoints.upload import BLOCKS_PREFIX, CLAIM_FILE, COPY_PREFIX
from trialpod.storage.file_tree import FileEntry, Tree, survey
from trialpod.storage.layout import MANIFEST_FILE, checkpoint_name
from trialpod.storage.scratch import Scratch

logger = logging.getLogger(__name__)

_OURS = (PACK_PREFIX, BLOCKS_PREFIX, COPY_PREFIX)


class SnapshotStore(CheckpointStore):
    """Takes snapshots of checkpoints on the local disk.

    Args:
        storage: the trial's directory.
        scratch: the folder for local copies; None for the system's temporary folder.
        packing: when small files share a file; None leaves them apart.
    """

    def __init__(self, storage: Storage, scratch: Path | None, packing: Packing | None) -> None:
        super().__init__(storage)
        self._packing = packing
        self._scratch_parent = scratch
        self._scratch_or_none: Scratch | None = None
        self._lock = threading.Lock()
        self._packed: dict[str, list[LocalFile]] = {}  # by the folder of the snapshot
        self._newest: Stored | None = None  # what was committed last, once it is known
        self._learning: threading.Thread | None = None
        self._closed = threading.Event()

    def begin(self, index: int) -> Path:
        """Return a new folder on the local disk."""
        self.abandon(index)
        self._begun[index] = self._folder(checkpoint_name(index))
        return Path(self._begun[index])

    def snapshot(self, index: int, source: Path | None = None) -> int:
        """Copy into a folder on the local disk, many small files into one."""
        try:
            return super().snapshot(index, source)
        except StorageError:
            # The snapshot before may still be in the way, because it is being looked at.
            if self._learning is None or source is None:
                raise
            self._learned()
            return super().snapshot(index, source)

    def close(self) -> None:
        """Remove the local folder with all that is in it."""
        self._closed.set()
        self._learned()
        with self._lock:
            scratch, self._scratch_or_none = self._scratch_or_none, None
        if scratch is not None:
            scratch.remove()

    def _take(self, source: str, target: str, tree: Tree) -> None:
        tree = Tree(tree.folders, dict(tree.files))
        packed = pack_small_files(source, target, tree, self._packing)
        super()._take(source, target, tree)
        if packed:
            self._packed[target] = packed

    def _discard(self, folder: str) -> None:
        self._packed.pop(folder, None)
        shutil.rmtree(folder, ignore_errors=True)

    def _files(self, folder: str) -> tuple[list[str], list[LocalFile]]:
        """Return the folders of a snapshot, and its files with where they are on this machine."""
        tree = survey(folder)
        found = [
            LocalFile(path, size, os.path.join(folder, path))
            for path, size in tree.files.items()
            if path not in (MANIFEST_FILE, CLAIM_FILE) and not path.startswith(_OURS)
        ]
        return tree.folders, found + self._packed.get(folder, [])

    def _learn(
        self,
        folder: str,
        files: list[LocalFile],
        entries: Mapping[str, FileEntry],
        name: str,
        facts: Mapping[str, Facts],
        alike: bool,
    ) -> None:
        """Read what was committed, beside what comes next, and remove the snapshot then."""
        # Where everything changes from one to the next, hashing would be for nothing.
        wanted = self._newest is None or alike

        def read() -> None:
            try:
                self._newest = learn(files, entries, name, facts, wanted, self._closed.is_set)
            except CheckpointError as error:
                logger.debug("the next checkpoint is sent as a whole: %s", error)
                self._newest = Stored()
            finally:
                self._discard(folder)

        thread = threading.Thread(target=read, name="trialpod-learn", daemon=True)
        with self._lock:  # whoever sees it can wait for it
            thread.start()
            self._learning = thread

    def _learned(self) -> None:
        with self._lock:
            thread = self._learning
        if thread is not None:
            thread.join()

    def _folder(self, name: str) -> str:
        with self._lock:
            if self._scratch_or_none is None:
                self._scratch_or_none = Scratch(self._scratch_parent)
            return self._scratch_or_none.folder(f"{name}-")
