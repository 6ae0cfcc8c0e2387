"""The checkpoints of one trial in a directory.

Invariants:

* A checkpoint is written in a staging folder beside its place, brought to the disk, given its manifest, and only then
  renamed to ``checkpoint_NNNNNN``. So a folder of that name is complete; it exists when its manifest is there.
* The rename never replaces a folder with content.
* What is changed in a committed checkpoint (only its metadata is) is changed in its manifest too.
* Removal goes through a rename to a staging name, so that a crash leaves no half checkpoint.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from trialpod.errors import CheckpointError, StorageError, SupersededError
from trialpod.protocol.messages import CheckpointInfo
from trialpod.storage.base import StorageUnavailableError, storage_error
from trialpod.storage.checkpoints import manifest as manifests
from trialpod.storage.checkpoints.manifest import FileEntry, Manifest, Tombstone
from trialpod.storage.checkpoints.staging import Staged, Staging
from trialpod.storage.checkpoints.store import (
    CheckpointNotFoundError,
    CheckpointStore,
    Damaged,
    Pins,
    Progress,
    find_latest_valid,
    log_damaged,
    refuse_bad_name,
    refuse_other,
    scalars,
)
from trialpod.storage.file_tree import Tree, checksum_file, copy_tree, scan_tree, sync_path, sync_tree, write_synced
from trialpod.storage.layout import MANIFEST_FILE, STAGING_PREFIX, checkpoint_index, checkpoint_name

_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST)


class LocalCheckpointStore(CheckpointStore):
    """The checkpoints in a trial's folder.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = self.uri = os.fspath(root)
        self._staging = Staging(self._make_staging_folder)
        self._pins = Pins()
        self._verified: str | None = None  # what `latest_valid` has found, pinned until it is fetched

    # Writing.

    def begin(self, index: int) -> Path:
        """Return a new staging folder beside the checkpoints."""
        return Path(self._staging.begin(index).folder)

    def snapshot(self, index: int, source: Path | None = None) -> int:
        """Copy into a staging folder beside the checkpoints."""
        return self._staging.snapshot(index, source)

    def commit(
        self,
        index: int,
        *,
        iteration: int,
        metrics: Mapping[str, Any],
        attempt: int,
        time: float,
        progress: Progress | None = None,
    ) -> CheckpointInfo:
        """Checksum, sync, manifest, rename."""
        staged = self._staging.sealed(index)
        try:
            tree = staged.seal()
            files = _entries(staged, tree, progress)
            info = CheckpointInfo(
                name=checkpoint_name(index),
                index=index,
                iteration=iteration,
                metrics=scalars(metrics),
                attempt=attempt,
                size=sum(file.size for file in files),
                time=time,
            )
            sync_tree(staged.folder, tree.folders, list(tree.files))
            if progress is not None:
                progress(info.size, info.size)
            self._write_manifest(staged.folder, manifests.encode(info, tree.folders, files))
            self._publish(staged.folder, index)
        except BaseException:
            staged.remove()
            raise
        finally:
            self._staging.release(index)
        return info

    def abandon(self, index: int) -> None:
        """Remove the staging folder."""
        self._staging.discard(index)

    def _make_staging_folder(self, index: int) -> str:
        self._refuse_committed(index)
        staging = self._staging_path(checkpoint_name(index))
        try:
            os.makedirs(staging)
        except OSError as error:
            raise storage_error(error, "cannot make the folder", staging) from error
        return staging

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
            if error.errno not in _OCCUPIED:
                raise storage_error(error, "cannot commit", self._path(name)) from error
            self._refuse_committed(index)
            raise CheckpointError(
                f"{self._path(name)} is in the way: it has content but no manifest; move it away, or sweep"
            ) from error
        sync_path(self._root)

    def _refuse_committed(self, index: int) -> None:
        root = self._path(checkpoint_name(index))
        if not os.path.exists(os.path.join(root, MANIFEST_FILE)):
            return
        try:
            owner = f" by attempt {self._manifest(checkpoint_name(index)).checkpoint.attempt}"
        except CheckpointError:
            owner = ""  # damaged; still not ours to replace
        raise SupersededError(f"{root} has been committed{owner}; a committed checkpoint is never replaced")

    # Reading.

    def fetch(self, info: CheckpointInfo) -> Path:
        """Verify the checkpoint and return its folder: it is read where it is."""
        root = Path(self._path(info.name))
        if self._verified == info.name:
            self._verified = None
            self._pins.remove(info.name)
        else:
            self.verify(info)
        return root

    def download(self, info: CheckpointInfo, target: Path, progress: Progress | None = None) -> None:
        """Verify the checkpoint, then copy its files."""
        with self._pins.pinned(info.name):
            self.verify(info)
            source = self._path(info.name)
            tree = scan_tree(source)
            tree.files.pop(MANIFEST_FILE, None)
            copy_tree(source, os.fspath(target), tree)
        if progress is not None:
            progress(info.size, info.size)

    def verify(self, info: CheckpointInfo) -> None:
        """Compare every file's size and checksum with the manifest's."""
        root = self._path(info.name)
        with self._pins.pinned(info.name):
            found = self._manifest(info.name)
            refuse_other(found.checkpoint, info, root)
            for file in found.files:
                _verify_file(root, file)
            for folder in found.folders:
                if not os.path.isdir(os.path.join(root, folder)):
                    raise CheckpointError(f"{root} is damaged: the folder {folder} is missing")

    def latest_valid(self, infos: Sequence[CheckpointInfo]) -> tuple[CheckpointInfo | None, list[str]]:
        """Return the latest that verifies; what cannot be read is as bad as what is damaged."""
        if self._verified is not None:
            self._pins.remove(self._verified)
            self._verified = None
        found, warnings = find_latest_valid(infos, self.verify, (CheckpointError, StorageError))
        if found is not None:
            self._pins.add(found.name)
            self._verified = found.name
        return found, warnings

    def committed(self, damaged: Damaged = log_damaged) -> list[CheckpointInfo]:
        """Return the checkpoints that have a readable manifest."""
        found = []
        for name in self._names():
            if checkpoint_index(name) is not None and os.path.exists(self._path(name, MANIFEST_FILE)):
                try:
                    found.append(self._manifest(name).checkpoint)
                except CheckpointNotFoundError:
                    continue  # removed since it was listed
                except StorageUnavailableError:
                    raise
                except (CheckpointError, StorageError) as error:
                    damaged(name, error)
        return sorted(found, key=lambda info: info.index)

    def _manifest(self, name: str) -> Manifest:
        root = self._path(name)
        path = os.path.join(root, MANIFEST_FILE)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except (FileNotFoundError, NotADirectoryError) as error:
            if os.path.isdir(root):
                raise CheckpointError(f"{root} is incomplete: it has no manifest") from error
            raise CheckpointNotFoundError(f"{root} does not exist") from error
        except OSError as error:
            raise storage_error(error, "cannot read", path) from error
        found = manifests.decode(data, path)
        if isinstance(found, Tombstone):
            raise CheckpointNotFoundError(f"{root} does not exist: it was given up before it was complete")
        if found.checkpoint.name != name:
            raise CheckpointError(f"{path} is damaged: it is the manifest of {found.checkpoint.name}")
        return found

    # Garbage collection and indices.

    def delete(self, name: str, *, attempt: int | None = None) -> None:
        """Rename the folder away, then remove it."""
        refuse_bad_name(name)
        self._pins.refuse_pinned(name)
        if attempt is not None and os.path.exists(self._path(name)):
            owner = self._manifest(name).checkpoint.attempt
            if owner > attempt:
                raise SupersededError(f"{name} was written by attempt {owner}; attempt {attempt} may not delete it")
        self._remove(name)

    def sweep(self, known: Collection[str], *, attempt: int | None = None) -> list[str]:
        """Remove staging folders and checkpoint directories that are not known."""
        if attempt is not None:
            later = [info for info in self.committed() if info.attempt > attempt and info.name not in known]
            if later:
                raise SupersededError(
                    f"{self._path(later[0].name)} was written by attempt {later[0].attempt}; attempt {attempt} has "
                    "been superseded"
                )
        own = {os.path.basename(folder) for folder in self._staging.folders()}
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

    def reserve(self, at_least: int, attempt: int) -> int:
        """Return the first free index: the rename at the end of a commit lets only one attempt have it."""
        return self.first_free_index(at_least)

    def close(self) -> None:
        """Do nothing: checkpoints are read where they are."""

    def _path(self, *parts: str) -> str:
        return os.path.join(self._root, *parts)

    def _staging_path(self, name: str) -> str:
        return os.path.abspath(self._path(f"{STAGING_PREFIX}{name}-{os.urandom(6).hex()}"))

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self._root))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise storage_error(error, "cannot list", self._root) from error

    def _remove(self, name: str) -> None:
        if not os.path.isdir(self._path(name)):
            return
        # The rename makes it vanish at once; whatever then is left is garbage to every reader.
        trash = self._staging_path(name)
        try:
            os.rename(self._path(name), trash)
            shutil.rmtree(trash)
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error(error, "cannot remove", self._path(name)) from error


