"""A passing copy of a journal that is in a bucket, kept up to date by fetching only the objects that are new.

The objects of a journal never change, so each is read once. Nothing is written to the bucket.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from trialpod.errors import InvalidInputError
from trialpod.storage.base import KeyMissingError, Storage
from trialpod.storage.layout import EXPERIMENT_KEY
from trialpod_operator.experiment.replica.journal_layout import (
    JOURNAL,
    Pieces,
    folder_of,
    local_sizes,
    number_of,
    read_all,
)
from trialpod_operator.experiment.stored import journal_id

_TRIES = 4


class JournalCopy:
    """Brings the journal of the experiment at the root of `storage` into a folder.

    Args:
        storage: the experiment's location.
        directory: an empty folder of the caller's, for the copy.
    """

    def __init__(self, storage: Storage, directory: Path) -> None:
        self._storage = storage
        self._directory = directory
        self._folder = directory / JOURNAL
        self._journal = ""  # its id

    def refresh(self) -> None:
        """Fetch what is new.

        Raises:
            InvalidInputError: there is no experiment.
            StorageError: the storage cannot be read.
        """
        for number in range(_TRIES):
            try:
                self._refresh()
                return
            except KeyMissingError:  # a snapshot has replaced what was listed
                if number == _TRIES - 1:
                    raise

    def _refresh(self) -> None:
        objects = self._storage.sizes(folder_of(self._journal)) if self._journal else {}
        # Nothing is left of a journal where the experiment was deleted; another one may have begun there.
        if not objects and self._find():
            objects = self._storage.sizes(folder_of(self._journal))
        self._fetch(Pieces(folder_of(self._journal), objects))

    def _find(self) -> bool:
        """Look which journal it is; return whether it is another one than before."""
        try:
            data = self._storage.read(EXPERIMENT_KEY)
        except KeyMissingError as error:
            raise InvalidInputError(
                f"there is no experiment at {self._storage.uri}; give the URI that `trialpod run` was given, "
                "followed by the experiment's name"
            ) from error
        found = journal_id(data, self._storage.uri)
        if found == self._journal:
            return False
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        (self._directory / EXPERIMENT_KEY).write_bytes(data)
        self._journal = found
        return True

    def _fetch(self, pieces: Pieces) -> None:
        for name in pieces.snapshots:
            path = self._folder / name
            if not path.exists():
                data = self._storage.read(f"{folder_of(self._journal)}/{name}")
                for old in [old for old in os.listdir(self._folder) if number_of(old) < number_of(name)]:
                    (self._folder / old).unlink()
                path.write_bytes(data)
        here = local_sizes(self._folder)
        for name in sorted(pieces.segments):
            size = here.get(name, 0)
            wanted = pieces.keys_from(name, size)
            found = read_all(self._storage, wanted)
            with open(self._folder / name, "ab") as file:
                for offset in wanted:
                    if file.tell() != offset:
                        return  # the object between is not listed yet
                    file.write(found[offset])
