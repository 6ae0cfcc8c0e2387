"""``experiment.json``: what is known of an experiment besides its journal, for people, tools and the next start.

Written at each start. It keeps the seed that was chosen when the user gave none, and the manifest, so that a start
with another one can be distinguished from a mere change of budget.

It names the experiment's journal by an id, drawn when a location in a storage is claimed: the journal's objects are
below that id. So what a process that was stopped for long adds to the journal of an experiment that was deleted
meanwhile is not in the way of the experiment that is at this location now.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trialpod.errors import InvalidInputError, format_mismatch
from trialpod.storage.base import ConditionalWriteUnsupportedError, KeyMissingError, Storage, storage_error
from trialpod.storage.file_tree import write_synced
from trialpod.storage.layout import EXPERIMENT_FILE, EXPERIMENT_KEY, TRIALPOD_DIR
from trialpod_operator.api.inspection import changeable, fixed_part
from trialpod_operator.api.trial_resource.kinds import group_of

FORMAT_VERSION = 1

JOURNAL_ID = "journal"
"""Key of the document: the id of the experiment's journal."""

_ID = re.compile(r"[0-9a-f]{16}")

_TYPES: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "total": (int, type(None)),
    "storage": (str,),
    "manifest": (dict, type(None)),
    "namespace": (str,),
    JOURNAL_ID: (str,),
}


def draw_journal_id() -> str:
    """Return an id for the journal of an experiment that begins."""
    return os.urandom(8).hex()


def read_stored(directory: Path) -> dict[str, Any] | None:
    """Return what is stored of the experiment in `directory`, None when there is none.

    Raises:
        InvalidInputError: the file is damaged, or of a newer version.
    """
    path = directory / TRIALPOD_DIR / EXPERIMENT_FILE
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise storage_error(error, "cannot read", path) from error
    return _decoded(data, str(path), f"move {directory} away to start again")


def journal_id(data: bytes, where: str) -> str:
    """Return the id of the journal that a document in a storage names.

    Args:
        data: the document.
        where: the experiment's location.

    Raises:
        InvalidInputError: it is damaged, of a newer version, or names none.
    """
    path, otherwise = f"{where}/{EXPERIMENT_KEY}", "delete what is at this location to start again"
    found = _decoded(data, path, otherwise).get(JOURNAL_ID)
    if found is None:
        raise _damaged(path, "it does not name the journal", otherwise)
    return str(found)


def _decoded(data: bytes, path: str, otherwise: str) -> dict[str, Any]:
    try:
        stored: dict[str, Any] = json.loads(data)
        version = stored["version"]
        if type(version) is not int or version < 1:
            raise ValueError(f"its version is {version!r:.40}")
        mismatch = None if version == FORMAT_VERSION else format_mismatch(path, version, FORMAT_VERSION)
        if mismatch is None:
            _check_types(stored)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(path, error, otherwise) from error
    if mismatch is not None:
        raise InvalidInputError(mismatch)
    return stored


def _damaged(path: str, why: object, otherwise: str) -> InvalidInputError:
    return InvalidInputError(f"{path} cannot be read ({why}); restore it from a backup, or {otherwise}")


def _check_types(stored: dict[str, Any]) -> None:
    for key, kinds in _TYPES.items():
        if key in stored and type(stored[key]) not in kinds:
            raise ValueError(f"its {key} is {stored[key]!r:.40}")
    if JOURNAL_ID in stored and not _ID.fullmatch(stored[JOURNAL_ID]):
        raise ValueError(f"its {JOURNAL_ID} is {stored[JOURNAL_ID]!r:.40}")


def stored_namespace(storage: Storage) -> str:
    """Return whose the experiment in a place is: a namespace, or "" when nothing says so.

    Raises:
        StorageError: the storage cannot be read.
    """
    try:
        return namespace_in(storage.read(EXPERIMENT_KEY))
    except KeyMissingError:
        return ""


def namespace_in(data: bytes) -> str:
    """Return whose the experiment is that is stored like this: a namespace, or "" when nothing says so."""
    found = (_document(data) or {}).get("namespace")
    return found if isinstance(found, str) else ""


def stored_in(storage: Storage) -> dict[str, Any] | None:
    """Return what is stored of the experiment in a storage, None when there is none that can be read.

    Raises:
        StorageError: the storage cannot be read.
    """
    try:
        return _document(storage.read(EXPERIMENT_KEY))
    except KeyMissingError:
        return None


def _document(data: bytes) -> dict[str, Any] | None:
    try:
        stored = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return stored if isinstance(stored, dict) else None


def write_stored(directory: Path, stored: dict[str, Any]) -> None:
    """Write the file, wholly or not at all.

    It names the journal that the file named before, unless the document names one itself; the first names a new one.

    Raises:
        InvalidInputError: the file that is there is damaged, or of a newer version.
        StorageError: it cannot be written.
    """
    if JOURNAL_ID not in stored:
        before = read_stored(directory) or {}
        stored = {**stored, JOURNAL_ID: before.get(JOURNAL_ID) or draw_journal_id()}
    folder = directory / TRIALPOD_DIR
    temporary = folder / f"{EXPERIMENT_FILE}.tmp"
    data = _encoded(stored)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_synced(os.fspath(temporary), data)
        os.replace(temporary, folder / EXPERIMENT_FILE)
    except OSError as error:
        raise storage_error(error, "cannot write", folder / EXPERIMENT_FILE, len(data)) from error


def replace_stored(storage: Storage, document: dict[str, Any], refuse: Callable[[], None]) -> None:
    """Replace the file in a storage; where it is not, the experiment was deleted, and nothing is written.

    It names the same journal as before.

    Args:
        storage: the experiment's.
        document: what it is to hold.
        refuse: raises when another process owns it; called when it is known what is replaced.

    Raises:
        KeyChangedError: another process has just replaced it.
        StorageError: it is not there, or the storage takes nothing.
    """
    before, version = storage.read_version(EXPERIMENT_KEY)
    refuse()
    data = _encoded({**document, JOURNAL_ID: journal_id(before, storage.uri)})
    try:
        storage.write_if(EXPERIMENT_KEY, data, version)
    except ConditionalWriteUnsupportedError:
        storage.write(EXPERIMENT_KEY, data)


def release_claim(storage: Storage) -> None:
    """Delete the file from a location where nothing else is stored.

    Raises:
        StorageError: the storage cannot be reached.
    """
    with contextlib.closing(storage):
        if set(storage.sample_keys(limit=2)) == {EXPERIMENT_KEY}:
            storage.delete(EXPERIMENT_KEY)


def _encoded(document: dict[str, Any]) -> bytes:
    return (json.dumps({"version": FORMAT_VERSION, **document}, indent=2, default=repr) + "\n").encode()


def fixed_changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return the paths of what differs between two specs and must not, once trials exist."""
    keys = [*new, *(key for key in old if key not in new)]
    changed = [
        f"spec.{key}"
        for key in keys
        if key not in changeable("any time") and fixed_part(key, old.get(key)) != fixed_part(key, new.get(key))
    ]
    return changed + kind_changes(old, new)


def kind_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return where two specs say that trials are objects of different kinds: those that are there would be lost."""
    before, now = (each.get("trialResource") or {} for each in (old, new))
    if not before or not now:
        return [] if bool(before) == bool(now) else ["spec.trialResource"]
    kinds = [
        (group_of(str(each["template"].get("apiVersion"))), each["template"].get("kind")) for each in (before, now)
    ]
    return [] if kinds[0] == kinds[1] else ["spec.trialResource.template.kind"]
