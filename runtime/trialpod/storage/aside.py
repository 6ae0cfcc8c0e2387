"""Moves an experiment, or only its journal, to another name to make room for a new experiment of the same name.

Invariants: nothing is moved while a process runs the experiment. A directory is renamed. In a bucket, where nothing
can be renamed, the server copies every object; nothing is removed before the copy is complete, and until
then the copy does not count as an experiment.
"""

from __future__ import annotations

import contextlib
import json
import os
from functools import partial
from pathlib import Path

from trialpod.errors import InvalidInputError, StorageError
from trialpod.storage.base import KeyMissingError, Storage, storage_error
from trialpod.storage.deletion import delete_experiment
from trialpod.storage.layout import EXPERIMENT_KEY, TRIALPOD_DIR, WRITER_KEY
from trialpod.storage.lock import ExperimentLock
from trialpod.storage.parallel import run_all

LOCK_TIMEOUT_S = 10.0
"""Maximum time to wait for the processes of an ended run."""

COPY_THREADS = 8


def move_aside(directory: Path) -> Path:
    """Rename an experiment's directory to NAME.1, NAME.2, ..., the first that is free; return it.

    Raises:
        ExperimentLockedError: a process runs the experiment.
        StorageError: it cannot be renamed.
    """
    with _locked(directory):
        return _rename(directory)


def move_journal_aside(directory: Path) -> Path:
    """Rename what trialpod knows of an experiment (``.trialpod``), so that its directory takes a new experiment.

    The trials' directories stay where they are.

    Raises:
        ExperimentLockedError: a process runs the experiment.
        StorageError: it cannot be renamed.
    """
    with _locked(directory):
        return _rename(directory / TRIALPOD_DIR)


def move_aside_in_storage(storage: Storage) -> str:
    """Move an experiment in a bucket to NAME.1, NAME.2, ..., the first that is free; return its new URI.

    The caller is the writer of the experiment (`WriterClaim`); its claim is gone afterwards.

    Raises:
        StorageError: not everything can be copied; nothing was removed.
    """
    parent = storage.parent()
    name = storage.uri.rstrip("/").rpartition("/")[2]
    number = 1
    while parent.sample_keys(f"{name}.{number}", limit=1):
        number += 1
    other = f"{name}.{number}"
    keys = [key for key in storage.list() if key not in (EXPERIMENT_KEY, WRITER_KEY)]
    target = parent.sub(other)
    try:
        run_all((partial(parent.copy, f"{name}/{key}", f"{other}/{key}") for key in keys), COPY_THREADS)
        _copy_experiment(storage, target)
    except StorageError:
        with contextlib.suppress(
            StorageError
        ):  # what stays is in the way of nothing: the next copy gets another name
            target.delete_many(target.list())
        raise
    while not delete_experiment(storage, lambda: 1.0).done:
        pass
    return target.uri


def _copy_experiment(storage: Storage, target: Storage) -> None:
    """Write what names the copy, last: with its own location in it."""
    try:
        data = storage.read(EXPERIMENT_KEY)
    except KeyMissingError:
        return
    stored = json.loads(data)
    stored["storage"] = target.uri
    target.write(EXPERIMENT_KEY, json.dumps(stored, indent=2).encode() + b"\n")


def _locked(directory: Path) -> ExperimentLock:
    if not (directory / TRIALPOD_DIR).is_dir():
        raise InvalidInputError(f"{directory} holds no experiment")
    return ExperimentLock(directory).acquire(timeout_s=LOCK_TIMEOUT_S, for_orphans_only=True)


def _rename(path: Path) -> Path:
    number = 1
    while os.path.lexists(other := path.with_name(f"{path.name}.{number}")):
        number += 1
    try:
        os.rename(path, other)
    except OSError as error:
        raise storage_error(error, "cannot move aside", path) from error
    return other
