"""The checkpoints of one trial in a storage that has no path on this machine.

Objects, with keys below the trial's directory::

    checkpoint_000003/.trialpod-claim            {"attempt": 2, "token": "..."}: who may write here; first of all
    checkpoint_000003/weights/model.bin          a file, as in Ray Tune
    checkpoint_000003/.trialpod-pack-0000        many small files, one after another
    checkpoint_000003/.trialpod-manifest.json    the manifest; last, and only if there is none

A file that has not changed since the checkpoint before is not sent again: the manifest says in which object it is.

Invariants:

* Claim and manifest are written under the condition that the key is free. So every index belongs to one attempt, and
  nobody writes an object at an index that is not its own: nothing that a successor stored can be overwritten.
* Sweeping puts a tombstone in place of the manifest before it removes anything: an attempt that was superseded in
  mid-upload can no longer commit.
* A manifest refers only to objects of checkpoints that the same attempt committed, so a superseded attempt never
  removes what its successor needs. An object goes when no manifest refers to it any more.
* A manifest goes before the objects.
* Memory is bounded: files stream; of packs, `_THREADS` spans of 8 MB at most are held at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import threading
import time as clocks
import zlib
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from trialpod.errors import CheckpointError, StorageError
from trialpod.protocol.messages import CheckpointInfo
from trialpod.storage import manifest as manifests
from trialpod.storage.base import KeyExistsError, KeyMissingError, Storage, StorageUnavailableError, storage_error
from trialpod.storage.checkpoint_upload import CLAIM_FILE, PACK_PREFIX, Upload
from trialpod.storage.checkpoints import CheckpointStore, Progress, refuse_other, scalars
from trialpod.storage.content import Stored
from trialpod.storage.layout import MANIFEST_FILE, checkpoint_index, checkpoint_name
from trialpod.storage.manifest import Manifest
from trialpod.storage.packing import Packing, Span, configured, spans
from trialpod.storage.parallel import run_all
from trialpod.storage.tree_copy import FileEntry, checksum_file, survey

logger = logging.getLogger(__name__)

SCRATCH_VARIABLE = "TRIALPOD_SCRATCH_DIR"
"""Environment variable: the folder for local copies of checkpoints, on a disk with room for several."""

_THREADS = 8
_TOMBSTONE_S = 24 * 3600.0
"""How long a tombstone stays, in seconds; no superseded attempt lives that long."""


class _Claim(msgspec.Struct):
    attempt: int
    token: str


class RemoteCheckpoints(CheckpointStore):
    """The checkpoints of a trial in a remote storage.

    Args:
        storage: the trial's directory.
        scratch: the folder for local copies; None takes TRIALPOD_SCRATCH_DIR or the system's temporary folder.
        packing: when small files share objects; None keeps one object for each file. The default is what
            TRIALPOD_PACK_CHECKPOINTS says.
        wall: seconds since the epoch.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        scratch: Path | None = None,
        packing: Packing | str | None = "environment",
        wall: Callable[[], float] = clocks.time,
    ) -> None:
        super().__init__(storage)
        self._packing = configured() if isinstance(packing, str) else packing
        self._scratch_parent = scratch or (Path(place) if (place := os.environ.get(SCRATCH_VARIABLE)) else None)
        self._wall = wall
        self._lock = threading.Lock()
        self._scratch_or_none: str | None = None
        self._token = os.urandom(8).hex()
        self._claimed: set[int] = set()
        self._uploads: dict[int, Upload] = {}
        self._newest: Stored = Stored()  # of what this store committed last
        self._manifests: dict[str, Manifest] = {}  # they never change
        self._fetched: dict[str, tuple[CheckpointInfo, Path]] = {}

    # Writing.

    def begin(self, index: int) -> Path:
        """Return a new folder on the local disk."""
        self.abandon(index)
        self._begun[index] = self._folder(checkpoint_name(index))
        return Path(self._begun[index])

    def abandon(self, index: int) -> None:
        """Remove the local folder, and forget how far its upload was."""
        self._uploads.pop(index, None)
        begun = self._begun.pop(index, None)
        if begun is not None:
            shutil.rmtree(begun, ignore_errors=True)

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
            self._claim(index, attempt)
            upload = self._uploads.get(index)
            if upload is None:
                tree = survey(folder)
                upload = Upload(self._storage, name, folder, tree, self._newest, self._packing, self._folder)
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
            data = manifests.encode(info, upload.folders, entries)
            if progress is not None:
                progress(info.size, info.size)
            self._publish(name, data)
        except StorageUnavailableError:
            raise
        except BaseException:
            self.abandon(index)
            if upload is not None:
                # Best effort: what cannot be removed now is swept later.
                with contextlib.suppress(StorageError):
                    self._storage.delete_many(upload.sent)
            raise
        self._newest = Stored(entries, name)
        self._manifests[name] = manifests.decode(data, name)
        self.abandon(index)
        return info

    def _claim(self, index: int, attempt: int) -> None:
        if index in self._claimed:
            return
        name = checkpoint_name(index)
        key = f"{name}/{CLAIM_FILE}"
        data = msgspec.json.encode(_Claim(attempt, self._token))
        try:
            self._storage.write_new(key, data)
        except KeyExistsError as error:
            owner = self._claim_of(name)
            if owner is None or owner.token != self._token:
                by = f" by attempt {owner.attempt}" if owner else ""
                raise CheckpointError(
                    f"{name} in {self.uri} is taken: it was begun{by}; an index is never written twice"
                ) from error
        if self._storage.exists(f"{name}/{MANIFEST_FILE}"):
            self._refuse_published(name)
        self._claimed.add(index)

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

    def _refuse_published(self, name: str) -> None:
        where = f"{name} in {self.uri}"
        data = self._storage.read(f"{name}/{MANIFEST_FILE}")
        if manifests.tombstone_time(data) is not None:
            raise CheckpointError(f"{where} was given up by a later attempt; this one has been superseded")
        try:
            owner = f" by attempt {manifests.decode(data, where).checkpoint.attempt}"
        except CheckpointError:
            owner = ""  # damaged; still not ours to replace
        raise CheckpointError(f"{where} has been committed{owner}; a committed checkpoint is never replaced")

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
        try:
            for folder in found.folders:
                (target / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error(error, "cannot write", target, info.size) from error
        done = [0]

        def advance(count: int) -> None:
            done[0] += count
            if progress is not None:
                progress(done[0], info.size)

        packed = [entry for entry in found.files if _is_packed(entry)]
        alone = sorted((entry for entry in found.files if not _is_packed(entry)), key=lambda entry: -entry.size)
        jobs: list[Callable[[], None]] = [partial(self._get_one, entry, found, target, advance) for entry in alone]
        jobs += [partial(self._get_span, span, found, target, advance) for span in spans(packed)]
        run_all(jobs, _THREADS)

    def _get_one(self, entry: FileEntry, found: Manifest, target: Path, advance: Callable[[int], None]) -> None:
        name = found.checkpoint.name
        key = entry.at or f"{name}/{entry.path}"
        try:
            self._storage.get_file(key, target / entry.path, size=entry.size)
        except KeyMissingError as error:
            raise self._damaged(name, f"the object {key} is missing") from error
        except StorageUnavailableError:
            raise
        except StorageError as error:
            size = self._storage.sizes(key.rpartition("/")[0]).get(key)
            if size is None:
                raise self._damaged(name, f"the object {key} is missing") from error
            if size != entry.size:
                raise self._damaged(name, f"{entry.path} has {size} bytes instead of {entry.size}") from error
            raise
        actual = checksum_file(str(target), entry.path)
        if actual.size != entry.size:
            raise self._damaged(name, f"{entry.path} has {actual.size} bytes instead of {entry.size}")
        if actual.checksum != entry.checksum:
            raise self._damaged(name, f"the checksum of {entry.path} does not match")
        advance(entry.size)

    def _get_span(self, span: Span, found: Manifest, target: Path, advance: Callable[[int], None]) -> None:
        name = found.checkpoint.name
        try:
            data = memoryview(self._storage.read_range(span.key, span.start, span.length)) if span.length else b""
        except KeyMissingError as error:
            raise self._damaged(name, f"the object {span.key} is missing") from error
        for entry in span.entries:
            start = entry.offset - span.start
            piece = data[start : start + entry.size]
            if len(piece) != entry.size:
                raise self._damaged(name, f"the object {span.key} ends within {entry.path}")
            if zlib.crc32(piece) != entry.checksum:
                raise self._damaged(name, f"the checksum of {entry.path} does not match")
            try:
                (target / entry.path).write_bytes(piece)
            except OSError as error:
                raise storage_error(error, "cannot write", target / entry.path, entry.size) from error
        advance(sum(entry.size for entry in span.entries))

    def _damaged(self, name: str, what: str) -> CheckpointError:
        return CheckpointError(f"{name} in {self.uri} is damaged: {what}")

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
                raise CheckpointError(
                    f"{name} in {self.uri} was written by attempt {owner}; attempt {attempt} has been superseded and "
                    "may not delete anything"
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

    def sweep(self, known: Collection[str]) -> list[str]:
        """Put tombstones on what is not known, then remove its objects; old tombstones go too."""
        keys = self._keys()
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
            self._storage.delete_many(sorted(garbage))
            if given_up is not None and not garbage and self._wall() - given_up > _TOMBSTONE_S:
                self._storage.delete(key)
            if given_up is None or garbage:
                removed.append(name)
        return removed

    def first_free_index(self, at_least: int) -> int:
        """Return the lowest index above that of every object there is."""
        used = [index for name in self._keys() if (index := checkpoint_index(name)) is not None]
        return max([at_least, *(index + 1 for index in [*used, *self._claimed])])

    def reserve(self, at_least: int, attempt: int) -> int:
        """Claim the first free index, so that a superseded attempt ends when it comes to it."""
        index = self.first_free_index(at_least)
        while True:
            try:
                self._claim(index, attempt)
            except CheckpointError:
                index += 1
            else:
                return index

    def close(self) -> None:
        """Remove the local folder with all that is in it."""
        with self._lock:
            scratch, self._scratch_or_none = self._scratch_or_none, None
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)

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

    def _folder(self, name: str) -> str:
        with self._lock:
            if self._scratch_or_none is None:
                self._scratch_or_none = _made(self._scratch_parent, "trialpod-checkpoints-")
            return _made(Path(self._scratch_or_none), f"{name}-")


def _made(parent: Path | None, prefix: str) -> str:
    try:
        return tempfile.mkdtemp(prefix=prefix, dir=parent)
    except OSError as error:
        raise storage_error(error, "cannot make a folder in", parent or tempfile.gettempdir()) from error


def _is_packed(entry: FileEntry) -> bool:
    return entry.at.rpartition("/")[2].startswith(PACK_PREFIX)


def _objects(manifest: Manifest) -> set[str]:
    name = manifest.checkpoint.name
    return {entry.at or f"{name}/{entry.path}" for entry in manifest.files}
