"""Finds the user's Trainable: an entry point, inline source, a pickle, or a command.

Invariants: whatever is wrong with the user's code is a `TrainableError` that says what, where, and what to do; the
same reference is loaded once per process, so a preloaded process forks with it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import msgspec

from trialpod import variables
from trialpod.compat.activation import activate
from trialpod.compat.child_path import is_shim
from trialpod.errors import InvalidInputError, StorageError, TrainableError, nearest
from trialpod.protocol.messages import TrainableRef
from trialpod.storage.base import checked_key
from trialpod.tune.trainable.trainable import Trainable

Loaded = Callable[..., Any] | type[Trainable]

_loaded: dict[bytes, Loaded] = {}


def load_trainable(ref: TrainableRef, storage_options: dict[str, Any] | None = None) -> Loaded:
    """Return the function or the `Trainable` class that `ref` names.

    Args:
        ref: what to load.
        storage_options: a `trialpod.storage.options.StorageOptions` as data, for a pickle in an S3 storage.

    Raises:
        TrainableError: it cannot be found, imported, or is not a Trainable.
        StorageUnavailableError: the storage of a pickle cannot be reached; trying again may help.
    """
    folders = [os.path.abspath(folder) for folder in ref.path]
    key = msgspec.msgpack.encode(msgspec.structs.replace(ref, path=folders))
    found = _loaded.get(key)
    if found is None:
        _activate(os.environ.get(variables.COMPAT, ""))
        if ref.modules:
            folders.insert(0, _write_modules(ref.modules))
        for folder in reversed(folders):
            if folder not in sys.path:
                sys.path.insert(0, folder)
        if ref.entrypoint is not None:
            found = _require_trainable(
                load_entrypoint(ref.entrypoint, folders), f"the entry point {ref.entrypoint!r}"
            )
        elif ref.source is not None:
            found = _from_source(ref.source, ref.attribute)
        elif ref.pickle is not None:
            found = _require_trainable(
                _from_pickle(ref.pickle, ref.sha256, storage_options), f"the pickle {ref.pickle}"
            )
        elif ref.command is not None:
            from trialpod.tune.command.command import Command

            found = Command.of(ref.command)
        else:
            raise TrainableError(
                "the experiment names no trainable: give an entry point, source, a pickle or a command"
            )
        _loaded[key] = found
    return found


def _write_modules(modules: dict[str, str]) -> str:
    """Write Python files into a new folder and return that."""
    import tempfile

    folder = tempfile.mkdtemp(prefix="trialpod-code-")
    for name, text in modules.items():
        path = os.path.join(folder, *checked_key(name).split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(text)
    return folder


def preload(ref: TrainableRef) -> str:
    """Load what `ref` names ahead of the attempts; return "" or why that did not work.

    A failure is not an error here: each attempt tries again, and reports it.
    """
    try:
        loaded = load_trainable(ref)
    except (TrainableError, StorageError) as error:
        return str(error)
    if getattr(loaded, "command_spec", None) is not None:
        import trialpod.runner.command.command_runner  # noqa: F401 - once for all trials
    return ""


def _activate(wanted: str) -> None:
    try:
        activate(wanted)
    except InvalidInputError as error:
        raise TrainableError(str(error)) from error


def _require_trainable(found: object, what: str) -> Loaded:
    if isinstance(found, type):
        if issubclass(found, Trainable):
            return found
        raise TrainableError(
            f"{what} is the class {found.__qualname__}, which does not derive from trialpod.tune.Trainable; "
            "derive it, or name a function that takes the config"
        )
    if not callable(found):
        raise TrainableError(
            f"{what} is a {type(found).__name__}; it has to be a function that takes the config, or a class that "
            "derives from trialpod.tune.Trainable"
        )
    return found


def _import_error(what: str, error: BaseException) -> TrainableError:
    from trialpod.runner.failure import one_line

    if isinstance(error, SyntaxError):
        where = f"{os.path.basename(error.filename or '?')}, line {error.lineno}"
        return TrainableError(f"{what} has a syntax error in {where}: {error.msg}")
    return TrainableError(f"{what} raised {one_line(error)}; it has to import cleanly before it can be tuned")


def load_entrypoint(entrypoint: str, folders: list[str]) -> object:
    """Return what "module:name" names.

    Args:
        entrypoint: the name.
        folders: the user's own, of which a message may say what is in them.

    Raises:
        TrainableError: it cannot be imported, or has no such name.
    """
    name, colon, attribute = entrypoint.partition(":")
    if not colon or not all(part.isidentifier() for part in (*name.split("."), *attribute.split("."))):
        raise TrainableError(f'the entry point {entrypoint!r} is not of the form "module:attribute" (train:train_fn)')
    found: object = _import(name, folders)
    path = name
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise TrainableError(_missing(path, part, found)) from None
        path += f".{part}"
    return found


def _missing(path: str, part: str, owner: object) -> str:
    names = [name for name in dir(owner) if not name.startswith("_")]
    close = nearest(part, names)
    file = getattr(owner, "__file__", None)
    hint = f"; did you mean {close!r}?" if close else f"; it has {', '.join(names[:10]) or 'no public names'}"
    return f"{path!r}{f' ({file})' if file else ''} has no attribute {part!r}{hint}"


def _import(name: str, own: list[str]) -> ModuleType:
    import importlib

    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == "ray":
            raise TrainableError(
                f"importing {name!r} needs Ray, which is not installed; with the variable {variables.COMPAT}=ray in "
                "the trials' environment, `import ray` means trialpod"
            ) from error
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            folders = ", ".join([folder or "." for folder in sys.path if not is_shim(folder)][:4])
            raise TrainableError(
                f"there is no module {error.name!r}{_files_hint(error.name, own)}; put its folder into the "
                f"trainable's path or install it (in a cluster: in the image). Searched first: {folders}"
            ) from None
        from trialpod.missing import distribution

        raise TrainableError(
            f"importing {name!r} raised ModuleNotFoundError: {error}; install "
            f"{distribution(error.name or '')!r} (in a cluster: in the image)"
        ) from error
    # The user's module may end its import in any way, including sys.exit().
    except BaseException as error:
        raise _import_error(f"importing {name!r}", error) from error


def _files_hint(name: str, folders: list[str]) -> str:
    """Say what there is instead in the trainable's own folders: the keys of a ConfigMap, in a cluster."""
    if not folders or "." in name:
        return ""
    found: list[str] = []
    for folder in folders:
        try:
            found += [entry for entry in sorted(os.listdir(folder)) if entry.endswith(".py")]
        except OSError:
            return f" ({folder} cannot be read)"
    if f"{name}.py" in found:
        return ""
    close = nearest(f"{name}.py", found)
    listing = ", ".join(found[:5]) or "no .py file"
    return f" in {folders[0]}, which has {listing}" + (f"; did you mean {close[:-3]!r}?" if close else "")


