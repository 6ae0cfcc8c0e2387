"""Futures, as Ray's object references, and the threads that compute them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from trialpod.errors import TrialpodError
from trialpod.tune.result import failed_with
from trialpod.tune.shipping.stored_objects import Stored

_changed = threading.Condition()


class ObjectRef:
    """A future: a value, or the exception in its place.

    It has no text of its own, so that files show it the same in every process: an experiment may be restored with
    other references.
    """

    def __init__(self) -> None:
        self._ready = False
        self._value: Any = None
        self._error: BaseException | None = None

    @classmethod
    def of(cls, value: Any) -> ObjectRef:
        """Return a reference to a value."""
        ref = cls()
        ref.set(value)
        return ref

    def set(self, value: Any) -> None:
        """Set the value."""
        with _changed:
            self._ready, self._value = True, value
            _changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Set the exception."""
        with _changed:
            self._ready, self._error = True, error
            _changed.notify_all()

    @property
    def ready(self) -> bool:
        """Whether the value, or the exception, is there."""
        return self._ready

    def value(self) -> Any:
        """Return the value, or raise the exception; only when it is there."""
        if self._error is not None:
            raise self._error
        return self._value

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the value and return whether it is there."""
        return ObjectRef.wait_for([self], 1, timeout_s)

    @staticmethod
    def wait_for(refs: Sequence[ObjectRef], count: int, timeout_s: float | None) -> bool:
        """Wait until `count` of the values are there, and return whether they are."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s

        def enough() -> bool:
            return sum(ref.ready for ref in refs) >= count

        with _changed:
            return _changed.wait_for(enough, None if deadline is None else max(0.0, deadline - time.monotonic()))

    def hex(self) -> str:
        """Return a text that tells references apart."""
        return f"{id(self):032x}"

    def __reduce__(self) -> tuple[Callable[[Any], ObjectRef], tuple[Any]]:
        """Travel as the value, which is waited for; a large one is stored once beside the Trainable."""
        self.wait()
        return ObjectRef.of, (Stored(self.value()),)


def resolved(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments with the values in the places of references to them; waits for these."""

    def value(given: Any) -> Any:
        if not isinstance(given, ObjectRef):
            return given
        given.wait()
        return given.value()

    return [value(given) for given in args], {name: value(given) for name, given in kwargs.items()}


def made(count: Any) -> tuple[list[ObjectRef], Any]:
    """Return new references for what a call returns, and how its caller is given them."""
    refs = [ObjectRef() for _ in range(count if isinstance(count, int) else 1)]
    return refs, (refs[0] if len(refs) == 1 else refs or None)


def run_and_resolve(refs: Sequence[ObjectRef], call: Callable[[], Any]) -> None:
    """Call, and put what comes of it into the references."""
    try:
        value = call()
        if len(refs) > 1 and len(value) != len(refs):
            raise ValueError(f"the task returned {len(value)} values, and num_returns is {len(refs)}")
    # Whatever user code raises is its caller's, who may catch it by its own class or by Ray's.
    except BaseException as error:  # noqa: BLE001
        raised = error
        if isinstance(error, Exception) and not isinstance(error, TrialpodError):
            raised = failed_with(error, f"{type(error).__name__}: {error}")
        for ref in refs:
            ref.fail(raised)
        return
    for ref, part in zip(refs, [value] if len(refs) == 1 else value, strict=False):
        ref.set(part)


def start(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], count: Any) -> Any:
    """Run a function in a thread and return the reference, or references, to what it returns."""
    refs, given = made(count)

    def call() -> Any:
        positional, named = resolved(args, kwargs)
        return function(*positional, **named)

    threading.Thread(target=run_and_resolve, args=(refs, call), daemon=True).start()
    return given
