"""Which class serves the URIs of a scheme.

Folders and S3 are built in. Another package adds a storage by one entry point, whose name is the scheme and whose
value is a class that implements `trialpod.storage.base.Storage`:

    [project.entry-points."trialpod.storages"]
    mem = "my_package.storage:MemoryStorage"

The built-in ones are in a table of their own because the metadata of all installed packages takes 10 to 50 ms to
search, in every process of a trial.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trialpod.errors import InvalidInputError, StorageError
from trialpod.storage.base import Storage
from trialpod.storage.options import StorageOptions

GROUP = "trialpod.storages"
_BUILT_IN = {
    "": "trialpod.storage.directory:DirectoryStorage",
    "file": "trialpod.storage.directory:DirectoryStorage",
    "s3": "trialpod.storage.s3.storage:S3Storage",
}
_loaded: dict[str, type[Storage]] = {}


class UnknownSchemeError(StorageError):
    """No installed package has a storage for a URI's scheme."""


def schemes() -> list[str]:
    """Return the schemes of all installed storages, sorted."""
    return sorted({scheme for scheme in _BUILT_IN if scheme} | set(_entry_points()))


def scheme_of(uri: str) -> str:
    """Return the scheme of a URI in lower case, "" for a plain path."""
    scheme, separator, _ = uri.partition("://")
    return scheme.lower() if separator else ""


def storage_class(uri: str) -> type[Storage]:
    """Return the class that serves a URI; its attributes say what the storage can do.

    Raises:
        UnknownSchemeError: no installed package has one for its scheme.
        StorageError: the class cannot be imported.
        InvalidInputError: the URI is empty.
    """
    if not uri.strip():
        raise InvalidInputError("the storage path is empty; give a folder, e.g. '~/trialpod_results'")
    scheme = scheme_of(uri)
    if scheme not in _loaded:
        _loaded[scheme] = _load(scheme, uri)
    return _loaded[scheme]


def normalize_uri(uri: str) -> str:
    """Return a URI as it is stored and compared: without a query, which its storage takes note of.

    Raises:
        StorageError: as of `storage_class`.
        InvalidInputError: it names no place.
    """
    return storage_class(uri).normalize_uri(uri)


def local_folder(uri: str) -> Path | None:
    """Return the folder that `uri` names, a plain path or ``file:///path``; None where it is not a folder.

    Raises:
        StorageError: as of `storage_class`.
        InvalidInputError: for an empty path or a URI that does not name a place.
    """
    return storage_class(uri).folder_of(uri)


def open_storage(uri: str, options: StorageOptions | None = None, *, check: bool = True) -> Storage:
    """Return the storage that `uri` names: a plain path, ``file:///path``, ``s3://bucket/prefix`` or a plug-in's.

    A folder is made when first written. A bucket must be there, unless `options` say that it may be made.

    Args:
        uri: where; ``s3://bucket/prefix?endpoint=http://host:9000`` names the server too.
        options: how to reach a remote storage; None takes them from the environment. Ignored for folders.
        check: ask the server whether the place exists; False where the credentials may not list it.

    Raises:
        StorageError: no storage is installed for the scheme; the bucket is missing, or the server refuses.
        StorageUnavailableError: the server cannot be reached.
        InvalidInputError: for an empty path or a URI that does not name a place.
    """
    found = storage_class(uri)
    return found.open(found.normalize_uri(uri), options, check=check)


def _load(scheme: str, uri: str) -> type[Storage]:
    if scheme in _BUILT_IN:
        module, _, name = _BUILT_IN[scheme].partition(":")
        found: type[Storage] = getattr(importlib.import_module(module), name)
        return found
    plug_ins = _entry_points()
    if scheme not in plug_ins:
        installed = ", ".join(f"{name}://" for name in schemes())
        raise UnknownSchemeError(
            f"storage {uri!r}: no storage for {scheme}:// is installed; there are plain paths, {installed}. "
            f"Install a package that has one, or register a class under the entry point group {GROUP!r}"
        )
    try:
        loaded: type[Storage] = plug_ins[scheme]()
    except (ImportError, AttributeError) as error:
        raise StorageError(f"storage {uri!r}: the plug-in for {scheme}:// cannot be imported: {error}") from error
    return loaded


def _entry_points() -> dict[str, Callable[[], Any]]:
    from importlib.metadata import entry_points

    return {point.name: point.load for point in entry_points(group=GROUP)}
