"""A storage in memory that has no path on this machine, and that fails, stalls or dies when it is told to."""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from trialpod.errors import StorageError
from trialpod.storage.base import (
    KeyChangedError,
    KeyExistsError,
    KeyMissingError,
    Storage,
    StorageUnavailableError,
    checked_key,
)


class Died(BaseException):
    """The process that made the call is gone: before the call had an effect, or after."""


class MemoryStorage(Storage):
    """A remote storage as its users see it.

    Every call goes through `before(name, key)` and `after(name, key)`, which may raise or wait. `calls` lists the
    names and keys of all calls, `sent` the bytes that were written.
    """

    def __init__(self, values: dict[str, bytes] | None = None, prefix: str = "") -> None:
        self.values = values if values is not None else {}
        self.calls: list[tuple[str, str]] = []
        self.sent = 0
        self.before: Callable[[str, str], None] = lambda name, key: None
        self.after: Callable[[str, str], None] = lambda name, key: None
        self._prefix = prefix
        self._lock = threading.RLock()

    @property
    def uri(self) -> str:
        return f"memory://{self._prefix}".rstrip("/")

    def read(self, key: str) -> bytes:
        with self._Call(self, "read", key):
            return self._get(key)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        with self._Call(self, "read_range", key):
            return self._get(key)[start : start + length]

    def write(self, key: str, data: bytes) -> None:
        with self._Call(self, "write", key):
            self._set(key, data)

    def write_new(self, key: str, data: bytes) -> None:
        with self._Call(self, "write_new", key):
            self._set(key, data, new=True)

    def read_version(self, key: str) -> tuple[bytes, str]:
        with self._Call(self, "read", key):
            data = self._get(key)
            return data, _etag(data)

    def write_if(self, key: str, data: bytes, version: str | None) -> str:
        with self._Call(self, "write_if", key):
            with self._lock:
                found = self.values.get(self._full(key))
                if (None if found is None else _etag(found)) != version:
                    raise KeyChangedError(f"{key} was changed meanwhile")
                self._set(key, data)
            return _etag(data)

    def put_file(self, local: Path, key: str) -> int:
        with self._Call(self, "put_file", key):
            data = local.read_bytes()
            self._set(key, data)
            return zlib.crc32(data)

    def get_file(self, key: str, local: Path, *, size: int | None = None) -> int:
        with self._Call(self, "get_file", key):
            data = self._get(key)
            if size is not None and size != len(data):
                raise StorageError(f"{key} has {len(data)} bytes instead of {size}")
            local.write_bytes(data)
            return zlib.crc32(data)

    def copy(self, source: str, key: str) -> None:
        with self._Call(self, "copy", source):
            data = self._get(source)
            with self._lock:
                self.values[self._full(key)] = data

    def sample_keys(self, prefix: str = "", *, limit: int = 1000) -> Sequence[str]:
        with self._Call(self, "sample_keys", prefix):
            return self._below(prefix)[:limit]

    def abort_uploads(self, prefixes: Iterable[str]) -> int:
        for prefix in prefixes:
            with self._Call(self, "abort_uploads", prefix):
                pass
        return 0

    def close(self) -> None:
        pass

    def exists(self, key: str) -> bool:
        with self._Call(self, "exists", key), self._lock:
            return self._full(key) in self.values or bool(self._below(key))

    def list(self, prefix: str = "") -> list[str]:
        with self._Call(self, "list", prefix):
            return self._below(prefix)

    def sizes(self, prefix: str = "") -> dict[str, int]:
        with self._Call(self, "sizes", prefix):
            return {key: len(self._get(key)) for key in self._below(prefix)}

    def delete(self, key: str) -> None:
        with self._Call(self, "delete", key):
            self.values.pop(self._full(key), None)

    def delete_many(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.delete(key)

    def delete_tree(self, prefix: str) -> None:
        checked_key(prefix)
        self.delete_many(self._below(prefix))

    def put_directory(self, local: Path, prefix: str) -> None:
        for path in sorted(local.rglob("*")):
            if path.is_file():
                self.put_file(path, f"{prefix}/{path.relative_to(local)}")

    def get_directory(self, prefix: str, local: Path) -> None:
        found = self._below(prefix)
        if not found:
            raise KeyMissingError(prefix)
        for key in found:
            target = local / key.removeprefix(f"{prefix}/")
            target.parent.mkdir(parents=True, exist_ok=True)
            self.get_file(key, target)

    def local_path(self, key: str) -> Path | None:
        return None

    def sub(self, prefix: str) -> MemoryStorage:
        made = MemoryStorage(self.values, self._full(prefix) + "/")
        made.before, made.after = self.before, self.after
        return made

    def parent(self) -> MemoryStorage:
        parent = self._prefix.rstrip("/").rpartition("/")[0]
        made = MemoryStorage(self.values, f"{parent}/" if parent else "")
        made.before, made.after = self.before, self.after
        return made

    class _Call:
        def __init__(self, storage: MemoryStorage, name: str, key: str) -> None:
            self.storage, self.name, self.key = storage, name, key

        def __enter__(self) -> None:
            self.storage.calls.append((self.name, self.key))
            self.storage.before(self.name, self.key)

        def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
            if kind is None:
                self.storage.after(self.name, self.key)

    def _full(self, key: str) -> str:
        return self._prefix + checked_key(key, root_allowed=True)

    def _get(self, key: str) -> bytes:
        with self._lock:
            try:
                return self.values[self._full(key)]
            except KeyError:
                raise KeyMissingError(f"there is no {key} in {self.uri}") from None

    def _set(self, key: str, data: bytes, *, new: bool = False) -> None:
        with self._lock:
            if new and self._full(key) in self.values:
                raise KeyExistsError(f"{key} exists already")
            self.values[self._full(key)] = data
            self.sent += len(data)

    def _below(self, prefix: str) -> list[str]:
        below, start = f"{self._prefix}{prefix}/" if prefix else self._prefix, len(self._prefix)
        with self._lock:
            return sorted([key[start:] for key in self.values if key.startswith(below)])


def _etag(data: bytes) -> str:
    """Equal values have equal versions, as in S3."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def unavailable(*_: str) -> None:
    """A fault: the storage cannot be reached."""
    raise StorageUnavailableError("memory: connection refused")


def fail_on(
    name: str, part: str = "", error: type[BaseException] = StorageUnavailableError, times: int = 1
) -> Callable[[str, str], None]:
    """Return a fault that raises at the first `times` calls of this name whose key contains `part`."""
    left = [times]

    def fault(called: str, key: str) -> None:
        if called == name and part in key and left[0] > 0:
            left[0] -= 1
            raise error(f"memory: {called} {key} failed")

    return fault
