"""params.pkl: a trial's parameters with their types, where scripts that were written for Ray look for them.

Only under the name ``ray``, and only on one machine: the journal has them too, each large value once. The trial's own
process writes the file, and it is opened by the user's code only.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import cloudpickle

from trialpod.storage.layout import PICKLED_PARAMS_FILE

MAX_BYTES = 1024 * 1024
"""Of larger parameters there is no such file: it would be a copy in the folder of each trial."""


class _TooLargeError(Exception):
    pass


class _Limited:
    """A file of limited length, so that a large array is not pickled before it is seen to be too large."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, piece: Any) -> int:
        """Add a piece."""
        with memoryview(piece) as view:
            if len(self.data) + view.nbytes > MAX_BYTES:
                raise _TooLargeError
            self.data += view
            return view.nbytes


def keep_params(folder: str, config: dict[str, Any]) -> None:
    """Write the parameters of a trial into its folder; what cannot be pickled or is too large is left out."""
    if "://" in folder:
        return
    stream = _Limited()
    # Pickling runs the user's code.
    with contextlib.suppress(Exception):
        cloudpickle.CloudPickler(stream).dump(config)
        path = os.path.join(folder, PICKLED_PARAMS_FILE)
        with open(f"{path}.new", "wb") as target:
            target.write(stream.data)
        os.replace(f"{path}.new", path)
