"""Which trials' files are still to be brought from the storage: those that a restart continues, a few at a time.

Nothing waits for them but their own copies. So a restarted operator answers its attempts first, and is not kept from
that by the four files of each of a thousand running trials.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from itertools import islice

AT_LEAST = 20
SHARE = 60
"""So much of all is brought at once, and at least so many."""


class FetchQueue:
    """Keys by the name of what waits for them, in the order in which they were added. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: dict[str, list[str]] = {}
        self._at_once = AT_LEAST

    def add(self, wanted: Mapping[str, list[str]]) -> None:
        """These files are to be brought."""
        with self._lock:
            self._wanted.update(wanted)
            self._at_once = max(AT_LEAST, len(self._wanted) // SHARE)

    def some(self) -> dict[str, list[str]]:
        """Return what to bring next; empty when all is here."""
        with self._lock:
            return dict(islice(self._wanted.items(), self._at_once))

    def remove(self, names: Iterable[str]) -> None:
        """That was brought."""
        with self._lock:
            for name in names:
                self._wanted.pop(name, None)
