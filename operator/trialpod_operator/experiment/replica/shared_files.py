"""The users' files of an experiment in its storage, where two processes may each take themselves for its writer.

A file's contents follow from the journal, which has one history for all writers. A process that was replaced may be
stopped at any instruction for any time, and yet no older version may replace a newer one:

* A version is sent only when the journal that it follows from is stored. Callers ensure it.
* A version is replaced only conditionally: by the process that wrote it, or by one that has read it and then found
  that no other process had continued the journal. That process could have written it itself.
* A stored version that is longer, and otherwise the same, is never replaced.

With a server that knows no conditions, the journal is checked before each file, which leaves a gap of a moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from trialpod.errors import StorageError
from trialpod.storage.base import ConditionalWriteUnsupportedError, KeyChangedError, KeyMissingError, Storage

TRIES = 5
"""How often a file is written again that others replace meanwhile, before that counts as an error."""

RefuseOutdated = Callable[[], None]
"""Raises when another process has continued the journal from where this one is."""


class SharedFiles:
    """Writes files. Different files may be read and written by different threads at a time.

    A look at the journal says of a version that it is of this history if it was found before the look began. So looks
    are numbered, and of each version it is known which look was the latest when it was found.

    Args:
        storage: the experiment's location in the storage.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._versions: dict[str, str] = {}
        self._lock = threading.Lock()  # guards the next three
        self._begun = 0  # looks at the journal
        self._seen = 0  # of those that ended well, the latest
        self._found: dict[str, int] = {}  # versions, and looks that had begun by then; those seen since are left out
        self._conditions = True

    def read(self, key: str) -> bytes:
        """Return a file's content, which may be replaced later.

        Raises:
            KeyMissingError: there is none.
        """
        data, version = self._storage.read_version(key)
        self._note(key, version)
        return data

    def _note(self, key: str, version: str) -> None:
        """Take a version that was read for the one to replace, once a look at the journal has allowed it."""
        with self._lock:
            self._versions[key] = version
            self._found[key] = self._begun

    def create(self, key: str, data: bytes) -> bool:
        """Make a file where there is none; return False when there is one, also another's.

        With a server that knows no conditions, two who do this within a moment may both succeed.

        Raises:
            StorageError: the storage cannot be written.
        """
        if self._conditions:
            try:
                self._versions[key] = self._storage.write_if(key, data, None)
            except KeyChangedError:
                return False
            except ConditionalWriteUnsupportedError:
                self._conditions = False
            else:
                return True
        if self._storage.exists(key):
            return False
        self._storage.write(key, data)
        return True

    def look_begins(self) -> int:
        """Return the number of a look at the journal that begins now, or of a write to it, which is one."""
        with self._lock:
            self._begun += 1
            return self._begun

    def look_ended(self, number: int) -> None:
        """No other process had continued the journal: what was found before that look is from the same history."""
        with self._lock:
            self._seen = max(self._seen, number)
            self._found = {key: begun for key, begun in self._found.items() if begun >= self._seen}

    def forget_version(self, key: str) -> None:
        """Take as little for granted of a file as if another process had written it."""
        self._versions.pop(key, None)

    def write(self, key: str, data: bytes, refuse_outdated: RefuseOutdated, *, only_replace: bool = False) -> None:
        """Make or replace a file.

        Args:
            key: of the file.
            data: all of it.
            refuse_outdated: looks at the journal.
            only_replace: do not make it.

        Raises:
            KeyMissingError: it is not there, and was only to be replaced.
            StorageError: the storage cannot be written, or other processes keep replacing the file.
        """
        if key in self._found:
            number = self.look_begins()
            refuse_outdated()
            self.look_ended(number)
        version = self._versions.get(key)
        for _ in range(TRIES):
            try:
                if not self._conditions:
                    refuse_outdated()
                    if only_replace:
                        self._storage.read_version(key)
                    return self._storage.write(key, data)
                self._versions[key] = self._storage.write_if(key, data, version)
                return None
            except ConditionalWriteUnsupportedError:
                self._conditions = False
            except KeyChangedError:
                found, version = self._storage.read_version(key) if only_replace else self._look(key)
                if found is not None and version is not None and found.startswith(data):
                    self._note(key, version)
                    return None
                refuse_outdated()  # after it was read, not before
        raise StorageError(f"{self._storage.uri}: other processes keep replacing {key}; stop them")

    def _look(self, key: str) -> tuple[bytes | None, str | None]:
        try:
            return self._storage.read_version(key)
        except KeyMissingError:
            return None, None
