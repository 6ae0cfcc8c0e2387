"""Finds out that the experiment was deleted by another process, and deletes what this one wrote after that.

* ``experiment.json`` is the first object of a location and the last one to be deleted, and it names the experiment's
  journal, as no other experiment does. A process that has seen it, and then finds it gone or another one's, writes
  nothing more.
* After a slow write or a pause a process checks at once. Every process checks when it closes.
* Where another experiment has begun meanwhile, only the former journal is deleted, which no process reads; other
  objects may be the other's.
* Where nothing has, only what this process wrote recently is deleted, and only when nothing else is there: where a
  user is removing objects by hand, everything stays as it is.

An object stays when its writer dies between the write and the check. All methods may be called from any thread.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable

from trialpod.errors import InvalidInputError, StorageError, TrialpodError
from trialpod.storage.base import KeyMissingError, Storage
from trialpod.storage.layout import EXPERIMENT_KEY
from trialpod_operator.experiment.replica.journal_layout import folder_of
from trialpod_operator.experiment.stored import journal_id

logger = logging.getLogger(__name__)

IDLE_S = 10.0
"""Shorter than the wait before a silent process is replaced."""

LATELY_S = 60.0
"""Longer than another process's deletion is not known here while this one is active."""


class FencedError(TrialpodError):
    """Another process writes the same experiment to the same storage, or has deleted it."""


class EmptiedError(FencedError):
    """What the storage held of the experiment was removed while this process had it open."""


class PostDeleteCleanup:
    """Knows whose the location was, and what was written lately.

    Args:
        storage: the experiment's location in the storage.
        monotonic: seconds, for differences only.
    """

    def __init__(self, storage: Storage, monotonic: Callable[[], float]) -> None:
        self._storage = storage
        self._monotonic = monotonic
        self._lock = threading.Lock()  # guards the next
        self._written: dict[str, float] = {}  # object -> when, in this order
        self.journal = ""
        """The id of the experiment's journal; "" until ``experiment.json`` is known to have been there with it."""

    @property
    def folder(self) -> str:
        """The folder of the journal's objects."""
        assert self.journal, "the location was not claimed"
        return folder_of(self.journal)

    def write_soon(self, key: str) -> None:
        """An object is written next. Whether it was may not be known afterwards."""
        now = self._monotonic()
        with self._lock:
            self._written.pop(key, None)
            self._written[key] = now
            while now - self._written[oldest := next(iter(self._written))] > LATELY_S:
                del self._written[oldest]

    def written(self, key: str, idle_since: float = math.inf) -> None:
        """It was; look whether it came too late when that took long.

        Args:
            key: of the object.
            idle_since: when the write before it had ended, for a process that writes all the time.

        Raises:
            FencedError: the experiment has been deleted. The object is gone.
            StorageError: the storage cannot be read.
        """
        with self._lock:
            began = self._written.get(key, -math.inf)
        if self._monotonic() - min(began, idle_since) >= IDLE_S:
            self.write_soon(key)
            holder = self._holder()
            if holder != self.journal:
                if not holder or key.startswith(f"{self.folder}/"):
                    self._storage.delete(key)
                raise self.deleted()

    def refuse_deleted(self) -> None:
        """Find out whether the experiment has been deleted.

        Raises:
            FencedError: it has.
            StorageError: the storage cannot be read.
        """
        if self._holder() != self.journal:
            raise self.deleted()

    def deleted(self) -> EmptiedError:
        """Return the error for a process that finds the location gone."""
        return EmptiedError(
            f"{self._storage.uri} no longer holds this experiment, whose data was deleted meanwhile; nothing more is "
            "written there"
        )

    def leave_none(self) -> None:
        """Look whether the experiment has been deleted, and delete what was written here since."""
        with self._lock:
            written = set(self._written)
        try:
            if not written or (holder := self._holder()) == self.journal:
                return
            if holder:
                self._storage.delete_tree(self.folder)
                return
            left = self._storage.list()
            if left and written.issuperset(left):
                self._storage.delete_many(list(left))
        except StorageError as error:
            logger.info("whether %s was deleted is not known: %s", self._storage.uri, error)

    def _holder(self) -> str:
        """Return the id of the journal of the experiment that the location is of now; "" when it is of none."""
        if not self.journal:
            return ""
        try:
            return journal_id(self._storage.read(EXPERIMENT_KEY), self._storage.uri)
        except KeyMissingError:
            return ""
        except InvalidInputError:
            return self.journal  # damaged, not deleted
