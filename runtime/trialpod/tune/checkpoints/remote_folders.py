"""Checkpoints at URIs: plain folders below ``s3://`` or ``file://``, and those that trials have written there.

Invariant: a trial's checkpoint is found by its manifest, and verified when it is read; a plain folder is not.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from trialpod.errors import CheckpointError, InvalidInputError, NotSupportedError, StorageError
from trialpod.protocol.messages import CheckpointInfo
from trialpod.storage.base import KeyMissingError, Storage
from trialpod.storage.layout import MANIFEST_FILE, checkpoint_index
from trialpod.storage.registry import local_folder, open_storage


def find(uri: str) -> tuple[str, CheckpointInfo, Storage] | None:
    """Return the checkpoint that a trial has written at a URI: the trial's URI, the checkpoint and the storage."""
    trial, _, name = uri.rstrip("/").rpartition("/")
    if checkpoint_index(name) is None:
        return None
    storage = open_storage(trial)
    if not storage.exists(f"{name}/{MANIFEST_FILE}"):
        return None
    from trialpod.storage.checkpoints import open_checkpoints

    for info in open_checkpoints(storage).committed():
        if info.name == name:
            return trial, info, storage
    raise CheckpointError(f"the manifest of the checkpoint {uri} is damaged; take an earlier checkpoint of the trial")


def upload(folder: str, uri: str) -> None:
    """Copy a folder to a URI of another place."""
    open_storage(uri).put_directory(Path(folder), "")


def download(uri: str, target: str | os.PathLike[str] | None) -> str:
    """Copy the folder at a URI into a directory and return its path."""
    folder = tempfile.mkdtemp(prefix="trialpod-checkpoint-") if target is None else os.fspath(target)
    try:
        os.makedirs(folder, exist_ok=True)
        _storage(uri).get_directory("", Path(folder))
    except BaseException as error:
        if target is None:
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, KeyMissingError):
            raise CheckpointError(f"there is no checkpoint at {uri}; it was removed or never written") from None
        raise
    return folder


def read_file(uri: str, name: str) -> bytes:
    """Return a file of the checkpoint at a URI."""
    try:
        return _storage(uri).read(name)
    except KeyMissingError:
        raise FileNotFoundError(f"{uri}/{name}") from None


def write_file(uri: str, name: str, data: bytes) -> None:
    """Write a file of the checkpoint at a URI.

    Raises:
        NotSupportedError: a trial has stored it: other checkpoints may refer to its files.
    """
    storage = _storage(uri)
    if storage.exists(MANIFEST_FILE):
        raise NotSupportedError(
            f"the checkpoint {uri} was stored by a trial and cannot be changed; change a copy: "
            "Checkpoint(Checkpoint.from_uri(...).to_directory())"
        )
    storage.write(name, data)


def _storage(uri: str) -> Storage:
    try:
        return open_storage(uri)
    except StorageError as error:
        raise CheckpointError(f"the checkpoint at {uri} cannot be read: {error}") from error


def local_path(uri: str) -> str | None:
    """Return the folder of this machine that a URI names, None where it names another place."""
    if not isinstance(uri, str) or "://" not in uri:
        raise InvalidInputError(
            f"{uri!r} is not a URI; write s3://bucket/path or file:///absolute/path (a path: from_directory)"
        )
    try:
        folder = local_folder(uri)
    except StorageError as error:
        raise InvalidInputError(str(error)) from error
    return None if folder is None else str(folder)
