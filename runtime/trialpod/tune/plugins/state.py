"""The state of schedulers, search algorithms and stoppers whose class defines none: a pickle of their attributes.

A class of a script that derives from one of ours and defines no ``get_state`` of its own is given one when it is
defined. What it pickles is opened again only in a process that has allowed it (`allow_pickles`), which is the user's
own: an operator never does.

Invariants:

* A state that cannot be kept raises `StateNotKeptError`. The caller then keeps the journal, from which the
  object can be brought to the same state by calling it as before.
* References to the engine's objects (trials, the controller) are kept as names, and are the objects of the new engine
  after a restore.
* The states of Python's and NumPy's global random generators are kept with each pickle, so that an object that draws
  from them continues with the values that it would have drawn.
"""

from __future__ import annotations

import base64
import contextlib
import io
import logging
import os
import pickle
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trialpod.errors import InvalidInputError, TrialpodError
from trialpod.tune.plugins.described import RemembersArguments

logger = logging.getLogger(__name__)

PICKLE = "pickle"
_OUR_PACKAGES = ("trialpod", "trialpod_operator")
_PLAIN_LEAVES = (str, float, bool, type(None))
_MAX_INT, _MIN_INT = 2**63 - 1, -(2**63)

_allowed = False


class StateNotKeptError(TrialpodError):
    """The state of a scheduler, search algorithm or stopper cannot be stored."""


@dataclass(frozen=True)
class References:
    """Objects that a plug-in may refer to, but that are not part of its state.

    Attributes:
        name_of: the name of an object; None for all others.
        find: the object of that name; None when there is none.
    """

    name_of: Callable[[object], str | None]
    find: Callable[[str], Any]


_references: ContextVar[References | None] = ContextVar("trialpod_plug_in_references", default=None)


class PlugIn(RemembersArguments):
    """Base of `TrialScheduler`, `Searcher`, `SearchAlgorithm` and `Stopper`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give a user's class that keeps no state of its own one that is pickled."""
        super().__init_subclass__(**kwargs)
        if is_ours(cls):
            return
        definer = next((base for base in cls.__mro__ if "get_state" in vars(base)), None)
        if definer is None or is_ours(definer):
            cls.get_state = _get_state  # type: ignore[attr-defined]
            cls.set_state = _set_state  # type: ignore[attr-defined]


def is_ours(cls: type) -> bool:
    """Return whether a class is part of trialpod."""
    return cls.__module__.partition(".")[0] in _OUR_PACKAGES


def allow_pickles() -> None:
    """Allow this process to open pickled states: it runs the code of the user who wrote them anyway."""
    global _allowed
    _allowed = True


@contextlib.contextmanager
def referring_to(references: References) -> Iterator[None]:
    """Keep references to these objects as names while states are stored and restored here."""
    token = _references.set(references)
    try:
        yield
    finally:
        _references.reset(token)


def parts(plug_in: Any) -> Iterator[Any]:
    """Yield a plug-in, and those of ours and of the user that it passes calls on to."""
    yield plug_in
    if plug_in is None or not is_ours(type(plug_in)):
        return
    for name in ("search", "searcher", "_base"):
        inner = vars(plug_in).get(name) if hasattr(plug_in, "__dict__") else None
        if inner is not None and inner is not plug_in:
            yield from parts(inner)
    for inner in getattr(plug_in, "_stoppers", ()):
        yield from parts(inner)


def has_own_code(plug_in: Any) -> bool:
    """Return whether a class of a user is among the parts of a plug-in."""
    return any(part is not None and not is_ours(type(part)) for part in parts(plug_in))


def stored_state(plug_in: Any) -> dict[str, Any]:
    """Return the state of a plug-in as plain data."""
    if not has_own_code(plug_in):
        state: dict[str, Any] = plug_in.get_state()
        return state
    try:
        state = plug_in.get_state()
    except StateNotKeptError:
        raise
    except Exception as error:
        raise StateNotKeptError(f"{_name(plug_in)}.get_state() raised {type(error).__name__}: {error}") from error
    if isinstance(state, dict) and _is_plain(state):
        return state
    return {"version": 1, "returned": dumped(state, _name(plug_in))}


def restore_state(plug_in: Any, state: dict[str, Any]) -> None:
    """Give a plug-in the state that `stored_state` returned."""
    if not has_own_code(plug_in):
        plug_in.set_state(state)
        return
    if set(state) == {"version", "returned"}:
        kept = _opened(state["returned"], _name(plug_in))
        if kept is None:
            return
        state = kept[0]
    try:
        plug_in.set_state(state)
    except InvalidInputError:
        raise
    except Exception as error:
        raise InvalidInputError(
            f"{_name(plug_in)}.set_state() raised {type(error).__name__}: {error}; it must take what get_state() of "
            "the earlier run returned"
        ) from error


def dumped(value: Any, owner: str) -> str:
    """Return a value as text."""
    import cloudpickle

    references = _references.get()

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
        def persistent_id(self, obj: Any) -> str | None:
            return None if references is None else references.name_of(obj)

    stream = io.BytesIO()
    try:
        Pickler(stream).dump(value)
    except Exception as error:
        raise StateNotKeptError(
            f"the attributes of {owner} cannot be pickled ({type(error).__name__}: {error})"
        ) from error
    return base64.b64encode(stream.getvalue()).decode()


