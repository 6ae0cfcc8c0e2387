"""How the user's objects are pickled: cloudpickle, with three additions.

* A class or function of ``__main__`` is looked up by its name where the pickle is loaded, before its code in the
  pickle is used. So ``config["activation"] is Activation.RELU`` holds in the script, in the trials, and in the script
  that restores the experiment. The same holds for the user's modules where these travel by value, to pods.
* What can be pickled and not be loaded again (a proxy whose ``__getattr__`` needs an attribute that it does not have
  yet) is refused when it is pickled.
* Code keeps the name of its file, which cloudpickle 3.1.3 drops: a trial's traceback names the user's file and line.

Invariants: cloudpickle is imported only when something is pickled; loading needs `pickle` and this module.
"""

from __future__ import annotations

import io
import pickle
import sys
import types
from collections.abc import Callable
from functools import cache
from typing import Any


def dumps(
    value: Any, *, by_name: bool = False, buffers: Callable[[pickle.PickleBuffer], object] | None = None
) -> bytes:
    """Return the pickle of a value.

    Args:
        value: any object.
        by_name: look classes and functions of ``__main__`` up by name when this is loaded.
        buffers: takes the large buffers in it, which the pickle then lacks.

    Raises:
        Exception: whatever the object's own code raises; it cannot be pickled.
    """
    stream = io.BytesIO()
    _pickler()(stream, by_name, buffers).dump(value)
    return stream.getvalue()


@cache
def _pickler() -> Any:
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def __init__(self, stream: io.BytesIO, by_name: bool, buffers: Any) -> None:
            super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=buffers)
            self._by_name = by_name

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, types.CodeType):
                make, arguments, *_ = self.dispatch_table[types.CodeType](obj)
                return code_of_file, (obj.co_filename, make, arguments)
            if isinstance(obj, (type, types.FunctionType)):
                if self._by_name and _in_main(obj):
                    return of_main, (obj.__qualname__, dumps(obj))
                if self._by_name and _of_shipped_module(obj):
                    return of_module, (obj.__module__, obj.__qualname__, dumps(obj))
            elif hasattr(type(obj), "__getattr__"):
                _check_loadable(obj)
            return super().reducer_override(obj)

    return Pickler


def code_of_file(file: str, make: Callable[..., types.CodeType], arguments: tuple[Any, ...]) -> types.CodeType:
    """Return a code object with the name of the file that it was written in."""
    return make(*arguments).replace(co_filename=file)


def of_main(qualname: str, code: bytes) -> Any:
    """Return a class or function of the user's ``__main__``: this process's own, or the one in `code`."""
    main = sys.modules.get("__main__")
    found = _attribute(main, qualname) if main is not None and not _is_ours(main) else None
    if isinstance(found, (type, types.FunctionType)) and found.__module__ == "__main__":
        return found
    return _loaded_class("__main__", qualname) or pickle.loads(code)


def of_module(module: str, qualname: str, code: bytes) -> Any:
    """Return a class or function of a user's module: the one that the script has imported, or the one in `code`.

    A trial takes what came with it, whatever its image has under that name.
    """
    main = sys.modules.get("__main__")
    found = None if main is None or _is_ours(main) else _attribute(sys.modules.get(module), qualname)
    if isinstance(found, (type, types.FunctionType)) and found.__module__ == module:
        return found
    return _loaded_class(module, qualname) or pickle.loads(code)


def _of_shipped_module(obj: Any) -> bool:
    """Return whether a class or function is one of a module that is not looked up where the pickle is loaded."""
    from cloudpickle import cloudpickle

    if obj.__module__ in (None, "__main__") or "<" in obj.__qualname__:
        return False
    if cloudpickle._should_pickle_by_reference(obj):  # noqa: SLF001 - there is no public way to ask
        return False
    module = sys.modules.get(obj.__module__)
    return module is None or _attribute(module, obj.__qualname__) is obj


def _in_main(obj: Any) -> bool:
    if obj.__module__ != "__main__" or "<" in obj.__qualname__:
        return False
    main = sys.modules.get("__main__")
    if main is not None and _is_ours(main):
        return True  # a trial: it came with the Trainable or the config
    return _attribute(main, obj.__qualname__) is obj


def _attribute(owner: Any, qualname: str) -> Any:
    for part in qualname.split("."):
        owner = getattr(owner, part, None)
    return owner


def _is_ours(main: types.ModuleType) -> bool:
    spec = getattr(main, "__spec__", None)
    return spec is not None and str(spec.name).partition(".")[0] in ("trialpod", "trialpod_operator")


def _loaded_class(of: str, qualname: str) -> type | None:
    """Return a module's class that came with the Trainable's pickle, so that there are no two of it."""
    module = sys.modules.get("cloudpickle.cloudpickle")
    known = getattr(module, "_DYNAMIC_CLASS_TRACKER_BY_ID", None)
    for found in list(known.values()) if known is not None else ():
        if found.__module__ == of and found.__qualname__ == qualname:
            return found  # type: ignore[no-any-return]
    return None


def _check_loadable(obj: Any) -> None:
    """Raise PicklingError if an object without its attributes never ends the search for ``__setstate__``."""
    kind = type(obj)
    methods: list[Any] = [kind.__reduce__, kind.__reduce_ex__]
    if methods != [object.__reduce__, object.__reduce_ex__]:
        return
    try:
        made: Any = kind.__new__
        getattr(made(kind), "__setstate__", None)
    except RecursionError:
        raise pickle.PicklingError(
            f"a {kind.__module__}.{kind.__qualname__} cannot be unpickled: its __getattr__ calls itself without end "
            "on an object that has no attributes yet"
        ) from None
    except Exception:  # noqa: BLE001 - it may need arguments, or raise anything; then unpickling decides
        return
