"""The upload of one checkpoint's files: what is sent, what is already there, and how far it is.

Invariants:

* After an error `run` can be called again; what was sent is not sent twice. What may have been sent, its answer being
  lost, is sent to the same key.
* What is stored already, by size and SHA-256, is not sent: a file's entry names the objects that have it. Of a large
  file only the blocks that changed are sent, as long as its objects hold no more than twice its size.
* What another attempt stored is copied by the server before it is referred to.
* An object is sent only to a key below the checkpoint's own name.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from trialpod.errors import StorageError
from trialpod.storage.base import Storage, StorageUnavailableError, storage_error
from trialpod.storage.checkpoints import deduplication
from trialpod.storage.checkpoints.deduplication import Fingerprint, Match, StoredFiles
from trialpod.storage.checkpoints.manifest import FileEntry, Piece
from trialpod.storage.checkpoints.packing import Packing, is_pack, packs
from trialpod.storage.checkpoints.staging import LocalFile
from trialpod.storage.layout import BLOCKS_PREFIX, COPY_PREFIX, PACK_PREFIX
from trialpod.storage.parallel import run_all

_PARTS_FROM = 5 * 1024 * 1024
_SMALL_BYTES = 64 * 1024
_BATCH = 1000
"""How many files below `_SMALL_BYTES` one thread compares."""
_MOSTLY = 0.9
"""A local pack of which so much is new is sent as it is."""


class Upload:
    """The upload of one checkpoint.

    Args:
        storage: the trial's directory.
        name: the checkpoint's.
        files: with their content on this machine, which does not change any more.
        stored: the files of the checkpoint before.
        packing: when small files share objects, and large ones blocks; None keeps an object for each file.
        scratch: makes a local folder.
    """

    def __init__(
        self,
        storage: Storage,
        name: str,
        files: Sequence[LocalFile],
        stored: StoredFiles,
        packing: Packing | None,
        scratch: Callable[[str], str],
    ) -> None:
        self.sent: list[str] = []
        """Keys that were, or may have been, written."""
        self.fingerprints: dict[str, Fingerprint] = {}
        """What comparing has found out about files, by path."""
        self.resembles = False
        """Whether anything looked like what is stored."""
        self._storage = storage
        self._name = name
        self._files = {file.path: file for file in files}
        self._total = sum(file.size for file in files)
        self._stored = stored
        self._packing = packing
        self._scratch = scratch
        self._lock = threading.Lock()
        self._matches: dict[str, Match] = {}
        self._copied: dict[str, str] = {}
        self._entries: dict[str, FileEntry] = {}
        self._done = 0
        self._compared = False
        self._planned: list[tuple[str, Callable[[], None]]] | None = None
        self._made: Counter[str] = Counter()
        self._keys: dict[tuple[str, ...], str] = {}

    def in_parts(self) -> list[str]:
        """Return the names, below the checkpoint's, of objects that may be sent in parts."""
        large = [file.path for file in self._files.values() if file.size >= _PARTS_FROM]
        names = large + [f"{BLOCKS_PREFIX}{number:04d}" for number in range(len(large))]
        small = sum(file.size for file in self._files.values() if file.size < _PARTS_FROM)
        if self._packing is not None and small >= _PARTS_FROM:
            names += [f"{PACK_PREFIX}{number:04d}" for number in range(2 + small // self._packing.pack_bytes)]
        return names if large or small >= _PARTS_FROM else []

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
        if self._stored.foreign:
            self._adopt(threads, tick)
        for path, match in self._matches.items():
            if path not in self._entries and self._is_same_file(path, match):
                self._record(self._unchanged(path, match))
        if self._planned is None:
            self._planned = self._plan([file for file in self._files.values() if file.path not in self._entries])
        jobs = [job for path, job in self._planned if path not in self._entries]
        if jobs:
            run_all(jobs, threads, tick=tick)
        return [self._entries[path] for path in self._files]

    def _plan(self, missing: list[LocalFile]) -> list[tuple[str, Callable[[], None]]]:
        """Return what sends these files, each with the path of the first that it sends."""
        jobs: list[tuple[str, Callable[[], None]]] = []
        by_pack: dict[str, list[LocalFile]] = {}
        own: list[LocalFile] = []
        for file in missing:
            if is_pack(file.place):
                by_pack.setdefault(file.place, []).append(file)
            else:
                own.append(file)
        for place, files in by_pack.items():
            if sum(file.size for file in files) >= _MOSTLY * os.path.getsize(place):
                jobs.append((files[0].path, partial(self._send_local_pack, place, files)))
            else:
                jobs.append((files[0].path, partial(self._send_pack, files)))
        alone, together = packs([(file.path, file.size) for file in own], self._packing)
        jobs += [(paths[0], partial(self._send_pack, [self._files[path] for path in paths])) for paths in together]
        # Large files first: the last to end should not be the last to start.
        alone.sort(key=lambda path: -self._files[path].size)
        return [(path, partial(self._send, path)) for path in alone] + jobs

    # What is stored.

    def _compare_all(self, threads: int, tick: Callable[[], None]) -> None:
        if not self._stored:
            return
        files = [file for file in self._files.values() if file.size]
        # Small files one after another: threads would spend their time on handing over the interpreter's lock.
        small = [file for file in files if file.size < _SMALL_BYTES]
        jobs: list[Callable[[], None]] = [
            partial(self._compare, [file]) for file in files if file.size >= _SMALL_BYTES
        ]
        jobs += [partial(self._compare, small[start : start + _BATCH]) for start in range(0, len(small), _BATCH)]
        run_all(jobs, threads, tick=tick)

    def _compare(self, files: list[LocalFile]) -> None:
        for file, descriptor in deduplication.opened(files):
            fingerprint: Fingerprint = (deduplication.samples(file, descriptor), {})
            match, resembles = self._stored.match(file, descriptor, fingerprint)
            with self._lock:
                self.fingerprints[file.path] = fingerprint
                self.resembles = self.resembles or resembles
            if match is not None and (self._is_same_file(file.path, match) or self._worthwhile(file, match)):
                with self._lock:
                    self._matches[file.path] = match

    def _is_same_file(self, path: str, match: Match) -> bool:
        size = self._files[path].size
        return match.known.entry.size == size and len(match.same) == deduplication.block_count(size)

    def _worthwhile(self, file: LocalFile, match: Match) -> bool:
        """Whether to send only what changed: not when that is most of it, or too much of what is stored is old."""
        if self._packing is None or deduplication.block_count(file.size) < 2:
            return False
        changed = self._changed_bytes(file, match)
        entry = match.known.entry
        return changed <= file.size // 2 and (entry.stored_bytes or entry.size) + changed <= 2 * file.size

    @staticmethod
    def _changed_bytes(file: LocalFile, match: Match) -> int:
        return file.size - sum(deduplication.block_span(file.size, block)[1] for block in match.same)

    def _adopt(self, threads: int, tick: Callable[[], None]) -> None:
        """Have the server copy what another attempt stored; what it cannot copy is sent."""
        used: Counter[str] = Counter()
        needs: dict[str, set[str]] = {}
        for path, match in self._matches.items():
            needs[path] = set()
            for block in match.same:
                for piece in match.known.ranges(*deduplication.block_span(self._files[path].size, block)):
                    used[piece.key] += piece.size
                    needs[path].add(piece.key)
        plain: dict[str, str] = {}
        for path, match in self._matches.items():
            entry = match.known.entry
            if self._is_same_file(path, match) and not entry.key and not entry.pieces:
                plain.setdefault(next(iter(needs[path])), path)
        wanted = sorted(key for key in used if 2 * used[key] >= self._stored.object_bytes.get(key, 0))
        run_all(
            [partial(self._copy, key, plain.get(key)) for key in wanted if key not in self._copied],
            threads,
            tick=tick,
        )
        for path, keys in needs.items():
            if any(not self._copied.get(key) for key in keys):
                del self._matches[path]

    def _copy(self, key: str, path: str | None) -> None:
        if path is not None:
            target = f"{self._name}/{path}"
        else:
            target = self._own_key(PACK_PREFIX if is_pack(key) else COPY_PREFIX, "copy of", key)
        self._will_send(target)
        try:
            self._storage.copy(key, target)
        except StorageUnavailableError:
            raise
        except StorageError:
            target = ""
        with self._lock:
            self._copied[key] = target

    def _placed(self, piece: Piece) -> Piece:
        if not self._stored.foreign:
            return piece
        return Piece(self._copied[piece.key], piece.offset, piece.size)

    def _unchanged(self, path: str, match: Match) -> FileEntry:
        known = match.known
        pieces = tuple(self._placed(piece) for piece in known.pieces)
        entry = known.entry
        if len(pieces) > 1 or entry.pieces:
            return FileEntry(path, entry.size, entry.checksum, pieces=pieces, stored_bytes=entry.stored_bytes)
        at = "" if pieces[0].key == f"{self._name}/{path}" else pieces[0].key
        return FileEntry(path, entry.size, entry.checksum, at, pieces[0].offset)

    # Sending.

    def _send(self, path: str) -> None:
        file = self._files[path]
        match = self._matches.get(path)
        if match is not None and self._send_changed(file, match):
            return
        key = f"{self._name}/{path}"
        self._will_send(key)
        self._record(FileEntry(path, file.size, self._storage.put_file(Path(file.place), key)))

    def _send_changed(self, file: LocalFile, match: Match) -> bool:
        """Send the blocks that are not stored; False if there is no room to put them together."""
        key = self._own_key(BLOCKS_PREFIX, file.path)
        scratch = self._scratch("blocks")
        try:
            local = os.path.join(scratch, "blocks")
            try:
                pieces, whole = self._write_changed(file, match, local, key)
            except StorageError:
                return False
            self._will_send(key)
            self._storage.put_file(Path(local), key)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        entry = match.known.entry
        stored_bytes = (entry.stored_bytes or entry.size) + self._changed_bytes(file, match)
        self._record(FileEntry(file.path, file.size, whole, pieces=tuple(pieces), stored_bytes=stored_bytes))
        return True

    def _write_changed(self, file: LocalFile, match: Match, local: str, key: str) -> tuple[list[Piece], int]:
        found: list[Piece] = []
        written = 0
        with _new(local) as target:
            for _, descriptor in deduplication.opened([file]):
                for block in range(deduplication.block_count(file.size)):
                    start, length = deduplication.block_span(file.size, block)
                    if block in match.same:
                        ranges = [self._placed(piece) for piece in match.known.ranges(start, length)]
                    else:
                        ranges = [Piece(key, written, length)]
                        for data in deduplication.pieces(file, descriptor, start, length):
                            try:
                                target.write(data)
                            except OSError as error:
                                raise storage_error(error, "cannot write", local, length) from error
                        written += length
                    for piece in ranges:
                        last = found[-1] if found else None
                        if last is not None and (last.key, last.offset + last.size) == (piece.key, piece.offset):
                            found[-1] = Piece(last.key, last.offset, last.size + piece.size)
                        else:
                            found.append(piece)
                whole = deduplication.checksum(file, descriptor)
        return found, whole

    def _send_local_pack(self, place: str, files: list[LocalFile]) -> None:
        key = self._own_key(PACK_PREFIX, files[0].path)
        entries = [
            FileEntry(file.path, file.size, deduplication.checksum(file, descriptor), key, file.offset)
            for file, descriptor in deduplication.opened(files)
        ]
        self._will_send(key)
        self._storage.put_file(Path(place), key)
        for entry in entries:
            self._record(entry)

    def _send_pack(self, files: list[LocalFile]) -> None:
        key = self._own_key(PACK_PREFIX, files[0].path)
        scratch = self._scratch("pack")
        try:
            local = os.path.join(scratch, "pack")
            entries = []
            offset = 0
            with _new(local) as pack:
                for file, descriptor in deduplication.opened(files):
                    for data in deduplication.pieces(file, descriptor, 0, file.size):
                        try:
                            pack.write(data)
                        except OSError as error:
                            raise storage_error(error, "cannot write", local, file.size) from error
                    entries.append(
                        FileEntry(file.path, file.size, deduplication.checksum(file, descriptor), key, offset)
                    )
                    offset += file.size
            self._will_send(key)
            self._storage.put_file(Path(local), key)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        for entry in entries:
            self._record(entry)

    def _own_key(self, prefix: str, *content: str) -> str:
        """Return the key for what begins with a file of this path, or is a copy: the same each time."""
        with self._lock:
            known = (prefix, *content)
            if known not in self._keys:
                self._keys[known] = f"{self._name}/{prefix}{self._made[prefix]:04d}"
                self._made[prefix] += 1
            return self._keys[known]

    def _will_send(self, key: str) -> None:
        with self._lock:
            self.sent.append(key)

    def _record(self, entry: FileEntry) -> None:
        with self._lock:
            self._entries[entry.path] = entry
            self._done += entry.size


class _new:  # noqa: N801 - used like a function
    """A new local file to write, as a context; errors of its last bytes are StorageErrors too."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> _new:
        try:
            self._file = open(self._path, "xb")
        except OSError as error:
            raise storage_error(error, "cannot write", self._path) from error
        return self

    def write(self, data: memoryview | bytes) -> None:
        self._file.write(data)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            self._file.close()
        except OSError as problem:
            if error is None:
                raise storage_error(problem, "cannot write", self._path) from problem
