"""Renames an experiment's directory, or only its journal, to make room for a new experiment of the same name.

Invariant: nothing is renamed while a process runs the experiment, and nothing is deleted.
"""

from __future__ import annotations

import os
from pathlib import Path

from trialpod.errors import InvalidInputError
from trialpod.storage.base import storage_error
from trialpod.storage.layout import TRIALPOD_DIR
from trialpod.storage.lock import ExperimentLock

LOCK_TIMEOUT_S = 10.0
"""Maximum time to wait for the processes of an ended run."""


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
