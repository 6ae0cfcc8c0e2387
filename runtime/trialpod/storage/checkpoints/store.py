"""The checkpoints of one trial: committed as a whole or not there at all, verified when read.

`CheckpointStore` is what the rest of trialpod knows. There are two kinds, chosen by where the storage is:
`directory_checkpoints` for a folder, `remote_checkpoints` for everything that has no path on this machine.

Invariants of both:

* A checkpoint exists when its manifest has been written, which is the last step. Anything else is garbage.
* A committed checkpoint is never replaced: of two attempts that commit the same index, the second is refused.
* What was snapshot is cut off from its source: nothing that happens to the source later reaches the checkpoint.
* What is being fetched is not deleted by the same store.
* Damage that is found is reported and left where it is.
* `begin`, `snapshot`, `fetch` and the readers may be called by one thread while another one commits and deletes.
"""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialpod.errors import CheckpointError, StorageError
from trialpod.protocol.messages import CheckpointInfo
from trialpod.storage.base import Storage, StorageUnavailableError
from trialpod.storage.file_tree import Tree, own_links, snapshot_tree, survey
from trialpod.storage.layout import MANIFEST_FILE, checkpoint_index, checkpoint_name

if TYPE_CHECKING:
    from typing import Self

Progress = Callable[[int, int], None]
"""Told how many bytes of how many are done; it may raise, which gives the commit up."""


