"""How user code travels from the script to its trials: one pickle, written before anything starts.

What lives in a module that the trials can import travels as a reference to it; what lives in ``__main__``, a function
or a lambda travels as a whole. Either way one file carries it (see `trialpod.protocol.packed` for its form).

Invariants: nothing is written when something cannot be pickled; a file is replaced in one step, and never by other
contents, because attempts that are still running may have to read it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trialpod import variables
from trialpod.compat.child_path import is_shim
from trialpod.errors import NotPicklableError, TrainableError
from trialpod.protocol.messages import TrainableRef
from trialpod.protocol.packed import pack, read_packed, version_mismatch
from trialpod.tune.registry import Shipped, shipped
from trialpod.tune.shipping.diagnosis import diagnose
from trialpod.tune.shipping.stored_objects import RESTING_S, ObjectSet, collecting, reading_from, sweep

FILE = "trainable.pkl"
_NOT_OWN = frozenset({"__main__", "trialpod", "trialpod_operator"})

_REMEDIES = {
    True: "Create it inside the Trainable (in the function's body, in setup() of a class), or pass what it is made "
    "from",
    False: "Create it where it is used, or leave it out of the pickle with __getstate__",
}
"""Whether the object travels to the trials -> what to do with what cannot be pickled."""


def pickled(
    obj: Any,
    what: str,
    name: str | None = None,
    *,
    own_code: bool = False,
    objects: ObjectSet | None = None,
    travels: bool = True,
) -> bytes:
    """Return `obj` as a cloudpickle."""
    from trialpod.protocol.pickling import dumps

    try:
        with own_modules() if own_code else contextlib.nullcontext(), _by_value(obj), collecting(objects):
            return dumps(obj, by_name=not travels)
    except Exception as error:
        culprits = diagnose(obj.func if isinstance(obj, Shipped) else obj, name)
        lines = "".join(f"\n  - {culprit}" for culprit in culprits) or f"\n  - {type(error).__name__}: {error}"
        verb = "sent to the trials" if travels else "stored with the experiment"
        raise NotPicklableError(
            f"{what} cannot be {verb}, because it holds what cannot be pickled:{lines}\n{_REMEDIES[travels]}."
        ) from error


def pack_trainable(trainable: Any, directory: Path, *, name: str | None = None) -> TrainableRef:
    """Write a Trainable into a file and return the reference that trials load it by."""
    objects = ObjectSet()
    return write_trainable(packed_trainable(trainable, name=name, objects=objects), directory, objects)


def packed_trainable(
    trainable: Any, *, name: str | None = None, own_code: bool = False, objects: ObjectSet | None = None
) -> bytes:
    """Return the contents of a Trainable's file; see `pack_trainable`, and `pickled` for `own_code` and `objects`."""
    import cloudpickle

    called = name or getattr(trainable, "__name__", None) or type(trainable).__name__
    body = pickled(shipped(trainable), f"the Trainable {called}", own_code=own_code, objects=objects)
    return pack(
        body,
        name=called,
        cloudpickle=cloudpickle.__version__,
        compat=os.environ.get(variables.COMPAT, ""),
        objects=objects.digests if objects is not None else (),
    )


def write_trainable(data: bytes, directory: Path, objects: ObjectSet | None = None) -> TrainableRef:
    """Write the contents of a Trainable's file, on stable storage, and return the reference to it."""
    if objects is not None:
        objects.write(directory)
    digest = hashlib.sha256(data).hexdigest()
    file = directory / FILE
    if file.exists() and file.read_bytes() != data:
        file = directory / f"trainable-{digest[:16]}.pkl"
    if file.exists():
        os.utime(file)  # the newest is the one that is used
    else:
        write_atomically(file, data)
    return TrainableRef(pickle=str(file), sha256=digest, path=import_path())


def stored_objects(file: Path) -> list[str]:
    """Return the checksums of the objects that a Trainable's file refers to."""
    with file.open("rb") as stream:
        header, _ = read_packed(stream.readline() + b"-")
    return [str(digest) for digest in header.get("objects", [])]


def sweep_trainables(directory: Path, current: TrainableRef) -> None:
    """Remove what earlier Trainables of an experiment left in its folder, once its processes have ended."""
    if current.pickle is None or Path(current.pickle).parent != directory:
        return
    kept = Path(current.pickle)
    for file in directory.glob("trainable*.pkl"):
        if file != kept and time.time() - file.stat().st_mtime >= RESTING_S:
            file.unlink(missing_ok=True)
    sweep(directory, stored_objects(kept))


def write_atomically(file: Path, data: bytes) -> None:
    """Write a file so that it has either its old or its new contents, also after a crash."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def unpickled(data: bytes, where: str, *, objects: str = "") -> Any:
    """Return the object in a packed file's contents, which must be the user's own: unpickling runs its code."""
    import pickle

    header, body = read_packed(data)
    try:
        with reading_from(objects, None) if objects else contextlib.nullcontext():
            return pickle.loads(body)
    except Exception as error:
        hint = version_mismatch(header) or "run this where the modules that it names can be imported"
        raise TrainableError(f"{where} cannot be read: {type(error).__name__}: {error}; {hint}") from error


def import_path() -> list[str]:
    """Return the folders of this process's import path that another Python of this installation lacks."""
    installed = {os.path.realpath(path) for path in (*sysconfig.get_paths().values(), *_standard_folders()) if path}
    found: list[str] = []
    for entry in sys.path:
        if is_shim(entry):  # a trial puts it there itself
            continue
        path = os.path.abspath(entry or os.getcwd())
        if path not in found and os.path.exists(path) and os.path.realpath(path) not in installed:
            found.append(path)
    return found


def _standard_folders() -> Iterator[str]:
    library = sysconfig.get_path("stdlib")
    yield os.path.join(library, "lib-dynload")
    yield os.path.join(sys.base_prefix, "lib", f"python{sys.version_info.major}{sys.version_info.minor}.zip")


@contextlib.contextmanager
def _by_value(obj: Any) -> Iterator[None]:
    """Make cloudpickle take along the code of a module that exists only in this process (a notebook's, say)."""
    import cloudpickle

    while hasattr(obj, "func"):
        obj = obj.func
    module = sys.modules.get(getattr(obj, "__module__", None) or "")
    if module is None or module.__name__ == "__main__" or _importable(module.__name__):
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


@contextlib.contextmanager
def own_modules() -> Iterator[None]:
    """Make cloudpickle take along the code of every imported module that is the user's own: not installed."""
    import cloudpickle

    folders = tuple(os.path.join(os.path.realpath(folder), "") for folder in import_path())
    taken = cloudpickle.list_registry_pickle_by_value()
    own = [
        module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] not in _NOT_OWN
        and name not in taken
        and (file := getattr(module, "__file__", None))
        and "site-packages" not in file
        and _real_path(file).startswith(folders)
    ]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


@functools.cache
def _real_path(file: str) -> str:
    """Return the real path of a module's file, and keep it: to ask for those of 585 modules takes 15 ms of CPU."""
    return os.path.realpath(file)


def _importable(module: str) -> bool:
    path: Any = None
    prefix = ""
    for part in module.split("."):
        prefix = f"{prefix}.{part}" if prefix else part
        if part in sys.builtin_module_names:
            return True
        spec = None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if find is not None and (spec := find(prefix, path)) is not None:
                break
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return True
