"""Actors in threads: an object whose methods are called one after the other, from anywhere.

Invariants: everything that an actor's object does happens in its one thread. Once an actor is gone, what it was asked
fails, its thread ends and its object is dropped.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from trialpod.compat.ray.exceptions import RayActorError
from trialpod.compat.ray.objects import ObjectRef, made, resolved, run_and_resolve
from trialpod.errors import InvalidInputError, NotSupportedError

_named: dict[str, ActorHandle] = {}


class ActorMethod:
    """A method of an actor; `remote` asks for a call of it."""

    def __init__(self, actor: ActorHandle, name: str, options: dict[str, Any]) -> None:
        self._actor, self._name, self._options = actor, name, options

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Ask for a call and return the reference to what it will return."""
        refs, given = made(self._options.get("num_returns", 1))
        self._actor._ask(refs, self._name, args, kwargs)  # noqa: SLF001 - public names are the actor's own
        return given

    def options(self, **options: Any) -> ActorMethod:
        """Return the method with other options."""
        return ActorMethod(self._actor, self._name, {**self._options, **options})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse, as Ray does.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"an actor's method is called by actor.{self._name}.remote(...)")


class ActorHandle:
    """An actor; its methods have `remote`."""

    def __init__(self, cls: type, args: Any, kwargs: Any, name: str | None) -> None:
        self._cls = cls
        self._name = name
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._object: Any = None
        self._gone: BaseException | None = None
        self._lock = threading.Lock()  # of `_gone`: nothing is queued behind the None that ends the thread
        threading.Thread(target=self._live, args=(args, kwargs), daemon=True).start()

    def _live(self, args: Any, kwargs: Any) -> None:
        try:
            positional, named = resolved(args, kwargs)
            self._object = self._cls(*positional, **named)
        # What the user's constructor raises is raised for every caller.
        except BaseException as error:  # noqa: BLE001
            gone = RayActorError(f"the actor {self._cls.__name__} could not be made: {type(error).__name__}: {error}")
            gone.__cause__ = error
            self._leave(gone)
        while (call := self._calls.get()) is not None:
            call()
        self._object = None

    def _ask(self, refs: list[ObjectRef], name: str, args: Any, kwargs: Any) -> None:
        def call() -> Any:
            if self._gone is not None:
                raise self._gone
            positional, named = resolved(args, kwargs)
            return getattr(self._object, name)(*positional, **named)

        with self._lock:
            if self._gone is None:
                self._calls.put(lambda: run_and_resolve(refs, call))
                return
        run_and_resolve(refs, call)

    def _leave(self, why: BaseException) -> None:
        with self._lock:
            if self._gone is None:
                self._gone = why
                self._calls.put(None)

    def _end(self) -> None:
        self._leave(RayActorError(f"the actor {self._cls.__name__} was killed"))
        if self._name is not None:
            _named.pop(self._name, None)

    def __getattr__(self, name: str) -> ActorMethod:
        if name.startswith("_") and name != "__ray_terminate__":
            raise AttributeError(name)
        if name == "__ray_terminate__":
            return _Terminate(self, name, {})
        function = getattr(self._cls, name, None)
        if not callable(function):
            raise AttributeError(f"the actor {self._cls.__name__} has no method {name!r}")
        return ActorMethod(self, name, getattr(function, "_ray_options", {}))

    def __reduce__(self) -> Any:
        """Refuse to leave the process.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError(
            f"the actor {self._cls.__name__} lives in this process and cannot be sent to trials; make it in the "
            "Trainable, or pass values"
        )

    def __repr__(self) -> str:
        return f"Actor({self._cls.__name__})"


class _Terminate(ActorMethod):
    def remote(self, *args: Any, **kwargs: Any) -> Any:
        self._actor._end()  # noqa: SLF001 - public names are the actor's own
        return ObjectRef.of(None)


class ActorClass:
    """A class whose `remote` makes an actor."""

    def __init__(self, cls: type, options: dict[str, Any]) -> None:
        import inspect

        for name, function in inspect.getmembers(cls, inspect.iscoroutinefunction):
            raise NotSupportedError(
                f"ray.remote: {cls.__name__}.{name} is a coroutine, which the local form of Ray's actors does not "
                f"run ({function.__qualname__}); write plain methods"
            )
        self._cls, self._options = cls, options
        self.__name__ = cls.__name__
        self.__doc__ = cls.__doc__

    def remote(self, *args: Any, **kwargs: Any) -> ActorHandle:
        """Make an actor.

        Raises:
            InvalidInputError: an actor of the name exists.
        """
        name = self._options.get("name")
        if name is not None and name in _named:
            if self._options.get("get_if_exists"):
                return _named[name]
            raise InvalidInputError(f"there is an actor called {name!r} already; ray.get_actor({name!r}) returns it")
        actor = ActorHandle(self._cls, args, kwargs, name)
        if name is not None:
            _named[name] = actor
        return actor

    def options(self, **options: Any) -> ActorClass:
        """Return the class with other options: `name` and `get_if_exists` count, resources do not."""
        return ActorClass(self._cls, {**self._options, **options})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse, as Ray does.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"an actor is made by {self.__name__}.remote(...)")


def get_actor(name: str, namespace: str | None = None) -> ActorHandle:  # noqa: ARG001
    """Return the actor of a name.

    Raises:
        ValueError: there is none.
    """
    if name not in _named:
        raise InvalidInputError(f"there is no actor called {name!r} in this process")
    return _named[name]


def method(**options: Any) -> Callable[[Any], Any]:
    """Give a method of an actor class options: ``@ray.method(num_returns=2)``."""

    def decorate(function: Any) -> Any:
        function._ray_options = options  # noqa: SLF001
        return function

    return decorate
