"""The objects of one trial's checkpoints in a remote storage: their keys, claims and manifests."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

import msgspec

from trialpod.errors import CheckpointError, StorageError
from trialpod.storage.base import KeyMissingError, Storage, StorageUnavailableError
from trialpod.storage.checkpoints import manifest as manifests
from trialpod.storage.checkpoints.manifest import Manifest, Tombstone
from trialpod.storage.checkpoints.store import CheckpointNotFoundError, Damaged, log_damaged
from trialpod.storage.layout import CLAIM_FILE, MANIFEST_FILE, checkpoint_index

logger = logging.getLogger(__name__)


class Claim(msgspec.Struct, omit_defaults=True):
    """Says which attempt may write below a checkpoint's name.

    Attributes:
        attempt: its number.
        token: of the store that it uses.
        parts: names of objects that may be sent in parts, below the checkpoint's.
    """

    attempt: int
    token: str
    parts: list[str] = []


class CheckpointObjects:
    """What is stored below a trial's directory. Manifests never change, so they are read once.

    Args:
        storage: the trial's directory.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._manifests: dict[str, Manifest] = {}

    def keys(self) -> dict[str, set[str]]:
        """Return the keys that there are, by the name of their checkpoint."""
        found: dict[str, set[str]] = {}
        for key in self._storage.list():
            name, separator, _ = key.partition("/")
            if separator and checkpoint_index(name) is not None:
                found.setdefault(name, set()).add(key)
        return found

    def referenced(self, keys: Mapping[str, set[str]], *, without: Collection[str]) -> set[str]:
        """Return the keys of all objects that manifests among `keys` refer to, but those of `without`."""
        found: set[str] = set()
        for name, present in keys.items():
            if name not in without and f"{name}/{MANIFEST_FILE}" in present:
                manifest = self.find_manifest(name)
                if manifest is not None:
                    found |= manifest.object_keys()
        return found

    def manifest(self, name: str) -> Manifest:
        """Return a checkpoint's manifest.

        Raises:
            CheckpointNotFoundError: there is no such checkpoint, or only its tombstone.
            CheckpointError: it is incomplete or damaged.
        """
        found = self._manifests.get(name)
        if found is not None:
            return found
        where = f"{name} in {self._storage.uri}"
        try:
            data = self._storage.read(f"{name}/{MANIFEST_FILE}")
        except KeyMissingError as error:
            if self._storage.list(name):
                raise CheckpointError(f"{where} is incomplete: it has no manifest") from error
            raise CheckpointNotFoundError(f"{where} does not exist") from error
        decoded = manifests.decode(data, where)
        if isinstance(decoded, Tombstone):
            raise CheckpointNotFoundError(f"{where} does not exist: it was given up before it was complete")
        if decoded.checkpoint.name != name:
            raise CheckpointError(f"{where} is damaged: it has the manifest of {decoded.checkpoint.name}")
        self._manifests[name] = decoded
        return decoded

    def find_manifest(self, name: str, damaged: Damaged = log_damaged) -> Manifest | None:
        """Return a checkpoint's manifest; None if there is none, or `damaged` was called for it."""
        try:
            return self.manifest(name)
        except CheckpointNotFoundError:
            return None
        except CheckpointError as error:
            damaged(name, error)
            return None

    def remember(self, manifest: Manifest) -> None:
        """Take a manifest that has just been written."""
        self._manifests[manifest.checkpoint.name] = manifest

    def forget(self, name: str) -> None:
        """Read a checkpoint's manifest again when it is asked for."""
        self._manifests.pop(name, None)

    def claim(self, name: str) -> Claim | None:
        """Return who may write a checkpoint; None if it was not begun."""
        try:
            return msgspec.json.decode(self._storage.read(f"{name}/{CLAIM_FILE}"), type=Claim)
        except (KeyMissingError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def owner(self, name: str, present: Collection[str]) -> int:
        """Return the number of the attempt that wrote, or began, the checkpoint with these keys; 0 if unknown."""
        if f"{name}/{MANIFEST_FILE}" in present:
            manifest = self.find_manifest(name)
            return manifest.checkpoint.attempt if manifest is not None else 0
        claim = self.claim(name) if f"{name}/{CLAIM_FILE}" in present else None
        return claim.attempt if claim is not None else 0

    def abort_uploads(self, name: str) -> None:
        """Remove the parts of uploads that were in progress when their process ended; MinIO wants exact names."""
        claim = self.claim(name)
        names = [f"{name}/{part}" for part in claim.parts] if claim is not None else []
        try:
            self._storage.abort_uploads([f"{name}/", *names])
        except StorageUnavailableError:
            raise
        except StorageError as error:
            logger.debug("unfinished uploads are left to the server: %s", error)
