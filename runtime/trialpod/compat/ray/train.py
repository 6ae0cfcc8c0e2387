"""Names of ``ray.train`` and ``ray.air`` that lie in modules of their own or are only exceptions."""

from __future__ import annotations

from typing import Any

from trialpod.errors import TrialpodError
from trialpod.legacy.checkpoint_dir import save_checkpoint as _save_folder
from trialpod.tune import session
from trialpod.tune.checkpoints.checkpoint import Checkpoint


class TrainingFailedError(TrialpodError, RuntimeError):
    """Raised by Ray's trainers; here only a name for ``except``."""


class SessionMisuseError(TrialpodError):
    """Never raised; a name for ``except``."""


def save_checkpoint(**state: Any) -> None:
    """Keep values as the checkpoint of the next report."""
    import tempfile

    _save_folder(Checkpoint.from_dict(state).to_directory(tempfile.mkdtemp(prefix="trialpod-checkpoint_train-")))


def load_checkpoint() -> dict[str, Any] | None:
    """Return the values of the checkpoint to resume from, None if there is none."""
    found = session.get_checkpoint()
    return None if found is None else found.to_dict()
