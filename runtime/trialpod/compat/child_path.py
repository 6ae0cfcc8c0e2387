"""The path of processes that a script or a trial starts: a new Python has no import hook for ``ray`` yet.

So a folder with a module of that name is on it, which installs the hook.
"""

from __future__ import annotations

import os
import sys

_SHIM = os.path.join(os.path.dirname(__file__), "ray", "shim")
_END = os.path.join("trialpod", "compat", "ray", "shim")


def is_shim(folder: str) -> bool:
    """Return whether an entry of a path is that folder, of this or another trialpod."""
    return folder.endswith(_END)


def add_shim() -> None:
    """Put it on the path that a new Python takes from its variables, and on the one that multiprocessing sends."""
    given = os.environ.get("PYTHONPATH", "")
    if not any(map(is_shim, given.split(os.pathsep))):
        os.environ["PYTHONPATH"] = f"{_SHIM}{os.pathsep}{given}" if given else _SHIM
    if not any(map(is_shim, sys.path)):
        sys.path.insert(1, _SHIM)  # the first is the script's own folder


def remove_shim() -> None:
    """Undo `add_shim`."""
    sys.path[:] = [folder for folder in sys.path if not is_shim(folder)]
    given = os.environ.pop("PYTHONPATH", "").split(os.pathsep)
    if left := os.pathsep.join(folder for folder in given if not is_shim(folder)):
        os.environ["PYTHONPATH"] = left
