"""The upload of one checkpoint's files: what is sent, what is already there, and how far it is.

Invariants:

* After an error `run` can be called again; what was sent is not sent twice.
* A file that is the same as one of the checkpoint before, by size and SHA-256, is not sent: its entry names the
  object that has it.
* An object is sent only to a key below the checkpoint's own name.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from trialpod.errors import CheckpointError
from trialpod.storage import content
from trialpod.storage.base import Storage, storage_error
from trialpod.storage.content import Stored
from trialpod.storage.layout import MANIFEST_FILE
from trialpod.storage.packing import Packing, packs
from trialpod.storage.parallel import run_all
from trialpod.storage.tree_copy import FileEntry, Tree

CLAIM_FILE = ".trialpod-claim"
PACK_PREFIX = ".trialpod-pack-"

_LARGE_BYTES = 8 * 1024 * 1024
"""From this size on, a file is hashed while it is sent."""
_SMALL_BYTES = 64 * 1024
_BATCH = 1000
"""How many files below `_SMALL_BYTES` one thread compares."""


class Upload:
    """The upload of one checkpoint.

    Args:
        storage: the trial's directory.
        name: the checkpoint's.
        folder: the local folder with its files, which do not change any more.
        tree: what is in it.
        stored: the files of the checkpoint before.
        packing: when small files share objects.
        scratch: makes a local folder for packs.
    """

    def __init__(
        self,
        storage: Storage,
        name: str,
        folder: str,
        tree: Tree,
        stored: Stored,
        packing: Packing | None,
        scratch: Callable[[str], str],
    ) -> None:
        self.folders = tree.folders
        self.sent: list[str] = []
        """Keys that were, or may have been, written."""
        self._storage = storage
        self._name = name
        self._folder = folder
        self._sizes = {
            path: size
            for path, size in tree.files.items()
            if path not in (MANIFEST_FILE, CLAIM_FILE) and not path.startswith(PACK_PREFIX)
        }
        self._total = sum(self._sizes.values())
        self._stored = stored
        self._packing = packing
        self._scratch = scratch
        self._lock = threading.Lock()
        self._entries: dict[str, FileEntry] = {}
        self._done = 0
        self._compared = False
        self._packs = 0

    def run(self, threads: int, progress: Callable[[int, int], None] | None) -> list[FileEntry]:
        """Bring everything to the storage that is not there, and return the entries of all files.

        Raises:
            CheckpointError: a local file cannot be read.
            StorageError: the storage, or the local disk, refuses.
        """

        def tick() -> None:
            if progress is not None:
                progress(self._done, self._total)

        tick()
        if not self._compared:
            self._compare_all(threads, tick)
            self._compared = True
        missing = [(path, size) for path, size in self._sizes.items() if path not in self._entries]
        alone, together = packs(missing, self._packing)
        # Large files first: the last to end should not be the last to start.
        alone.sort(key=lambda path: -self._sizes[path])
        jobs: list[Callable[[], None]] = [partial(self._send, path) for path in alone]
        jobs += [partial(self._send_pack, paths) for paths in together]
        if jobs:
            run_all(jobs, threads, tick=tick)
        return [self._entries[path] for path in self._sizes]

    def _compare_all(self, threads: int, tick: Callable[[], None]) -> None:
        candidates = [path for path, size in self._sizes.items() if self._stored.has_size(size)]
        # Small files one after another: threads would spend their time on handing over the interpreter's lock.
        small = [path for path in candidates if self._sizes[path] < _SMALL_BYTES]
        jobs: list[Callable[[], None]] = [
            partial(self._compare, path) for path in candidates if self._sizes[path] >= _SMALL_BYTES
        ]
        jobs += [partial(self._compare_each, small[start : start + _BATCH]) for start in range(0, len(small), _BATCH)]
        if jobs:
            run_all(jobs, threads, tick=tick)

    def _compare_each(self, paths: list[str]) -> None:
        for path in paths:
            self._compare(path)

    def _compare(self, path: str) -> None:
        size = self._sizes[path]
        local = os.path.join(self._folder, path)
        candidates = self._stored.candidates(size, content.probe(local, size))
        if not candidates:
            return
        digest = content.digest(local)
        for same in candidates:
            if same.digest == digest:
                self._note(FileEntry(path, size, same.checksum, same.at, same.offset, digest, same.probe))
                return

    def _send(self, path: str) -> None:
        size = self._sizes[path]
        local = os.path.join(self._folder, path)
        key = f"{self._name}/{path}"
        self._will_send(key)
        if size < _LARGE_BYTES:
            digest = content.digest(local)
            checksum = self._storage.put_file(Path(local), key)
        else:
            found: list[str | BaseException] = []
            hashing = threading.Thread(target=_hash_into, args=(local, found), name="trialpod-hash", daemon=True)
            hashing.start()
            try:
                checksum = self._storage.put_file(Path(local), key)
            finally:
                hashing.join()
            if isinstance(found[0], BaseException):
                raise found[0]
            digest = found[0]
        self._note(FileEntry(path, size, checksum, digest=digest, probe=content.probe(local, size)))

    def _send_pack(self, paths: list[str]) -> None:
        with self._lock:
            number, self._packs = self._packs, self._packs + 1
        key = f"{self._name}/{PACK_PREFIX}{number:04d}"
        scratch = self._scratch("pack")
        try:
            local = os.path.join(scratch, "pack")
            entries = self._write_pack(paths, local, key)
            self._will_send(key)
            self._storage.put_file(Path(local), key)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        for entry in entries:
            self._note(entry)

    def _write_pack(self, paths: list[str], local: str, key: str) -> list[FileEntry]:
        entries = []
        offset = 0
        with open(local, "xb") as pack:
            for path in paths:
                name = os.path.join(self._folder, path)
                try:
                    data = content.read(name, self._sizes[path])
                except OSError as error:
                    raise CheckpointError(f"cannot read {name}: {error.strerror or error}") from error
                try:
                    pack.write(data)
                except OSError as error:
                    raise storage_error(error, "cannot write", local, len(data)) from error
                entries.append(
                    FileEntry(
                        path,
                        len(data),
                        zlib.crc32(data),
                        key,
                        offset,
                        hashlib.sha256(data).hexdigest(),
                        content.probe_bytes(data),
                    )
                )
                offset += len(data)
        return entries

    def _will_send(self, key: str) -> None:
        with self._lock:
            self.sent.append(key)

    def _note(self, entry: FileEntry) -> None:
        with self._lock:
            self._entries[entry.path] = entry
            self._done += entry.size


def _hash_into(path: str, found: list[str | BaseException]) -> None:
    try:
        found.append(content.digest(path))
    except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
        found.append(error)
