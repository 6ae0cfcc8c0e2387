"""What `tune.run` says of how a Trainable's trials begin and end, carried by a copy of the Trainable itself.

Invariants: a trial that has a checkpoint of its own starts from that; models are exported once, when a trial has
ended without failing. A trial whose model cannot be exported fails, and is not run again: its results and checkpoints
are there.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

_RESTORE = "_trialpod_restore_path"
_EXPORT = "_trialpod_export_formats"


def with_run_options(trainable: Any, *, restore: str | None = None, export_formats: list[str] | None = None) -> Any:
    """Return a copy of a Trainable whose trials start from a checkpoint, and export their models at the end."""
    options = {name: value for name, value in ((_RESTORE, restore), (_EXPORT, export_formats)) if value}
    if not options:
        return trainable
    if inspect.isclass(trainable):
        make: Any = type(trainable)
        copy = make(trainable.__name__, (trainable,), {"__doc__": trainable.__doc__, **options})
        copy.__module__, copy.__qualname__ = trainable.__module__, trainable.__qualname__
        return copy
    wrapped = functools.partial(trainable)
    wrapped.__dict__.update(options)
    return wrapped


def run_options(trainable: Any) -> dict[str, Any]:
    """Return what `with_run_options` gave to a Trainable, by the names of its arguments."""
    found = {"restore": _find(trainable, _RESTORE), "export_formats": _find(trainable, _EXPORT)}
    return {name: value for name, value in found.items() if value}


def restore_path(trainable: Any) -> str | None:
    """Return the checkpoint that trials without one of their own start from."""
    found = _find(trainable, _RESTORE)
    return None if found is None else str(found)


def export_formats(trainable: type) -> list[str]:
    """Return the formats in which the model of a class Trainable is exported when a trial has ended."""
    return list(_find(trainable, _EXPORT) or ())


def _find(trainable: Any, name: str) -> Any:
    while trainable is not None:
        found = getattr(trainable, name, None)
        if found is not None or isinstance(trainable, type):
            return found
        trainable = getattr(trainable, "func", None)
    return None
