"""Finds out which bytes of a file are already stored, with as little reading as possible.

A file is looked at in *blocks* of a fixed size, the last one shorter. Blocks are compared at the same position, so a
file in which some bytes changed, or that grew at its end, is recognised; one in which bytes were inserted is not.

Invariants:

* Two blocks count as the same only if their lengths and SHA-256 are equal; the samples only rule out early.
* What a stored block holds is known from the bytes that were sent, or from a copy whose checksum is the stored one.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from trialpod.errors import CheckpointError
from trialpod.storage.checkpoints.manifest import FileEntry, Piece
from trialpod.storage.checkpoints.staging import LocalFile

_MEBIBYTE = 1024 * 1024
_MAX_BLOCKS = 8192
_STEP = 256 * 1024
_SAMPLE = 4096
_SMALL = 64 * 1024

Fingerprint = tuple[tuple[int, ...], dict[int, bytes]]
"""The samples' checksums of all blocks of a file, and the SHA-256 of those that were computed."""


def block_bytes(size: int) -> int:
    """Return the size of the blocks of a file: 1 MiB, doubled until there are at most 8192."""
    found = _MEBIBYTE
    while found * _MAX_BLOCKS < size:
        found *= 2
    return found


def block_count(size: int) -> int:
    """Return how many blocks a file has."""
    return -(-size // block_bytes(size))


def block_span(size: int, block: int) -> tuple[int, int]:
    """Return where a block starts, and its length."""
    step = block_bytes(size)
    return block * step, min(step, size - block * step)


def opened(files: Iterable[LocalFile]) -> Iterator[tuple[LocalFile, int]]:
    """Yield each file with a descriptor of its place, opened once for neighbours that share it.

    Raises:
        CheckpointError: a file cannot be opened.
    """
    place, descriptor = "", -1
    try:
        for file in files:
            if file.place != place or descriptor < 0:
                if descriptor >= 0:
                    os.close(descriptor)
                    descriptor = -1
                try:
                    descriptor = os.open(file.place, os.O_RDONLY | os.O_CLOEXEC)
                except OSError as error:
                    raise _unreadable(file, error) from error
                place = file.place
            yield file, descriptor
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def samples(file: LocalFile, descriptor: int) -> tuple[int, ...]:
    """Return the CRC-32 of the first bytes of every block; errors as of `opened`."""
    step = block_bytes(file.size)
    try:
        return tuple(
            zlib.crc32(os.pread(descriptor, min(_SAMPLE, file.size - start), file.offset + start))
            for start in range(0, file.size, step)
        )
    except OSError as error:
        raise _unreadable(file, error) from error


def digests(file: LocalFile, descriptor: int, blocks: Iterable[int]) -> dict[int, bytes]:
    """Return the SHA-256 of these blocks; errors as of `opened`."""
    found = {}
    for block in blocks:
        start, length = block_span(file.size, block)
        digest = hashlib.sha256()
        for piece in pieces(file, descriptor, start, length):
            digest.update(piece)
        found[block] = digest.digest()
    return found


def checksum(file: LocalFile, descriptor: int) -> int:
    """Return the CRC-32 of the content; errors as of `opened`."""
    found = 0
    for piece in pieces(file, descriptor, 0, file.size):
        found = zlib.crc32(piece, found)
    return found


def pieces(file: LocalFile, descriptor: int, start: int, length: int) -> Iterator[memoryview | bytes]:
    """Yield these bytes of the content, in steps that the next one may overwrite; errors as of `opened`."""
    if length <= _SMALL:
        try:
            data = os.pread(descriptor, length, file.offset + start)
        except OSError as error:
            raise _unreadable(file, error) from error
        if len(data) != length:
            raise CheckpointError(f"{file.path} became shorter while it was read")
        yield data
        return
    buffer = memoryview(bytearray(min(_STEP, length)))
    while length:
        try:
            count = os.preadv(descriptor, [buffer[: min(length, _STEP)]], file.offset + start)
        except OSError as error:
            raise _unreadable(file, error) from error
        if not count:
            raise CheckpointError(f"{file.path} became shorter while it was read")
        yield buffer[:count]
        start, length = start + count, length - count


def _unreadable(file: LocalFile, error: OSError) -> CheckpointError:
    return CheckpointError(f"cannot read {file.place}: {error.strerror or error}")


class StoredFile:
    """A file of a checkpoint that is stored.

    Args:
        entry: what its manifest says.
        name: the checkpoint's.
        fingerprint: of its content.
    """

    def __init__(self, entry: FileEntry, name: str, fingerprint: Fingerprint) -> None:
        self.entry = entry
        self.pieces = entry.ranges(name)
        self.samples, self._digests = fingerprint

    def digest(self, block: int) -> bytes | None:
        """Return the SHA-256 of a block; None if it is not known."""
        return self._digests.get(block)

    def ranges(self, start: int, length: int) -> Iterator[Piece]:
        """Yield where these bytes of the file are."""
        for piece in self.pieces:
            if start < piece.size and length:
                count = min(length, piece.size - start)
                yield Piece(piece.key, piece.offset + start, count)
                start, length = start + count, length - count
            start = max(start - piece.size, 0)


class StoredFileCopy(StoredFile):
    """A file of a checkpoint of which this machine has a copy, that another process may have changed.

    The copy is read when its digests are asked for the first time, and not trusted if its checksum is another.
    """

    def __init__(self, entry: FileEntry, name: str, file: LocalFile, samples: tuple[int, ...]) -> None:
        super().__init__(entry, name, (samples, {}))
        self._file: LocalFile | None = file

    def digest(self, block: int) -> bytes | None:
        """Return the SHA-256 of a block; None if the copy is not what was stored."""
        file, self._file = self._file, None
        if file is not None:
            self._digests = self._read(file)
        return self._digests.get(block)

    def _read(self, file: LocalFile) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        whole = 0
        for _, descriptor in opened([file]):
            for block in range(block_count(file.size)):
                digest = hashlib.sha256()
                for piece in pieces(file, descriptor, *block_span(file.size, block)):
                    digest.update(piece)
                    whole = zlib.crc32(piece, whole)
                found[block] = digest.digest()
        return found if whole == self.entry.checksum else {}


class Match(NamedTuple):
    """What of a file is stored already: the blocks in `same` are those of `known`."""

    known: StoredFile
    same: frozenset[int]


class StoredFiles:
    """The files of a checkpoint that is stored: what a new one may have in common with.

    Args:
        files: what they are.
        foreign: another attempt's, whose objects may go at any time.
    """

    def __init__(self, files: Iterable[StoredFile] = (), *, foreign: bool = False) -> None:
        self.foreign = foreign
        self._by_path: dict[str, StoredFile] = {}
        self._by_start: dict[tuple[int, int], list[StoredFile]] = {}
        self.object_bytes: dict[str, int] = {}
        """How many bytes of each object the checkpoint has."""
        for known in files:
            if known.entry.size:
                self._by_path[known.entry.path] = known
                self._by_start.setdefault((known.entry.size, known.samples[0]), []).append(known)
            for piece in known.pieces:
                self.object_bytes[piece.key] = self.object_bytes.get(piece.key, 0) + piece.size

    def __bool__(self) -> bool:
        return bool(self._by_path)

    def match(self, file: LocalFile, descriptor: int, found: Fingerprint) -> tuple[Match | None, bool]:
        """Return what of a file is stored, and whether anything resembled it; digests are added to `found`.

        Raises:
            CheckpointError: the file cannot be read.
        """
        starts, known_digests = found
        candidates = [known for known in self._by_start.get((file.size, starts[0]), ()) if known.samples == starts]
        named = self._by_path.get(file.path)
        if named is not None and named not in candidates and block_bytes(named.entry.size) == block_bytes(file.size):
            candidates.append(named)
        resembles = False
        best: Match | None = None
        for known in candidates:
            same = []
            for block in range(min(len(starts), len(known.samples))):
                span = block_span(file.size, block)
                if starts[block] != known.samples[block] or span != block_span(known.entry.size, block):
                    continue
                resembles = True
                stored = known.digest(block)
                if stored is None:
                    continue
                if block not in known_digests:
                    known_digests |= digests(file, descriptor, [block])
                if known_digests[block] == stored:
                    same.append(block)
            if same and (best is None or len(same) > len(best.same)):
                best = Match(known, frozenset(same))
            if best is not None and len(best.same) == len(starts):
                break
        return best, resembles


def hash_files(
    files: Iterable[LocalFile],
    entries: Mapping[str, FileEntry],
    name: str,
    fingerprints: Mapping[str, Fingerprint],
    wanted: bool,
    stopped: Callable[[], bool],
) -> StoredFiles:
    """Read what was sent, and return it as what the next checkpoint may have in common with.

    Args:
        files: the checkpoint's files.
        entries: of its manifest, by path.
        name: the checkpoint's.
        fingerprints: what is known already, by path.
        wanted: whether digests are computed; without them the next checkpoint can only resemble this one.
        stopped: ends it before it is done.
    """
    found = []
    for file, descriptor in opened(files):
        if stopped():
            break
        starts, known = fingerprints.get(file.path) or (samples(file, descriptor), {})
        if wanted:
            missing = [block for block in range(len(starts)) if block not in known]
            for block in missing:
                if stopped():
                    break
                known |= digests(file, descriptor, [block])
        found.append(StoredFile(entries[file.path], name, (starts, known)))
    return StoredFiles(found)


def compare_copies(files: Iterable[LocalFile], entries: Mapping[str, FileEntry], name: str) -> StoredFiles:
    """Return what is known of another attempt's checkpoint from this machine's copy of it."""
    found: list[StoredFile] = []
    for file in files:
        entry = entries.get(file.path)
        try:
            if entry is None or os.stat(file.place).st_size != entry.size:
                continue
            for one, descriptor in opened([file]):
                found.append(StoredFileCopy(entry, name, one, samples(one, descriptor)))
        except (OSError, CheckpointError):
            continue  # the user has removed it: nothing is known of it
    return StoredFiles(found, foreign=True)
