"""The checkpoints of one trial: committed as a whole or not there at all, verified when read.

`CheckpointStore` is what the rest of trialpod knows; `trialpod.storage.checkpoints.open_checkpoints` chooses between
`local` for a folder and `remote` for a storage that has no path on this machine.

Invariants of both:

* A checkpoint exists when its manifest has been written, which is the last step. Anything else is garbage.
* A committed checkpoint is never replaced: of two attempts that commit the same index, the second is refused.
* What was snapshot is cut off from its source: nothing that happens to the source later reaches the checkpoint.
* What is being read is not deleted by the same store.
* Damage that is found is reported and left where it is.
* `begin`, `snapshot`, `fetch` and the readers may be called by one thread while another one commits and deletes.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trialpod.errors import CheckpointError, StorageError
from trialpod.protocol.messages import CheckpointInfo
from trialpod.storage.base import StorageUnavailableError
from trialpod.storage.layout import checkpoint_index

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with the number of bytes done and their total; it may raise, which abandons the operation."""

Damaged = Callable[[str, CheckpointError | StorageError], object]
"""Called with the name of a checkpoint and what is wrong with it."""


def log_damaged(name: str, error: CheckpointError | StorageError) -> None:
    """Log a checkpoint whose manifest is not readable."""
    logger.warning("skipped the damaged checkpoint %s: %s", name, error)


class CheckpointNotFoundError(CheckpointError):
    """There is no such checkpoint, or it was given up before it was complete."""


class CheckpointStore(ABC):
    """The checkpoints below one trial's directory. One attempt uses it at a time; another one may be dying meanwhile.

    Attributes:
        uri: where they are, as a user would write it.
    """

    uri: str

    # Writing.

    @abstractmethod
    def begin(self, index: int) -> Path:
        """Return an empty local folder to write the checkpoint with this index in; `commit` takes what is in it.

        Calling it again for the same index throws away what was written.

        Raises:
            CheckpointError: the index has a committed checkpoint.
            StorageError: the folder cannot be made.
        """

    @abstractmethod
    def snapshot(self, index: int, source: Path | None = None) -> int:
        """Take what is to become the checkpoint with this index, and return its size in bytes.

        This is the part of a commit that the training has to wait for: the bytes are cloned or copied, not looked at.
        When it fails, nothing is left.

        Args:
            index: its number within the trial.
            source: a folder to copy; None takes what was written in the folder that `begin` returned.

        Raises:
            CheckpointError: the source is missing, changed meanwhile, or holds what cannot be copied; or the index
                has a committed checkpoint.
            StorageError: the local disk is full or refuses; when full, with the space needed and free.
        """

    @abstractmethod
    def commit(
        self,
        index: int,
        *,
        iteration: int,
        metrics: Mapping[str, Any],
        attempt: int,
        time: float,
        progress: Progress | None = None,
    ) -> CheckpointInfo:
        """Make the checkpoint that was begun or snapshot under this index exist as a whole.

        When this fails nothing of it is left, except after a StorageUnavailableError: then the same call may be made
        again, and resumes where it was.

        Args:
            index: its number within the trial.
            iteration: ``training_iteration`` of the result that it belongs to.
            metrics: that result, flattened; only scalars are kept.
            attempt: number of the attempt that commits it.
            time: seconds since the epoch.
            progress: called at least once before the step that makes the checkpoint exist.

        Raises:
            CheckpointError: it was not begun, changed meanwhile, or holds what cannot be copied; or the index was
                committed by another attempt.
            StorageError: the storage is full or refuses; when full, with the space needed and free.
            StorageUnavailableError: the storage cannot be reached for now.
        """

    @abstractmethod
    def abandon(self, index: int) -> None:
        """Remove what was begun and not committed under this index, if anything."""

    # Reading.

    @abstractmethod
    def fetch(self, info: CheckpointInfo) -> Path:
        """Return a local folder with a checkpoint, to be read only, after verifying every file's size and checksum.

        Right after `latest_valid` has returned the same checkpoint, it is not verified again.

        Raises:
            CheckpointError: it is missing or damaged, or another one now has its name.
            StorageError: a file cannot be read.
        """

    @abstractmethod
    def download(self, info: CheckpointInfo, target: Path, progress: Progress | None = None) -> None:
        """Write a checkpoint's files into an empty local folder and verify them; errors as of `fetch`."""

    @abstractmethod
    def verify(self, info: CheckpointInfo) -> None:
        """Read the whole checkpoint; errors as of `fetch`."""

    @abstractmethod
    def latest_valid(self, infos: Sequence[CheckpointInfo]) -> tuple[CheckpointInfo | None, list[str]]:
        """Return the one with the highest index that verifies, and a warning for each later one that does not.

        Raises:
            StorageUnavailableError: the storage cannot be reached for now; that says nothing about a checkpoint.
        """

    @abstractmethod
    def committed(self, damaged: Damaged = log_damaged) -> list[CheckpointInfo]:
        """Return the checkpoints whose manifest is there and readable, oldest first.

        Args:
            damaged: called for each checkpoint whose manifest is there and not readable, in any thread.

        Raises:
            StorageError: the storage cannot be listed.
            StorageUnavailableError: the storage cannot be reached for now.
        """

    # Garbage collection and indices.

    @abstractmethod
    def delete(self, name: str, *, attempt: int | None = None) -> None:
        """Remove a checkpoint; nothing happens if it is not there.

        Args:
            name: its directory's name.
            attempt: the caller's attempt; a checkpoint that a later attempt wrote is then refused.

        Raises:
            CheckpointError: `name` is not a checkpoint's name, or a later attempt wrote it, or it is being read.
            StorageError: it cannot be removed.
        """

    @abstractmethod
    def sweep(self, known: Collection[str], *, attempt: int | None = None) -> list[str]:
        """Remove what ended attempts left behind, and return the names of what was removed.

        That is everything but this store's own uploads and the checkpoints in `known`. A known one stays, even if it
        is damaged. Call it only when no other attempt of the trial is the current one.

        Args:
            known: names of the checkpoints that the trial has.
            attempt: the caller's attempt; it may no longer be the current one without knowing.

        Raises:
            CheckpointError: a later attempt has begun.
        """

    @abstractmethod
    def first_free_index(self, at_least: int) -> int:
        """Return the lowest index from `at_least` on that is above that of everything there is."""

    @abstractmethod
    def reserve(self, at_least: int, attempt: int) -> int:
        """Return an index as of `first_free_index` that no other attempt can commit any more.

        Raises:
            CheckpointError: a later attempt has begun.
            StorageError: the storage refuses.
            StorageUnavailableError: the storage cannot be reached for now.
        """

    @abstractmethod
    def close(self) -> None:
        """Remove local copies; the store is not used any more."""


