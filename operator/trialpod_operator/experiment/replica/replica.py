"""Copies an experiment's directory to a remote storage while it is being written, and back on another machine.

The directory stays where the truth is written first; the storage follows within about a second. Checkpoints are not
copied from here: the attempts put them into the storage by themselves.

* The journal goes first, and there is one copy of it for all writers (`journal`).
* The other files are replaced, each after the records that it follows from were copied, and only in the version that
  is known here (`files`). So no process that was replaced puts back what they were before.
* A snapshot comes after the files of all trials that may lag behind: of what ended before a stored snapshot, the
  storage has everything. So a restart need not read it, nor compare. What `catch_up` has copied just before, the
  journal need not wait for.
* ``result.json``, ``progress.csv`` and ``log.txt`` of a running trial are copied again only when they have grown by a
  quarter, and at its end; over a trial's life that is at most five times their size. Running trials take turns, one
  in a second: with very many of them, most have their files copied once.
* What is written after the deletion of the whole experiment is deleted too (`post_delete_cleanup`).
* What cannot be copied now is copied later. Nothing here ever stops training.

* The journal's writer may wait until the storage has what was written so far: `request` asks for it, and
  `committed` is called. The journal has a thread of its own, so that the trials' files never delay it.

Background threads do the copying; `Replica`'s public methods may be called from any thread.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from trialpod.errors import CheckpointError, StorageError
from trialpod.storage.base import Storage, StorageCredentialsError, StorageDeniedError
from trialpod.storage.checkpoints import open_checkpoints
from trialpod_operator.experiment.replica.files import FileReplica, LogText
from trialpod_operator.experiment.replica.journal import JournalReplica
from trialpod_operator.experiment.replica.post_delete_cleanup import EmptiedError, FencedError, PostDeleteCleanup
from trialpod_operator.experiment.replica.upload_queue import LiveTurns, UploadQueue
from trialpod_operator.experiment.stored import JOURNAL_ID, read_stored

__all__ = ["EmptiedError", "FencedError", "Replica", "ReplicaStatus"]

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
GROWTH = 1.25
MAX_BACKOFF_S = 30.0
MAX_COMMIT_BACKOFF_S = 5.0
"""The same for the journal where others wait for it: after an outage of the storage, decisions resume within this."""

WRITING_SHARE = 0.25
"""Of the interval of looks whether the place was emptied, while something is written there."""

MAX_CHANGED_FILES = 50
MAX_CATCH_UP_PASSES = 6
"""Catch-up ends after a pass that copied at most this many files, or after this many passes."""

MIN_FETCH_FILES = 20
FETCH_SHARE = 60
"""A pass fetches one in `FETCH_SHARE` of the files that `fetch_soon` was given, and at least `MIN_FETCH_FILES`."""

_NO, _ASKED, _DONE = "no", "asked", "done"


@dataclass(frozen=True)
class ReplicaStatus:
    """Whether the storage takes what is to be replicated, and that in a sentence for people."""

    reachable: bool
    message: str


def _log_status(status: ReplicaStatus) -> None:
    logger.warning("%s", status.message)


class Replica:
    """Keeps the copy of one experiment's directory.

    Args:
        directory: the experiment's directory; this process holds its lock.
        storage: the experiment's location in the storage.
        presence_s: how often to check that ``experiment.json`` is in the storage; 0 = never; while the journal
            grows, four times as often. Where it is not, the location has been emptied, and what was written there
            is lost.
    """

    def __init__(self, directory: Path, storage: Storage, *, presence_s: float = 0.0) -> None:
        self._directory = directory
        self._presence_s = presence_s
        self._present_at = float("-inf")
        self._present_to = 0  # the position that the storage had confirmed by then
        self._storage = storage
        self._committed: Callable[[int], None] = lambda _position: None
        self._requested = 0  # written by the journal's owner, read by the copying thread
        self._confirmed = 0
        self._urgent = threading.Event()
        self._report: Callable[[ReplicaStatus], None] = _log_status
        self._fenced: Callable[[FencedError], None] = lambda error: logger.error("%s", error)
        self._monotonic: Callable[[], float] = time.monotonic
        self._late = PostDeleteCleanup(storage, lambda: self._monotonic())
        self._files = FileReplica(directory, storage, self._late)
        self._journal = JournalReplica(
            directory,
            storage,
            self._copy_before_snapshot,
            self._files.stored,
            self._late,
            lambda: self._monotonic(),
        )
        self._trials = UploadQueue()
        self._wanted: dict[str, list[str]] = {}  # files to fetch; from `start` on, of the thread of the files
        self._wanted_at_once = 0
        self._arrived: Callable[[list[str]], None] = lambda _names: None
        self._removals: deque[tuple[str, str]] = deque()  # added by the owner, taken by the thread of the files
        self._closing = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._tell_end: Callable[[], None] = lambda: None
        self._ended_copying = False
        self._broken: FencedError | None = None
        self._live_turns = LiveTurns()
        self._finishing = threading.Event()
        self._files_after_s = 0.0
        self._given_up = False
        self.errors = 0  # how often the storage did not take what was to be copied
        self.refused = False  # it refuses the keys, or what they may do, as it was asked last
        self._files_thread: threading.Thread | None = None
        self._journal_complete = threading.Event()  # its thread has copied its last
        self._telling = threading.Lock()  # guards the next
        self._troubled: set[str] = set()  # threads to which the storage did not answer lately
        self._passes = 0  # of the thread of the files
        self._catching_up = _NO  # the owner sets "asked" and "no", the thread of the files "done"

    @property
    def uri(self) -> str:
        """Where the copy is."""
        return self._storage.uri

    @property
    def sealed(self) -> bool:
        """Whether the last segment, as it was pulled, takes no more records: the next process begins another one."""
        return self._journal.sealed

    @property
    def pieces(self) -> int:
        """How many objects the journal has in the storage since its latest snapshot: what a restart has to read."""
        return self._journal.pieces

    # -- from the storage --

    def pull(self, *, journal_only: bool = False) -> bool:
        """Bring the directory up to what the storage holds; return True when anything here was changed.

        Args:
            journal_only: leave the trials' files where they are: enough to read. A process that continues brings
                those that it needs by `fetch`. What is here of trials goes when the journal was behind.

        Raises:
            FencedError: directory and storage hold different histories.
            StorageError: the storage cannot be read.
        """

        def before() -> None:
            if journal_only:
                self._files.forget_trials()
                self._files.fetch_experiment()
            else:
                self._files.fetch_all()

        found = self._files.find_document()
        if not found:
            return self._files.renew_document()
        other = found != (read_stored(self._directory) or {}).get(JOURNAL_ID)
        if other and self._journal.begun_here:
            raise self._journal.different()
        if other:
            self._files.take_document()
        self._late.journal = found
        fetched = self._journal.pull(before)
        if self._journal.stored:
            self._files.found_stored()
        return fetched or other

    def claim_location(self) -> bool:
        """Put ``experiment.json`` into a location where none is: it says whose the location is.

        Else that happens before anything else is copied.

        Returns:
            False when another process was faster. Its file is in the directory then, for the caller to check.

        Raises:
            StorageError: the storage cannot be written.
        """
        claimed = self._files.claim_location()
        if not claimed:
            self._files.fetch_experiment()
        return claimed

    def fetch(self, keys: Iterable[str]) -> None:
        """Bring those of these files that are not here, for a caller that waits for them.

        Args:
            keys: paths in the experiment's directory.

        Raises:
            StorageError: the storage cannot be read.
        """
        self._files.fetch(keys)

    def fetch_soon(self, wanted: Mapping[str, list[str]], arrived: Callable[[list[str]], None]) -> None:
        """Bring files while copying, a few at a time; to be called before `start`.

        Args:
            wanted: paths in the experiment's directory, by the name of what waits for them.
            arrived: called from a copying thread with names: of their files those are here now that exist.
        """
        self._arrived = arrived
        self._wanted = dict(wanted)
        self._wanted_at_once = max(MIN_FETCH_FILES, len(wanted) // FETCH_SHARE)

    @property
    def snapshot_stored(self) -> bool:
        """Whether the storage has the latest snapshot that is here, and so all files of what ended before it."""
        return self._journal.snapshot_stored

    @property
    def version_count(self) -> int:
        """Of how many files the version is known that the storage has."""
        return self._files.version_count

    # -- to the storage --

    def start(
        self,
        report: Callable[[ReplicaStatus], None],
        fenced: Callable[[FencedError], None],
        committed: Callable[[int], None] = lambda _position: None,
        *,
        files_after_s: float = 0.0,
    ) -> None:
        """Start copying. All three functions are called from the copying threads.

        Args:
            report: called when the storage cannot be reached, and when it can be again.
            fenced: called once when another process writes the same experiment; nothing is copied any more.
            committed: called with a number that was given to `request`, once everything that the journal held at that
                call is in the storage.
            files_after_s: for how long the trials' files wait, unless `finish` is called before.
        """
        self._report, self._fenced, self._committed = report, fenced, committed
        self._files_after_s = files_after_s
        self._thread = threading.Thread(target=self._run, name="trialpod-replica", daemon=True)
        self._thread.start()
        self._files_thread = threading.Thread(target=self._run_files, name="trialpod-replica-files", daemon=True)
        self._files_thread.start()

    def request(self, position: int, *, urgent: bool) -> None:
        """Ask for a call when the storage has all that the journal holds now.

        Args:
            position: a number that grows with each call; `committed` gets it back, or a later one.
            urgent: a caller waits for it; else it is done with the next regular copy, within `INTERVAL_S`.
        """
        self._requested = position
        if urgent:
            self._urgent.set()

    def name_policy_files(self, names: Callable[[], Iterable[str]]) -> None:
        """Have the schedulers' policy logs named, instead of looking for them among all trials in each pass.

        Args:
            names: returns the names of all that were written; called in another thread.
        """
        self._files.policy_files = names

    def trial_started(self, dirname: str) -> None:
        """A trial is running in this directory."""
        self._trials.start(dirname)

    def trial_ended(self, dirname: str, left: Iterable[str] = ()) -> None:
        """The files of this trial are complete.

        Args:
            dirname: the trial's directory.
            left: checkpoints that are to be removed, as in `remove_soon`.
        """
        self.remove_soon(dirname, left)
        self.copy_soon(dirname)
        self._trials.end(dirname)

    def compare_soon(self, dirnames: Iterable[str]) -> None:
        """Copy what the storage does not have of these trials, which an earlier process may have left behind."""
        self._trials.add_unknown(dirnames)
        self._wake.set()

    def copy_soon(self, dirname: str) -> None:
        """Copy the files of this trial as they are now, although it may be running."""
        self._trials.add(dirname)
        self._wake.set()

    def remove_soon(self, dirname: str, names: Iterable[str]) -> None:
        """Remove checkpoints from the storage that nothing refers to any more; until then the trial's `files_due`.

        Args:
            dirname: the trial's directory.
            names: of checkpoints that its last attempt might have removed, and perhaps had no time to.
        """
        if found := [(dirname, name) for name in names]:
            self._removals.extend(found)
            self.copy_soon(dirname)

    def add_log(self, dirname: str, text: str, *, once: bool = False) -> None:
        """Add to the log of a trial, here and in the storage; until then its `files_due`.

        Args:
            dirname: the trial's directory.
            text: what to add.
            once: only what of it is not there already.
        """
        self._trials.add_log(LogText(dirname, text, once))
        self.copy_soon(dirname)

    def catch_up(self) -> bool:
        """Have the files of all trials copied; to be called again until it returns True, which it does once then.

        A snapshot that is written now holds the journal up for those only that have changed since.
        """
        if self._files_thread is None:
            return True
        done = self._catching_up == _DONE
        if done:
            self._catching_up = _NO
        elif self._catching_up == _NO:
            self._catching_up = _ASKED
            self._wake.set()
        return done

    def files_due(self, dirname: str | None = None) -> bool:
        """Whether files that were to be copied at once are not copied yet: of this trial, or of any."""
        return self._trials.waiting(dirname)

    def finish(self, ended: Callable[[], None]) -> None:
        """Copy what is left and stop; returns at once. `ended` is called from the copying thread."""
        self._tell_end = ended
        self._trials.end_all()
        self._closing = True
        for event in (self._finishing, self._wake, self._urgent):
            event.set()

    def abandon(self) -> None:
        """Copy nothing more; what is in progress ends by itself."""
        self._given_up = True
        for event in (self._finishing, self._wake, self._urgent):
            event.set()

    @property
    def done(self) -> bool:
        """True when everything is copied, or nothing can be any more."""
        return self._thread is None or self._ended_copying

    def problem(self) -> str | None:
        """Return what could not be copied, and why."""
        if self._broken is not None:
            return str(self._broken)
        if not self.done:
            return f"not everything is copied to {self.uri} yet; run again to copy the rest from {self._directory}"
        return None

    def close(self, timeout_s: float) -> str | None:
        """Finish and wait for it for so many seconds; return what could not be copied, and why."""
        self.finish(lambda: None)
        end = self._monotonic() + timeout_s
        for thread in (self._thread, self._files_thread):
            if thread is not None:
                thread.join(max(0.0, end - self._monotonic()))
        return self.problem()

    # -- the threads --

    def _run(self) -> None:
        try:
            self._repeat(self._commit, self._urgent, MAX_COMMIT_BACKOFF_S)
        finally:
            self._journal_complete.set()

    def _run_files(self) -> None:
        self._finishing.wait(self._files_after_s)
        try:
            self._repeat(self._copy_files, self._wake, MAX_BACKOFF_S)
        finally:
            self._journal_complete.wait()
            if not self._given_up and self._broken is None:
                with contextlib.suppress(StorageError):  # then the next process removes it
                    self._journal.remove_replaced()
            self._late.leave_none()
            self._ended_copying = True
            self._tell_end()

    def _repeat(self, copy: Callable[..., None], wake: threading.Event, backoff_max_s: float) -> None:
        """Copy again and again, until it has to finish and has copied everything."""
        failures = 0
        while self._broken is None and not self._given_up:
            closing = self._closing
            try:
                copy(everything=closing)
            except FencedError as error:
                self._broken = error
                self._fenced(error)
                return
            # Of whatever kind it is: who waits for the copy would wait forever behind a thread that has ended.
            except Exception as error:  # noqa: BLE001
                failures += 1
                self._failed(error, copy.__name__)
                # Not woken up by those who wait: the storage needs the time more than they do.
                self._pause(_backoff_s(failures, backoff_max_s) if not closing else 0.5, self._finishing)
                continue
            if failures:
                self._recovered(copy.__name__)
            failures = 0
            if closing:
                return
            self._pause(INTERVAL_S, wake)

    def _pause(self, seconds: float, wake: threading.Event) -> None:
        if not self._closing:
            wake.wait(seconds)
            if wake is not self._finishing:
                wake.clear()
        else:
            time.sleep(min(seconds, 0.5))

    def _failed(self, error: Exception, thread: str) -> None:
        self.errors += 1
        self.refused = isinstance(error, StorageCredentialsError | StorageDeniedError)
        with self._telling:
            first, again = not self._troubled, thread in self._troubled
            self._troubled.add(thread)
        if again or isinstance(error, StorageError | OSError):
            logger.info("copying to %s failed: %s", self.uri, error)
        else:
            logger.error("copying to %s failed: %s", self.uri, error, exc_info=error)
        if first:
            message = f"{self.uri} cannot be written at the moment ({error}); everything is kept here until it can"
            self._report(ReplicaStatus(reachable=False, message=message))

    def _recovered(self, thread: str) -> None:
        with self._telling:
            self._troubled.discard(thread)
            over = not self._troubled
            self.refused = self.refused and not over
        if over:
            self._report(ReplicaStatus(reachable=True, message=f"{self.uri} is up to date again"))

    # -- what they do --

    def copy(self, *, everything: bool = True) -> None:
        """Copy what the storage does not hold yet; without `everything`, of running trials only what has grown.

        Only while the background threads have not been started.
        """
        self._copy_files(everything=everything, journal_too=True)
        self._journal.bundle()

    def _commit(self, *, everything: bool) -> None:
        """Copy the journal and tell how far; `everything` changes nothing here."""
        position = self._requested
        if position != self._confirmed or everything:
            self._copy_journal()
        if position != self._confirmed:
            self._confirmed = position
            self._committed(position)
        self._journal.bundle()

    def _copy_files(self, *, everything: bool, journal_too: bool = False) -> None:
        """Copy the files that are due, and before them the records that they follow from, if not all of these."""
        self._check_presence()
        self._compare_unknown()
        taken = self._trials.take()
        whole = False
        try:
            while taken.logs:
                self._files.add_log(taken.logs[0])
                del taken.logs[0]
            # A process that resumes from the storage must not count on them: what is added from here on waits for the
            # next copy of the journal.
            removals = len(self._removals)
            if removals:
                self._copy_journal()
            for _ in range(removals):
                self._remove(*self._removals[0])
                self._removals.popleft()
            due = self._files.due_of_experiment()
            catching_up = self._catching_up == _ASKED
            due += self._files.due_of_trials(self._trials.behind() if catching_up else taken.due)
            if not catching_up and not everything:
                due += self._files.due_of_trials(self._live_turns.take(taken.live, self._monotonic()), growth=GROWTH)
            if due or journal_too:
                self._copy_journal()
            self._files.send(due, self._journal.refuse_outdated)
            whole = True
            if catching_up:
                self._record_pass(len(due))
        finally:
            self._trials.copied(taken, self._monotonic(), whole=whole)
        self._files.forget_versions(self._trials.take_resting(self._monotonic()))
        if self._late.journal:
            self._journal.store_snapshot()
        self._journal.remove_replaced()
        if not everything:
            self._fetch_some()

    def _fetch_some(self) -> None:
        names = list(islice(self._wanted, self._wanted_at_once))
        self._files.fetch([key for name in names for key in self._wanted[name]])
        for name in names:
            del self._wanted[name]
        for start in range(0, len(names), MIN_FETCH_FILES):  # the event loop opens them, and has others to answer
            self._arrived(names[start : start + MIN_FETCH_FILES])

    def _check_presence(self) -> None:
        now = self._monotonic()
        # Sooner when the journal has grown: records after a gap are of no use.
        interval_s = self._presence_s * (1.0 if self._confirmed == self._present_to else WRITING_SHARE)
        if not self._presence_s or now - self._present_at < interval_s:
            return
        if self._present_at > float("-inf"):
            self._late.refuse_deleted()
        self._present_at, self._present_to = now, self._confirmed

    def _record_pass(self, copied: int) -> None:
        self._passes += 1
        if copied <= MAX_CHANGED_FILES or self._passes >= MAX_CATCH_UP_PASSES:
            self._passes, self._catching_up = 0, _DONE
        else:
            self._wake.set()  # much may have changed while so many were copied

    def _remove(self, dirname: str, name: str) -> None:
        try:
            open_checkpoints(self._storage.sub(dirname)).delete(name)
        except CheckpointError as error:
            logger.warning("%s of %s is left in %s: %s", name, dirname, self.uri, error)

    def _copy_journal(self) -> None:
        """Before files are copied, too: that detects another writer before anything of its own is replaced."""
        if not self._files.claim_location():
            raise FencedError(f"another process has just begun an experiment in {self.uri}; stop one of them")
        self._journal.copy()

    def _copy_before_snapshot(self, copy_journal: Callable[[], None], refuse_outdated: Callable[[], None]) -> None:
        """Copy the trials' files as far as a snapshot goes, which says how long they are."""
        due = self._files.due_of_trials(self._trials.behind())
        copy_journal()
        self._files.send(due, refuse_outdated)

    def _compare_unknown(self) -> None:
        unknown = self._trials.unknown()
        if not unknown:
            return
        if len(unknown) > MAX_CHANGED_FILES:
            self._files.compare(unknown)
        else:
            self._files.compare_each(unknown)
        self._trials.compared(unknown)


def _backoff_s(failures: int, most_s: float) -> float:
    """Return how long to leave the storage alone; different for each experiment, so that not all retry at once."""
    return min(0.25 * 2.0 ** min(failures, 10), most_s) * random.uniform(0.75, 1.0)
