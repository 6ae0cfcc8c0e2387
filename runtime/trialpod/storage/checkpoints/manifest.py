"""The manifest of a checkpoint: a JSON file inside it, written last, that makes it exist.

``{"manifest": {...}, "crc32": n}``: the number is the CRC-32 of the bytes of the ``manifest`` value as they are in
the file, so that damage to the manifest itself is found too.

In a remote storage a *tombstone* may stand where a manifest would: ``{"tombstone": {"time": seconds}}``. It says that
this checkpoint was given up, and keeps an attempt that is still writing it from completing it.

Invariants: the file is valid JSON for any reader (metrics that are not finite are named in ``not_finite``); unknown
fields are ignored; a manifest of another format version is refused, never guessed at; no path in it leads out of the
checkpoint, or of the trial's directory.
"""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

from trialpod.errors import CheckpointError, format_mismatch
from trialpod.protocol.messages import CheckpointInfo
from trialpod.protocol.values import readable

FORMAT_VERSION = 1
_CHECKSUM = "crc32"
_NOT_FINITE = frozenset({"nan", "inf", "-inf"})


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Some bytes of an object: its key below the trial's directory, where they start, and how many."""

    key: str
    offset: int
    size: int


class FileEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file of a checkpoint: its path with "/" between the parts, its bytes and its checksum.

    The other fields are set where the file is not an object of its own in a remote storage; see
    `trialpod.storage.checkpoints.remote`.
    """

    path: str
    size: int
    checksum: int  # CRC-32
    key: str = ""  # of its object below the trial's directory, when that is not its own location
    offset: int = 0  # where in that object it starts
    pieces: tuple[Piece, ...] = ()  # its bytes, one range after another, when they are in several objects
    stored_bytes: int = 0  # maximum size of all objects that `pieces` refer to

    def ranges(self, checkpoint: str) -> tuple[Piece, ...]:
        """Return where its bytes are, one range after another, in the checkpoint of this name."""
        return self.pieces or (Piece(self.key or f"{checkpoint}/{self.path}", self.offset, self.size),)


class Manifest(msgspec.Struct, kw_only=True):
    """What a checkpoint consists of."""

    format: int = FORMAT_VERSION
    checksum: str = _CHECKSUM  # how `FileEntry.checksum` was computed
    checkpoint: CheckpointInfo
    not_finite: dict[str, str] = {}  # metrics that JSON has no number for: "nan", "inf" or "-inf"
    folders: list[str] = []
    files: list[FileEntry] = []

    def object_keys(self) -> set[str]:
        """Return the keys of all objects that the files refer to."""
        return {piece.key for file in self.files for piece in file.ranges(self.checkpoint.name)}


class Tombstone(msgspec.Struct):
    """A later attempt gave this checkpoint up, at `time` (seconds since the epoch)."""

    time: float


class _File(msgspec.Struct, omit_defaults=True):
    manifest: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    crc32: int = 0
    tombstone: Tombstone | None = None


class _Format(msgspec.Struct):
    format: int


def _readable(value: Any) -> Any:
    simple = readable(value)
    return repr(value) if simple is value else simple


_encoder = msgspec.json.Encoder(enc_hook=_readable)


def encode(info: CheckpointInfo, folders: list[str], files: list[FileEntry]) -> bytes:
    """Return the bytes of the manifest file of a checkpoint."""
    not_finite = {
        key: repr(float(value)) for key, value in info.metrics.items() if isinstance(value, float) and value - value
    }
    body = _encoder.encode(Manifest(checkpoint=info, not_finite=not_finite, folders=folders, files=files))
    return _encoder.encode(_File(msgspec.Raw(body), zlib.crc32(body))) + b"\n"


def encode_tombstone(time: float) -> bytes:
    """Return what to write in place of the manifest of a checkpoint that is given up at `time` (epoch seconds)."""
    return _encoder.encode(_File(tombstone=Tombstone(time))) + b"\n"


def decode(data: bytes, where: str) -> Manifest | Tombstone:
    """Return what a manifest file says; raise CheckpointError, naming `where`, if it cannot be read here."""
    try:
        file = msgspec.json.decode(data, type=_File)
        if file.tombstone is not None:
            return file.tombstone
        if isinstance(file.manifest, msgspec.UnsetType):
            raise CheckpointError(f"{where} is damaged: it has no manifest")
        body = bytes(file.manifest)
        if zlib.crc32(body) != file.crc32:
            raise CheckpointError(f"{where} is damaged: its checksum does not match its content")
        mismatch = format_mismatch(where, msgspec.json.decode(body, type=_Format).format, FORMAT_VERSION)
        if mismatch is not None:
            raise CheckpointError(mismatch)
        manifest = msgspec.json.decode(body, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{where} is damaged: {error}") from error
    problem = _problem(manifest)
    if problem is not None:
        raise CheckpointError(f"{where} is damaged: {problem}")
    for key, value in manifest.not_finite.items():
        manifest.checkpoint.metrics[key] = float(value)
    return manifest


def _problem(manifest: Manifest) -> str | None:
    """Return what is impossible: a path outside of the checkpoint or the trial's directory, a negative size."""
    if manifest.checksum != _CHECKSUM:
        return f"its checksums are {manifest.checksum!r:.100}, not {_CHECKSUM!r}"
    for folder in manifest.folders:
        if not _is_inside(folder):
            return f"it names the folder {folder!r:.100}"
    for file in manifest.files:
        if not _is_inside(file.path) or file.size < 0:
            return f"it names a file {file.path!r:.100} of {file.size} bytes"
        for piece in file.ranges(manifest.checkpoint.name):
            if not _is_inside(piece.key) or piece.offset < 0 or piece.size < 0:
                return f"{file.path!r:.100} is to be at {piece.offset} of {piece.key!r:.100}"
    for key, value in manifest.not_finite.items():
        if value not in _NOT_FINITE:
            return f"the metric {key!r} is {value!r}"
    return None


def _is_inside(path: str) -> bool:
    return "\0" not in path and not any(part in ("", ".", "..") for part in path.split("/"))
