"""``with tune.checkpoint_dir(step=...)``: how functions wrote checkpoints before `report` took them.

Invariants: what was written belongs to the next report; after the last report, to that one. A script may read it
again under the same path until the trial's function ends (`trialpod.tune.checkpoints.written_folders`).
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator

from trialpod.errors import CheckpointError, InvalidInputError
from trialpod.tune import session as _session

_PREFIX = "trialpod-checkpoint_"


@contextlib.contextmanager
def checkpoint_dir(step: int) -> Iterator[str]:
    """Yield an empty folder; what is in it at the end of the block is the next report's checkpoint.

    Its path ends with the name of the trial's directory and ``checkpoint_{step}``. It can be read until the function
    ends, or retention removes the checkpoint. What is written into it after its report is not kept, and damages the
    checkpoint.

    Outside a trial it yields the working directory, and only warns.

    Args:
        step: a number for the folder's name.

    Raises:
        InvalidInputError: `step` is not a number.
    """
    if isinstance(step, bool) or not isinstance(step, int):
        raise InvalidInputError(
            f"tune.checkpoint_dir(step={step!r}): must be an integer, such as the training iteration"
        )
    session = _session.current()
    if session is None or not session.reports:
        warnings.warn(
            "tune.checkpoint_dir was called outside a function that runs as a trial; nothing is kept of what is "
            "written here",
            stacklevel=3,
        )
        yield os.path.abspath(".")
        return
    folder = make_checkpoint_dir(step)
    try:
        yield folder
    except BaseException:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
        raise
    if not os.path.isdir(folder):
        raise CheckpointError(
            f"the folder {folder} that tune.checkpoint_dir(step={step}) gave was removed inside its block; "
            "leave it where it is, it is copied by the next report"
        )
    session.offer(folder)


def make_checkpoint_dir(step: int) -> str:
    """Return a new, empty folder for a checkpoint; `save_checkpoint` keeps it."""
    session = _session.current()
    if session is not None and session.reports:
        return session.make_folder(step)
    import tempfile

    return tempfile.mkdtemp(prefix=f"{_PREFIX}{step:06d}-")


def save_checkpoint(checkpoint: str) -> None:
    """Take a folder of `make_checkpoint_dir` as the next report's checkpoint.

    Raises:
        CheckpointError: there is no such folder.
    """
    if not os.path.isdir(checkpoint):
        raise CheckpointError(f"tune.save_checkpoint({checkpoint!r}): there is no such folder")
    session = _session.current()
    if session is None:
        warnings.warn("tune.save_checkpoint was called outside a trial; nothing is kept", stacklevel=2)
        return
    session.offer(checkpoint, remove=os.path.basename(checkpoint).startswith(_PREFIX))
