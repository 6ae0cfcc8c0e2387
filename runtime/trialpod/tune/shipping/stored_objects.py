"""Large objects that trials need, each stored once beside the Trainable: ``objects/{sha256 of the file}``.

A large value of a config is stored in the same way, as ``objects/{sha256}.value``: trials come and go, so these stay
as long as the experiment does.

While a Trainable is pickled, a `Stored` that is large enough is written as a reference, and its value goes into a
file of its own; while it is unpickled, the reference becomes the value again. The file is one line of JSON, the
pickle, and after it the buffers that NumPy and its like hand out beside the pickle. These are mapped into memory, not
read: the trials of a machine share the pages that none writes to.

Invariants:

* A file's name is the checksum of its contents, so equal objects are one file, and no file ever changes.
* An object is loaded once in a process, and what is forked from it has it already.
* Without `collecting` or `reading_from`, an object travels inside the pickle like any other.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from trialpod.errors import StorageError, TrainableError, TrialpodError

FOLDER = "objects"
MIN_STORED_BYTES = 64 * 1024
"""Bytes of a pickled object from which on it is stored by itself."""

RESTING_S = 60.0
"""How old a file has to be before it is removed: another process may be about to start with it."""

_FORMAT = 1
_ALIGNMENT = 64
_MAPPED_FROM = 1024 * 1024
_BLOCK_BYTES = 1024 * 1024
_PLAIN = (int, float, complex, bool, type(None))

_VALUE_SUFFIX = ".value"
_loaded: dict[str, Any] = {}
_value_places: dict[str, Callable[[str], Any]] = {}
_source: ContextVar[_Source | None] = ContextVar("trialpod_objects_source", default=None)
_collected: ContextVar[ObjectSet | None] = ContextVar("trialpod_objects_collected", default=None)


@dataclass(frozen=True)
class _Source:
    folder: str  # path or URI
    storage_options: dict[str, Any] | None


class Stored:
    """A value that is stored by itself when what holds it is packed.

    Args:
        value: what is unpickled in its place.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Travel as a reference where objects are collected, else as the value."""
        objects = _collected.get()
        if objects is None or isinstance(self.value, _PLAIN):
            return _itself, (self.value,)
        digest = objects.add(self.value)
        return (_itself, (self.value,)) if digest is None else (fetch, (digest,))


class ObjectSet:
    """The objects that one Trainable refers to, by checksum; nothing is written before `write`."""

    def __init__(self) -> None:
        self._parts: dict[str, list[bytes | memoryview]] = {}
        self._known: dict[int, tuple[Any, str | None]] = {}  # id -> object, which keeps the id taken

    @property
    def digests(self) -> list[str]:
        """The checksums, sorted."""
        return sorted(self._parts)

    def add(self, value: Any) -> str | None:
        """Take in an object and return its checksum; None if it is small."""
        known = self._known.get(id(value))
        if known is None:
            known = self._known[id(value)] = (value, self._add(value))
        return known[1]

    def _add(self, value: Any) -> str | None:
        parts = _parts(value)
        if sum(len(part) for part in parts) < MIN_STORED_BYTES:
            return None
        checksum = hashlib.sha256()
        for part in parts:
            checksum.update(part)
        digest = checksum.hexdigest()
        self._parts[digest] = parts
        return digest

    def write(self, directory: Path) -> None:
        """Write each object that `directory` does not have yet, on stable storage."""
        folder = directory / FOLDER
        for digest, parts in self._parts.items():
            file = folder / digest
            if file.exists():
                os.utime(file)  # it is wanted again: `sweep` is to leave it alone
                continue
            _write(folder, digest, parts)


class ValueFiles:
    """Stores the large values of configs; a `trialpod.protocol.values.ValueStore`.

    Args:
        directory: where the Trainable is.
        upload: copies a file, with this name in the folder of objects, to where the trials read it from.
    """

    def __init__(self, directory: Path, upload: Callable[[Path, str], None] | None = None) -> None:
        self._folder = directory / FOLDER
        self._upload = upload
        self.files: dict[str, Path] = {}
        """All that were stored, by their names."""
        self._known: dict[int, tuple[Any, bytes | None]] = {}  # id -> object, which keeps the id taken
        self._names: dict[int, str] = {}

    def keep(self, space: Any) -> None:
        """Store the large values of a search space; they are not to change from now on."""
        if isinstance(space, Mapping):
            for value in space.values():
                self.keep(value)
        elif isinstance(space, (list, tuple)):
            for value in space:
                if value.__class__ not in _PLAIN:
                    self.keep(value)
        elif options := getattr(space, "categories", None):
            self.keep(options)
        elif space.__class__ not in _PLAIN and id(space) not in self._known:
            try:
                self._known[id(space)] = (space, self.put(space))
            except TrialpodError:
                raise
            except Exception:  # noqa: BLE001 - it cannot be pickled, whatever its class raises; see above
                return

    def referring(self, space: Any) -> Any:
        """Return a search space to be pickled, in which stored values stand for the large ones."""
        if space.__class__ is dict:
            return {key: self.referring(value) for key, value in space.items()}
        if space.__class__ in (list, tuple):
            return type(space)(self.referring(value) for value in space)
        if options := getattr(space, "categories", None):
            copied = copy.copy(space)
            copied.categories = self.referring(options)
            return copied
        if space.__class__ in _PLAIN:
            return space
        try:
            return space if self.put(space) is None else _Reference(self._names[id(space)])
        except TrialpodError:
            raise
        except Exception:  # noqa: BLE001 - it cannot be pickled, whatever its class raises
            return space

    def put(self, value: Any) -> bytes | None:
        """Store a value and return a pickle that refers to it; None if it is small."""
        known = self._known.get(id(value))
        if known is not None:
            return known[1]
        name, parts = named_parts(value)
        if not name:
            return None
        self._names[id(value)] = name
        try:
            _write(self._folder, name, parts)
        except OSError as error:
            from trialpod.storage.base import storage_error

            raise storage_error(error, "cannot write", self._folder / name) from error
        if name not in self.files and self._upload is not None:
            self._upload(self._folder / name, name)
        self.files[name] = self._folder / name
        return reference_to(name)


class _Reference:
    """Travels as a call that loads a value."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return load_value, (self._name,)


