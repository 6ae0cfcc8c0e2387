"""Calls the hooks of several callbacks in their order, and keeps what they want to remember.

Invariants:

* A hook that no callback overrides costs nothing: `wants` says so.
* An exception in a hook leaves as `CallbackError`, which names the callback; later callbacks are not called then,
  except at the end of the experiment, when each of them is.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from trialpod.errors import InvalidInputError, TrialpodError, WrongTypeError, add_note
from trialpod.tune.callback import Callback

logger = logging.getLogger(__name__)

SLOW_S = 0.5
"""A hook that takes longer is named in the log: trials wait for it."""

_FIELDS = ("errno", "strerror", "filename", "filename2", "code", "name", "path", "obj", "value")
"""Attributes of built-in exceptions that are not in their ``__dict__``."""

HOOKS = (*(name for name in vars(Callback) if name.startswith("on_")), "setup")


class CallbackError(TrialpodError):
    """A callback raised an exception, which is the `__cause__`.

    `Tuner.fit` raises that one, with this one's text as a note.
    """

    def original(self) -> BaseException:
        """Return the callback's own exception; this one where there is none."""
        from trialpod.compat import ray

        cause = self.__cause__
        if cause is None:
            return self
        add_note(cause, str(self))
        return also_trialpod_error(cause) if ray.installed() else cause


def also_trialpod_error(error: BaseException) -> BaseException:
    """Return a copy of an exception that is a `TrialpodError` too; `error` itself where there can be none."""
    kind = type(error)
    if isinstance(error, TrialpodError) or not isinstance(error, Exception):
        return error
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    try:
        both: Any = type(kind.__name__, (kind, TrialpodError), names)
        made: Exception = both.__new__(both, *error.args)
        made.args = error.args
        made.__dict__.update(error.__dict__)
        for name in _FIELDS:
            if (value := getattr(error, name, None)) is not None:
                setattr(made, name, value)
        if str(made) != str(error):
            return error
    except (TypeError, ValueError, AttributeError):  # its class allows no second base, or needs other arguments
        return error
    made.__cause__, made.__context__ = error.__cause__, error.__context__
    made.__suppress_context__ = error.__suppress_context__
    return made.with_traceback(error.__traceback__)


class CallbackList:
    """Several callbacks as one.

    Args:
        callbacks: in the order in which they are called.
        clock: seconds, for telling the slow ones.

    Raises:
        InvalidInputError: one of them is no `Callback`.
    """

    def __init__(self, callbacks: Iterable[Callback], clock: Callable[[], float] = time.monotonic) -> None:
        self._callbacks = list(callbacks)
        check_callbacks("CallbackList", self._callbacks)
        self._clock = clock
        self._slow: set[tuple[int, str]] = set()
        self._overriding = {
            hook: [
                callback
                for callback in self._callbacks
                if getattr(type(callback), hook) is not getattr(Callback, hook) or hook in vars(callback)
            ]
            for hook in HOOKS
        }

    def wants(self, hook: str) -> bool:
        """Return whether any callback does something at that hook."""
        return bool(self._overriding[hook])

    def call(self, hook: str, **arguments: Any) -> None:
        """Call a hook of each callback that has it."""
        for callback in self._overriding[hook]:
            self._call(callback, hook, arguments)

    def setup(self, **arguments: Any) -> None:
        """Call `setup` of each callback that has it, with those of the arguments that it takes."""
        for callback in self._overriding["setup"]:
            taken = inspect.signature(callback.setup).parameters
            if not any(one.kind is one.VAR_KEYWORD for one in taken.values()):
                self._call(callback, "setup", {name: arguments[name] for name in arguments if name in taken})
            else:
                self._call(callback, "setup", arguments)

    def result(self, result: dict[str, Any], **arguments: Any) -> None:
        """Call `on_trial_result`, with a copy of the result for each callback."""
        for callback in self._overriding["on_trial_result"]:
            self._call(callback, "on_trial_result", {**arguments, "result": type(result)(result)})

    def end(self, **arguments: Any) -> None:
        """Call `on_experiment_end` of each callback, whatever the others do."""
        first: CallbackError | None = None
        for callback in self._overriding["on_experiment_end"]:
            try:
                self._call(callback, "on_experiment_end", arguments)
            except CallbackError as error:
                if first is not None:
                    logger.error("%s", error)
                first = first or error
        if first is not None:
            raise first

    def get_state(self) -> dict[str, dict[str, Any]]:
        """Return what the callbacks want to remember, by their places and classes; empty when they want nothing."""
        states: dict[str, dict[str, Any]] = {}
        for index, callback in enumerate(self._callbacks):
            state = self._call(callback, "get_state", {})
            if state is not None:
                states[_key(index, callback)] = state
        return states

    def pickled_state(self) -> bytes:
        """Return what `get_state` returns, pickled; empty when the callbacks want nothing."""
        import cloudpickle

        states = self.get_state()
        try:
            return cloudpickle.dumps(states) if states else b""
        except Exception as problem:
            for index, callback in enumerate(self._callbacks):
                try:
                    cloudpickle.dumps(states.get(_key(index, callback)))
                except Exception as error:
                    raise CallbackError(
                        f"what get_state() of the callback {type(callback).__name__} returned cannot be pickled: "
                        f"{error}; leave that out of the state. The experiment was ended, and Tuner.restore(...) "
                        "continues with it"
                    ) from error
            raise CallbackError(f"the state of the callbacks cannot be pickled: {problem}") from problem

    def set_state(self, states: dict[str, dict[str, Any]]) -> None:
        """Give back what `get_state` returned; one that is at another place now, or of another class, gets none."""
        for index, callback in enumerate(self._callbacks):
            if (state := states.get(_key(index, callback))) is not None:
                self._call(callback, "set_state", {"state": state})

    def _call(self, callback: Callback, hook: str, arguments: dict[str, Any]) -> Any:
        begun = self._clock()
        try:
            return getattr(callback, hook)(**arguments)
        except Exception as error:
            raise CallbackError(
                f"the callback {type(callback).__name__} raised {type(error).__name__} in {hook}(): {error}; "
                "the experiment was ended, and Tuner.restore(...) continues with it"
            ) from error
        finally:
            took = self._clock() - begun
            if took > SLOW_S and (id(callback), hook) not in self._slow:
                self._slow.add((id(callback), hook))
                logger.warning(
                    "%s.%s() took %.1f s, and trials wait for it; what takes long belongs into a thread",
                    type(callback).__name__,
                    hook,
                    took,
                )


def check_callbacks(where: str, callbacks: Any) -> None:
    """Raise InvalidInputError unless `callbacks` is a list of callbacks."""
    if callbacks is None:
        return
    if isinstance(callbacks, (str, bytes)) or not isinstance(callbacks, (list, tuple)):
        raise InvalidInputError(f"{where}(callbacks={callbacks!r}): must be a list of tune.Callback objects")
    for callback in callbacks:
        if isinstance(callback, type):
            raise WrongTypeError(
                f"{where}(callbacks=[{callback.__name__}]): pass objects, not classes: {callback.__name__}(...)"
            )
        if not isinstance(callback, Callback):
            raise InvalidInputError(
                f"{where}(callbacks=[{callback!r}]): must be objects of subclasses of tune.Callback, "
                f"not {type(callback).__name__}"
            )


def _key(index: int, callback: Callback) -> str:
    return f"{index}:{type(callback).__name__}"