def loaded(text: str) -> Any:
    """Return the value that `dumped` was given."""
    if not _allowed:
        raise InvalidInputError(
            "the stored state is a pickle, which only a process of its user opens: a scheduler, search algorithm or "
            "stopper that runs in an operator must define get_state() and set_state(state) with JSON data"
        )
    references = _references.get()

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> Any:
            return None if references is None else references.find(str(pid))

    return Unpickler(io.BytesIO(base64.b64decode(text))).load()


def is_pickled(plug_in: Any) -> bool:
    """Return whether the state of an object is a pickle of its attributes, because its class defines none."""
    return getattr(type(plug_in), "get_state", None) is _get_state


def pickle_attributes(plug_in: Any, path: str | os.PathLike[str]) -> None:
    """Write the attributes of an object to a file that the user named."""
    import cloudpickle

    temporary = Path(f"{os.fspath(path)}.tmp")
    temporary.write_bytes(cloudpickle.dumps(vars(plug_in)))
    temporary.replace(path)


def attributes_of(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what `pickle_attributes` wrote."""
    try:
        found = pickle.loads(Path(path).read_bytes())
    except Exception as error:
        raise InvalidInputError(
            f"{os.fspath(path)} holds no saved attributes: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(found, dict):
        raise InvalidInputError(f"{os.fspath(path)} holds no saved attributes, but {type(found).__name__}")
    return found


# -- the methods of classes that define none


def _get_state(self: Any) -> dict[str, Any]:
    """Return a pickle of the attributes, or the file that an own ``save`` writes."""
    if not _allowed:
        try:
            state: dict[str, Any] = _inherited(self, "get_state")()
        except NotImplementedError as error:
            raise StateNotKeptError(
                f"{type(self).__name__} defines no get_state() and set_state(state), and an operator pickles nothing"
            ) from error
        return state
    saved = _saved_by_itself(self)
    kept = {"generators": _generators(), **({"attributes": vars(self)} if saved is None else {"file": saved})}
    return {"version": 1, PICKLE: dumped(kept, _name(self))}


def _set_state(self: Any, state: dict[str, Any]) -> None:
    """Restore what `_get_state` returned."""
    if PICKLE not in state:  # that of the class it derives from, from a process or a version that pickles none
        _inherited(self, "set_state")(state)
        return
    opened = _opened(state[PICKLE], type(self).__name__)
    if opened is None:
        return
    kept = opened[0]
    _set_generators(kept["generators"])
    if "file" in kept:
        with tempfile.TemporaryDirectory(prefix="trialpod-state-") as folder:
            path = Path(folder, "state")
            path.write_bytes(kept["file"])
            self.restore(os.fspath(path))
    else:
        vars(self).clear()
        vars(self).update(kept["attributes"])


def _inherited(self: Any, name: str) -> Callable[..., Any]:
    """Return a method of the class of ours that the object's class derives from."""
    found = (vars(base)[name] for base in type(self).__mro__ if name in vars(base))
    method: Callable[..., Any] = next(each for each in found if each not in (_get_state, _set_state))
    return method.__get__(self)  # type: ignore[no-any-return]


def _opened(text: str, owner: str) -> tuple[Any] | None:
    """Return what was pickled; None, with a warning, when that cannot be loaded any more."""
    try:
        return (loaded(text),)
    except InvalidInputError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises while it is unpickled
        logger.warning(
            "%s continues without what it knew in the earlier run: its stored state cannot be loaded (%s: %s)",
            owner, type(error).__name__, error,
        )  # fmt: skip
        return None


def _saved_by_itself(plug_in: Any) -> bytes | None:
    """Return what the ``save`` of a user's class writes; None when it has none, or one that does nothing."""
    for name in ("save", "restore"):
        definer = next((base for base in type(plug_in).__mro__ if name in vars(base)), None)
        if definer is None or is_ours(definer):
            return None
    with tempfile.TemporaryDirectory(prefix="trialpod-state-") as folder:
        path = Path(folder, "state")
        try:
            plug_in.save(os.fspath(path))
            return path.read_bytes()
        except (NotImplementedError, FileNotFoundError, IsADirectoryError):
            return None  # as in Ray, where a save that is not implemented is skipped


def _generators() -> dict[str, Any]:
    numpy = sys.modules.get("numpy")
    return {"python": random.getstate(), "numpy": numpy.random.get_state() if numpy is not None else None}


def _set_generators(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    if states["numpy"] is not None:
        import numpy as np

        np.random.set_state(states["numpy"])


def _name(plug_in: Any) -> str:
    own = (part for part in parts(plug_in) if part is not None and not is_ours(type(part)))
    return type(next(own, plug_in)).__name__


def _is_plain(value: Any) -> bool:
    """Return whether a value is the same after it was stored as JSON data."""
    kind = type(value)
    if kind is dict:
        return all(type(key) is str and _is_plain(inner) for key, inner in value.items())
    if kind is list:
        return all(_is_plain(inner) for inner in value)
    return kind in _PLAIN_LEAVES or (kind is int and _MIN_INT <= value <= _MAX_INT)