def reference_to(name: str) -> bytes:
    """Return the pickle of a reference to a stored value."""
    import pickle

    return pickle.dumps(_Reference(name))


def named_parts(value: Any) -> tuple[str, list[bytes | memoryview]]:
    """Return the name and the contents of a large value's file; the name of a small one is empty."""
    parts = _parts(value, by_name=True)
    if sum(len(part) for part in parts) < MIN_STORED_BYTES:
        return "", parts
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(part)
    return checksum.hexdigest() + _VALUE_SUFFIX, parts


def read_object(file: Path, digest: str) -> Any:
    """Return what a file has, whose contents have that checksum; a large file is mapped into memory, unread.

    Raises:
        TrainableError: it cannot be read, or is damaged.
    """
    import pickle

    try:
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size >= _MAPPED_FROM:
                # A private mapping: a trial may change its copy, and only the pages that it writes to are copied.
                whole = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY))
            else:
                whole = memoryview(bytearray(stream.read()))
    except OSError as error:
        raise TrainableError(f"an object of the Trainable cannot be read: {error}; submit it again") from error
    body, buffers = _taken_apart(whole, file)
    # What is mapped is not read here at all: a process is to start before it has read gigabytes.
    if size < _MAPPED_FROM and hashlib.sha256(whole).hexdigest() != digest:
        raise TrainableError(f"{file} is damaged: its contents have another checksum; submit it again")
    return pickle.loads(body, buffers=buffers)


def read_values_from(place: str, storage_options: dict[str, Any] | None = None) -> None:
    """Have the large values of configs be looked for below a folder or URI too, in this process from now on."""
    source = _Source(f"{place}/{FOLDER}" if place else FOLDER, storage_options)
    read_values_with(place, partial(_load, source))


def read_values_with(place: str, load: Callable[[str], Any]) -> None:
    """Have the large values of configs be loaded by a call too, which raises TrainableError where it has none."""
    _value_places.pop(place, None)
    _value_places[place] = load


def load_value(name: str) -> Any:
    """Return a large value of a config; it is what a reference calls."""
    problem: TrainableError | None = None
    for load in reversed(_value_places.values()):
        try:
            return load(name)
        except TrainableError as error:
            problem = problem or error
    if problem is not None:
        raise problem
    raise TrainableError(f"the value {name[:12]}... of this config is stored by itself; load the experiment first")


@contextlib.contextmanager
def collecting(objects: ObjectSet | None) -> Iterator[None]:
    """Have what is pickled here put its large objects into `objects`; None leaves them in the pickle."""
    token = _collected.set(objects)
    try:
        yield
    finally:
        _collected.reset(token)


@contextlib.contextmanager
def reading_from(place: str, storage_options: dict[str, Any] | None) -> Iterator[None]:
    """Have what is unpickled here find its objects below the folder or URI `place`."""
    folder = f"{place}/{FOLDER}" if place else FOLDER
    token = _source.set(_Source(folder, storage_options))
    try:
        yield
    finally:
        _source.reset(token)


