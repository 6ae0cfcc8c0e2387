"""The checkpoints of one trial in a directory.

Invariants:

* A checkpoint is written in a staging folder beside its place, brought to the disk, given its manifest, and only then
  renamed to ``checkpoint_NNNNNN``. So a folder of that name is complete; it exists when its manifest is there.
* The rename never replaces a folder with content.
* A copy shares no file with its source.
* Removal goes through a rename to a staging name, so that a crash leaves no half checkpoint.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from trialpod.errors import CheckpointError, StorageError, SupersededError
from trialpod.protocol.messages import CheckpointInfo
from trialpod.storage.base import Storage, storage_error
from trialpod.storage.checkpoints import manifest as manifests
from trialpod.storage.checkpoints.manifest import Manifest
from trialpod.storage.checkpoints.store import CheckpointStore, Progress, refuse_other, scalars
from trialpod.storage.file_tree import (
    FileEntry,
    checksum_file,
    copy_tree,
    own_links,
    survey,
    sync_path,
    sync_tree,
    write_synced,
)
from trialpod.storage.layout import MANIFEST_FILE, STAGING_PREFIX, checkpoint_index, checkpoint_name

logger = logging.getLogger(__name__)

_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)


class DirectoryCheckpoints(CheckpointStore):
    """The checkpoints in a trial's folder.

    Args:
        storage: the folder.

    Raises:
        StorageError: the storage is not on this machine's disk.
    """

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        root = storage.local_path("")
        if root is None:
            raise StorageError(f"{storage.uri} is no folder on this machine")
        self._root = os.fspath(root)
        self._verified: str | None = None

    def begin(self, index: int) -> Path:
        """Return a new staging folder beside the checkpoints."""
        self._refuse_committed(index)
        self.abandon(index)
        self._begun[index] = self._staging(checkpoint_name(index))
        return Path(self._begun[index])

    def commit(
        self,
        index: int,
        *,
        iteration: int,
        metrics: Mapping[str, Any],
        attempt: int,
        time: float,
        source: Path | None = None,
        progress: Progress | None = None,
    ) -> CheckpointInfo:
        """Checksum, sync, manifest, rename."""
        name = checkpoint_name(index)
        begun = self._begun.get(index)
        if begun is None and source is None:
            raise CheckpointError(f"{name} was not begun; call begin({index}) first, or give a source folder")
        if begun is None or (source is not None and os.path.abspath(source) != begun):
            self._refuse_committed(index)
            staging = begun if begun is not None else self._staging(name)
            copied_from = os.fspath(source) if source is not None else None
        else:
            staging, copied_from = begun, None
        try:
            folders, files = self._fill(staging, copied_from, progress)
            info = CheckpointInfo(
                name=name,
                index=index,
                iteration=iteration,
                metrics=scalars(metrics),
                attempt=attempt,
                size=sum(file.size for file in files),
                time=time,
            )
            sync_tree(staging, folders, [file.path for file in files])
            if progress is not None:
                progress(info.size, info.size)
            self._write_manifest(staging, manifests.encode(info, folders, files))
            self._publish(staging, index)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        finally:
            self._begun.pop(index, None)
        return info

    def fetch(self, info: CheckpointInfo) -> Path:
        """Verify the checkpoint and return its folder: it is read where it is."""
        root = self._path(info.name)
        if self._verified == info.name:
            self._verified = None
            self._read(info.name, -1)
            return Path(root)
        self._read(info.name, +1)
        try:
            self._check(info, root)
        finally:
            self._read(info.name, -1)
        return Path(root)

    def delete(self, name: str, *, attempt: int | None = None) -> None:
        """Rename the folder away, then remove it."""
        self._refuse_bad_name(name)
        self._refuse_read(name)
        if attempt is not None and os.path.exists(self._path(name)):
            owner = self._manifest(name).checkpoint.attempt
            if owner > attempt:
                raise SupersededError(f"{name} was written by attempt {owner}; attempt {attempt} may not delete it")
        self._remove(name)

    def committed(self) -> list[CheckpointInfo]:
        """Return the checkpoints that have a readable manifest."""
        found = []
        for name in self._names():
            if checkpoint_index(name) is not None and os.path.exists(self._path(name, MANIFEST_FILE)):
                try:
                    found.append(self._manifest(name).checkpoint)
                except CheckpointError as error:
                    logger.warning("skipped a damaged checkpoint: %s", error)
        return sorted(found, key=lambda info: info.index)

    def sweep(self, known: Collection[str], *, attempt: int | None = None) -> list[str]:
        """Remove staging folders and checkpoint directories that are not known."""
        if attempt is not None:
            later = [info for info in self.committed() if info.attempt > attempt and info.name not in known]
            if later:
                raise SupersededError(
                    f"{self._path(later[0].name)} was written by attempt {later[0].attempt}; attempt {attempt} has "
                    "been superseded"
                )
        own = {os.path.basename(path) for path in self._begun.values()}
        removed = []
        for name in self._names():
            if name.startswith(STAGING_PREFIX):
                if name in own:
                    continue
                shutil.rmtree(self._path(name), ignore_errors=True)
            elif checkpoint_index(name) is not None and name not in known and os.path.isdir(self._path(name)):
                self._remove(name)
            else:
                continue
            removed.append(name)
        return removed

    def first_free_index(self, at_least: int) -> int:
        """Return the lowest index above that of every directory there is."""
        used = [index for name in self._names() if (index := checkpoint_index(name)) is not None]
        return max([at_least, *(index + 1 for index in used)])

    def _verify(self, info: CheckpointInfo) -> None:
        if self._verified is not None:
            self._read(self._verified, -1)
            self._verified = None
        self.fetch(info)
        # Not to be removed before the one who asked has come for it.
        self._read(info.name, +1)
        self._verified = info.name

    def _check(self, info: CheckpointInfo, root: str) -> None:
        found = self._manifest(info.name)
        refuse_other(found.checkpoint, info, root)
        for expected in found.files:
            if elsewhere := expected.at or ", ".join(sorted({piece.at for piece in expected.pieces})):
                raise CheckpointError(
                    f"{root} is not complete: {expected.path} is in {elsewhere}, in the storage that it was "
                    "copied from; copy it from there with `trialpod download`"
                )
            try:
                actual = checksum_file(root, expected.path)
            except FileNotFoundError as error:
                raise CheckpointError(f"{root} is damaged: the file {expected.path} is missing") from error
            if actual.size != expected.size:
                raise CheckpointError(
                    f"{root} is damaged: {expected.path} has {actual.size} bytes instead of {expected.size}"
                )
            if actual.checksum != expected.checksum:
                raise CheckpointError(f"{root} is damaged: the checksum of {expected.path} does not match")
        for folder in found.folders:
            if not os.path.isdir(os.path.join(root, folder)):
                raise CheckpointError(f"{root} is damaged: the folder {folder} is missing")

    def _path(self, *parts: str) -> str:
        return os.path.join(self._root, *parts)

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self._root))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise storage_error(error, "cannot list", self._root) from error

    def _staging(self, name: str) -> str:
        staging = os.path.abspath(self._path(f"{STAGING_PREFIX}{name}-{os.urandom(6).hex()}"))
        try:
            os.makedirs(staging)
        except OSError as error:
            raise storage_error(error, "cannot make the folder", staging) from error
        return staging

    def _refuse_committed(self, index: int) -> None:
        root = self._path(checkpoint_name(index))
        if not os.path.exists(os.path.join(root, MANIFEST_FILE)):
            return
        try:
            owner = f" by attempt {self._manifest(checkpoint_name(index)).checkpoint.attempt}"
        except CheckpointError:
            owner = ""  # damaged; still not ours to replace
        raise SupersededError(f"{root} has been committed{owner}; a committed checkpoint is never replaced")

    def _manifest(self, name: str) -> Manifest:
        root = self._path(name)
        path = os.path.join(root, MANIFEST_FILE)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except (FileNotFoundError, NotADirectoryError) as error:
            if os.path.isdir(root):
                raise CheckpointError(f"{root} is incomplete: it has no manifest") from error
            raise CheckpointError(f"{root} does not exist") from error
        except OSError as error:
            raise storage_error(error, "cannot read", path) from error
        found = manifests.decode(data, path)
        if found.checkpoint.name != name:
            raise CheckpointError(f"{path} is damaged: it is the manifest of {found.checkpoint.name}")
        return found

    def _fill(self, staging: str, source: str | None, progress: Progress | None) -> tuple[list[str], list[FileEntry]]:
        if source is not None:
            tree = survey(source)
            # A checkpoint that was fetched and is committed again brings its old manifest along.
            tree.files.pop(MANIFEST_FILE, None)
            if os.listdir(staging):
                raise CheckpointError(f"{staging} was written to; commit it without a source, or leave it empty")
            return tree.folders, copy_tree(source, staging, tree)
        survey(staging)  # finds what cannot be copied, before anything is changed
        own_links(staging)
        tree = survey(staging)
        tree.files.pop(MANIFEST_FILE, None)
        entries: list[FileEntry] = []
        try:
            done = 0
            for path in tree.files:
                entries.append(checksum_file(staging, path))
                done += entries[-1].size
                if progress is not None:
                    progress(done, tree.size)
        except FileNotFoundError as error:
            raise CheckpointError(f"{error} vanished before the checkpoint was complete") from error
        return tree.folders, entries

    def _write_manifest(self, staging: str, data: bytes) -> None:
        path = os.path.join(staging, MANIFEST_FILE)
        temporary = path + ".tmp"
        try:
            write_synced(temporary, data)
            os.rename(temporary, path)
        except OSError as error:
            raise storage_error(error, "cannot write", path, len(data)) from error
        sync_path(staging)

    def _publish(self, staging: str, index: int) -> None:
        name = checkpoint_name(index)
        try:
            os.rename(staging, self._path(name))
        except OSError as error:
            if error.errno not in _TAKEN:
                raise storage_error(error, "cannot commit", self._path(name)) from error
            self._refuse_committed(index)
            raise CheckpointError(
                f"{self._path(name)} is in the way: it has content but no manifest; move it away, or sweep"
            ) from error
        sync_path(self._root)

    def _remove(self, name: str) -> None:
        if not os.path.isdir(self._path(name)):
            return
        # The rename makes it vanish at once; whatever then is left is garbage to every reader.
        trash = self._path(f"{STAGING_PREFIX}{name}-{os.urandom(6).hex()}")
        try:
            os.rename(self._path(name), trash)
            shutil.rmtree(trash)
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error(error, "cannot remove", self._path(name)) from error
