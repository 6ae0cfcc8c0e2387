"""The names that methods of class Trainables had at first: ``_setup``, ``_train``, ``_save``, ``_restore``, ...

Invariant: a class speaks the old language if it defines ``_train`` and no ``step``; then, and only then, its old
methods take the places of the new ones. A class of today may have helpers of these names.
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
    """Let the old methods of a class stand for the new ones.

    Args:
        cls: a new subclass.
        base: `Trainable`.
    """
    if "_train" not in cls.__dict__ and not _is_forwarder(cls.step):
        return
    if cls.step is not base.step and not _is_forwarder(cls.step):
        return
    for old, new in OLD_NAMES.items():
        defined = getattr(cls, old, None)
        if defined is None or defined is getattr(base, old, None) or new in cls.__dict__:
            continue
        if getattr(cls, new) is getattr(base, new):
            setattr(cls, new, _forwarder(old, new))


def _forwarder(old: str, new: str) -> Any:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, old)(*args, **kwargs)

    forward.__name__ = forward.__qualname__ = new
    setattr(forward, _MARK, old)
    return forward


def _is_forwarder(function: Any) -> bool:
    return hasattr(function, _MARK)