def _from_source(source: str, attribute: str | None) -> Loaded:
    import hashlib
    import linecache

    name = f"trialpod_source_{hashlib.sha256(source.encode()).hexdigest()[:12]}"
    module = sys.modules.get(name)
    if module is None:
        file = f"{name}.py"
        module = ModuleType(name)
        module.__file__ = file
        # Tracebacks and inspect.getsource show its lines; an entry without a time stamp is never checked on disk.
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        # Classes defined in it can be pickled by name, as from any module.
        sys.modules[name] = module
        try:
            exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)
        except BaseException as error:
            del sys.modules[name]
            raise _import_error("the inline source", error) from error
    if attribute is not None:
        try:
            return _require_trainable(getattr(module, attribute), f"{attribute!r} of the inline source")
        except AttributeError:
            raise TrainableError(_missing("the inline source", attribute, module)) from None
    return _only_trainable(module, source)


def _only_trainable(module: ModuleType, source: str) -> Loaded:
    own = [
        value
        for key, value in vars(module).items()
        if not key.startswith("_") and getattr(value, "__module__", None) == module.__name__ and callable(value)
    ]
    classes = [value for value in own if isinstance(value, type) and issubclass(value, Trainable)]
    # Of classes that derive from each other, only the last is to be run.
    leaves = [
        value for value in classes if not any(other is not value and issubclass(other, value) for other in classes)
    ]
    candidates = leaves or [value for value in own if not isinstance(value, type)]
    if not leaves and len(candidates) > 1:
        from trialpod.runner import inline_source

        intended = inline_source.candidates(source)
        candidates = [value for value in candidates if value.__name__ in intended] or candidates
    if len(candidates) == 1:
        found: Loaded = candidates[0]
        return found
    names = ", ".join(value.__name__ for value in candidates)
    raise TrainableError(
        f"the inline source defines several that could be run ({names}); say which with the attribute"
        if candidates
        else "the inline source defines neither a function nor a class that derives from trialpod.tune.Trainable"
    )


def _read_pickle(uri: str, storage_options: dict[str, Any] | None) -> bytes:
    path = uri.removeprefix("file://")
    if "://" not in path:
        try:
            with open(path, "rb") as stream:
                return stream.read()
        except OSError as error:
            raise TrainableError(f"the pickled trainable {uri} cannot be read: {error}") from error
    from trialpod.storage.base import StorageUnavailableError
    from trialpod.storage.options import StorageOptions
    from trialpod.storage.registry import open_storage

    options = msgspec.convert(storage_options, StorageOptions) if storage_options else None
    folder, _, name = path.rpartition("/")
    try:
        return open_storage(folder, options, check=False).read(name)
    except StorageUnavailableError:
        raise
    except (InvalidInputError, StorageError) as error:
        raise TrainableError(f"the pickled trainable {uri} cannot be read: {error}") from error


def _from_pickle(uri: str, sha256: str | None, storage_options: dict[str, Any] | None) -> object:
    import hashlib
    import pickle

    from trialpod.protocol.packed import read_packed, version_mismatch
    from trialpod.storage.base import StorageUnavailableError
    from trialpod.tune.shipping.stored_objects import reading_from

    data = _read_pickle(uri, storage_options)
    if sha256 is not None and (actual := hashlib.sha256(data).hexdigest()) != sha256:
        raise TrainableError(
            f"the pickled trainable {uri} has the checksum {actual[:12]}..., expected is {sha256[:12]}...; it was "
            "changed after it had been submitted: submit it again"
        )
    if data.startswith(b"{"):
        header, data = read_packed(data)
        if mismatch := version_mismatch(header):
            # Not even tried: byte code of another version may load and then crash the interpreter.
            raise TrainableError(f"the pickled trainable {uri} cannot be loaded: {mismatch}")
        _activate(str(header.get("compat", "")))
    try:
        with reading_from(uri.rpartition("/")[0], storage_options):
            return pickle.loads(data)
    except (TrainableError, StorageUnavailableError):
        raise  # of an object that is stored beside it
    except ModuleNotFoundError as error:
        raise TrainableError(
            f"the pickled trainable {uri} needs the module {error.name!r}, which is not installed here"
        ) from error
    # Unpickling runs user code, and what a foreign byte code raises is not specified.
    except BaseException as error:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise TrainableError(
            f"the pickled trainable {uri} cannot be loaded ({type(error).__name__}: {error}). Code is pickled "
            f"for one version of Python, this process runs Python {version}: submit with that version, or name "
            "an entry point"
        ) from error
