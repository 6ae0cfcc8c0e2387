"""The checkpoints of one trial in a storage that has no path on this machine.

Objects, with keys below the trial's directory::

    checkpoint_000003/.trialpod-claim            {"attempt": 2, "token": "..."}: who may write here; first of all
    checkpoint_000003/weights/model.bin          a file, as in Ray Tune
    checkpoint_000003/.trialpod-pack-0000        many small files, one after another
    checkpoint_000003/.trialpod-blocks-0000      the blocks of a large file that changed
    checkpoint_000003/.trialpod-copy-0000        what the attempt before stored, copied by the server
    checkpoint_000003/.trialpod-manifest.json    the manifest; last, and only if there is none

A file that has not changed since the checkpoint before is not sent again: the manifest says in which object it is.
What the checkpoint before holds is found out after its commit, beside the training, or for an attempt's first one
from the copy that it started from.

Invariants:

* Claim and manifest are written under the condition that the key is free. So every index belongs to one attempt, and
  nobody writes an object at an index that is not its own: nothing that a successor stored can be overwritten.
* Sweeping puts a tombstone in place of the manifest before it removes anything: an attempt that was superseded in
  mid-upload can no longer commit.
* A manifest refers only to objects of checkpoints that the same attempt committed, so a superseded attempt never
  removes what its successor needs. An object goes when no manifest refers to it any more.
* A manifest goes before the objects.
* Nothing stays that comes behind the deletion of the whole experiment, whose own file goes last: who has written
  looks for that file, and if it is gone takes its objects away. (A process that dies in between leaves them.)
* Memory is bounded: files stream; of packs and pieces, `_THREADS` spans of 8 MB at most are held at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time as clocks
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

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
from trialpod.storage.checkpoints.deduplication import LocalFile, Stored, copies
from trialpod.storage.checkpoints.download import Download
from trialpod.storage.checkpoints.manifest import Manifest
from trialpod.storage.checkpoints.packing import Packing, configured
from trialpod.storage.checkpoints.snapshots import SnapshotStore
from trialpod.storage.checkpoints.store import Progress, refuse_other, scalars
from trialpod.storage.checkpoints.upload import CLAIM_FILE, Upload
from trialpod.storage.layout import EXPERIMENT_KEY, MANIFEST_FILE, checkpoint_index, checkpoint_name
from trialpod.storage.parallel import run_all

logger = logging.getLogger(__name__)

SCRATCH_VARIABLE = "TRIALPOD_SCRATCH_DIR"
"""Environment variable: the folder for local copies of checkpoints, on a disk with room for several."""

_THREADS = 8
_TOMBSTONE_S = 24 * 3600.0
"""How long a tombstone stays, in seconds; no superseded attempt lives that long."""


class _Claim(msgspec.Struct, omit_defaults=True):
    attempt: int
    token: str
    parts: list[str] = []  # names of objects that may be sent in parts, below the checkpoint's


class RemoteCheckpoints(SnapshotStore):
    """The checkpoints of a trial in a remote storage.

    Args:
        storage: the trial's directory.
        scratch: the folder for local copies; None takes TRIALPOD_SCRATCH_DIR or the system's temporary folder.
        place: the experiment's, if it has its file `EXPERIMENT_KEY` for as long as there is anything; None where
            nobody deletes an experiment whose trials may still run.
        packing: when small files share objects; None keeps one object for each file. The default is what
            TRIALPOD_PACK_CHECKPOINTS says.
        wall: seconds since the epoch.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        scratch: Path | None = None,
        place: Storage | None = None,
        packing: Packing | str | None = "environment",
        wall: Callable[[], float] = clocks.time,
    ) -> None:
        super().__init__(
            storage,
            scratch or (Path(folder) if (folder := os.environ.get(SCRATCH_VARIABLE)) else None),
            configured() if isinstance(packing, str) else packing,
        )
        self._place = place
        self._wall = wall
        self._token = os.urandom(8).hex()
        self._claimed: dict[int, list[str]] = {}  # and what the claim says about parts
        self._uploads: dict[int, Upload] = {}
        self._manifests: dict[str, Manifest] = {}  # they never change
        self._fetched: dict[str, tuple[CheckpointInfo, Path]] = {}

    # Writing.

    def abandon(self, index: int) -> None:
        """Remove the local folder, and forget how far its upload was."""
        self._uploads.pop(index, None)
        super().abandon(index)

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
        """Claim, files in parallel, manifest."""
        name = checkpoint_name(index)
        if source is not None:
            self.snapshot(index, source)
        folder = self._begun.get(index)
        if folder is None:
            raise CheckpointError(f"{name} was not begun; call begin({index}) first, or give a source folder")
        upload = None
        try:
            upload = self._uploads.get(index)
            folders, files = self._files(folder)
            if upload is None:
                upload = Upload(self._storage, name, files, self._before(), self._packing, self._folder)
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
        except BaseException:
            self.abandon(index)
            if upload is not None:
                # Best effort: what cannot be removed now is swept later.
                with contextlib.suppress(StorageError):
                    self._storage.delete_many(upload.sent)
            raise
        self._manifests[name] = manifests.decode(data, name)
        del self._uploads[index], self._begun[index]
        self._learn(folder, files, {entry.path: entry for entry in entries}, name, upload.facts, upload.alike)
        return info

    def _before(self) -> Stored:
        """Return what the checkpoint before holds."""
        self._learned()
        if self._newest is not None:
            return self._newest
        if not self._fetched:
            return Stored()
        name = max(self._fetched)
        root = str(self._fetched[name][1])
        entries = {entry.path: entry for entry in self._manifest(name).files}
        files = [LocalFile(entry.path, entry.size, os.path.join(root, entry.path)) for entry in entries.values()]
        return copies(files, entries, name)

    def _claim(self, index: int, attempt: int, parts: list[str]) -> None:
        name = checkpoint_name(index)
        key = f"{name}/{CLAIM_FILE}"
        data = msgspec.json.encode(_Claim(attempt, self._token, parts))
        if index in self._claimed:
            if self._claimed[index] != parts:
                self._storage.write(key, data)
                self._claimed[index] = parts
            return
        try:
            self._storage.write_new(key, data)
        except KeyExistsError as error:
            owner = self._claim_of(name)
            if owner is None or owner.token != self._token:
                by = f" by attempt {owner.attempt}" if owner else ""
                raise SupersededError(
                    f"{name} in {self.uri} is taken: it was begun{by}; an index is never written twice"
                ) from error
        if self._storage.exists(f"{name}/{MANIFEST_FILE}"):
            self._refuse_published(name)
        self._claimed[index] = parts

    def _claim_of(self, name: str) -> _Claim | None:
        try:
            return msgspec.json.decode(self._storage.read(f"{name}/{CLAIM_FILE}"), type=_Claim)
        except (KeyMissingError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def _publish(self, name: str, data: bytes) -> None:
        key = f"{name}/{MANIFEST_FILE}"
        try:
            self._storage.write_new(key, data)
        except KeyExistsError:
            # The answer to an earlier try may have been lost.
            if self._storage.read(key) != data:
                self._refuse_published(name)

    def _refuse_deleted(self, name: str) -> None:
        """Take away claim and manifest, which were just written, if the experiment has been deleted."""
        if self._place is None:
            return
        try:
            if self._place.exists(EXPERIMENT_KEY):
                return
        except StorageDeniedError as error:
            # Keys that may do no more than they must. What comes behind a deletion stays then.
            logger.debug("whether the experiment was deleted is not looked at: %s", error)
            self._place = None
            return
        self._storage.delete_many([f"{name}/{MANIFEST_FILE}", f"{name}/{CLAIM_FILE}"])
        raise SupersededError(f"{self.uri} has been deleted with its experiment while this attempt was at work")

    def _refuse_given_up(self, name: str) -> None:
        with contextlib.suppress(KeyMissingError):
            if manifests.tombstone_time(self._storage.read(f"{name}/{MANIFEST_FILE}")) is not None:
                self._refuse_published(name)

    def _refuse_published(self, name: str) -> None:
        where = f"{name} in {self.uri}"
        data = self._storage.read(f"{name}/{MANIFEST_FILE}")
        if manifests.tombstone_time(data) is not None:
            raise SupersededError(f"{where} was given up by a later attempt; this one has been superseded")
        try:
            owner = f" by attempt {manifests.decode(data, where).checkpoint.attempt}"
        except CheckpointError:
            owner = ""  # damaged; still not ours to replace
        raise SupersededError(f"{where} has been committed{owner}; a committed checkpoint is never replaced")

    # Reading.

    def fetch(self, info: CheckpointInfo) -> Path:
        """Download into a local folder, verify, and keep it until the store is closed."""
        kept = self._fetched.get(info.name)
        if kept is not None:
            refuse_other(kept[0], info, f"{info.name} in {self.uri}")
            return kept[1]
        self._read(info.name, +1)
        try:
            target = Path(self._folder(f"fetched-{info.name}"))
            try:
                self.download(info, target)
            except BaseException:
                shutil.rmtree(target, ignore_errors=True)
                raise
        finally:
            self._read(info.name, -1)
        self._fetched[info.name] = (info, target)
        return target

    def download(self, info: CheckpointInfo, target: Path, progress: Progress | None = None) -> None:
        """Write a checkpoint's files into an empty local folder and verify them; errors as of `fetch`."""
        where = f"{info.name} in {self.uri}"
        found = self._manifest(info.name)
        refuse_other(found.checkpoint, info, where)
        Download(self._storage, found, target, progress).run(_THREADS)

    def _is_damage(self, error: CheckpointError | StorageError) -> bool:
        # A full local disk or missing rights say nothing about the checkpoint: an older one would be no better.
        return isinstance(error, CheckpointError)

    # Keeping order.

    def delete(self, name: str, *, attempt: int | None = None) -> None:
        """Remove the manifest, then the objects that no other manifest refers to."""
        self._refuse_bad_name(name)
        self._refuse_read(name)
        keys = self._keys()
        if name not in keys:
            return
        if attempt is not None:
            self._refuse_superseded(keys, attempt)
        needed = self._needed(keys, without={name})
        key = f"{name}/{MANIFEST_FILE}"
        doomed = keys[name] - {key}
        if key in keys[name]:
            data = self._storage.read(key)
            if manifests.tombstone_time(data) is not None:
                return
            with contextlib.suppress(CheckpointError):
                doomed |= _objects(manifests.decode(data, key))
            self._storage.delete(key)
        self._manifests.pop(name, None)
        self._storage.delete_many(sorted(doomed - needed))
        if not keys[name] & needed:
            self._forget_claim(name)

    def _forget_claim(self, name: str) -> None:
        """Forget one whose objects are all gone; the newest says below which no index is free."""
        index = checkpoint_index(name)
        if index is not None and index in self._claimed and index != max(self._claimed):
            del self._claimed[index]

    def _refuse_superseded(self, keys: Mapping[str, set[str]], attempt: int) -> None:
        for name, present in keys.items():
            if checkpoint_index(name) in self._claimed:
                continue
            owner = 0
            if f"{name}/{MANIFEST_FILE}" in present:
                found = self._manifest_or_none(name)
                owner = found.checkpoint.attempt if found is not None else 0
            elif f"{name}/{CLAIM_FILE}" in present:
                claim = self._claim_of(name)
                owner = claim.attempt if claim is not None else 0
            if owner > attempt:
                raise SupersededError(
                    f"{name} in {self.uri} was begun by attempt {owner}; attempt {attempt} has been superseded and "
                    "may not change anything"
                )

    def committed(self) -> list[CheckpointInfo]:
        """Return the checkpoints that have a readable manifest."""
        names = [name for name, keys in self._keys().items() if f"{name}/{MANIFEST_FILE}" in keys]
        found: list[CheckpointInfo] = []

        def look(name: str) -> None:
            manifest = self._manifest_or_none(name)
            if manifest is not None:
                found.append(manifest.checkpoint)

        run_all([partial(look, name) for name in names], _THREADS)
        return sorted(found, key=lambda info: info.index)

    def sweep(self, known: Collection[str], *, attempt: int | None = None) -> list[str]:
        """Put tombstones on what is not known, then remove its objects; old tombstones go too."""
        keys = self._keys()
        if attempt is not None:
            # All that goes is in this listing, so nothing of an attempt that begins from now on does.
            self._refuse_superseded({name: keys[name] for name in keys if name not in known}, attempt)
        doomed = {name for name in keys if name not in known and checkpoint_index(name) not in self._claimed}
        needed = self._needed(keys, without=doomed)
        removed = []
        for name in sorted(doomed):
            key = f"{name}/{MANIFEST_FILE}"
            garbage = keys[name] - needed - {key}
            given_up = None
            if key in keys[name]:
                with contextlib.suppress(KeyMissingError):
                    data = self._storage.read(key)
                    given_up = manifests.tombstone_time(data)
                    if given_up is None:
                        with contextlib.suppress(CheckpointError):
                            garbage |= _objects(manifests.decode(data, key)) - needed
                        self._storage.write(key, manifests.encode_tombstone(self._wall()))
            elif garbage:
                try:
                    self._storage.write_new(key, manifests.encode_tombstone(self._wall()))
                except KeyExistsError:
                    # It has just been committed, by an attempt that does not know yet that it is superseded.
                    self._storage.write(key, manifests.encode_tombstone(self._wall()))
            else:
                continue  # only objects that a later checkpoint still refers to
            self._manifests.pop(name, None)
            if given_up is None:
                self._abort_uploads(name)
            self._storage.delete_many(sorted(garbage))
            if given_up is not None and not garbage and self._wall() - given_up > _TOMBSTONE_S:
                self._storage.delete(key)
            if given_up is None or garbage:
                removed.append(name)
        return removed

    def _abort_uploads(self, name: str) -> None:
        """Remove the parts of uploads that were under way when their process ended; MinIO wants exact names."""
        claim = self._claim_of(name)
        names = [f"{name}/{part}" for part in claim.parts] if claim is not None else []
        try:
            self._storage.abort_uploads([f"{name}/", *names])
        except StorageUnavailableError:
            raise
        except StorageError as error:
            logger.debug("unfinished uploads are left to the server: %s", error)

    def first_free_index(self, at_least: int) -> int:
        """Return the lowest index above that of every object there is."""
        return self._first_free(self._keys(), at_least)

    def _first_free(self, keys: Mapping[str, set[str]], at_least: int) -> int:
        used = [index for name in keys if (index := checkpoint_index(name)) is not None]
        return max([at_least, *(index + 1 for index in [*used, *self._claimed])])

    def reserve(self, at_least: int, attempt: int) -> int:
        """Claim the first free index, so that a superseded attempt ends when it comes to it."""
        while True:
            keys = self._keys()
            # Before it claims anything: behind the index at which its successor stops it, it would stop that one.
            self._refuse_superseded(keys, attempt)
            index = self._first_free(keys, at_least)
            try:
                self._claim(index, attempt, [])
            except CheckpointError:
                continue
            with contextlib.suppress(StorageUnavailableError):  # a reservation is not worth to wait for
                self._refuse_deleted(checkpoint_name(index))
            return index

    def _keys(self) -> dict[str, set[str]]:
        """Return the keys that there are, by the name of their checkpoint."""
        found: dict[str, set[str]] = {}
        for key in self._storage.list():
            name, separator, _ = key.partition("/")
            if separator and checkpoint_index(name) is not None:
                found.setdefault(name, set()).add(key)
        return found

    def _needed(self, keys: Mapping[str, set[str]], without: Collection[str]) -> set[str]:
        needed: set[str] = set()
        for name, present in keys.items():
            if name not in without and f"{name}/{MANIFEST_FILE}" in present:
                found = self._manifest_or_none(name)
                if found is not None:
                    needed |= _objects(found)
        return needed

    def _manifest(self, name: str) -> Manifest:
        found = self._manifests.get(name)
        if found is None:
            where = f"{name} in {self.uri}"
            key = f"{name}/{MANIFEST_FILE}"
            try:
                data = self._storage.read(key)
            except KeyMissingError as error:
                if self._storage.list(name):
                    raise CheckpointError(f"{where} is incomplete: it has no manifest") from error
                raise CheckpointError(f"{where} does not exist") from error
            if manifests.tombstone_time(data) is not None:
                raise CheckpointError(f"{where} does not exist: it was given up before it was complete")
            found = manifests.decode(data, where)
            if found.checkpoint.name != name:
                raise CheckpointError(f"{where} is damaged: it has the manifest of {found.checkpoint.name}")
            self._manifests[name] = found
        return found

    def _manifest_or_none(self, name: str) -> Manifest | None:
        try:
            return self._manifest(name)
        except CheckpointError as error:
            if "does not exist" not in str(error):
                logger.warning("skipped a damaged checkpoint: %s", error)
            return None


def _objects(manifest: Manifest) -> set[str]:
    name = manifest.checkpoint.name
    whole = {entry.at or f"{name}/{entry.path}" for entry in manifest.files if not entry.pieces}
    return whole | {piece.at for entry in manifest.files for piece in entry.pieces}
