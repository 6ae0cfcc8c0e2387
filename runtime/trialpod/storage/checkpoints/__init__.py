"""A trial's checkpoints: the store, local or remote, with its manifest format, uploads, downloads and retention."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trialpod.storage.base import Storage
    from trialpod.storage.checkpoints.store import CheckpointStore


def open_checkpoints(storage: Storage, *, experiment: Storage | None = None) -> CheckpointStore:
    """Return the store of the checkpoints in a trial's directory.

    Args:
        storage: the trial's directory.
        experiment: the experiment's, if it has its file `EXPERIMENT_KEY` for as long as there is anything; None where
            an experiment is not deleted while its trials may still run. Ignored for folders on this machine.
    """
    folder = storage.local_path("")
    if folder is not None:
        from trialpod.storage.checkpoints.local import LocalCheckpointStore

        return LocalCheckpointStore(folder)
    from trialpod.storage.checkpoints.remote import RemoteCheckpointStore

    return RemoteCheckpointStore(storage, experiment=experiment)
