"""Deletes all that an experiment has in its storage, a bounded amount with each call.

Invariants: nothing outside the storage's root is touched; progress is kept only in what is deleted, so that a call
after a crash, or by another process, continues; the deletion is done only when a listing has found nothing. The key
that names the owner goes last, so that no other experiment begins there before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trialpod.errors import StorageError
from trialpod.storage.base import Storage, StorageUnavailableError
from trialpod.storage.layout import EXPERIMENT_KEY

_BATCH = 1000


@dataclass(frozen=True)
class Deletion:
    """Progress of a deletion.

    Attributes:
        removed: how many objects, or files, this call has removed.
        done: whether nothing is left.
    """

    removed: int
    done: bool


def delete_experiment(
    storage: Storage, time_left_s: Callable[[], float], may_delete: Callable[[], bool] = lambda: True
) -> Deletion:
    """Delete what is below the root of `storage` while there is time; at least one batch.

    No process may write there any more. The order does not matter: readers see an experiment that loses its parts
    until nothing is left.

    Args:
        storage: the experiment's, ``open_storage(uri).sub(name)``; never a whole bucket's.
        time_left_s: seconds that this call may still take, asked between batches of a thousand.
        may_delete: asked right before each batch is deleted, which may have been listed long ago: another process
            may have completed the deletion, and a new experiment begun in this place.

    Raises:
        StorageUnavailableError: the storage cannot be reached, or refuses for now; call again later.
        StorageError: it refuses for good.
    """
    removed = 0
    while keys := storage.sample_keys(limit=_BATCH):
        keys = [key for key in keys if key != EXPERIMENT_KEY] or keys
        if not may_delete():
            return Deletion(removed, done=False)
        storage.delete_many(keys)
        removed += len(keys)
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
