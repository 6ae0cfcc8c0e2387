"""error.pkl: the exception of a trial's latest failure itself, beside its text in error.txt.

Invariants: the trial's own process writes it, and only the user's process opens it. One that is not of the failure in
question, or cannot be opened, counts as none.
"""

from __future__ import annotations

import contextlib
import os
import pickle

from trialpod.protocol.pickling import dumps
from trialpod.storage.layout import PICKLED_ERROR_FILE

_MAX_BYTES = 16 * 1024 * 1024


def keep_error(folder: str, error: BaseException) -> None:
    """Write the exception of a trial into the trial's folder, replacing that of an earlier failure.

    What cannot be pickled or written is left out: error.txt has the text.
    """
    path = os.path.join(folder, PICKLED_ERROR_FILE)
    with contextlib.suppress(OSError):
        os.unlink(path)
    # Pickling an exception runs the user's code.
    with contextlib.suppress(Exception):
        data = dumps(error)
        if len(data) <= _MAX_BYTES:
            with open(f"{path}.new", "wb") as stream:
                stream.write(data)
            os.replace(f"{path}.new", path)


def kept_error(folder: str, line: str) -> BaseException | None:
    """Return the exception of the failure that `line` tells of ("ValueError: ..."), or None."""
    # Opening it runs the user's code, which may need modules that are not here.
    with contextlib.suppress(Exception):
        with open(os.path.join(folder, PICKLED_ERROR_FILE), "rb") as stream:
            error = pickle.load(stream)
        if isinstance(error, BaseException) and line.startswith(type(error).__qualname__):
            return error
    return None