def replace_file(folder: str, path: str, data: bytes) -> None:
    """Replace or add a file of a committed checkpoint, and its entry in the manifest; several may do it at once.

    Raises:
        CheckpointError: the manifest is damaged.
        StorageError: the disk refuses.
    """
    manifest_path, place = os.path.join(folder, MANIFEST_FILE), os.path.join(folder, path)
    try:
        with open(manifest_path, "rb") as file:
            found = manifests.decode(file.read(), manifest_path)
        if isinstance(found, Tombstone):
            raise CheckpointNotFoundError(f"{folder} does not exist: it was given up before it was complete")
        _replace(place, data)
        others = [entry for entry in found.files if entry.path != path]
        written = None
        # Again if another process has replaced the file meanwhile, whose manifest ours may have replaced.
        while written != (entry := FileEntry(path, *checksum_file(place))):
            _replace(manifest_path, manifests.encode(found.checkpoint, found.folders, [*others, entry]))
            written = entry
    except OSError as error:
        raise storage_error(error, "cannot write", place, len(data)) from error
    sync_path(folder)


def _replace(path: str, data: bytes) -> None:
    temporary = f"{path}.{os.urandom(6).hex()}.tmp"
    write_synced(temporary, data)
    os.replace(temporary, path)


def _entries(staged: Staged, tree: Tree, progress: Progress | None) -> list[FileEntry]:
    """Read all files, and return their sizes and checksums."""
    entries: list[FileEntry] = []
    total, done = tree.size, 0
    for path in tree.files:
        try:
            size, checksum = checksum_file(os.path.join(staged.folder, path))
        except FileNotFoundError as error:
            raise CheckpointError(f"{error} vanished before the checkpoint was complete") from error
        entries.append(FileEntry(path, size, checksum))
        done += size
        if progress is not None:
            progress(done, total)
    return entries


def _verify_file(root: str, expected: FileEntry) -> None:
    if expected.key or expected.pieces:
        place = expected.key or ", ".join(sorted({piece.key for piece in expected.pieces}))
        raise CheckpointError(
            f"{root} is not complete: {expected.path} is in {place}, in the storage that it was "
            "copied from; copy it from there with `trialpod download`"
        )
    try:
        size, checksum = checksum_file(os.path.join(root, expected.path))
    except FileNotFoundError as error:
        raise CheckpointError(f"{root} is damaged: the file {expected.path} is missing") from error
    if size != expected.size:
        raise CheckpointError(f"{root} is damaged: {expected.path} has {size} bytes instead of {expected.size}")
    if checksum != expected.checksum:
        raise CheckpointError(f"{root} is damaged: the checksum of {expected.path} does not match")
