"""A bucket that is slow, fails, and sometimes does what it was asked without saying so.

Each call takes time, in which its caller may be killed: before the call had its effect, or after. A write has four
ends: done; not done, with an error; done, with an error (the answer was lost); done, and the client's own retry is
told that the object exists already.
"""

from __future__ import annotations

import random
from typing import Any

from memory_storage import MemoryStorage
from sim_kernel import PROCESS, Kernel, Process, WorldOver

from trialpod.storage.base import KeyChangedError, KeyExistsError, StorageUnavailableError
from trialpod.storage.layout import EXPERIMENT_KEY

WRITES = frozenset({"write", "write_new", "write_if", "put_file", "copy", "delete"})


class StoreWeather:
    """How the bucket is at the moment; faults change it.

    Attributes:
        latency_s: a call takes up to this long.
        failing: share of calls that fail without an effect.
        unknown: share of writes that have their effect and fail.
        retried: share of conditional writes that have their effect and are told that the object exists.
        away: nothing works.
        cut: processes for which nothing works.
    """

    def __init__(self, kernel: Kernel, seed: str) -> None:
        self.kernel = kernel
        self.random = random.Random(f"store {seed}")
        self.clear()
        self.writes = 0
        self.archive: dict[str, bytes] = {}
        """All that was ever written to the journal, without the snapshots that replaced it."""
        self.results: dict[str, bytes] = {}
        """The trials' results as they were written last: none of them ever goes away again."""
        self.writers: dict[str, tuple[Process, float]] = {}
        """Who wrote each object last, and when."""

    def clear(self) -> None:
        """From now on the bucket is well."""
        self.latency_s = 0.01
        self.failing = self.unknown = self.retried = 0.0
        self.cut: set[Process] = set()
        self.away = False

    @property
    def troubled(self) -> bool:
        """Whether something is wrong with the bucket for everybody."""
        return bool(self.away or self.failing or self.unknown or self.retried or self.latency_s > 0.01)

    def forget(self, prefix: str) -> None:
        """An experiment has been deleted."""
        for kept in (self.archive, self.results):
            for key in [key for key in kept if key.startswith(prefix)]:
                del kept[key]

    def chance(self, share: float) -> bool:
        return bool(share) and self.random.random() < share


class SimStorage(MemoryStorage):
    """The bucket, or a part of it."""

    def __init__(self, weather: StoreWeather, values: dict[str, bytes], prefix: str = "") -> None:
        super().__init__(values, prefix)
        self._weather = weather
        self.before, self.after = self._before, self._after
        self._nested = 0

    @property
    def uri(self) -> str:
        return f"s3://{self._prefix}".rstrip("/")

    def sub(self, prefix: str) -> SimStorage:
        return SimStorage(self._weather, self.values, self._full(prefix) + "/")

    def parent(self) -> SimStorage:
        return SimStorage(self._weather, self.values, self._prefix.rstrip("/").rpartition("/")[0] + "/")

    def _before(self, name: str, key: str) -> None:
        weather = self._weather
        kernel = weather.kernel
        process = PROCESS.get()
        if kernel.over:
            raise WorldOver
        if process is None:
            return
        full = f"{self._prefix}{key}"
        if kernel.current is not None:
            kernel.sleep(weather.random.random() * weather.latency_s * (0.5 if name in WRITES else 1.0))
        process.point(f"before {name} {key}")
        if weather.away or process in weather.cut or weather.chance(weather.failing):
            kernel.counts["store away" if weather.away else "store failing"] += 1
            kernel.log("store refused", f"{process.name} {name} {full}")
            raise StorageUnavailableError(f"{self.uri}: {name} {key}: connection refused")

    def _after(self, name: str, key: str) -> None:
        weather = self._weather
        kernel = weather.kernel
        process = PROCESS.get()
        if process is None or kernel.over or name not in WRITES:
            return
        weather.writes += 1
        full = f"{self._prefix}{key}"
        weather.writers[full] = process, kernel.now
        if name == "delete" and key == EXPERIMENT_KEY:
            weather.forget(full.removesuffix(EXPERIMENT_KEY))
        if (
            name in ("write", "write_new")
            and "/.trialpod/journal/" in full
            and not full.endswith((".snapshot", ".removed"))
        ):
            weather.archive.setdefault(
                full, self.values[full]
            )  # where it was removed, what comes there later is nothing
        if full.endswith("/result.json") and name != "delete":
            if not self.values[full].startswith(weather.results.get(full, b"")):
                kernel.errors.append(f"files: {process.name} took results away from {full}")
            weather.results[full] = self.values[full]
        kernel.log("store", f"{process.name} {name} {self._prefix}{key}")
        process.point(f"after {name} {key}")
        if kernel.current is not None:
            kernel.sleep(weather.random.random() * weather.latency_s * 0.5)
        if weather.chance(weather.unknown):
            kernel.counts["store answers lost"] += 1
            kernel.log("store unknown", f"{process.name} {name} {self._prefix}{key}")
            raise StorageUnavailableError(f"{self.uri}: {name} {key}: the connection broke")
        if name == "write_new" and weather.chance(weather.retried):
            kernel.counts["store writes repeated"] += 1
            raise KeyExistsError(f"{key} exists already")
        if name == "write_if" and weather.chance(weather.retried):
            kernel.counts["store writes repeated"] += 1
            raise KeyChangedError(f"{key} was changed meanwhile")


def plain(values: dict[str, bytes], prefix: str) -> MemoryStorage:
    """Return what the bucket holds below a prefix, without faults."""
    stored: Any = MemoryStorage(values, prefix)
    return stored  # type: ignore[no-any-return]
