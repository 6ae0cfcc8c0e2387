"""Where an experiment is that is read: a folder of this machine, or a bucket with a passing copy of its journal."""

from __future__ import annotations

import tempfile
from pathlib import Path

from trialpod.storage.base import Storage
from trialpod.storage.registry import local_folder, normalize_uri, open_storage
from trialpod_operator.experiment.replica.journal_copy import JournalCopy


class Location:
    """One experiment's location.

    Args:
        uri: a folder's path or a storage's URI.
        storage: that of the URI, when it is open already; None opens it with this process's keys.
        name: of the experiment; None is the last part of the URI.
        copy: where a bucket's journal is copied to, and nothing else is; None is a temporary folder.

    Attributes:
        uri: as given, normalized.
        name: one path segment that names the experiment.
        directory: where its journal can be read; of a bucket's, after `refresh`.
        storage: all of it.

    Raises:
        InvalidInputError: the URI names no location.
        StorageError: the storage cannot be opened.
    """

    def __init__(
        self, uri: str | Path, storage: Storage | None = None, name: str | None = None, copy: Path | None = None
    ) -> None:
        self.uri = normalize_uri(str(uri)).rstrip("/") or "/"
        folder = local_folder(self.uri)
        self._copy: JournalCopy | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        if folder is not None:
            self.directory, self.storage = folder, open_storage(str(folder))
            self.name = name or folder.resolve().name
            return
        # A refusal of the storage is reported at the first read: on the page, not by a command that ends.
        self.storage = open_storage(self.uri, check=False) if storage is None else storage
        self.name = name or self.uri.partition("?")[0].rpartition("/")[2]
        if copy is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="trialpod-")
            copy = Path(self._scratch.name)
        copy.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.directory = copy
        self._copy = JournalCopy(self.storage, self.directory)

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of this machine, whose files are `directory`'s."""
        return self._copy is None

    def refresh(self) -> None:
        """Bring the copy of the journal up to date.

        Raises:
            InvalidInputError: there is no experiment.
            StorageError: the storage cannot be read.
        """
        if self._copy is not None:
            self._copy.refresh()

    def close(self) -> None:
        """Remove the copy, if it is in a temporary folder."""
        if self._scratch is not None:
            self._scratch.cleanup()
