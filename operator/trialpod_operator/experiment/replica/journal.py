"""The copy of an experiment's journal in its storage, of which there is one for all writers.

* Its objects are below its id, which ``experiment.json`` names: the location was claimed before anything is copied.
* The journal's segments only grow. Each growth becomes an object of its own, named by its offset and created only if
  it does not exist. So no object is ever rewritten, and of two processes that write the same experiment from two
  machines the second is stopped by the first object that it finds taken (`FencedError`).
* A segment is sealed before the next one is copied: an empty object, created only if there is none, takes the place
  of its next growth. A snapshot replaces sealed segments that were copied to their ends, so it knows every record
  that it replaces. It is stored beside the copying: records do not wait for it, nor for the files before it.
* Where segments that a snapshot replaces are not here (a run without a storage came between), they are sealed as they
  are, and the snapshot comes before all that follows. A mark stays where a segment was removed: what is written there
  again counts nothing, and its writer finds that out.
* The process that finds a segment sealed, and not its snapshot, creates an empty one and continues in the next
  segment. So the snapshot of the process that sealed it, should it be alive, finds its place taken.
* Many objects of a segment are also stored as one, a bundle, for those who read them all: a restart. What
  counts are the objects; nothing is found out from a bundle.
* Until its snapshot is stored a segment stays on the disk, too, also when its writer dies: only with it what the
  storage has of it can be distinguished from what another process wrote. It is removed there from here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from trialpod.storage.base import KeyExistsError, KeyMissingError, Storage
from trialpod.storage.journal.format import SEGMENT_HEADER_BYTES
from trialpod_operator.experiment.replica.journal_layout import (
    JOURNAL,
    REMOVED,
    SEGMENT,
    SNAPSHOT,
    Pieces,
    bundle_key,
    local_sizes,
    number_of,
    piece_key,
    read_all,
    read_part,
    segment_name,
    snapshot_name,
    whole_records,
)
from trialpod_operator.experiment.replica.post_delete_cleanup import FencedError, PostDeleteCleanup
from trialpod_operator.experiment.replica.shared_files import SharedFiles

logger = logging.getLogger(__name__)

BUNDLE_OF = 100
"""Objects in a bundle, at least: a restart reads fewer than so many one by one. It costs one request for so many."""

LISTINGS = 10
"""How often the journal's folder is listed again when files have gone meanwhile, before that counts as an error."""


