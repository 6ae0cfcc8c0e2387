"""Checkpoints that hold a dict: in memory until somebody wants a directory, and back.

Invariants: the dict is one pickle, ``_dict_checkpoint.pkl``, in the checkpoint's directory, as class Trainables write
it; a directory that was made here for it is gone when the object or the process ends.
"""

from __future__ import annotations

import io
import os
from typing import Any

from trialpod.errors import CheckpointError, InvalidInputError
from trialpod.storage.layout import MANIFEST_FILE
from trialpod.tune.checkpoints.checkpoint import Checkpoint

DICT_FILE = "_dict_checkpoint.pkl"
FILES_KEY = "fs_checkpoint"
"""The key under which a dict holds the files of a directory, as a tar archive."""
_DICT_FILES = (DICT_FILE, "dict_checkpoint.pkl")
_BYTES_KEY = "bytes_data"


class DictCheckpoint(Checkpoint):
    """A checkpoint made of a dict; its directory is written when `path` is asked for.

    Args:
        data: the dict. One that `Checkpoint.to_dict` made of files becomes files again.

    Raises:
        InvalidInputError: it is no dict.
    """

    def __init__(self, data: Any = None, *, data_dict: Any = None) -> None:
        data = data_dict if data is None else data
        if not isinstance(data, dict):
            raise InvalidInputError(f"Checkpoint.from_dict needs a dict, not {type(data).__name__}")
        self._data = data

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "uri":
            return None  # it is nowhere before it is stored
        if attribute in ("value", "dir_or_data"):
            return self.path
        if attribute != "path":
            raise AttributeError(f"{type(self).__name__} has no attribute {attribute!r}")
        import shutil
        import tempfile
        import weakref

        folder = tempfile.mkdtemp(prefix="trialpod-checkpoint-")
        weakref.finalize(self, shutil.rmtree, folder, True)
        write_into(self._data, folder)
        self.path = folder
        return folder

    def __repr__(self) -> str:
        return f"Checkpoint.from_dict(<dict with {', '.join(map(repr, list(self._data)[:8]))}>)"

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> tuple[type[DictCheckpoint], tuple[dict[str, Any]]]:
        """Travel as the dict."""
        return DictCheckpoint, (self._data,)

    def to_dict(self) -> dict[str, Any]:
        """Return a copy of the dict."""
        return dict(self._data)

    def get_internal_representation(self) -> tuple[str, Any]:
        """Return the kind of the checkpoint and the dict."""
        return "data_dict", self._data


def write_into(data: dict[str, Any], folder: str) -> None:
    """Write a dict, or the files that it holds, into a folder.

    Raises:
        InvalidInputError: something in it cannot be pickled.
    """
    if isinstance(data.get(FILES_KEY), bytes):
        files_into(data[FILES_KEY], folder)
        rest = {key: value for key, value in data.items() if key != FILES_KEY and not key.startswith("_")}
        if not rest:
            return
        data = rest
    with open(os.path.join(folder, DICT_FILE), "wb") as stream:
        stream.write(_pickled(data, "the dict of the checkpoint"))


def write_state(state: dict[str, Any], folder: str, what: str) -> None:
    """Write the dict that a class Trainable returned; `what` names it in an error."""
    with open(os.path.join(folder, DICT_FILE), "wb") as stream:
        stream.write(_pickled(state, what))


def read_state(folder: str) -> dict[str, Any] | None:
    """Return the dict in a checkpoint's folder, None if there is none.

    Raises:
        CheckpointError: it cannot be unpickled.
    """
    for name in _DICT_FILES:
        file = os.path.join(folder, name)
        if os.path.exists(file):
            import pickle

            try:
                with open(file, "rb") as stream:
                    state: dict[str, Any] = pickle.load(stream)
            # Unpickling runs user code.
            except Exception as error:
                raise CheckpointError(
                    f"the dict of the checkpoint, {file}, cannot be read: {type(error).__name__}: {error}; the "
                    "classes of what is in it must be importable here"
                ) from error
            return state
    return None


def to_dict(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the dict that a checkpoint holds, or its files as one."""
    with checkpoint.as_directory() as folder:
        state = read_state(folder)
        return {FILES_KEY: files_of(folder)} if state is None else state


def to_bytes(checkpoint: Checkpoint) -> bytes:
    """Return a checkpoint as bytes."""
    data = checkpoint.to_dict()
    kept = data.get(_BYTES_KEY)
    if len(data) == 1 and isinstance(kept, bytes):
        return kept
    return _pickled(data, "the dict of the checkpoint")


def from_bytes(data: bytes) -> Checkpoint:
    """Return the checkpoint that `to_bytes` made bytes of; a pickle of anything but a dict is kept as it is."""
    import pickle

    if not isinstance(data, bytes):
        raise InvalidInputError(f"Checkpoint.from_bytes needs bytes, not {type(data).__name__}")
    try:
        loaded = pickle.loads(data)
    except Exception as error:
        raise CheckpointError(
            f"these {len(data)} bytes are none of a checkpoint: {type(error).__name__}: {error}"
        ) from error
    return DictCheckpoint(loaded if isinstance(loaded, dict) else {_BYTES_KEY: data})


def _pickled(data: dict[str, Any], what: str) -> bytes:
    import pickle

    try:
        return pickle.dumps(data, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:  # noqa: BLE001 - what user classes raise; the next attempt says what is wrong
        # Classes and functions defined in the user's script itself.
        import cloudpickle

        try:
            by_value: bytes = cloudpickle.dumps(data)
        except Exception as error:
            from trialpod.tune.shipping.diagnosis import diagnose

            culprits = [str(culprit) for culprit in diagnose(data, "checkpoint")]
            first = culprits[0] if culprits else str(error)  # the console shows one line
            others = "".join(f"\n  - {culprit}" for culprit in culprits[1:])
            raise InvalidInputError(
                f"{what} cannot be pickled: {first}{others}\nPut what it is made from into the dict, "
                "or write files into a directory."
            ) from error
        return by_value


def files_of(folder: str) -> bytes:
    """Return the files in a folder as a tar archive."""
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in sorted(os.listdir(folder)):
            if name != MANIFEST_FILE:
                archive.add(os.path.join(folder, name), arcname=name)
    return buffer.getvalue()


def files_into(data: bytes, folder: str) -> None:
    """Unpack what `files_of` returned into a folder."""
    import tarfile

    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extractall(folder, filter="data")
    except tarfile.TarError as error:
        raise CheckpointError(f"the files of the checkpoint cannot be unpacked: {error}") from error