class CheckpointStore:
    """The checkpoints below one trial's directory; ``CheckpointStore(storage)`` is of the kind that suits `storage`.

    One attempt uses it at a time; another one may be dying meanwhile.

    Args:
        storage: the trial's directory.
    """

    def __new__(cls, storage: Storage, *args: Any, **options: Any) -> Self:  # noqa: ARG004
        """Choose the kind."""
        kind: type[CheckpointStore] = cls
        if cls is CheckpointStore:
            if storage.local_path("") is not None:
                from trialpod.storage.checkpoints.local import DirectoryCheckpoints

                kind = DirectoryCheckpoints
            else:
                from trialpod.storage.checkpoints.remote import RemoteCheckpoints

                kind = RemoteCheckpoints
        return object.__new__(kind)  # type: ignore[return-value]

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._begun: dict[int, str] = {}
        self._readers: Counter[str] = Counter()
        self._readers_lock = threading.Lock()

    @property
    def uri(self) -> str:
        """Where the checkpoints are, as a user would write it."""
        return self._storage.uri

    def begin(self, index: int) -> Path:
        """Return an empty local folder to write the checkpoint with this index in; `commit` takes what is in it.

        Calling it again for the same index throws away what was written.

        Raises:
            CheckpointError: the index has a committed checkpoint.
            StorageError: the folder cannot be made.
        """
        raise NotImplementedError

    def abandon(self, index: int) -> None:
        """Remove what was begun and not committed under this index, if anything."""
        begun = self._begun.pop(index, None)
        if begun is not None:
            self._discard(begun)

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
        name = checkpoint_name(index)
        begun = self._begun.get(index)
        if source is not None and begun is not None and source.absolute() == Path(begun):
            source = None
        if source is None:
            if begun is None:
                raise CheckpointError(f"{name} was not begun; call begin({index}) first, or give a source folder")
            try:
                survey(begun)  # finds what cannot be copied, before anything is changed
                own_links(begun)
                return _without_ours(survey(begun)).size
            except BaseException:
                self.abandon(index)
                raise
        if begun is not None and any(Path(begun).iterdir()):
            raise CheckpointError(f"{begun} was written to; commit it without a source, or leave it empty")
        tree = _without_ours(survey(str(source)))
        target = begun if begun is not None else str(self.begin(index))
        try:
            self._take(str(source), target, tree)
        except BaseException:
            self.abandon(index)
            raise
        return tree.size

    def commit(
        self,
        index: int,
        *,
        iteration: int,
        metrics: Mapping[str, Any],
        attempt: int,
        time: float,
        source: Path | None = None,
        progress: Progress | None = None,
    ) -> CheckpointInfo:
        """Make the checkpoint with this index exist as a whole.

        When this fails nothing of it is left, except after a StorageUnavailableError: then the same call may be made
        again, and goes on from where it was.

        Args:
            index: its number within the trial.
            iteration: ``training_iteration`` of the result that it belongs to.
            metrics: that result, flattened; only scalars are kept.
            attempt: number of the attempt that commits it.
            time: seconds since the epoch.
            source: a folder to copy; None takes what was begun or snapshot.
            progress: told how far it is; it is called at least once before the step that makes the checkpoint exist.

        Raises:
            CheckpointError: the source is missing, changed meanwhile, or holds what cannot be copied; or the index
                was committed by someone else.
            StorageError: the storage is full or refuses; when full, with the space needed and free.
            StorageUnavailableError: the storage cannot be reached for now.
        """
        raise NotImplementedError

    def fetch(self, info: CheckpointInfo) -> Path:
        """Return a local folder with a checkpoint, to be read only, after verifying every file's size and checksum.

        Right after `newest_whole` has returned the same checkpoint, it is not verified again.

        Raises:
            CheckpointError: it is missing or damaged, or another one now has its name.
            StorageError: a file cannot be read.
        """
        raise NotImplementedError

    def newest_whole(self, infos: Sequence[CheckpointInfo]) -> tuple[CheckpointInfo | None, list[str]]:
        """Return the one with the highest index that verifies, and a warning for each newer one that does not.

        Raises:
            StorageUnavailableError: the storage cannot be reached for now; that says nothing about a checkpoint.
        """
        warnings: list[str] = []
        for info in sorted(infos, key=lambda info: info.index, reverse=True):
            try:
                self._verify(info)
            except StorageUnavailableError:
                raise
            except (CheckpointError, StorageError) as error:
                if not self._is_damage(error):
                    raise
                warnings.append(f"skipped {info.name} (iteration {info.iteration}): {error}")
            else:
                return info, warnings
        return None, warnings

    def delete(self, name: str, *, attempt: int | None = None) -> None:
        """Remove a checkpoint; nothing happens if it is not there.

        Args:
            name: its directory's name.
            attempt: the caller's attempt; a checkpoint that a later attempt wrote is then refused.

        Raises:
            CheckpointError: `name` is not a checkpoint's name, or a later attempt wrote it, or it is being read.
            StorageError: it cannot be removed.
        """
        raise NotImplementedError

    def committed(self) -> list[CheckpointInfo]:
        """Return the checkpoints whose manifest is there and readable, oldest first; damaged ones are logged."""
        raise NotImplementedError

    def sweep(self, known: Collection[str], *, attempt: int | None = None) -> list[str]:
        """Remove what attempts that are gone left behind, and return the names of what was removed.

        That is everything but this store's own uploads and the checkpoints in `known`. A known one stays, even if it
        is damaged. Call it only when no other attempt of the trial is the current one.

        Args:
            known: names of the checkpoints that the trial has.
            attempt: who asks; it may no longer be the current one without knowing.

        Raises:
            CheckpointError: a later attempt has begun.
        """
        raise NotImplementedError

    def first_free_index(self, at_least: int) -> int:
        """Return the lowest index from `at_least` on that is above that of everything there is."""
        raise NotImplementedError

    def reserve(self, at_least: int, attempt: int) -> int:
        """Return an index as of `first_free_index` that no other attempt can commit any more.

        Raises:
            CheckpointError: a later attempt has begun.
            StorageError: the storage refuses.
            StorageUnavailableError: the storage cannot be reached for now.
        """
        return self.first_free_index(at_least)

    def close(self) -> None:
        """Remove local copies; the store is not used any more."""

    def _discard(self, folder: str) -> None:
        """Remove a local folder that `begin` has made."""
        shutil.rmtree(folder, ignore_errors=True)

    def _take(self, source: str, target: str, tree: Tree) -> None:
        """Copy what `tree` lists from `source` into the empty folder `target`."""
        snapshot_tree(source, target, tree)

    def _verify(self, info: CheckpointInfo) -> None:
        self.fetch(info)

    def _is_damage(self, error: CheckpointError | StorageError) -> bool:
        return True

    def _read(self, name: str, change: int) -> None:
        with self._readers_lock:
            self._readers[name] += change

    def _refuse_read(self, name: str) -> None:
        with self._readers_lock:
            if self._readers[name] > 0:
                raise CheckpointError(f"{name} is being read; it is removed later")

    @staticmethod
    def _refuse_bad_name(name: str) -> None:
        if checkpoint_index(name) is None:
            raise CheckpointError(f"{name!r} is not the name of a checkpoint ('checkpoint_000000')")


def scalars(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that a manifest keeps."""
    return {key: value for key, value in metrics.items() if _scalar(value)}


def refuse_other(found: CheckpointInfo, asked: CheckpointInfo, where: str) -> None:
    """Raise CheckpointError if the checkpoint at `where` is not the one that was asked for."""
    if (found.index, found.attempt, found.iteration) != (asked.index, asked.attempt, asked.iteration):
        raise CheckpointError(
            f"{where} is not the checkpoint that was asked for: it was written by attempt {found.attempt} at "
            f"iteration {found.iteration}, not by attempt {asked.attempt} at iteration {asked.iteration}"
        )


def _without_ours(tree: Tree) -> Tree:
    # A checkpoint that was fetched and is committed again brings its old manifest along.
    tree.files.pop(MANIFEST_FILE, None)
    return tree


def _scalar(value: Any) -> bool:
    if value is None or isinstance(value, (bool, int, float, str)):
        return True
    return hasattr(value, "dtype") and getattr(value, "shape", None) == ()  # NumPy's numbers
