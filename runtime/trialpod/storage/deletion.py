"""Removes all that an experiment has in its storage: a little with each call, going on from where the last one was.

Invariants: nothing outside the storage's root is touched; progress is what is gone, so that a call after a crash, or
by another process, goes on; the experiment is only said to be gone when a listing has found nothing. What tells whose
the place is goes last, so that nobody else begins in it before.
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
    """How far a deletion is.

    Attributes:
        removed: how many objects, or files, this call has removed.
        done: whether nothing is left.
    """

    removed: int
    done: bool


def delete_experiment(storage: Storage, time_left_s: Callable[[], float]) -> Deletion:
    """Remove what is below the root of `storage`, as much as there is time for; at least one batch.

    Nobody may write there any more. The order of checkpoints and journal does not matter: readers see an experiment
    that loses its parts until nothing is left.

    Args:
        storage: the experiment's, ``open_storage(uri).sub(name)``; never a whole bucket's.
        time_left_s: seconds that this call may still take, asked between batches of a thousand.

    Raises:
        StorageUnavailableError: the storage cannot be reached, or refuses for now; call again later.
        StorageError: it refuses for good.
    """
    removed = 0
    while keys := storage.sample_keys(limit=_BATCH):
        keys = [key for key in keys if key != EXPERIMENT_KEY] or keys
        storage.delete_many(keys)
        removed += len(keys)
        if time_left_s() <= 0.0:
            return Deletion(removed, done=not storage.sample_keys(limit=1))
    try:
        storage.abort_uploads([""])
    except StorageUnavailableError:
        raise
    except StorageError:
        # Not everybody may list uploads. The server removes what is left of them by itself.
        return Deletion(removed, done=True)
    return Deletion(removed, done=True)
