"""The large values of an experiment in a process that has no access to its storage: each is asked for once.

Invariants: a value's file has no name in any folder, so no other process can write to it, and it goes with its own.
Values are known by their contents: an equal one is referred to, never stored a second time.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from trialpod.errors import TrainableError
from trialpod.tune.shipping.stored_objects import (
    named_parts,
    read_object,
    read_values_with,
    reference_to,
    sha256_of,
)


class FetchedValues:
    """Loads values, and refers to them when configs are encoded; a `trialpod.protocol.values.ValueStore`.

    Args:
        fetch: writes the contents of a value's file, by its name; raises TrainableError where there is none.
    """

    def __init__(self, fetch: Callable[[str, IO[bytes]], None]) -> None:
        self._fetch = fetch
        self._files: dict[str, IO[bytes]] = {}
        self._first: dict[int, tuple[Any, str]] = {}  # id -> the object first loaded, which keeps the id taken
        self._lock = threading.Lock()

    def use(self) -> None:
        """Have what is unpickled in this process from now on find its values here."""
        read_values_with("fetched", self.load)

    def load(self, name: str) -> Any:
        """Return a value: a new object in each call, whose memory is shared until it is changed."""
        digest = name.partition(".")[0]
        with self._lock:
            if new := name not in self._files:
                file = tempfile.TemporaryFile(prefix="trialpod-value-")  # noqa: SIM115 - as long as the process
                self._fetch(name, file)
                file.flush()
                file.seek(0)
                if sha256_of(file) != digest:
                    raise TrainableError(f"the value {digest[:12]}... is damaged: its contents have another checksum")
                self._files[name] = file
            value = read_object(Path(f"/proc/self/fd/{self._files[name].fileno()}"), digest)
            if new:
                self._first[id(value)] = (value, name)
        return value

    def put(self, value: Any) -> bytes | None:
        """Return a pickle that refers to a value; None if it is small, or none of those that were loaded."""
        known = self._first.get(id(value))
        name = known[1] if known is not None else named_parts(value)[0]
        return reference_to(name) if name in self._files else None
