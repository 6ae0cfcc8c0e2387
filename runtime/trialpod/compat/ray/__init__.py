"""``import ray`` without Ray: `install` lets scripts that were written for Ray Tune run on trialpod unchanged.

Invariants:

* A real Ray is never hidden unless the caller says so.
* What has no counterpart can be imported, and says so when it is used.
* Trials, which are other processes, get the same aliases; so do all Pythons that a script or a trial starts.
"""

from __future__ import annotations

import os
import sys

from trialpod import variables
from trialpod.compat.child_path import add_shim, is_shim, remove_shim
from trialpod.errors import InvalidInputError

__all__ = ["install", "installed", "uninstall"]


def install(*, replace: bool = False) -> None:
    """Make ``ray`` and its modules aliases of trialpod, in this process, its trials and the Pythons that these start.

    Args:
        replace: also where a real Ray is installed, which none of them can import any more.

    Raises:
        InvalidInputError: a real Ray is installed, and `replace` is not set.
    """
    from trialpod.compat.ray.finder import AliasFinder

    if installed():
        add_shim()  # the variables of a trial may be others than those of the process that it was forked from
        return
    if not replace and (place := _real_ray()):
        raise InvalidInputError(
            f"a real Ray is installed ({place}); uninstall it, or hide it from this process and its trials with "
            "install(replace=True), `python -m trialpod.compat.ray --replace SCRIPT`, or the variable "
            f"{variables.COMPAT}=ray!"
        )
    for name in [name for name in sys.modules if name == "ray" or name.startswith("ray.")]:
        del sys.modules[name]
    sys.meta_path.insert(0, AliasFinder())
    os.environ[variables.COMPAT] = "ray!" if replace else "ray"
    add_shim()


def installed() -> bool:
    """Return whether `install` has been called in this process."""
    from trialpod.compat.ray.finder import AliasFinder

    return any(isinstance(finder, AliasFinder) for finder in sys.meta_path)


def uninstall() -> None:
    """Undo `install`: ``import ray`` finds a real Ray again, or nothing."""
    from trialpod.compat.ray.finder import AliasFinder

    if not installed():
        return
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, AliasFinder)]
    for name in [name for name in sys.modules if name == "ray" or name.startswith("ray.")]:
        del sys.modules[name]
    os.environ.pop(variables.COMPAT, None)
    remove_shim()


def _real_ray() -> str:
    """Return where a real Ray is, "" if there is none; a folder that happens to be called so is none."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("ray", [folder for folder in sys.path if not is_shim(folder)])
    return spec.origin or "" if spec is not None else ""
