"""The names that methods of class Trainables had at first: ``_setup``, ``_train``, ``_save``, ``_restore``, ...

Invariant: a class speaks the old language if it defines ``_train`` and no ``step``, or ``_save`` or ``_restore`` and
none of the new names; then, and only then, its old methods take the places of the new ones. A class of today, which
defines ``step``, may have helpers of these names.
"""

from __future__ import annotations

from typing import Any

OLD_NAMES = {
    "_setup": "setup",
    "_train": "step",
    "_save": "save_checkpoint",
    "_restore": "load_checkpoint",
    "_stop": "cleanup",
    "_log_result": "log_result",
}
_MARK = "_trialpod_old_name"


def adopt(cls: Any, base: Any) -> None:
    """Let the old methods of a class stand for the new ones."""
    if "step" in cls.__dict__:
        _take_back(cls, base)
        return
    if cls.step is not base.step and not _is_forwarder(cls.step):
        return
    if "_train" not in cls.__dict__ and not _is_forwarder(cls.step) and not _only_saves(cls, base):
        return
    for old, new in OLD_NAMES.items():
        defined = getattr(cls, old, None)
        if defined is None or defined is getattr(base, old, None) or new in cls.__dict__:
            continue
        if getattr(cls, new) is getattr(base, new):
            setattr(cls, new, _forwarder(old, new))


def _only_saves(cls: Any, base: Any) -> bool:
    """Return whether a class has old methods for checkpoints, and no new name at all."""
    if "_save" not in cls.__dict__ and "_restore" not in cls.__dict__:
        return False
    return all(getattr(cls, new) is getattr(base, new) for new in OLD_NAMES.values())


def _take_back(cls: Any, base: Any) -> None:
    """Undo, in a class of today, what a base class without ``step`` was taken for."""
    for new in OLD_NAMES.values():
        if _is_forwarder(getattr(cls, new)):
            setattr(cls, new, getattr(base, new))


def _forwarder(old: str, new: str) -> Any:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, old)(*args, **kwargs)

    forward.__name__ = forward.__qualname__ = new
    setattr(forward, _MARK, old)
    return forward


def _is_forwarder(function: Any) -> bool:
    return hasattr(function, _MARK)
