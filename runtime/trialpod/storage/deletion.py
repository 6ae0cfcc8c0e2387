"""Deletes all that an experiment has in its storage, a bounded amount with each call.

Invariants: nothing outside the storage's root is touched; progress is kept only in what is deleted, so that a call
after a crash, or by another process, continues; the deletion is done only when a listing has found nothing, or
another experiment has begun there. The key that names the owner goes last, so that none begins there before, and is
looked at between each listing and what is deleted of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trialpod.errors import StorageError
from trialpod.storage.base import KeyMissingError, Storage, StorageUnavailableError
from trialpod.storage.layout import EXPERIMENT_KEY

_BATCH = 1000


@dataclass(frozen=True)
class Deletion:
    """Progress of a deletion.

    Attributes:
        removed: how many objects, or files, this call has removed.
        done: whether nothing of the experiment is left.
    """

    removed: int
    done: bool


def delete_experiment(
    storage: Storage,
    time_left_s: Callable[[], float],
    may_delete: Callable[[], bool] = lambda: True,
    is_own: Callable[[bytes], bool] = lambda _stored: True,
) -> Deletion:
    """Delete what is below the root of `storage` while there is time; at least one batch.

    No process may write there any more. The order does not matter: readers see an experiment that loses its parts
    until nothing is left.

    Args:
        storage: the experiment's, ``open_storage(uri).sub(name)``; never a whole bucket's.
        time_left_s: seconds that this call may still take, asked between batches of a thousand.
        may_delete: asked right before each batch is deleted, which may have been listed long ago: another process
            may have completed the deletion, and a new experiment begun in this place.
        is_own: whether a value of the key that names the owner is of the experiment to delete.

    Raises:
        StorageUnavailableError: the storage cannot be reached, or refuses for now; call again later.
        StorageError: it refuses for good.
    """
    removed = 0
    while keys := storage.sample_keys(limit=_BATCH):
        stored, version = _owner(storage)
        if stored is not None and not is_own(stored):
            return Deletion(removed, done=True)
        if not may_delete():
            return Deletion(removed, done=False)
        others = [key for key in keys if key != EXPERIMENT_KEY]
        if others:
            storage.delete_many(others)
        elif stored is not None:
            storage.delete_if(EXPERIMENT_KEY, version)
        removed += len(others or keys)
        if time_left_s() <= 0.0:
            return Deletion(removed, done=not storage.sample_keys(limit=1))
    if not may_delete():
        return Deletion(removed, done=False)
    try:
        storage.abort_uploads([""])
    except StorageUnavailableError:
        raise
    except StorageError:
        # The credentials may not list uploads. The server removes what is left of them by itself.
        return Deletion(removed, done=True)
    return Deletion(removed, done=True)


def _owner(storage: Storage) -> tuple[bytes | None, str]:
    try:
        return storage.read_version(EXPERIMENT_KEY)
    except KeyMissingError:
        return None, ""
