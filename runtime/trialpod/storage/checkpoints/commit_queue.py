"""Commits checkpoints in the background, in order, while training continues.

Invariants:

* A checkpoint is announced after its commit, and the retention rules are applied after that.
* With `ask`, nothing is removed before that is allowed; after a refusal it asks again after the next commit.
* At most `MAX_WAITING` snapshots wait besides the one in work; then the next one waits.
* While the storage is unavailable, a commit is retried without limit; any other error is raised in the training
  thread, at its next call.
* Once the attempt is superseded the storage is not touched any more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from trialpod.errors import CheckpointError, StorageError
from trialpod.protocol.backoff import Backoff
from trialpod.protocol.messages import CheckpointInfo, CheckpointRules
from trialpod.storage.base import StorageUnavailableError
from trialpod.storage.checkpoints.retention import to_delete
from trialpod.storage.checkpoints.store import CheckpointStore

log = logging.getLogger(__name__)

MAX_WAITING = 2

_LOOK_S = 0.25
_SLOW_S = 1.0
"""Minimum time that training has waited for room, altogether, before a warning says why."""
_LOG_INTERVAL_S = 60.0
_PROGRESS_AFTER_S = 5.0
_PROGRESS_INTERVAL_S = 10.0


class _GivenUpError(Exception):
    """The process has to leave before the commit is done."""


class CommitQueue:
    """Commits the snapshots of one attempt.

    Args:
        store: the trial's checkpoints.
        attempt: number of the attempt.
        rules: which checkpoints are kept.
        known: the existing checkpoints, oldest first.
        announce: called for each committed checkpoint.
        deleted: called with the names of those that the rules have removed.
        check: raises if the attempt may not touch the storage any more.
        ask: asks whether the checkpoints of these names may be removed, and passes the names and the allowed ones to
            the given function. None removes them without asking.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        store: CheckpointStore,
        *,
        attempt: int,
        rules: CheckpointRules,
        known: Sequence[CheckpointInfo],
        announce: Callable[[CheckpointInfo], None],
        deleted: Callable[[list[str]], None],
        check: Callable[[], None],
        ask: Callable[[list[str], Callable[[list[str], list[str]], None]], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._attempt = attempt
        self._rules = rules
        self._known = list(known)
        self._announce = announce
        self._deleted = deleted
        self._allowed = check
        self._ask = ask
        self._clock = clock
        self._changed = threading.Condition()  # guards what follows
        self._waiting: deque[CheckpointInfo] = deque()
        self._current: CheckpointInfo | None = None
        self._asked: set[str] = set()  # whether they may be removed; not answered yet
        self._deletable: list[str] = []
        self._announced = -1  # index of the newest one
        self._failing_since: float | None = None
        self._problem: BaseException | None = None
        self._waited_s = 0.0  # training, for room
        self._warned = False
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    @property
    def pending(self) -> list[CheckpointInfo]:
        """The snapshots that are not committed, oldest first."""
        with self._changed:
            return self._pending()

    def check(self) -> None:
        """Raise what ended the writing of checkpoints, if anything did."""
        if self._problem is not None:
            raise self._problem

    def wait_for_room(self) -> None:
        """Return when another snapshot may be taken.

        Raises:
            CheckpointError, StorageError: an earlier checkpoint cannot be stored, for good.
            BaseException: what `check` of the constructor raises.
        """
        since = self._clock()
        self._until(lambda: len(self._waiting) < MAX_WAITING, lambda: self._warn_slow(since))
        self._waited_s += self._clock() - since

    def submit(self, info: CheckpointInfo) -> None:
        """Queue a snapshot that the store has taken under `info.index`; its result has been sent."""
        with self._changed:
            self._waiting.append(info)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="trialpod-checkpoints", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait_committed_or_unavailable(self, index: int) -> None:
        """Return when this checkpoint is committed and announced, or the storage cannot be reached for now.

        Raises:
            BaseException: as of `wait_for_room`.
        """

        def all_committed() -> bool:
            return self._failing_since is not None or self._announced >= index

        self._until(all_committed)

    def wait_committed(self, index: int) -> None:
        """Return when this checkpoint is committed, however long it takes; errors as of `wait_for_room`."""
        self._until(lambda: self._announced >= index)

    def drain(self, time_left_s: Callable[[], float | None]) -> bool:
        """Return when everything is committed and announced (True), or no time is left (False).

        After False nothing more is committed; the checkpoints before stay as they are.

        Args:
            time_left_s: returns the seconds that are left, None without a limit; called repeatedly.

        Raises:
            BaseException: as of `wait_for_room`.
        """
        out_of_time = False

        def over() -> bool:
            nonlocal out_of_time
            left = time_left_s()
            out_of_time = left is not None and left <= 0.0
            # An attempt that is ended before an answer leaves the checkpoints that it no longer needs.
            return out_of_time or not (self._pending() or self._asked or self._deletable)

        self._until(over, look_s=lambda: min(_LOOK_S, max(0.01, time_left_s() or _LOOK_S)))
        left = self.pending
        if not left:
            return True
        self.close()
        log.warning(
            "%s cannot be stored in the time that is left; the trial resumes from the previous checkpoint",
            " and ".join(info.name for info in left),
        )
        return False

    def close(self) -> None:
        """End the thread; what is not committed yet never will be."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()

    def _pending(self) -> list[CheckpointInfo]:
        current = [] if self._current is None else [self._current]
        return [*current, *self._waiting]

    def _until(
        self,
        condition: Callable[[], bool],
        waiting: Callable[[], None] | None = None,
        look_s: Callable[[], float] = lambda: _LOOK_S,
    ) -> None:
        with self._changed:
            while True:
                self.check()
                if condition():
                    return
                self._allowed()
                if waiting is not None:
                    waiting()
                self._changed.wait(look_s())

    def _warn_slow(self, since: float) -> None:
        if self._warned or self._waited_s + self._clock() - since < _SLOW_S:
            return
        self._warned = True
        waiting = self._pending()
        log.warning(
            "%d checkpoints (%s) wait to be stored in %s, which is slower than the trial makes them; "
            "training waits until there is room for the next; save checkpoints less often to avoid this",
            len(waiting),
            size_text(sum(info.size for info in waiting)),
            self._store.uri,
        )

    # The thread.

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    while not self._waiting and not self._deletable and not self._stop.is_set():
                        self._changed.wait()
                    if self._stop.is_set():
                        return
                    deletable = self._deletable[:]
                if deletable:
                    if removed := self._remove(deletable):
                        self._deleted(removed)
                    with self._changed:
                        self._deletable = [name for name in self._deletable if name not in deletable]
                        self._changed.notify_all()
                with self._changed:
                    if not self._waiting:
                        continue
                    self._current = info = self._waiting.popleft()
                committed = self._commit(info)
                self._known.append(committed)
                self._allowed()
                self._announce(committed)
                with self._changed:
                    self._announced = committed.index
                    self._changed.notify_all()
                self._retain()
                with self._changed:
                    self._current = None
                    self._changed.notify_all()
        except _GivenUpError:
            return
        # Superseded and the like are not Exceptions; all of them concern the training.
        except BaseException as error:  # noqa: BLE001
            with self._changed:
                self._problem = error
                lost = self._pending()
                self._current = None
                self._waiting.clear()
                self._changed.notify_all()
            for info in lost:
                self._store.abandon(info.index)

    def _commit(self, info: CheckpointInfo) -> CheckpointInfo:
        backoff = Backoff(base_s=0.5, cap_s=30.0)
        started = logged = self._clock()
        said_progress = started + _PROGRESS_AFTER_S - _PROGRESS_INTERVAL_S
        since = ""

        def progress(done: int, total: int) -> None:
            nonlocal said_progress
            if self._stop.is_set():
                raise _GivenUpError
            self._allowed()
            now = self._clock()
            if now - said_progress >= _PROGRESS_INTERVAL_S:
                said_progress = now
                log.info(
                    "%s: %s of %s stored after %.0f s", info.name, size_text(done), size_text(total), now - started
                )

        while True:
            if self._stop.is_set():
                raise _GivenUpError
            self._allowed()
            try:
                committed = self._store.commit(
                    info.index,
                    iteration=info.iteration,
                    metrics=info.metrics,
                    attempt=info.attempt,
                    time=info.time,
                    progress=progress,
                )
            except StorageUnavailableError as error:
                now = self._clock()
                delay = backoff.failed()
                if not since or now - logged >= _LOG_INTERVAL_S:
                    since = since or time.strftime("%H:%M:%S")
                    logged = now
                    self._say_unavailable(info, error, since, delay)
                with self._changed:
                    self._failing_since = self._failing_since or now
                    self._changed.notify_all()
                self._stop.wait(delay)
            else:
                break
        if since:
            log.warning("%s is stored, after %.0f s; the storage answers again", info.name, self._clock() - started)
        with self._changed:
            self._failing_since = None
        return committed

    def _say_unavailable(self, info: CheckpointInfo, error: Exception, since: str, delay_s: float) -> None:
        kept = self.pending
        log.warning(
            "%s cannot be stored since %s: %s; training continues, %d checkpoint(s) (%s) are kept on the local disk, "
            "retried in %.1f s",
            info.name,
            since,
            error,
            len(kept),
            size_text(sum(one.size for one in kept)),
            delay_s,
        )

    def _retain(self) -> None:
        names = [info.name for info in to_delete(self._known, self._rules)]
        if self._ask is None:
            if removed := self._remove(names):
                self._deleted(removed)
            return
        with self._changed:
            fresh = [name for name in names if name not in self._asked and name not in self._deletable]
            self._asked.update(fresh)
        if fresh:
            self._ask(fresh, self._answered)

    def _answered(self, asked: list[str], deletable: list[str]) -> None:
        with self._changed:
            self._asked.difference_update(asked)
            self._deletable += deletable
            self._changed.notify_all()

    def _remove(self, names: list[str]) -> list[str]:
        removed = []
        for name in names:
            if self._stop.is_set():
                break
            self._allowed()
            try:
                self._store.delete(name, attempt=self._attempt)
            except (StorageError, CheckpointError) as error:
                # One checkpoint too many does no harm; it is retried after the next one.
                log.warning("%s was not removed: %s", name, error)
            else:
                removed.append(name)
        self._known = [info for info in self._known if info.name not in removed]
        return removed


def size_text(count: int) -> str:
    """Return a number of bytes for people: "1.5 GB"."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