class Pins:
    """The checkpoints that are being read, which their store must not delete meanwhile. Any thread may use it."""

    def __init__(self) -> None:
        self._readers: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str) -> None:
        """Pin a checkpoint; each call needs one of `remove`."""
        with self._lock:
            self._readers[name] += 1

    def remove(self, name: str) -> None:
        """Take back one pin."""
        with self._lock:
            self._readers[name] -= 1

    @contextmanager
    def pinned(self, name: str) -> Iterator[None]:
        """Pin a checkpoint for a while."""
        self.add(name)
        try:
            yield
        finally:
            self.remove(name)

    def refuse_pinned(self, name: str) -> None:
        """Raise CheckpointError if the checkpoint is being read."""
        with self._lock:
            if self._readers[name] > 0:
                raise CheckpointError(f"{name} is being read; it is removed later")


def find_latest_valid(
    infos: Sequence[CheckpointInfo],
    verify: Callable[[CheckpointInfo], object],
    damage: tuple[type[CheckpointError | StorageError], ...],
) -> tuple[CheckpointInfo | None, list[str]]:
    """Do what `CheckpointStore.latest_valid` says; `damage` are those errors that an older one may not have."""
    warnings: list[str] = []
    for info in sorted(infos, key=lambda info: info.index, reverse=True):
        try:
            verify(info)
        except StorageUnavailableError:
            raise
        except damage as error:
            warnings.append(f"skipped {info.name} (iteration {info.iteration}): {error}")
        else:
            return info, warnings
    return None, warnings


def scalars(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that a manifest keeps."""
    return {key: value for key, value in metrics.items() if _is_scalar(value)}


def refuse_other(found: CheckpointInfo, asked: CheckpointInfo, where: str) -> None:
    """Raise CheckpointError if the checkpoint at `where` is not the one that was asked for."""
    if (found.index, found.attempt, found.iteration) != (asked.index, asked.attempt, asked.iteration):
        raise CheckpointError(
            f"{where} is not the checkpoint that was asked for: it was written by attempt {found.attempt} at "
            f"iteration {found.iteration}, not by attempt {asked.attempt} at iteration {asked.iteration}"
        )


def refuse_bad_name(name: str) -> None:
    """Raise CheckpointError if this is not the name of a checkpoint."""
    if checkpoint_index(name) is None:
        raise CheckpointError(f"{name!r} is not the name of a checkpoint ('checkpoint_000000')")


def _is_scalar(value: Any) -> bool:
    if value is None or isinstance(value, (bool, int, float, str)):
        return True
    return hasattr(value, "dtype") and getattr(value, "shape", None) == ()  # NumPy's numbers
