"""An API server and a bucket that stay quick with thousands of objects, and forget what real ones forget."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from fake_api import FakeApi, Object
from sim_storage import SimStorage

EVENTS_FOR_S = 3600.0
"""An API server keeps events for an hour."""
DEPTH = 4
"""Keys are found by so many of their first parts: "bucket/runs/EXPERIMENT/TRIAL"."""


class DayApi(FakeApi):
    """The same server; garbage is found by its owner, not among all objects."""

    def __init__(self) -> None:
        super().__init__()
        self._owned: dict[str, dict[tuple[str, str, str], None]] = {}  # by the owner's uid
        self._present: set[str] = set()
        self._orphans: dict[tuple[str, str, str], None] = {}
        self._events: deque[tuple[float, Object]] = deque()

    def count(self) -> int:
        """Return how many objects it has."""
        return sum(len(objects) for objects in self.objects.values())

    def remove(self, item: Object) -> None:
        uid = item["metadata"]["uid"]
        super().remove(item)
        metadata = item["metadata"]
        kept = self.objects[metadata["namespace"], item["_plural"]].get(metadata["name"])
        if kept is None or kept["metadata"]["uid"] != uid:
            self._present.discard(uid)
            self._orphans.update(self._owned.pop(uid, {}))

    def collect_garbage(self) -> None:
        """Delete what belongs to nobody any more."""
        due, self._orphans = self._orphans, {}
        for namespace, plural, name in due:
            item = self.objects.get((namespace, plural), {}).get(name)
            if item is not None:
                owners = item["metadata"].get("ownerReferences") or []
                if owners and not any(owner["uid"] in self._present for owner in owners):
                    self.delete(item)

    def expire_events(self) -> None:
        """Forget events that are older than an hour."""
        while self._events and self._events[0][0] < self.now() - EVENTS_FOR_S:
            item = self._events.popleft()[1]
            self.objects[item["metadata"]["namespace"], "events"].pop(item["metadata"]["name"], None)
            self._present.discard(item["metadata"]["uid"])

    def _create(self, method: str, path: str, plural: str, namespace: str, body: Any) -> Object:
        item = super()._create(method, path, plural, namespace, body)
        metadata = item["metadata"]
        self._present.add(metadata["uid"])
        where = namespace, plural, metadata["name"]
        owners = metadata.get("ownerReferences") or []
        for owner in owners:
            self._owned.setdefault(owner["uid"], {})[where] = None
        if owners and not any(owner["uid"] in self._present for owner in owners):
            self._orphans[where] = None
        if plural == "events":
            self._events.append((self.now(), item))
        return item


class DayValues(dict[str, bytes]):
    """What the bucket holds, found by the first parts of its keys."""

    def __init__(self) -> None:
        super().__init__()
        self._below: dict[str, dict[str, None]] = {}

    def __setitem__(self, key: str, value: bytes) -> None:
        if key not in self:
            for prefix in _prefixes(key):
                self._below.setdefault(prefix, {})[key] = None
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        for prefix in _prefixes(key):
            del self._below[prefix][key]
            if not self._below[prefix]:
                del self._below[prefix]

    def pop(self, key: str, *default: Any) -> Any:
        if key not in self and default:
            return default[0]
        value = self[key]
        del self[key]
        return value

    def below(self, prefix: str) -> list[str]:
        """Return the keys that begin with a prefix, in order."""
        parts = prefix.split("/")
        known = "/".join(parts[: min(DEPTH, len(parts) - 1)])
        found = self._below.get(f"{known}/", {}) if known else self
        return sorted(key for key in found if key.startswith(prefix))


def _prefixes(key: str) -> Iterator[str]:
    at = -1
    for _ in range(DEPTH):
        at = key.find("/", at + 1)
        if at < 0:
            return
        yield key[: at + 1]


class DayStorage(SimStorage):
    """The bucket, or a part of it."""

    values: DayValues

    def __init__(self, weather: Any, values: dict[str, bytes], prefix: str = "") -> None:
        super().__init__(weather, values, prefix)
        self.calls = deque(maxlen=0)  # type: ignore[assignment]

    def sub(self, prefix: str) -> DayStorage:
        return DayStorage(self._weather, self.values, self._full(prefix) + "/")

    def parent(self) -> DayStorage:
        return DayStorage(self._weather, self.values, self._prefix.rstrip("/").rpartition("/")[0] + "/")

    def exists(self, key: str) -> bool:
        with self._Call(self, "exists", key):
            return self._full(key) in self.values or bool(self._below(key))

    def _all(self) -> list[str]:
        return [key.removeprefix(self._prefix) for key in self.values.below(self._prefix)]

    def _below(self, prefix: str) -> list[str]:
        full = f"{self._prefix}{prefix}/" if prefix else self._prefix
        return [key.removeprefix(self._prefix) for key in self.values.below(full)]
