"""The manifest of a checkpoint: a JSON file inside it, written last, that makes it exist.

``{"manifest": {...}, "crc32": n}``: the number is the CRC-32 of the bytes of the ``manifest`` value as they are in
the file, so that damage to the manifest itself is found too.

Format 1: every file is in its own place, ``checkpoint_000003/path``. Format 2: some are elsewhere: `FileEntry.at`
names the object of an earlier checkpoint of the trial, or a pack of several small files, in which they are. Format 3:
the bytes of some files are in several objects, as `FileEntry.pieces` lists them.

In a remote storage a *tombstone* may stand where a manifest would: ``{"tombstone": {"time": seconds}}``. It says that
this checkpoint was given up, and keeps an attempt that is still writing it from completing it.

Invariants: the file is valid JSON for any reader (metrics that are not finite are named in ``not_finite``); unknown
fields are ignored; a manifest states the lowest format that a reader has to know, and one of a newer format is
refused, never guessed at; no path in it leads out of the checkpoint, or of the trial's directory.
"""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

from trialpod.errors import CheckpointError
from trialpod.protocol.messages import CheckpointInfo
from trialpod.protocol.values import readable
from trialpod.storage.file_tree import CHECKSUM, FileEntry, Piece

MANIFEST_FORMAT = 3
"""The newest format that is read and written here."""

_NOT_FINITE = frozenset({"nan", "inf", "-inf"})


class Manifest(msgspec.Struct, kw_only=True):
    """What a checkpoint consists of."""

    format: int = 1
    checksum: str = CHECKSUM  # how `FileEntry.checksum` was computed
    checkpoint: CheckpointInfo
    not_finite: dict[str, str] = {}  # metrics that JSON has no number for: "nan", "inf" or "-inf"
    folders: list[str] = []
    files: list[FileEntry] = []


class _Sealed(msgspec.Struct):
    manifest: msgspec.Raw
    crc32: int


class _Tombstone(msgspec.Struct):
    time: float


class _Given(msgspec.Struct):
    tombstone: _Tombstone | None = None


class _Format(msgspec.Struct):
    format: int
    checksum: str


def _readable(value: Any) -> Any:
    simple = readable(value)
    return repr(value) if simple is value else simple


_encoder = msgspec.json.Encoder(enc_hook=_readable)


def encode(info: CheckpointInfo, folders: list[str], files: list[FileEntry]) -> bytes:
    """Return the bytes of the manifest file of a checkpoint."""
    not_finite = {
        key: repr(float(value)) for key, value in info.metrics.items() if isinstance(value, float) and value - value
    }
    needed = 3 if any(file.pieces for file in files) else 2 if any(file.at for file in files) else 1
    body = _encoder.encode(
        Manifest(format=needed, checkpoint=info, not_finite=not_finite, folders=folders, files=files)
    )
    return _encoder.encode(_Sealed(msgspec.Raw(body), zlib.crc32(body))) + b"\n"


def decode(data: bytes, where: str) -> Manifest:
    """Return the manifest in `data`; raise CheckpointError, naming `where`, if it is damaged or of a newer format."""
    try:
        sealed = msgspec.json.decode(data, type=_Sealed)
        body = bytes(sealed.manifest)
        if zlib.crc32(body) != sealed.crc32:
            raise CheckpointError(f"{where} is damaged: its checksum does not match its content")
        kind = msgspec.json.decode(body, type=_Format)
        if kind.format > MANIFEST_FORMAT or kind.checksum != CHECKSUM:
            raise CheckpointError(
                f"{where} has format {kind.format} with checksum {kind.checksum!r}, which this version of trialpod "
                f"cannot read (it reads up to format {MANIFEST_FORMAT} with {CHECKSUM!r}); update trialpod"
            )
        manifest = msgspec.json.decode(body, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{where} is damaged: {error}") from error
    if why := _impossible(manifest):
        raise CheckpointError(f"{where} is damaged: {why}")
    for key, value in manifest.not_finite.items():
        if value not in _NOT_FINITE:
            raise CheckpointError(f"{where} is damaged: the metric {key!r} is {value!r}")
        manifest.checkpoint.metrics[key] = float(value)
    return manifest


def _impossible(manifest: Manifest) -> str:
    """Return what cannot be: a place outside of the checkpoint or the trial's directory, a size below zero."""
    if manifest.format < 1:
        return f"it has format {manifest.format}"
    for folder in manifest.folders:
        if not _is_inside(folder):
            return f"it names the folder {folder!r:.100}"
    for file in manifest.files:
        if not _is_inside(file.path) or file.size < 0:
            return f"it names a file {file.path!r:.100} of {file.size} bytes"
        for piece in file.pieces or ((Piece(file.at, file.offset, file.size),) if file.at else ()):
            if not _is_inside(piece.at) or piece.offset < 0 or piece.size < 0:
                return f"{file.path!r:.100} is to be at {piece.offset} of {piece.at!r:.100}"
    return ""


def _is_inside(path: str) -> bool:
    return "\0" not in path and not any(part in ("", ".", "..") for part in path.split("/"))


def encode_tombstone(time: float) -> bytes:
    """Return what to write in place of the manifest of a checkpoint that was given up at `time` (epoch seconds)."""
    return _encoder.encode(_Given(_Tombstone(time))) + b"\n"


def tombstone_time(data: bytes) -> float | None:
    """Return when the checkpoint was given up, if `data` is a tombstone; None if it is anything else."""
    if b'"tombstone"' not in data[:64]:
        return None
    try:
        found = msgspec.json.decode(data, type=_Given).tombstone
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return None if found is None else found.time
