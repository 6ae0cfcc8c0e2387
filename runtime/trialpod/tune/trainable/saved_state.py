"""What a class Trainable leaves in a checkpoint's directory, and how it is found again.

Invariants:

* Nothing is written but what `save_checkpoint` makes, the pickle of a dict that it returned, and ``.metadata.json``
  with the counters and with what part of the directory it returned.
* What is loaded has the same form as what was returned: the dict, or the directory or the path below it, wherever it
  lies by then.
"""

from __future__ import annotations

import os
from typing import Any

from trialpod.errors import CheckpointError, InvalidInputError
from trialpod.tune.checkpoints.checkpoint import Checkpoint
from trialpod.tune.trainable.training_result import TrainingResult

METADATA_KEY = "trialpod"
_RETURNED = "returned"


def write(trainable: Any, folder: str, counters: dict[str, Any]) -> str:
    """Let a Trainable save itself into an existing folder, and return the path that it returned, or the folder."""
    name = type(trainable).__name__
    state = trainable.save_checkpoint(folder)
    returned = ""
    if not os.path.isdir(folder):
        raise CheckpointError(
            f"the folder {folder} is gone after {name}.save_checkpoint(); write into the folder that it is given and "
            "leave it there"
        )
    if isinstance(state, dict):
        from trialpod.tune.checkpoints.dict_files import write_state

        write_state(state, folder, f"the dict that {name}.save_checkpoint() returned")
    elif isinstance(state, (str, os.PathLike)):
        returned = _inside(os.fspath(state), folder, name)
    elif state is not None:
        raise InvalidInputError(
            f"{name}.save_checkpoint() returned a {type(state).__name__}; "
            "it has to return a dict, the directory that it was given or a path in it, or None"
        )
    notes = {**counters, _RETURNED: returned} if returned else counters
    Checkpoint(folder).update_metadata({METADATA_KEY: notes})
    return os.path.join(folder, returned) if returned else folder


def _inside(path: str, folder: str, name: str) -> str:
    inner, outer = os.path.abspath(path), os.path.abspath(folder)
    if inner == outer:
        return ""
    if not inner.startswith(f"{outer}{os.sep}"):
        raise InvalidInputError(
            f"{name}.save_checkpoint() returned the path {path!r}; it has to write below the "
            f"directory that it was given ({folder!r}) and return that, a path in it, a dict, or None"
        )
    return os.path.relpath(inner, outer)


def read(folder: str) -> Any:
    """Return what `load_checkpoint` is to be given: the dict, the folder, or the path below it that was returned."""
    from trialpod.tune.checkpoints.dict_files import read_state

    state = read_state(folder)
    if state is not None:
        return state
    returned = notes(folder).get(_RETURNED)
    return os.path.join(folder, returned) if returned else folder


def notes(folder: str) -> dict[str, Any]:
    """Return the counters and the rest that `write` kept."""
    kept = Checkpoint(folder).get_metadata().get(METADATA_KEY)
    return kept if isinstance(kept, dict) else {}


def find(path: str) -> str | None:
    """Return the checkpoint's folder, given what `save` returned; None when there is none."""
    path = os.path.abspath(path)
    inner = ""
    at = path
    while True:
        if os.path.isdir(at) and (not inner or notes(at).get(_RETURNED) == inner) and (inner or notes(at)):
            return at
        parent, last = os.path.split(at)
        if parent == at or inner.count(os.sep) > 8:
            break
        inner = os.path.join(last, inner) if inner else last
        at = parent
    return path if os.path.isdir(path) else None


def newest_beside(path: str) -> str | None:
    """Return the folder of the newest checkpoint in the same directory, None if there is none."""
    parent = os.path.dirname(os.path.abspath(path))
    try:
        names = sorted(name for name in os.listdir(parent) if name.startswith("checkpoint_"))
    except OSError:
        return None
    folders = [os.path.join(parent, name) for name in names if os.path.isdir(os.path.join(parent, name))]
    return folders[-1] if folders else None


def to_object(trainable: Any) -> bytes:
    """Return a Trainable's state as bytes."""
    import pickle
    import shutil
    import tempfile

    from trialpod.tune.checkpoints.dict_files import files_of

    folder = tempfile.mkdtemp("save_to_object", dir=trainable.logdir)
    try:
        saved: TrainingResult = trainable.save(os.path.join(folder, "checkpoint_0"))
        return pickle.dumps({"files": files_of(saved.checkpoint.path)})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def from_object(trainable: Any, data: bytes) -> None:
    """Restore a Trainable from the bytes of `to_object`."""
    import pickle
    import shutil
    import tempfile

    from trialpod.tune.checkpoints.dict_files import files_into

    try:
        files = pickle.loads(data)["files"]
    # Whatever was given instead.
    except Exception as error:
        raise CheckpointError(
            f"restore_from_object needs what save_to_object returned: {type(error).__name__}: {error}"
        ) from error
    folder = tempfile.mkdtemp("restore_from_object", dir=trainable.logdir)
    try:
        target = os.path.join(folder, "checkpoint_0")
        os.mkdir(target)
        files_into(files, target)
        trainable.restore(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