class JournalReplica:
    """Keeps the copy of one journal. Its methods may be called from any thread.

    Args:
        directory: the experiment's.
        storage: the experiment's location in the storage.
        before_snapshot: brings what only the records before a snapshot say into the storage; called before these are
            replaced by it, with what copies the journal, and what finds out whether another process has continued.
        files: the files that follow from the journal: a write to it that succeeds is a look at it.
        late: called with what was written.
        monotonic: seconds, for differences only.
    """

    def __init__(
        self,
        directory: Path,
        storage: Storage,
        before_snapshot: Callable[[Callable[[], None], Callable[[], None]], None],
        files: SharedFiles,
        late: PostDeleteCleanup,
        monotonic: Callable[[], float],
    ) -> None:
        self._place = directory
        self._folder = directory / JOURNAL
        self._storage = storage
        self._before_snapshot = before_snapshot
        self._files = files
        self._late = late
        self._monotonic = monotonic
        self._copying = threading.Lock()  # held while the journal is copied; its holder changes what is below
        # Held while the storage and what is known of it here may differ. Not while files or a snapshot are sent:
        # another thread that sends one of the same files asks `refuse_outdated` for it, under the file's lock.
        self._lock = threading.Lock()
        self._sent: dict[str, int] = {}  # segment file -> bytes in the storage
        self._snapshots: set[str] = set()  # in the storage
        self._pieces: dict[str, int] = {}  # segment file -> objects that it consists of
        self._bundled: dict[str, tuple[int, int]] = {}  # segment file -> end of its bundles, objects in them
        self._replaced: deque[str] = deque()  # segments and snapshots to remove; appended to under the lock
        self._given_up: set[str] = set()  # snapshots in whose place the storage has an empty object
        self._sealed_to = 0  # the segments before this one are sealed
        self._unproven = False  # the latest piece was found where it was sent before, and what follows is not known
        self._made_at = monotonic()  # when the latest object was made
        self.sealed = False
        """Whether the last segment, as it was pulled, takes no more records: the next process begins another one."""

    @property
    def pieces(self) -> int:
        """How many objects the journal has in the storage since its latest snapshot: what a restart has to read."""
        return sum(list(self._pieces.values()))

    @property
    def stored(self) -> bool:
        """Whether the storage had, or has got, anything of it."""
        return bool(self._sent or self._snapshots)

    @property
    def snapshot_stored(self) -> bool:
        """Whether the storage has the latest snapshot that is here, if there is any."""
        return not self._unstored_snapshot()

    def _unstored_snapshot(self) -> str:
        latest = max(filter(SNAPSHOT.fullmatch, self._names()), default="")
        return latest if self._is_unstored(latest) else ""

    def _is_unstored(self, snapshot: str) -> bool:
        return bool(snapshot) and snapshot not in self._snapshots and snapshot not in self._given_up

    @property
    def begun_here(self) -> bool:
        """Whether a journal with records is here."""
        snapshots = any(map(SNAPSHOT.fullmatch, self._names()))
        return snapshots or any(size > SEGMENT_HEADER_BYTES for size in local_sizes(self._folder).values())

    def _names(self) -> list[str]:
        """Return the names of the files that are here."""
        return sorted(os.listdir(self._folder)) if self._folder.is_dir() else []

    def _key(self, name: str) -> str:
        """Return the key of the object that has this name in the journal's folder."""
        return f"{self._late.folder}/{name}"

    def pull(self, before: Callable[[], None]) -> bool:
        """Bring the journal up to what the storage holds; return True when anything was fetched.

        Args:
            before: called before anything of the journal that is here is replaced. When it is not here as a whole
                because the process died meanwhile, all this happens again at the next start.

        Raises:
            FencedError: directory and storage hold different histories.
            StorageError: the storage cannot be read.
        """
        fetched = False

        def about_to_fetch() -> None:
            nonlocal fetched
            fetched = True
            before()

        # Who ran the experiment before may replace or delete what has just been listed.
        for _ in range(LISTINGS - 1):
            with contextlib.suppress(KeyMissingError):
                self._pull_listed(about_to_fetch)
                return fetched
        self._pull_listed(about_to_fetch)
        return fetched

    def copy(self) -> None:
        """Copy what the storage does not hold yet.

        Raises:
            FencedError: another process has continued the journal.
            StorageError: the storage does not take it.
        """
        with self._copying:
            for _ in range(LISTINGS - 1):
                # A new snapshot removes older files, perhaps between our listing and our reading.
                with contextlib.suppress(FileNotFoundError):
                    return self._copy_listed()
            return self._copy_listed()

    def store_snapshot(self) -> None:
        """Store the latest snapshot, unless it is, and have it replace what comes before it; for one thread.

        Raises:
            FencedError: another process has continued the journal.
            StorageError: the storage does not take it.
        """
        name = self._unstored_snapshot()
        if not name:
            return
        self._before_snapshot(self.copy, self.refuse_outdated)
        with self._lock:
            if number_of(name) > self._newest:
                return  # its segment came after the journal was copied
        self._put(self._key(name), read_part(self._folder / name, 0))
        self._late.written(self._key(name))
        with self._lock:
            self._snapshots.add(name)
            self._forget_before(name)

    def bundle(self) -> None:
        """Store the latest objects of a segment as one too, if there are enough of them.

        Raises:
            FencedError: another process has continued the journal.
            StorageError: the storage does not take it.
        """
        with self._copying, self._lock:
            for name, pieces in self._pieces.items():
                start, bundled = self._bundled.get(name, (0, 0))
                end = self._sent.get(name, 0)
                if pieces - bundled >= BUNDLE_OF and end > start:
                    self._create(
                        bundle_key(self._late.folder, name, start, end),
                        read_part(self._folder / name, start, end - start),
                    )
                    self._refuse_removed(name)
                    self._bundled[name] = end, pieces

    def refuse_outdated(self) -> None:
        """Find out whether another process has continued the journal from where it ends for this one.

        Raises:
            FencedError: it has, or the experiment was deleted.
        """
        with self._lock:
            self._refuse_outdated()

    def _pull_listed(self, before: Callable[[], None]) -> None:
        pieces = Pieces(self._late.folder, self._storage.sizes(self._late.folder))
        remote, seals = pieces.sizes(), pieces.seals()
        local = local_sizes(self._folder)
        numbers = [number_of(name) for name in local]
        oldest_here, newest_here = min(numbers, default=0), max(numbers, default=0)
        # Segments older than all that are here are covered by the snapshot that is here.
        ahead = [
            name for name, size in remote.items() if size > local.get(name, 0) and number_of(name) >= oldest_here
        ]
        newer = [name for name in pieces.snapshots if number_of(name) > newest_here]
        self._check_history(pieces, local)
        newest = max(remote, default="")
        self.sealed = newest in seals and newest_here <= number_of(newest)
        if ahead or newer:
            logger.info("fetching the experiment from %s", self._storage.uri)
            before()
            self._fetch(pieces)
            local = local_sizes(self._folder)
        with self._lock:
            self._sent = {name: min(size, local.get(name, 0)) for name, size in remote.items()}
            self._snapshots = set(pieces.snapshots)
            self._pieces = {name: len(found) for name, found in pieces.segments.items()}
            self._bundled = {name: pieces.bundled(name) for name in pieces.segments}
            self._replaced = deque(pieces.replaced)
            self._given_up = set(pieces.given_up)
            for name in pieces.given_up:
                self._sent.setdefault(segment_name(number_of(name)), 0)
            self._sealed_to = max((number_of(name) + 1 for name in seals), default=0)

    def _copy_listed(self) -> None:
        names = self._names()
        segments = list(filter(SEGMENT.fullmatch, names))
        latest = max(filter(SNAPSHOT.fullmatch, names), default="")
        if self._is_unstored(latest) and self._lacks_segments(segments, latest):
            self._bridge(segments, latest)
        with self._lock:
            for name in segments:
                number = number_of(name)
                if number < self._newest or self._left_out(name):
                    continue
                if number > self._newest:
                    self._begin_copy(number)
                self._copy_segment(name)

    def _lacks_segments(self, segments: list[str], snapshot: str) -> bool:
        """Return whether segments that a snapshot replaces can neither be copied nor are in the storage."""
        replaced = [segment_name(number) for number in range(self._newest, number_of(snapshot))]
        return any(name not in segments or self._left_out(name) for name in replaced)

    def _bridge(self, segments: list[str], snapshot: str) -> None:
        """Store a snapshot before all that follows it."""
        with self._lock:
            for name in segments:
                if number_of(name) == self._newest and not self._left_out(name):
                    self._copy_segment(name)
            self._seal_before(number_of(snapshot))
        self._before_snapshot(lambda: None, self.refuse_outdated)
        with self._lock:
            self._create(self._key(snapshot), read_part(self._folder / snapshot, 0))
            self._snapshots.add(snapshot)
            self._forget_before(snapshot)

    def _left_out(self, name: str) -> bool:
        """Return whether a segment was sealed before anything of it was copied: the snapshot that follows has it."""
        return self._sealed_to > number_of(name) and not self._sent.get(name)

    def _begin_copy(self, number: int) -> None:
        """See to it that the segments before this one have ended, and that no other process continues after them."""
        if self._sealed_to < number:
            self._seal_before(number)
        elif not (self._folder / snapshot_name(number)).exists():
            self._give_up_snapshot(number)  # the seal is another process's

    def _give_up_snapshot(self, number: int) -> None:
        """See to it that no snapshot ever comes before a segment that was begun without one."""
        snapshot = snapshot_name(number)
        self._create(self._key(snapshot), b"")
        self._given_up.add(snapshot)
        self._sent[segment_name(number)] = 0

    def _copy_segment(self, name: str) -> None:
        sent = self._sent.get(name, 0)
        data = whole_records(read_part(self._folder / name, sent), at_start=sent == 0)
        while data:
            taken, made = self._create_piece(name, sent, data)
            self._unproven = not made
            sent, data = sent + taken, data[taken:]
            self._sent[name] = sent
            self._pieces[name] = self._pieces.get(name, 0) + 1
        if self._unproven:
            # The answer to it was lost, perhaps long ago. What another process has done since then follows it, and
            # nothing that these records ask for may be done again.
            self._refuse_outdated()
            self._unproven = False

    def _seal_before(self, number: int) -> None:
        """End the segments before this one where they end for this process, or find out that they do not."""
        for each in range(self._newest, number):
            name = segment_name(each)
            self._create_piece(name, self._sent.get(name, 0), b"")
        self._sealed_to = number

    @property
    def _newest(self) -> int:
        """The number of the latest segment or snapshot that is in the storage."""
        return max(map(number_of, (*self._sent, *self._snapshots)), default=1)

    def _refuse_outdated(self) -> None:
        newest = self._newest
        segment = segment_name(newest)
        if self._sealed_to > newest:
            name, start = snapshot_name(self._sealed_to), 0
            key = self._key(name)
        else:
            name, start = segment, self._sent.get(segment, 0)
            key = piece_key(self._late.folder, segment, start)
        with contextlib.suppress(KeyMissingError):
            found = self._storage.read(key)
            ours = read_part(self._folder / name, start) if (self._folder / name).exists() else b""
            if not found or not ours.startswith(found):  # else the answer to our own was lost
                raise self._outdated(key)
        # Looked at last: it is made before what could have been found above is removed.
        self._refuse_removed(segment)
        # Another experiment's journal is elsewhere.
        self._late.refuse_deleted()

    def _outdated(self, key: str) -> FencedError:
        return FencedError(
            f"another process writes this experiment to {self._storage.uri} (it made {key}); stop one of them, "
            "or give one another name"
        )

    def _refuse_removed(self, segment: str) -> None:
        """Find out whether a segment that has just taken something had been replaced and removed before."""
        with contextlib.suppress(KeyMissingError):
            self._storage.read(self._key(segment + REMOVED))
            raise FencedError(
                f"another process has continued this experiment in {self._storage.uri}; stop one of them"
            )

    def _create_piece(self, segment: str, start: int, data: bytes) -> tuple[int, bool]:
        """Create a piece of a segment, a look at the journal if it is made now; return what `_create` does."""
        look = self._files.look_begins()
        taken, made = self._create(piece_key(self._late.folder, segment, start), data)
        self._refuse_removed(segment)
        if made:
            self._files.look_ended(look)
        return taken, made

    def _create(self, key: str, data: bytes) -> tuple[int, bool]:
        """Create an object, unless it exists; return how many of these bytes it has, and whether it was made now."""
        taken, made = self._put(key, data)
        self._late.written(key, self._made_at)
        self._made_at = self._monotonic()
        return taken, made

    def _put(self, key: str, data: bytes) -> tuple[int, bool]:
        self._late.write_soon(key)
        try:
            self._storage.write_new(key, data)
        except KeyExistsError:
            # Ours when an earlier try ended without an answer, or something after it failed; there is more already.
            found = self._storage.read(key)
            if found != data and not (found and data.startswith(found)):
                raise self._outdated(key) from None
            return len(found), False
        return len(data), True

    def _forget_before(self, snapshot: str) -> None:
        number = number_of(snapshot)
        for name in [name for name in (*self._snapshots, *self._given_up, *self._sent) if number_of(name) < number]:
            self._replaced.append(name)
            self._snapshots.discard(name)
            self._given_up.discard(name)
            for known in (self._sent, self._pieces, self._bundled):
                known.pop(name, None)
        for name in self._names():
            if (SEGMENT.fullmatch(name) or SNAPSHOT.fullmatch(name)) and number_of(name) < number:
                (self._folder / name).unlink(missing_ok=True)

    def remove_replaced(self) -> None:
        """Remove what a stored snapshot has replaced from the storage; for one thread.

        Not while copying: a segment of 2,000 objects takes seconds, and records would wait for it. Only where the
        snapshot still is: what is in a place that was emptied may be another experiment's.

        Raises:
            StorageError: the storage cannot be written; the rest is removed by the next call.
        """
        if not self._replaced:
            return
        with self._lock:
            latest = max(self._snapshots)
        if not self._storage.exists(self._key(latest)):
            return
        while self._replaced:
            name = self._replaced[0]
            if SNAPSHOT.fullmatch(name):
                self._storage.delete(self._key(name))
            else:
                self._late.write_soon(self._key(name + REMOVED))
                self._storage.write(self._key(name + REMOVED), b"")
                self._storage.delete_tree(self._key(name))
            self._replaced.popleft()

    def _check_history(self, pieces: Pieces, local: dict[str, int]) -> None:
        """Refuse when the same stretch of the journal has different bytes here and there."""
        for name in pieces.snapshots:
            here = self._folder / name
            if here.exists() and here.read_bytes() != self._storage.read(self._key(name)):
                raise self.different()
        newest_here, sizes = max(map(number_of, local), default=0), pieces.sizes()
        for name, offsets in pieces.segments.items():
            if name in local and number_of(name) < newest_here and sizes[name] > local[name]:
                raise self.different()  # here it has been replaced as it is, there it was continued
            last = max((offset for offset in offsets if offset < local.get(name, 0)), default=None)
            if last is None:
                continue
            theirs = self._storage.read(piece_key(self._late.folder, name, last))
            ours = read_part(self._folder / name, last)[: len(theirs)]
            # Behind a seal there is nothing, unless the snapshot that it was for is here. The header of a segment
            # that was left out is nothing: who fetched the seal, and died before its snapshot, has written it.
            beyond = (
                not theirs
                and max(map(number_of, local)) == number_of(name)
                and (last > 0 or local[name] > SEGMENT_HEADER_BYTES)
            )
            if beyond or not theirs.startswith(ours):
                raise self.different()

    def different(self) -> FencedError:
        """Return the error for a directory whose journal is not the one in the storage."""
        return FencedError(
            f"{self._place} and {self._storage.uri} hold different histories of this experiment; "
            f"move {self._place} away to continue with the one in the storage"
        )

    def _fetch(self, pieces: Pieces) -> None:
        """Replace the journal that is here, once all that replaces it is here."""
        incoming = self._folder.with_name(f"{self._folder.name}.incoming")
        shutil.rmtree(incoming, ignore_errors=True)  # of a process that died
        incoming.mkdir(parents=True)
        try:
            self._fetch_to(incoming, pieces)
            self._folder.mkdir(exist_ok=True)
            for name in os.listdir(self._folder):
                os.unlink(self._folder / name)
            # Snapshots first, then the oldest segments: what a process leaves that dies here is a beginning, and the
            # next one sees that more follows. That segments are missing before the first one it would not see.
            for name in sorted(os.listdir(incoming), key=lambda name: (SEGMENT.fullmatch(name) is not None, name)):
                os.rename(incoming / name, self._folder / name)
        finally:
            shutil.rmtree(incoming, ignore_errors=True)

    def _fetch_to(self, folder: Path, pieces: Pieces) -> None:
        for name in pieces.snapshots:
            (folder / name).write_bytes(self._storage.read(self._key(name)))
        for name, offsets in pieces.segments.items():
            wanted = pieces.keys_from(name, min(offsets))
            found = read_all(self._storage, wanted)
            with open(folder / name, "wb") as file:
                for offset in wanted:
                    if file.tell() != offset:
                        raise FencedError(
                            f"{self._storage.uri}: the journal has a gap before byte {offset} of {name}"
                        )
                    file.write(found[offset])
