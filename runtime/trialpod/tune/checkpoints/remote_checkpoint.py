"""Checkpoints at URIs: plain folders below ``s3://`` or ``file://``, and those that trials have written there.

Invariant: a trial's checkpoint is found by its manifest, and verified when it is read; a plain folder is not.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from trialpod.errors import CheckpointError, InvalidInputError, StorageError
from trialpod.storage.base import KeyMissingError, Storage
from trialpod.storage.layout import MANIFEST_FILE, checkpoint_index
from trialpod.storage.registry import local_folder, open_storage
from trialpod.tune.checkpoints.checkpoint import METADATA_FILE, Checkpoint


def from_uri(uri: str) -> Checkpoint:
    """Return the checkpoint at a URI; see `Checkpoint.from_uri`."""
    folder = _local(uri)
    if folder is not None:
        return Checkpoint(folder)
    trial, _, name = uri.rstrip("/").rpartition("/")
    if checkpoint_index(name) is None or not open_storage(trial).exists(f"{name}/{MANIFEST_FILE}"):
        return Checkpoint(uri.rstrip("/"))
    from trialpod.storage.checkpoints.store import CheckpointStore
    from trialpod.tune.checkpoints.stored_checkpoint import StoredCheckpoint

    storage = open_storage(trial)
    for info in CheckpointStore(storage).committed():
        if info.name == name:
            return StoredCheckpoint(trial, info, storage)
    raise CheckpointError(f"the manifest of the checkpoint {uri} is damaged; take an earlier checkpoint of the trial")


def to_uri(checkpoint: Checkpoint, uri: str) -> str:
    """Copy a checkpoint to a URI and return it."""
    folder = _local(uri)
    if folder is not None:
        checkpoint.to_directory(folder)
        return uri
    with checkpoint.as_directory() as source:
        open_storage(uri).put_directory(Path(source), "")
    return uri


def download(uri: str, target: str | os.PathLike[str] | None) -> str:
    """Copy the folder at a URI into a directory and return its path.

    Raises:
        CheckpointError: there is nothing at the URI.
    """
    folder = tempfile.mkdtemp(prefix="trialpod-checkpoint-") if target is None else os.fspath(target)
    os.makedirs(folder, exist_ok=True)
    try:
        _storage(uri).get_directory("", Path(folder))
    except KeyMissingError:
        raise CheckpointError(f"there is no checkpoint at {uri}; it was removed or never written") from None
    return folder


def read_metadata(uri: str) -> bytes:
    """Return the metadata file of the checkpoint at a URI.

    Raises:
        FileNotFoundError: it has none.
    """
    try:
        return _storage(uri).read(METADATA_FILE)
    except KeyMissingError:
        raise FileNotFoundError(f"{uri}/{METADATA_FILE}") from None


def write_metadata(uri: str, data: bytes) -> None:
    """Write the metadata file of the checkpoint at a URI."""
    _storage(uri).write(METADATA_FILE, data)


def _storage(uri: str) -> Storage:
    try:
        return open_storage(uri)
    except StorageError as error:
        raise CheckpointError(f"the checkpoint at {uri} cannot be read: {error}") from error


def _local(uri: str) -> str | None:
    if not isinstance(uri, str) or "://" not in uri:
        raise InvalidInputError(
            f"{uri!r} is no URI; write s3://bucket/path or file:///absolute/path (for a path there is from_directory)"
        )
    try:
        folder = local_folder(uri)
    except StorageError as error:
        raise InvalidInputError(str(error)) from error
    return None if folder is None else str(folder)
