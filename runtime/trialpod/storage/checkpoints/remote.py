"""The checkpoints of one trial in a storage that has no path on this machine.

Objects, with keys below the trial's directory::

    checkpoint_000003/.trialpod-claim            {"attempt": 2, "token": "..."}: who may write here; first of all
    checkpoint_000003/weights/model.bin          a file, as in Ray Tune
    checkpoint_000003/.trialpod-pack-0000        many small files, one after another
    checkpoint_000003/.trialpod-blocks-0000      the blocks of a large file that changed
    checkpoint_000003/.trialpod-copy-0000        what the attempt before stored, copied by the server
    checkpoint_000003/.trialpod-manifest.json    the manifest; last, and only if there is none

A file that has not changed since the checkpoint before is not sent again: the manifest says in which object it is.
The hashes of the checkpoint before are computed after its commit, beside the training, or for an attempt's first one
from the copy that it started from.

Invariants:

* Claim and manifest are written under the condition that the key is free. So every index belongs to one attempt, and
  no process writes an object at an index that is not its own: nothing that a successor stored can be overwritten.
* Sweeping puts a tombstone in place of the manifest before it removes anything: an attempt that was superseded in
  mid-upload can no longer commit.
* A manifest refers only to objects of checkpoints that the same attempt committed, so a superseded attempt never
  removes what its successor needs. An object goes when no manifest refers to it any more.
* A manifest goes before the objects.
* Nothing stays that is written after the deletion of the whole experiment, whose own file goes last: a writer looks
  for that file, and if it is gone removes its objects. (A process that dies in between leaves them.)
* Memory is bounded: files stream; of packs and pieces, `_THREADS` spans of 8 MB at most are held at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time as clocks
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from trialpod import variables
from trialpod.errors import CheckpointError, StorageError, SupersededError
from trialpod.protocol.messages import CheckpointInfo
from trialpod.storage.base import (
    KeyExistsError,
    KeyMissingError,
    Storage,
    StorageDeniedError,
    StorageUnavailableError,
)
from trialpod.storage.checkpoints import manifest as manifests
from trialpod.storage.checkpoints.deduplication import StoredFiles, compare_copies, hash_files
from trialpod.storage.checkpoints.download import Download
from trialpod.storage.checkpoints.manifest import Manifest, Tombstone
from trialpod.storage.checkpoints.objects import CheckpointObjects, Claim
from trialpod.storage.checkpoints.packing import Packing, configured
from trialpod.storage.checkpoints.snapshots import Snapshots
from trialpod.storage.checkpoints.staging import LocalFile, Staged
from trialpod.storage.checkpoints.store import (
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
from trialpod.storage.checkpoints.upload import Upload
from trialpod.storage.layout import (
    CLAIM_FILE,
    EXPERIMENT_KEY,
    MANIFEST_FILE,
    checkpoint_index,
    checkpoint_name,
)
from trialpod.storage.parallel import run_all

logger = logging.getLogger(__name__)

_THREADS = 8
_TOMBSTONE_S = 24 * 3600.0
"""Minimum age at which a tombstone is removed, in seconds; no superseded attempt lives that long."""


class RemoteCheckpointStore(CheckpointStore):
    """The checkpoints of a trial in a remote storage.

    Args:
        storage: the trial's directory.
        scratch: the folder for local copies; None takes TRIALPOD_SCRATCH_DIR or the system's temporary folder.
        experiment: see `open_checkpoints`.
        packing: when small files share objects; None keeps one object for each file. The default is what
            TRIALPOD_PACK_CHECKPOINTS says.
        wall: seconds since the epoch.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        scratch: Path | None = None,
        experiment: Storage | None = None,
        packing: Packing | str | None = "environment",
        wall: Callable[[], float] = clocks.time,
    ) -> None:
        self.uri = storage.uri
        self._storage = storage
        self._experiment = experiment
        self._packing = configured() if isinstance(packing, str) else packing
        self._scratch = scratch or (Path(folder) if (folder := os.environ.get(variables.SCRATCH_DIR)) else None)
        self._wall = wall
        self._objects = CheckpointObjects(storage)
        self._snapshots = Snapshots(self._scratch, self._packing)
        self._pins = Pins()
        self._token = os.urandom(8).hex()
        self._claimed: dict[int, list[str]] = {}  # by index: what the claim says about parts
        self._uploads: dict[int, Upload] = {}
        self._fetched: dict[str, tuple[CheckpointInfo, Path]] = {}  # owned by the thread that fetches
        self._deleted: set[str] = set()  # those of them that the storage has no more; by any thread

    # Writing.

    def begin(self, index: int) -> Path:
        """Return a new folder on the local disk."""
        self.abandon(index)
        return Path(self._snapshots.staging.begin(index).folder)

    def snapshot(self, index: int, source: Path | None = None) -> int:
        """Copy into a folder on the local disk, many small files into one."""
        return self._snapshots.take(index, source)

    def abandon(self, index: int) -> None:
        """Remove the local folder, and forget how far its upload was."""
        self._uploads.pop(index, None)
        self._snapshots.staging.discard(index)

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
        """Claim, files in parallel, manifest."""
        name = checkpoint_name(index)
        staged = self._snapshots.staging.sealed(index)
        upload = self._uploads.get(index)
        try:
            folders, files = _contents(staged)
            if upload is None:
                before, make_folder = self._before(), self._snapshots.make_folder
                upload = Upload(self._storage, name, files, before, self._packing, make_folder)
            else:
                self._refuse_given_up(name)
            self._claim(index, attempt, upload.in_parts())
            self._uploads[index] = upload
            entries = upload.run(_THREADS, progress)
            info = CheckpointInfo(
                name=name,
                index=index,
                iteration=iteration,
                metrics=scalars(metrics),
                attempt=attempt,
                size=sum(entry.size for entry in entries),
                time=time,
            )
            data = manifests.encode(info, folders, entries)
            if progress is not None:
                progress(info.size, info.size)
            self._publish(name, data)
            self._refuse_deleted(name)
        except StorageUnavailableError:
            raise
        except BaseException as error:
            self.abandon(index)
            # Superseded is not an Exception, and what another attempt owns is not touched any more.
            if upload is not None and isinstance(error, Exception):
                # Best effort: what cannot be removed now is swept later.
                with contextlib.suppress(StorageError):
                    self._storage.delete_many(upload.sent)
            raise
        committed = manifests.decode(data, name)
        assert isinstance(committed, Manifest)
        self._objects.remember(committed)
        del self._uploads[index]
        self._snapshots.staging.release(index)
        self._snapshots.hash_then_remove(
            staged,
            partial(
                hash_files,
                files,
                {entry.path: entry for entry in entries},
                name,
                upload.fingerprints,
                # Where everything changes from one to the next, hashing would be for nothing.
                upload.resembles or not self._snapshots.has_latest,
            ),
        )
        return info

    def _before(self) -> StoredFiles:
        """Return what the checkpoint before holds."""
        latest = self._snapshots.latest()
        if latest is not None:
            return latest
        if not self._fetched:
            return StoredFiles()
        name = max(list(self._fetched))  # the thread that fetches may remove one
        root = str(self._fetched[name][1])
        entries = {entry.path: entry for entry in self._objects.manifest(name).files}
        files = [LocalFile(entry.path, entry.size, os.path.join(root, entry.path)) for entry in entries.values()]
        return compare_copies(files, entries, name)

    def _claim(self, index: int, attempt: int, parts: list[str]) -> None:
        name = checkpoint_name(index)
        key = f"{name}/{CLAIM_FILE}"
        data = msgspec.json.encode(Claim(attempt, self._token, parts))
        if index in self._claimed:
            if self._claimed[index] != parts:
                self._storage.write(key, data)
                self._claimed[index] = parts
            return
        try:
            self._storage.write_new(key, data)
        except KeyExistsError as error:
            owner = self._objects.claim(name)
            if owner is None or owner.token != self._token:
                by = f" by attempt {owner.attempt}" if owner else ""
                raise SupersededError(
                    f"{name} in {self.uri} is taken: it was begun{by}; an index is never written twice"
                ) from error
        if self._storage.exists(f"{name}/{MANIFEST_FILE}"):
            self._refuse_published(name)
        self._claimed[index] = parts

    def _publish(self, name: str, data: bytes) -> None:
        key = f"{name}/{MANIFEST_FILE}"
        try:
            self._storage.write_new(key, data)
        except KeyExistsError:
            # The answer to an earlier try may have been lost.
            if self._storage.read(key) != data:
                self._refuse_published(name)

    def _refuse_deleted(self, name: str) -> None:
        """Remove claim and manifest, which were just written, if the experiment has been deleted."""
        if self._experiment is None:
            return
        try:
            if self._experiment.exists(EXPERIMENT_KEY):
                return
        except StorageDeniedError as error:
            # Keys that may do no more than they must. What is written after a deletion stays then.
            logger.debug("whether the experiment was deleted cannot be checked: %s", error)
            self._experiment = None
            return
        self._storage.delete_many([f"{name}/{MANIFEST_FILE}", f"{name}/{CLAIM_FILE}"])
        raise SupersededError(f"{self.uri} was deleted, or its experiment, while this attempt was running")

    def _refuse_given_up(self, name: str) -> None:
        with contextlib.suppress(KeyMissingError, CheckpointError):
            data = self._storage.read(f"{name}/{MANIFEST_FILE}")
            if isinstance(manifests.decode(data, name), Tombstone):
                raise self._given_up(name)

    def _refuse_published(self, name: str) -> None:
        where = f"{name} in {self.uri}"
        try:
            found = manifests.decode(self._storage.read(f"{name}/{MANIFEST_FILE}"), where)
        except CheckpointError:
            owner = ""  # damaged; still not ours to replace
        else:
            if isinstance(found, Tombstone):
                raise self._given_up(name)
            owner = f" by attempt {found.checkpoint.attempt}"
        raise SupersededError(f"{where} has been committed{owner}; a committed checkpoint is never replaced")

    def _given_up(self, name: str) -> SupersededError:
        return SupersededError(f"{name} in {self.uri} was given up by a later attempt; this one has been superseded")

    # Reading.

    def fetch(self, info: CheckpointInfo) -> Path:
        """Download into a local folder, verify, and keep it until the store is closed."""
        kept = self._fetched.get(info.name)
        if kept is not None:
            refuse_other(kept[0], info, f"{info.name} in {self.uri}")
            return kept[1]
        with self._pins.pinned(info.name):
            target = Path(self._snapshots.make_folder(f"fetched-{info.name}"))
            try:
                self.download(info, target)
            except BaseException:
                shutil.rmtree(target, ignore_errors=True)
                raise
        self._fetched[info.name] = (info, target)
        self._remove_copies()
        return target

    def _remove_copies(self) -> None:
        """Remove local copies of deleted checkpoints, but for the two fetched last: they may be in use."""
        for name in list(self._fetched)[:-2]:
            if name in self._deleted:
                shutil.rmtree(self._fetched.pop(name)[1], ignore_errors=True)

    def download(self, info: CheckpointInfo, target: Path, progress: Progress | None = None) -> None:
        """Write a checkpoint's files into an empty local folder and verify them; errors as of `fetch`."""
        found = self._objects.manifest(info.name)
        refuse_other(found.checkpoint, info, f"{info.name} in {self.uri}")
        Download(self._storage, found, target, progress).run(_THREADS)

    def verify(self, info: CheckpointInfo) -> None:
        """Download the checkpoint and remove the copy at once."""
        with TemporaryDirectory(prefix="trialpod-verify-", dir=self._scratch) as folder:
            self.download(info, Path(folder))

    def latest_valid(self, infos: Sequence[CheckpointInfo]) -> tuple[CheckpointInfo | None, list[str]]:
        """Fetch one after the other, the latest first."""
        # A full local disk or missing permissions say nothing about the checkpoint: an older one would be no better.
        return find_latest_valid(infos, self.fetch, (CheckpointError,))

    def committed(self, damaged: Damaged = log_damaged) -> list[CheckpointInfo]:
        """Return the checkpoints that have a readable manifest."""
        found: list[CheckpointInfo] = []

        def read(name: str) -> None:
            try:
                manifest = self._objects.find_manifest(name, damaged)
            except StorageUnavailableError:
                raise
            except StorageError as error:
                damaged(name, error)
            else:
                if manifest is not None:
                    found.append(manifest.checkpoint)

        keys = self._objects.keys()
        run_all([partial(read, name) for name in keys if f"{name}/{MANIFEST_FILE}" in keys[name]], _THREADS)
        return sorted(found, key=lambda info: info.index)

    # Garbage collection and indices.

    def delete(self, name: str, *, attempt: int | None = None) -> None:
        """Remove the manifest, then the objects that no other manifest refers to."""
        refuse_bad_name(name)
        self._pins.refuse_pinned(name)
        keys = self._objects.keys()
        if name not in keys:
            return
        if attempt is not None:
            self._refuse_superseded(keys, attempt)
        needed = self._objects.referenced(keys, without={name})
        key = f"{name}/{MANIFEST_FILE}"
        doomed = keys[name] - {key}
        if key in keys[name]:
            with contextlib.suppress(CheckpointError):  # of a damaged one only what is below its name goes
                found = manifests.decode(self._storage.read(key), key)
                if isinstance(found, Tombstone):
                    return
                doomed |= found.object_keys()
            self._storage.delete(key)
        self._objects.forget(name)
        if name in self._fetched:
            self._deleted.add(name)
        self._storage.delete_many(sorted(doomed - needed))
        if not keys[name] & needed:
            self._forget_claim(name)

    def _forget_claim(self, name: str) -> None:
        """Forget one whose objects are all removed; the newest says below which no index is free."""
        index = checkpoint_index(name)
        if index is not None and index in self._claimed and index != max(self._claimed):
            del self._claimed[index]

    def _refuse_superseded(self, keys: Mapping[str, set[str]], attempt: int) -> None:
        for name, present in keys.items():
            if checkpoint_index(name) in self._claimed:
                continue
            owner = self._objects.owner(name, present)
            if owner > attempt:
                raise SupersededError(
                    f"{name} in {self.uri} was begun by attempt {owner}; attempt {attempt} has been superseded and "
                    "may not change anything"
                )

    def sweep(self, known: Collection[str], *, attempt: int | None = None) -> list[str]:
        """Put tombstones on what is not known, then remove its objects; old tombstones go too."""
        keys = self._objects.keys()
        if attempt is not None:
            # All that goes is in this listing, so nothing of an attempt that begins from now on does.
            self._refuse_superseded({name: keys[name] for name in keys if name not in known}, attempt)
        doomed = {name for name in keys if name not in known and checkpoint_index(name) not in self._claimed}
        needed = self._objects.referenced(keys, without=doomed)
        return [name for name in sorted(doomed) if self._sweep_one(name, keys[name], needed)]

    def _sweep_one(self, name: str, present: set[str], needed: set[str]) -> bool:
        """Sweep one checkpoint; return whether anything of it was there."""
        key = f"{name}/{MANIFEST_FILE}"
        garbage = present - needed - {key}
        found = None
        if key in present:
            with contextlib.suppress(KeyMissingError):
                data = self._storage.read(key)
                with contextlib.suppress(CheckpointError):
                    found = manifests.decode(data, key)
                if isinstance(found, Manifest):
                    garbage |= found.object_keys() - needed
                if not isinstance(found, Tombstone):
                    self._storage.write(key, manifests.encode_tombstone(self._wall()))
        elif garbage:
            # Also where it has just been committed, by an attempt that does not know yet that it is superseded.
            self._storage.write(key, manifests.encode_tombstone(self._wall()))
        else:
            return False  # only objects that a later checkpoint still refers to
        self._objects.forget(name)
        if not isinstance(found, Tombstone):
            self._objects.abort_uploads(name)
        self._storage.delete_many(sorted(garbage))
        if isinstance(found, Tombstone) and not garbage:
            if self._wall() - found.time > _TOMBSTONE_S:
                self._storage.delete(key)
            return False
        return True

    def first_free_index(self, at_least: int) -> int:
        """Return the lowest index above that of every object there is."""
        return self._first_free(self._objects.keys(), at_least)

    def _first_free(self, keys: Mapping[str, set[str]], at_least: int) -> int:
        used = [index for name in keys if (index := checkpoint_index(name)) is not None]
        return max([at_least, *(index + 1 for index in [*used, *self._claimed])])

    def reserve(self, at_least: int, attempt: int) -> int:
        """Claim the first free index, so that a superseded attempt ends when it comes to it."""
        while True:
            keys = self._objects.keys()
            # Before it claims anything: behind the index at which its successor stops it, it would stop that one.
            self._refuse_superseded(keys, attempt)
            index = self._first_free(keys, at_least)
            try:
                self._claim(index, attempt, [])
            except CheckpointError:
                continue
            with contextlib.suppress(StorageUnavailableError):  # a reservation is not worth waiting for
                self._refuse_deleted(checkpoint_name(index))
            return index

    def close(self) -> None:
        """Remove local copies."""
        self._snapshots.close()


def _contents(staged: Staged) -> tuple[list[str], list[LocalFile]]:
    """Return the folders of a snapshot, and its files with where they are on this machine."""
    tree = staged.seal()
    files = [LocalFile(path, size, os.path.join(staged.folder, path)) for path, size in tree.files.items()]
    return tree.folders, files + staged.packed
