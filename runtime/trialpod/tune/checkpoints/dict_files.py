"""The files of checkpoints that hold a dict: one pickle, or the files of a directory as a tar archive.

Invariant: the dict is one pickle, ``_dict_checkpoint.pkl``, in the checkpoint's directory, as class Trainables write
it.
"""

from __future__ import annotations

import io
import os
from typing import Any

from trialpod.errors import CheckpointError, InvalidInputError
from trialpod.storage.layout import MANIFEST_FILE

DICT_FILE = "_dict_checkpoint.pkl"
FILES_KEY = "fs_checkpoint"
"""The key under which a dict holds the files of a directory, as a tar archive."""
_DICT_FILES = (DICT_FILE, "dict_checkpoint.pkl")


def write_into(data: dict[str, Any], folder: str) -> None:
    """Write a dict, or the files that it holds, into a folder."""
    if isinstance(data.get(FILES_KEY), bytes):
        files_into(data[FILES_KEY], folder)
        rest = {key: value for key, value in data.items() if key != FILES_KEY and not key.startswith("_")}
        if not rest:
            return
        data = rest
    with open(os.path.join(folder, DICT_FILE), "wb") as stream:
        stream.write(pickled(data, "the dict of the checkpoint"))


def write_state(state: dict[str, Any], folder: str, what: str) -> None:
    """Write the dict that a class Trainable returned; `what` names it in an error."""
    with open(os.path.join(folder, DICT_FILE), "wb") as stream:
        stream.write(pickled(state, what))


def read_state(folder: str) -> dict[str, Any] | None:
    """Return the dict in a checkpoint's folder, None if there is none."""
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


def pickled(data: dict[str, Any], what: str) -> bytes:
    """Return the pickle of a dict, which `what` names in an error."""
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