def fetch(digest: str) -> Any:
    """Return the object with a checksum; it is what a reference in a pickle calls."""
    if digest not in _loaded:
        source = _source.get()
        if source is None:
            raise TrainableError(
                f"the object {digest[:12]}... of this pickled Trainable is stored beside it; load it with trialpod"
            )
        _loaded[digest] = _load(source, digest)
    return _loaded[digest]


def sweep(directory: Path, keep: Iterable[str], *, now: Callable[[], float] = time.time) -> list[str]:
    """Remove the objects in `directory` that are not in `keep`, and return their checksums."""
    wanted = set(keep)
    removed = []
    for file in sorted((directory / FOLDER).glob("*")):
        if file.name in wanted or file.suffix == _VALUE_SUFFIX:
            continue
        with contextlib.suppress(FileNotFoundError):
            if now() - file.stat().st_mtime >= RESTING_S:
                file.unlink()
                removed.append(file.name)
    return removed


def _write(folder: Path, name: str, parts: list[bytes | memoryview]) -> bool:
    """Write a file, on stable storage, unless it is there; return whether it was not."""
    file = folder / name
    if file.exists():
        return False
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{name}.{os.getpid()}.tmp"
    try:
        with temporary.open("wb") as stream:
            stream.writelines(parts)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _itself(value: Any) -> Any:
    return value


def _parts(value: Any, *, by_name: bool = False) -> list[bytes | memoryview]:
    """Return the contents of an object's file, whose buffers are not copied."""
    from trialpod.protocol.pickling import dumps

    handed_out: list[Any] = []
    body = dumps(value, by_name=by_name, buffers=handed_out.append)
    buffers = [buffer.raw() for buffer in handed_out]
    lengths = [len(body), *(len(buffer) for buffer in buffers)]
    head = json.dumps({"format": _FORMAT, "lengths": lengths}).encode()
    parts: list[bytes | memoryview] = [head + b"\n"]
    offset = len(parts[0])
    for part in (body, *buffers):
        padding = -offset % _ALIGNMENT
        parts += [b"\0" * padding, part]
        offset += padding + len(part)
    return parts


def _load(source: _Source, digest: str) -> Any:
    path = source.folder.removeprefix("file://")
    if "://" not in path:
        return read_object(Path(path, digest), digest.partition(".")[0])
    import tempfile

    import msgspec

    from trialpod.storage.base import StorageUnavailableError
    from trialpod.storage.options import StorageOptions
    from trialpod.storage.registry import open_storage

    options = msgspec.convert(source.storage_options, StorageOptions) if source.storage_options else None
    with tempfile.TemporaryDirectory(prefix="trialpod-object-") as folder:
        local = Path(folder, digest)
        try:
            open_storage(path, options).get_file(digest, local)
        except StorageUnavailableError:
            raise
        except StorageError as error:
            raise TrainableError(f"an object of the Trainable, {path}/{digest}, cannot be read: {error}") from error
        with local.open("rb") as stream:
            if sha256_of(stream) != digest.partition(".")[0]:
                raise TrainableError(f"{path}/{digest} is damaged: its contents have another checksum")
        return read_object(local, digest.partition(".")[0])  # a mapping outlives the file's name


def sha256_of(stream: IO[bytes]) -> str:
    """Return the checksum of a file from where it is read; Python 3.10 has no `hashlib.file_digest`."""
    found = hashlib.sha256()
    while block := stream.read(_BLOCK_BYTES):
        found.update(block)
    return found.hexdigest()


def _taken_apart(whole: memoryview, file: Path) -> tuple[memoryview, list[memoryview]]:
    line = bytes(whole[:_MAPPED_FROM]).partition(b"\n")[0]
    try:
        head = json.loads(line)
        known = head["format"] == _FORMAT
        lengths = head["lengths"] if known else [0]
        if not lengths or any(type(length) is not int or length < 0 for length in lengths):
            raise ValueError(f"lengths {lengths!r:.60}")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise TrainableError(f"{file} is not an object of a Trainable; submit it again") from error
    if not known:
        raise TrainableError(f"{file} is of a newer version of trialpod: format {head['format']!r}")
    found, offset = [], len(line) + 1
    for length in lengths:
        offset += -offset % _ALIGNMENT
        found.append(whole[offset : offset + length])
        offset += length
    if offset != len(whole):
        raise TrainableError(f"{file} has {len(whole):,} bytes instead of {offset:,}: it is damaged; submit it again")
    return found[0], found[1:]
