"""The storage interface; `trialpod.storage.registry` finds the class for a URI.

A storage maps relative POSIX keys ("trial/params.json") to bytes. Invariants of every implementation:

* `write` replaces a value as a whole: a reader, or a crash at any instruction, sees the old value or the new one.
* `write_new` lets exactly one of several concurrent writers win, `write_if` one of those that replace one version.
* A key never leaves the storage's root: absolute keys and ".." are refused.
* What a call has returned for survives the death of this process; a directory storage has also synced it to disk.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar, Protocol

from trialpod.errors import StorageError
from trialpod.storage.options import StorageOptions

_FULL = (errno.ENOSPC, errno.EDQUOT)


class KeyMissingError(StorageError):
    """The storage has nothing under this key."""


class KeyExistsError(StorageError):
    """`Storage.write_new` found the key taken."""


class KeyChangedError(StorageError):
    """`Storage.write_if` found another version than the one that it was to replace."""


class ConditionalWriteUnsupportedError(StorageError):
    """The storage cannot make a replacement depend on what it replaces."""


class StorageUnavailableError(StorageError):
    """The storage cannot be reached or refuses for now: the same call may succeed later."""


class StorageDeniedError(StorageUnavailableError):
    """The storage knows the caller and denies access until permission is granted."""


class StorageCredentialsError(StorageUnavailableError):
    """The storage refuses the keys until others are set."""


class Storage(Protocol):
    """Where an experiment's files are. Keys are relative POSIX paths; a prefix is a key that names a folder.

    Attributes:
        is_shared: every pod of a cluster, and the operator, see the same values.
        has_conditional_writes: `write_new` and `write_if` let one of several concurrent writers win; the journal of
            an experiment in a cluster needs it.
        has_options: it takes `StorageOptions`: an endpoint, credentials.
        has_scoped_credentials: its server hands out short-lived credentials for a part of it (S3's AssumeRole).
        example: a URI of it, for messages.
    """

    is_shared: ClassVar[bool] = False
    has_conditional_writes: ClassVar[bool] = False
    has_options: ClassVar[bool] = False
    has_scoped_credentials: ClassVar[bool] = False
    example: ClassVar[str] = ""

    @classmethod
    def open(cls, uri: str, options: StorageOptions | None = None, *, check: bool = True) -> Storage:
        """Return the storage that a normalized URI names; see `trialpod.storage.registry.open_storage`."""
        ...

    @classmethod
    def preload(cls) -> None:
        """Import what `open` will need: called where processes are forked that will open one."""
        return

    @classmethod
    def normalize_uri(cls, uri: str) -> str:
        """Return `uri` as it is stored and compared.

        Raises:
            InvalidInputError: it names no place.
        """
        return uri

    @classmethod
    def check_uri(cls, uri: str) -> None:
        """Refuse a URI that can name no place, without asking any server.

        Raises:
            InvalidInputError: it says what is wrong.
        """
        return

    @classmethod
    def folder_of(cls, uri: str) -> Path | None:
        """Return the folder of this machine that `uri` names; None for a remote storage."""
        return None

    @property
    def uri(self) -> str:
        """What a user would write to name this place."""
        ...

    def read(self, key: str) -> bytes:
        """Return the value of `key`; raise `KeyMissingError` if there is none."""
        ...

    def write(self, key: str, data: bytes) -> None:
        """Set `key` to `data`, replacing what was there as a whole."""
        ...

    def write_new(self, key: str, data: bytes) -> None:
        """Set `key` to `data`; raise `KeyExistsError`, and change nothing, if it has a value."""
        ...

    def read_version(self, key: str) -> tuple[bytes, str]:
        """Return the value of `key` and its version, for `write_if`; raise `KeyMissingError` if there is none.

        Equal values may have the same version, so a value that was there before may have an earlier one's.
        """
        ...

    def write_if(self, key: str, data: bytes, version: str | None) -> str:
        """Set `key` to `data` where it has this version still; return the version that it has now.

        Args:
            key: what to set.
            data: to what.
            version: as `read_version` or an earlier `write_if` gave it; None where the key must have no value.

        Raises:
            KeyChangedError: it has another version, or none; nothing was changed.
            ConditionalWriteUnsupportedError: the server knows no such condition; nothing was changed.
        """
        ...

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Return `length` bytes of the value of `key` from byte `start` on; fewer where the value ends before.

        Raises:
            KeyMissingError: there is no such key.
        """
        ...

    def put_file(self, local: Path, key: str) -> int:
        """Set `key` to the content of a local file, which must not change meanwhile, and return its CRC-32.

        A reader sees nothing or the whole. Large files are sent in parts, several at a time, with bounded memory.
        """
        ...

    def copy(self, source: str, key: str) -> None:
        """Set `key` to the value of the key `source`, whose bytes do not travel through this machine.

        Raises:
            KeyMissingError: there is no `source`.
            StorageError: it is too large to be copied so.
        """
        ...

    def get_file(self, key: str, local: Path, *, size: int | None = None) -> int:
        """Write the value of `key` to a local file, whose folder must exist, and return the bytes' CRC-32.

        The bytes go directly into the file, for large values in several parts at a time; a file that was there is
        replaced first. After an error there is no file.

        Args:
            key: where from.
            local: the file.
            size: the value's size in bytes where it is known; it saves a request, and StorageError if it is another.

        Raises:
            KeyMissingError: there is no such key.
        """
        ...

    def exists(self, key: str) -> bool:
        """Tell whether `key` has a value, or is the prefix of one."""
        ...

    def list(self, prefix: str = "") -> list[str]:
        """Return all keys below the folder `prefix` (all keys for ""), sorted; none if it does not exist."""
        ...

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Return what `list` returns, in the same order, with the size of each value in bytes."""
        ...

    def sample_keys(self, prefix: str = "", *, limit: int = 1000) -> Sequence[str]:
        """Return up to `limit` of the keys that `list` returns, without looking at all; none only if there are none.

        Args:
            prefix: the folder.
            limit: at most 1,000.
        """
        ...

    def folders(self, prefix: str = "") -> Sequence[str]:
        """Return the names of the folders directly below the folder `prefix`, sorted; none if it does not exist.

        A storage that can ask for them alone should: this one goes through all keys.
        """
        start = len(prefix) + 1 if prefix else 0
        return sorted({key[start:].partition("/")[0] for key in self.list(prefix) if "/" in key[start:]})

    def delete(self, key: str) -> None:
        """Remove `key`; nothing happens if it has no value."""
        ...

    def delete_if(self, key: str, version: str) -> None:
        """Remove `key` where it has this version still, as `read_version` gave it; else nothing happens.

        Each try looks first: one that is repeated, because its answer was lost, removes nothing that came after it.
        """
        try:
            found = self.read_version(key)[1]
        except KeyMissingError:
            return
        if found == version:
            self.delete(key)

    def delete_many(self, keys: Iterable[str]) -> None:
        """Remove these keys; those without a value are passed over. Not atomic as a whole."""
        ...

    def delete_tree(self, prefix: str) -> None:
        """Remove all keys below the folder `prefix`; nothing happens if there are none."""
        ...

    def put_directory(self, local: Path, prefix: str) -> None:
        """Copy the files below the local folder `local` to keys below `prefix`. Not atomic as a whole."""
        ...

    def get_directory(self, prefix: str, local: Path) -> None:
        """Copy all keys below `prefix` to files below `local`; raise `KeyMissingError` if there are none."""
        ...

    def abort_uploads(self, prefixes: Iterable[str]) -> int:
        """Remove what uploads in parts that will never be completed left on the server, and return their number.

        Args:
            prefixes: what their keys start with. Some servers (MinIO) find an upload only by its whole key.
        """
        ...

    def local_path(self, key: str) -> Path | None:
        """Return where `key` is on this machine's disk; None for a remote storage."""
        ...

    def sub(self, prefix: str) -> Storage:
        """Return the storage whose root is the folder `prefix` of this one."""
        ...

    def parent(self) -> Storage:
        """Return the storage whose root is the folder that this one's root is in.

        Raises:
            StorageError: there is none.
        """
        ...

    def close(self) -> None:
        """Close the connections, also those that storages made by `sub` use; later calls make new ones."""
        ...


def checked_key(key: str, *, root_allowed: bool = False) -> str:
    """Return `key` if it is a relative POSIX path without "." and ".." parts; raise StorageError otherwise."""
    if key == "" and root_allowed:
        return key
    if "\0" in key or any(part in ("", ".", "..") for part in key.split("/")):
        raise StorageError(
            f"invalid storage key {key!r}: keys are relative paths such as 'trial/params.json', "
            "without empty, '.' or '..' parts"
        )
    return key


def storage_error(error: OSError, doing: str, path: str | os.PathLike[str], needed: int = 0) -> StorageError:
    """Turn an OSError into a StorageError that says what to do; for a full disk, with the space needed and free.

    Args:
        error: what the operating system said.
        doing: what was attempted, e.g. "cannot write".
        path: the file or folder concerned.
        needed: bytes that the operation still needed, 0 if unknown.
    """
    name = os.fspath(path)
    if error.errno not in _FULL:
        return StorageError(f"{doing} {name}: {error.strerror or error}")
    try:
        folder = name if os.path.isdir(name) else os.path.dirname(name) or "."
        volume = os.statvfs(folder)
        free = f"{_size(volume.f_bavail * volume.f_frsize)} free"
    except OSError:
        free = "free space unknown"
    reason = "disk quota exceeded" if error.errno == errno.EDQUOT else "no space left on the device"
    need = f"{_size(needed)} needed, " if needed else ""
    return StorageError(f"{doing} {name}: {reason} ({need}{free}); free some space or use another storage path")


def _size(count: int) -> str:
    if count < 10_000:
        return f"{count} bytes"
    if count < 10_000_000:
        return f"{count / 1e3:.1f} kB"
    return f"{count / 1e6:.1f} MB" if count < 10_000_000_000 else f"{count / 1e9:.1f} GB"
