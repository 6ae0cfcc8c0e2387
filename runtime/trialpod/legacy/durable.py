"""`DurableTrainable`: the class Trainable of the first API whose checkpoints are copied to a bucket.

Every trial's checkpoints are in the experiment's storage, so a class needs this base only for its name, or to be used
on its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trialpod.tune.trainable.trainable import Trainable

if TYPE_CHECKING:
    from trialpod.storage.base import Storage


class DurableTrainable(Trainable):
    """A class Trainable that copies what it saves to `remote_checkpoint_dir`, and restores from there.

    Args:
        remote_checkpoint_dir: a URI. Trials give the config in its place, as to any class; then the experiment's
            storage holds the checkpoints.
        *args: as for `Trainable`.
        **kwargs: as for `Trainable`.
    """

    def __init__(self, remote_checkpoint_dir: Any = None, *args: Any, **kwargs: Any) -> None:
        if remote_checkpoint_dir is None or isinstance(remote_checkpoint_dir, Mapping):
            if remote_checkpoint_dir is not None:
                args = (remote_checkpoint_dir, *args)
            super().__init__(*args, **kwargs)
        else:
            kwargs["remote_checkpoint_dir"] = str(remote_checkpoint_dir)
            super().__init__(*args, **kwargs)

    @property
    def storage_client(self) -> Storage | None:
        """The storage at `remote_checkpoint_dir`, None in a trial."""
        if not self.remote_checkpoint_dir:
            return None
        from trialpod.storage.registry import open_storage

        return open_storage(self._remote_parent())
