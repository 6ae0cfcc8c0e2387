"""Keeps the other files that a trial writes into its directory, when checkpoints are stored elsewhere.

Files are copied after each checkpoint, from time to time, and again at the end of the attempt; only those that
have changed since. What the experiment writes itself is left out: the process that runs the experiment copies it.

Invariants: a file that cannot be copied ends no trial; the first ones are named, each in one warning. Nothing is
copied once the attempt is superseded or its experiment deleted. When two files find the storage unavailable, a copy
is given up as a whole and made again later; the one at the end of the attempt is retried for `LAST_COPY_S`, not for
each file. What the storage denies is not retried.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeGuard

from trialpod.errors import StorageError
from trialpod.storage.base import (
    Storage,
    StorageCredentialsError,
    StorageDeniedError,
    StorageUnavailableError,
)
from trialpod.storage.layout import (
    COMMAND_DIR,
    ERROR_FILE,
    EVENT_FILE_PREFIX,
    EXPERIMENT_KEY,
    LOG_FILE,
    PARAMS_FILE,
    PICKLED_ERROR_FILE,
    PICKLED_PARAMS_FILE,
    PROGRESS_FILE,
    RESULT_FILE,
)

log = logging.getLogger(__name__)

PERIOD_S = 300.0
LAST_COPY_S = 600.0
"""Maximum time that the end of an attempt waits for a storage that is unavailable."""
MAX_WARNINGS = 3
"""Files that are named; what keeps more of them from being copied keeps them all."""
_OURS = {
    ERROR_FILE, LOG_FILE, PARAMS_FILE, PICKLED_ERROR_FILE, PICKLED_PARAMS_FILE, PROGRESS_FILE, RESULT_FILE,
}  # fmt: skip
_OUR_PREFIXES = (".trialpod", COMMAND_DIR, "checkpoint_", EVENT_FILE_PREFIX)


class ArtifactCopies:
    """Copies a trial's files in a thread of its own.

    Args:
        folder: the trial's directory.
        open_storage: opens where to copy to.
        marked: the folder above has the experiment's own file, which goes when the experiment is deleted.
        stopped: whether nothing may be copied any more.
        period_s: time from one copy to the next, without a checkpoint.
        clock: monotonic seconds.
        sleep: waits that many seconds.
    """

    def __init__(
        self,
        folder: Path,
        open_storage: Callable[[], Storage],
        *,
        marked: bool = False,
        stopped: Callable[[], bool] = lambda: False,
        period_s: float = PERIOD_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._folder = folder
        self._open = open_storage
        self._marked = marked
        self._stopped = stopped
        self._period_s = period_s
        self._known: dict[str, tuple[int, int]] = {}
        self._storage: Storage | None = None
        self._warned: set[str] = set()
        self._wanted = threading.Event()
        self._last = False
        self._thread = threading.Thread(target=self._run, name="trialpod-artifacts", daemon=True)
        self._thread.start()

    def request(self) -> None:
        """Have the files copied soon."""
        self._wanted.set()

    def finish(self, time_left_s: Callable[[], float | None] = lambda: None) -> bool:
        """Copy what has changed and end; return whether there was time for it.

        Args:
            time_left_s: returns the seconds that are left, None without a limit; called repeatedly.
        """
        self._last = True
        self._wanted.set()
        while self._thread.is_alive():
            left = time_left_s()
            if left is not None and left <= 0.0:
                break
            self._thread.join(0.25 if left is None else min(left, 0.25))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            self._wanted.wait(self._period_s)
            self._wanted.clear()
            last = self._last
            until = self._clock() + LAST_COPY_S
            while True:
                try:
                    self._copy()
                except StorageUnavailableError as error:  # which its own retries have waited for
                    if last and _may_pass(error) and self._clock() < until and not self._stopped():
                        self._sleep(1.0)
                        continue
                    self._warn("", str(error))
                except StorageError as error:
                    self._warn("", str(error))
                break
            if last:
                return

    def _copy(self) -> None:
        changed = [(key, stamp) for key, stamp in self._files() if self._known.get(key) != stamp]
        if not changed:
            return
        if self._storage is None:
            self._storage = self._open()
        if self._is_deleted(self._storage):
            return
        problem: StorageUnavailableError | None = None
        for key, stamp in changed:
            if self._stopped():
                return
            try:
                self._storage.put_file(self._folder / key, key)
                self._known[key] = stamp
            except FileNotFoundError:
                continue
            except (StorageError, OSError, ValueError) as error:
                if _may_pass(error):
                    if problem is not None:
                        raise
                    problem = error
                elif os.path.lexists(self._folder / key):
                    self._warn(key, str(error))
        if problem is not None:
            raise problem

    def _is_deleted(self, storage: Storage) -> bool:
        try:
            return self._marked and not storage.parent().exists(EXPERIMENT_KEY)
        except StorageError as error:  # keys that open only this trial's folder
            log.debug("whether the experiment was deleted cannot be checked: %s", error)
            self._marked = False
            return False

    def _files(self) -> Iterator[tuple[str, tuple[int, int]]]:
        for above, folders, names in os.walk(self._folder):
            top = Path(above) == self._folder
            folders[:] = [name for name in folders if not (top and name.startswith(_OUR_PREFIXES))]
            for name in names:
                if top and (name in _OURS or name.startswith(_OUR_PREFIXES)):
                    continue
                path = Path(above, name)
                try:
                    facts = path.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if path.is_file() and not path.is_symlink():
                    yield str(path.relative_to(self._folder)), (facts.st_mtime_ns, facts.st_size)

    def _warn(self, key: str, problem: str) -> None:
        if key not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add(key)
            log.warning("%s of the trial is not kept: %s", key or "what else is in the directory", problem)


def _may_pass(error: Exception) -> TypeGuard[StorageUnavailableError]:
    """Return whether the storage may do later what it has not done; it keeps to what it denies."""
    denied = isinstance(error, StorageDeniedError | StorageCredentialsError)
    return isinstance(error, StorageUnavailableError) and not denied
