"""The download of one checkpoint's files: as few requests as their objects allow, every file verified.

Invariants: memory is bounded by one span of 8 MB a thread; a file that is an object is verified by what came of it,
one that was put together from several objects is read again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from trialpod.errors import CheckpointError, StorageError
from trialpod.storage.base import KeyMissingError, Storage, StorageUnavailableError, storage_error
from trialpod.storage.checkpoints.manifest import FileEntry, Manifest
from trialpod.storage.checkpoints.packing import Part, Span, is_pack, parts, spans
from trialpod.storage.file_tree import checksum_file
from trialpod.storage.parallel import run_all


class Download:
    """The download of one checkpoint.

    Args:
        storage: the trial's directory.
        manifest: the checkpoint's.
        target: an empty local folder.
        progress: called with how many bytes of how many are there.
    """

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        target: Path,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._storage = storage
        self._manifest = manifest
        self._target = target
        self._progress = progress
        self._done = 0

    def run(self, threads: int) -> None:
        """Write and verify all files.

        Raises:
            CheckpointError: one is missing or damaged.
            StorageError: the storage, or the local disk, refuses.
        """
        files, target = self._manifest.files, self._target
        try:
            for folder in self._manifest.folders:
                (target / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error(error, "cannot write", target, self._manifest.checkpoint.size) from error
        packed = [entry for entry in files if is_pack(entry.key)]
        pieced = [entry for entry in files if entry.pieces]
        alone = [entry for entry in files if not is_pack(entry.key) and not entry.pieces]
        alone.sort(key=lambda entry: -entry.size)
        for entry in pieced:
            self._make_file(target / entry.path, entry.size)
        jobs: list[Callable[[], None]] = [
            partial(self._get_part, part, target / entry.path) for entry in pieced for part in parts(entry)
        ]
        jobs += [partial(self._get_one, entry) for entry in alone]
        jobs += [partial(self._get_span, span) for span in spans(packed)]
        run_all(jobs, threads)
        run_all([partial(self._verify, entry) for entry in pieced], threads)

    def _get_one(self, entry: FileEntry) -> None:
        key = entry.key or f"{self._manifest.checkpoint.name}/{entry.path}"
        try:
            checksum = self._storage.get_file(key, self._target / entry.path, size=entry.size)
        except KeyMissingError as error:
            raise self._damaged(f"the object {key} is missing") from error
        except StorageUnavailableError:
            raise
        except StorageError as error:
            size = self._storage.sizes(key.rpartition("/")[0]).get(key)
            if size is None:
                raise self._damaged(f"the object {key} is missing") from error
            if size != entry.size:
                raise self._damaged(f"{entry.path} has {size} bytes instead of {entry.size}") from error
            raise
        if checksum != entry.checksum:
            raise self._damaged(f"the checksum of {entry.path} does not match")
        self._advance(entry.size)

    def _get_span(self, span: Span) -> None:
        try:
            data = memoryview(self._storage.read_range(span.key, span.start, span.length)) if span.length else b""
        except KeyMissingError as error:
            raise self._damaged(f"the object {span.key} is missing") from error
        for entry in span.entries:
            start = entry.offset - span.start
            piece = data[start : start + entry.size]
            if len(piece) != entry.size:
                raise self._damaged(f"the object {span.key} ends within {entry.path}")
            if zlib.crc32(piece) != entry.checksum:
                raise self._damaged(f"the checksum of {entry.path} does not match")
            local = self._target / entry.path
            try:
                local.write_bytes(piece)
            except OSError as error:
                raise storage_error(error, "cannot write", local, entry.size) from error
        self._advance(sum(entry.size for entry in span.entries))

    def _get_part(self, part: Part, local: Path) -> None:
        try:
            data = self._storage.read_range(part.key, part.start, part.length)
        except KeyMissingError as error:
            raise self._damaged(f"the object {part.key} is missing") from error
        if len(data) != part.length:
            raise self._damaged(f"the object {part.key} ends within {local.name}")
        try:
            with open(local, "r+b", buffering=0) as file:
                file.seek(part.position)
                rest = memoryview(data)
                while rest:
                    rest = rest[file.write(rest) :]
        except OSError as error:
            raise storage_error(error, "cannot write", local, part.length) from error
        self._advance(part.length)

    @staticmethod
    def _make_file(path: Path, size: int) -> None:
        try:
            with open(path, "xb") as file:
                file.truncate(size)
        except OSError as error:
            raise storage_error(error, "cannot write", path, size) from error

    def _verify(self, entry: FileEntry) -> None:
        if checksum_file(str(self._target / entry.path))[1] != entry.checksum:
            raise self._damaged(f"the checksum of {entry.path} does not match")

    def _advance(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._manifest.checkpoint.size)

    def _damaged(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._manifest.checkpoint.name} in {self._storage.uri} is damaged: {what}")
