"""`CallbackList` of ``ray.tune.callback``: several callbacks that are called as one."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from typing import Any

from trialpod.errors import StorageError
from trialpod.tune.callback import Callback
from trialpod.tune.callback_list import HOOKS, check_callbacks

__all__ = ["CallbackList"]


class CallbackList(Callback):
    """Calls the hooks of several callbacks, in their order.

    Args:
        callbacks: the callbacks.

    Raises:
        InvalidInputError: one of them is no `Callback`.
    """

    IS_CALLBACK_CONTAINER = True
    CKPT_FILE_TMPL = "callback-states-{}.pkl"

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        check_callbacks("CallbackList", callbacks)
        self._callbacks = list(callbacks)

    def get_state(self) -> dict[int, Any]:  # type: ignore[override]
        """Return the states of the callbacks that have one, by their places."""
        states = ((place, callback.get_state()) for place, callback in enumerate(self._callbacks))
        return {place: state for place, state in states if state is not None}

    def set_state(self, state: dict[int, Any]) -> None:  # type: ignore[override]
        """Give the callbacks what `get_state` returned."""
        for place, callback in enumerate(self._callbacks):
            if place in state:
                callback.set_state(state[place])

    def can_restore(self, checkpoint_dir: str) -> bool:
        """Return whether `save_to_dir` has written into a directory."""
        return self._newest(checkpoint_dir) is not None

    def save_to_dir(self, checkpoint_dir: str, session_str: str = "default") -> None:
        """Write the states into a directory; nothing if there are none."""
        state = self.get_state()
        if not state:
            return
        path = os.path.join(checkpoint_dir, self.CKPT_FILE_TMPL.format(session_str))
        with open(f"{path}.tmp", "wb") as stream:
            pickle.dump(state, stream)
        os.replace(f"{path}.tmp", path)

    def restore_from_dir(self, checkpoint_dir: str) -> None:
        """Read the states that were written last into a directory.

        Raises:
            StorageError: there are none.
        """
        newest = self._newest(checkpoint_dir)
        if newest is None:
            raise StorageError(f"{checkpoint_dir} has no states of callbacks; CallbackList.save_to_dir writes them")
        with open(newest, "rb") as stream:
            self.set_state(pickle.load(stream))

    def _newest(self, folder: str) -> str | None:
        from glob import escape, glob

        found = glob(os.path.join(escape(folder), self.CKPT_FILE_TMPL.format("*")))
        return max(found, key=os.path.getmtime, default=None)


def _call_each(hook: str) -> Callable[..., None]:
    def call(self: CallbackList, *args: Any, **info: Any) -> None:
        for callback in self._callbacks:
            getattr(callback, hook)(*args, **info)

    call.__name__, call.__doc__ = hook, f"Call `{hook}` of each callback."
    return call


for _hook in HOOKS:
    setattr(CallbackList, _hook, _call_each(_hook))
