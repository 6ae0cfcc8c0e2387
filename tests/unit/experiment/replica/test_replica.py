"""The copy of an experiment in its storage, with a folder in the role of the storage."""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from memory_storage import MemoryStorage

from python_steps import count
from trialpod.errors import StorageError
from trialpod.storage.base import StorageUnavailableError
from trialpod.storage.directory import DirectoryStorage
from trialpod.storage.journal.journal import Journal
from trialpod.storage.layout import EXPERIMENT_KEY, JOURNAL_DIR, TRIALPOD_DIR
from trialpod.tune.shipping.package import write_trainable
from trialpod_operator.experiment.replica import journal as journal_replica
from trialpod_operator.experiment.replica.files import Due, FileReplica
from trialpod_operator.experiment.replica.journal_copy import JournalCopy
from trialpod_operator.experiment.replica.journal_layout import folder_of
from trialpod_operator.experiment.replica.post_delete_cleanup import PostDeleteCleanup
from trialpod_operator.experiment.replica.replica import FencedError, Replica, ReplicaStatus
from trialpod_operator.experiment.replica.upload_queue import REST_S
from trialpod_operator.experiment.stored import JOURNAL_ID, write_stored

ID = "0123456789abcdef"
FOLDER = folder_of(ID)


def journal_of(directory: Path) -> Journal:
    if not (directory / EXPERIMENT_KEY).exists():
        write_stored(directory, {JOURNAL_ID: ID})
    return Journal.open(directory / TRIALPOD_DIR / JOURNAL_DIR, keep_replaced=True)


def stored_journal(storage: DirectoryStorage) -> dict[str, bytes]:
    return {key: storage.read(key) for key in storage.list(FOLDER)}


def copy_each(journal: Journal, replica: Replica, numbers: range) -> None:
    """Append records, and copy each as an object of its own."""
    for number in numbers:
        journal.append(b"%d" % number)
        replica.copy()


def history(directory: Path) -> tuple[bytes | None, list[bytes]]:
    journal = Journal.open(directory / TRIALPOD_DIR / JOURNAL_DIR, read_only=True)
    return journal.snapshot, list(journal.records())


def wait_until_caught_up(replica: Replica) -> None:
    """Ask until the files are brought up to date, which tells nobody."""
    deadline, again = time.monotonic() + 60.0, threading.Event()
    while not replica.catch_up():
        assert time.monotonic() < deadline, "the files are not brought up to date"
        again.wait(0.005)


@pytest.fixture
def storage(tmp_path: Path) -> DirectoryStorage:
    return DirectoryStorage(tmp_path / "storage")


def test_another_machine_continues_with_what_was_copied(tmp_path: Path, storage: DirectoryStorage) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    journal = journal_of(here)
    journal.append(b"one")
    journal.write_snapshot(b"state after one")
    journal.append(b"two")
    (here / "trial_0").mkdir()
    (here / "trial_0" / "result.json").write_text('{"loss": 1}\n')
    replica = Replica(here, storage)
    replica.trial_ended("trial_0")
    replica.copy()

    assert Replica(there, storage).pull()
    assert history(there) == (b"state after one", [b"two"])
    assert (there / "trial_0" / "result.json").read_text() == '{"loss": 1}\n'


def test_the_newest_trainable_is_the_one_that_is_copied(tmp_path: Path, storage: DirectoryStorage) -> None:
    """The code was edited, and the experiment resumed: its folder has both files, another machine gets one."""
    here, there = tmp_path / "here", tmp_path / "there"
    journal_of(here).append(b"one")
    replica = Replica(here, storage)
    write_trainable(b"first", here / ".trialpod")
    replica.copy()
    os.utime(here / ".trialpod" / "trainable.pkl", (1.0, 1.0))
    replica.copy()
    write_trainable(b"second", here / ".trialpod")
    replica.copy()
    assert storage.read(".trialpod/trainable.pkl") == b"second"
    assert Replica(there, storage).pull()
    assert (there / ".trialpod" / "trainable.pkl").read_bytes() == b"second"


class ChangedWhileRead(DirectoryStorage):
    """A storage where something happens once, right after the journal was listed."""

    def __init__(self, path: Path, change: Callable[[], None]) -> None:
        super().__init__(path)
        self._changes = [change]

    def sizes(self, prefix: str = "") -> dict[str, int]:
        found = super().sizes(prefix)
        while self._changes:
            self._changes.pop()()
        return found


def test_pull_beside_a_snapshot_fetches_the_snapshot(tmp_path: Path, storage: DirectoryStorage) -> None:
    journal = journal_of(tmp_path / "here")
    replica = Replica(tmp_path / "here", storage)
    copy_each(journal, replica, range(3))

    def write_snapshot() -> None:
        journal.write_snapshot(b"after three")
        replica.copy()

    changed = ChangedWhileRead(tmp_path / "storage", write_snapshot)
    assert Replica(tmp_path / "there", changed).pull()
    assert history(tmp_path / "there") == (b"after three", [])


class KilledError(BaseException):
    """The process was killed."""


@pytest.mark.parametrize("renamed", [0, 1, 2, 3])
def test_pull_killed_at_any_moment_is_begun_again(
    tmp_path: Path, storage: DirectoryStorage, monkeypatch: pytest.MonkeyPatch, renamed: int
) -> None:
    journal = journal_of(tmp_path / "here")
    replica = Replica(tmp_path / "here", storage)
    copy_each(journal, replica, range(2))
    journal.write_snapshot(b"after two")
    copy_each(journal, replica, range(2, 4))
    journal.begin_segment()
    copy_each(journal, replica, range(4, 6))
    rename, listdir, left = os.rename, os.listdir, iter(range(renamed))

    def rename_or_die(source: str, target: str) -> None:
        if next(left, None) is None:
            raise KilledError
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", lambda path: sorted(listdir(path), reverse=True))
        patch.setattr(os, "rename", rename_or_die)
        with contextlib.suppress(KilledError):
            Replica(tmp_path / "there", storage).pull()
    Replica(tmp_path / "there", storage).pull()
    assert history(tmp_path / "there") == (b"after two", [b"2", b"3", b"4", b"5"])


def test_pull_from_a_storage_being_emptied_keeps_the_journal(tmp_path: Path, storage: DirectoryStorage) -> None:
    journal = journal_of(tmp_path / "here")
    replica = Replica(tmp_path / "here", storage)
    journal.append(b"one")
    replica.copy()
    there = tmp_path / "there"
    Replica(there, storage).pull()
    journal.append(b"two")
    replica.copy()
    changed = ChangedWhileRead(tmp_path / "storage", lambda: storage.delete_tree(TRIALPOD_DIR))
    Replica(there, changed).pull()
    assert history(there) == (None, [b"one"])


def test_checkpoints_an_attempt_left_are_removed(
    tmp_path: Path, storage: DirectoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise StorageUnavailableError("the storage is away")

    journal_of(tmp_path / "here")
    for name in ("checkpoint_000001", "checkpoint_000002"):
        storage.write(f"trial_0/{name}/model", b"x")
    replica = Replica(tmp_path / "here", storage)
    replica.remove_soon("trial_0", ["checkpoint_000001", "checkpoint_000000"])
    with monkeypatch.context() as patch:
        patch.setattr("trialpod_operator.experiment.replica.replica.open_checkpoints", away)
        with pytest.raises(StorageUnavailableError):
            replica.copy()
    assert replica.files_due("trial_0")
    replica.copy()
    assert not replica.files_due()
    assert storage.list("trial_0") == ["trial_0/checkpoint_000002/model"]


def test_a_checkpoint_goes_only_after_the_record_that_says_so(tmp_path: Path) -> None:
    """Also when that comes while others are removed: else the next machine counts on a checkpoint that is gone."""
    storage = MemoryStorage()
    journal = journal_of(tmp_path / "here")
    journal.append(b"one")
    for key in ("trial_0/checkpoint_000000/model", "trial_1/checkpoint_000003/model"):
        storage.write(key, b"x")
    replica = Replica(tmp_path / "here", storage)
    journal_has_it: list[bool] = []
    copied: list[bool] = []

    def before(name: str, key: str) -> None:
        if name != "delete":
            return
        if key.startswith("checkpoint_000003"):
            copied.append(any(b"released" in storage.values[each] for each in storage.list(FOLDER)))
        elif not journal_has_it:
            journal_has_it.append(True)
            journal.append(b"released")
            replica.remove_soon("trial_1", ["checkpoint_000003"])

    replica.remove_soon("trial_0", ["checkpoint_000000"])
    storage.before = before
    replica.copy()
    assert replica.files_due("trial_1")
    replica.copy()
    assert copied
    assert all(copied)
    assert not replica.files_due()


def test_growth_is_added_and_nothing_is_rewritten(tmp_path: Path, storage: DirectoryStorage) -> None:
    journal = journal_of(tmp_path / "here")
    replica = Replica(tmp_path / "here", storage)
    journal.append(b"one")
    replica.copy()
    before = stored_journal(storage)
    replica.copy()
    assert stored_journal(storage) == before
    journal.append(b"two")
    replica.copy()
    after = stored_journal(storage)
    assert {key: after[key] for key in before} == before
    assert len(after) == len(before) + 1


def test_a_snapshot_replaces_the_pieces_before_it(
    tmp_path: Path, storage: DirectoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_replica, "BUNDLE_OF", 4)
    journal = journal_of(tmp_path / "here")
    replica = Replica(tmp_path / "here", storage)
    copy_each(journal, replica, range(5))
    assert len(stored_journal(storage)) == 6
    journal.write_snapshot(b"after five")
    replica.copy()
    names = [key.rpartition("/")[2] for key in stored_journal(storage)]
    assert sorted(names) == ["000000000000", "00000001.log.removed", "00000002.snapshot"]


def test_next_process_removes_what_a_snapshot_replaced(tmp_path: Path, storage: DirectoryStorage) -> None:
    journal = journal_of(tmp_path / "here")
    killed = Replica(tmp_path / "here", storage)
    journal.append(b"one")
    killed.copy()
    journal.write_snapshot(b"after one")
    killed._journal.store_snapshot()
    names = [key.removeprefix(f"{FOLDER}/") for key in stored_journal(storage)]
    assert "00000001.log/000000000000" in names, "it is removed later than the snapshot is stored"

    again = Replica(tmp_path / "there", storage)
    again.pull()
    again.copy()
    names = [key.removeprefix(f"{FOLDER}/") for key in stored_journal(storage)]
    assert names == ["00000001.log.removed", "00000002.log/000000000000", "00000002.snapshot"]


def test_nothing_is_removed_from_a_place_that_was_emptied(tmp_path: Path, storage: DirectoryStorage) -> None:
    journal = journal_of(tmp_path / "here")
    replica = Replica(tmp_path / "here", storage)
    journal.append(b"one")
    replica.copy()
    journal.write_snapshot(b"after one")
    replica._journal.copy()
    for key in storage.list():
        storage.delete(key)
    another = journal_of(tmp_path / "another")
    another.append(b"of another experiment")
    Replica(tmp_path / "another", storage).copy()
    replica._journal.remove_replaced()
    Replica(tmp_path / "there", storage).pull()
    assert history(tmp_path / "there") == (None, [b"of another experiment"])


class Read(DirectoryStorage):
    """Notes what is read of journals."""

    def __init__(self, storage: DirectoryStorage) -> None:
        super().__init__(storage.uri)
        self.keys: list[str] = []

    def read(self, key: str) -> bytes:
        if JOURNAL_DIR in key:
            self.keys.append(key.rpartition("/")[2])
        return super().read(key)


def test_a_restart_reads_many_pieces_as_few_objects(
    tmp_path: Path, storage: DirectoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_replica, "BUNDLE_OF", 10)
    journal = journal_of(tmp_path / "here")
    replica = Replica(tmp_path / "here", storage)
    copy_each(journal, replica, range(25))
    noting = Read(storage)
    second = Replica(tmp_path / "there", noting)
    second.pull()
    assert len(noting.keys) == 7
    assert history(tmp_path / "there") == (None, [b"%d" % number for number in range(25)])

    journal = journal_of(tmp_path / "there")
    copy_each(journal, second, range(25, 30))
    assert sum("bundle" in key for key in stored_journal(storage)) == 3
    copy = JournalCopy(Read(storage), tmp_path / "copy")
    copy.refresh()
    assert history(tmp_path / "copy") == (None, [b"%d" % number for number in range(30)])


def test_a_copy_continues_in_the_middle_of_a_bundle(
    tmp_path: Path, storage: DirectoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_replica, "BUNDLE_OF", 4)
    journal = journal_of(tmp_path / "here")
    replica = Replica(tmp_path / "here", storage)
    copy = JournalCopy(storage, tmp_path / "copy")
    for number in range(10):
        journal.append(b"%d" % number)
        replica.copy()
        if number in (2, 5):
            copy.refresh()
    copy.refresh()
    assert history(tmp_path / "copy") == (None, [b"%d" % number for number in range(10)])


def test_a_bundle_that_grows_while_listed_is_left_out(
    tmp_path: Path, storage: DirectoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_replica, "BUNDLE_OF", 4)
    journal = journal_of(tmp_path / "here")
    replica = Replica(tmp_path / "here", storage)
    copy_each(journal, replica, range(4))
    listed = storage.sizes(f"{TRIALPOD_DIR}/{JOURNAL_DIR}")
    last = max(key for key in listed if "bundle" not in key)
    del listed[last]
    monkeypatch.setattr(storage, "sizes", lambda _prefix="": listed)
    Replica(tmp_path / "there", storage).pull()
    assert history(tmp_path / "there") == (None, [b"0", b"1", b"2"])


def test_who_bundles_what_was_removed_is_stopped(
    tmp_path: Path, storage: DirectoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_replica, "BUNDLE_OF", 2)
    stale = journal_of(tmp_path / "stale")
    of_stale = Replica(tmp_path / "stale", storage)
    for number in range(2):
        stale.append(b"%d" % number)
        of_stale._copy_journal()
    of_second = Replica(tmp_path / "second", storage)
    of_second.pull()
    second = journal_of(tmp_path / "second")
    second.append(b"2")
    second.write_snapshot(b"after two")
    of_second.copy()
    with pytest.raises(FencedError, match="has continued"):
        of_stale._journal.bundle()


def test_snapshot_behind_the_journal_replaces_nothing(tmp_path: Path, storage: DirectoryStorage) -> None:
    stale = journal_of(tmp_path / "stale")
    stale.append(b"one")
    of_stale = Replica(tmp_path / "stale", storage)
    of_stale.copy()
    Replica(tmp_path / "second", storage).pull()
    second = journal_of(tmp_path / "second")
    of_second = Replica(tmp_path / "second", storage)
    of_second.pull()
    second.append(b"two")
    of_second.copy()
    before = stored_journal(storage)
    stale.write_snapshot(b"after one")
    with pytest.raises(FencedError):
        of_stale.copy()
    assert stored_journal(storage) == before


def test_who_writes_where_a_segment_was_removed_is_stopped(tmp_path: Path, storage: DirectoryStorage) -> None:
    stale = journal_of(tmp_path / "stale")
    stale.append(b"one")
    of_stale = Replica(tmp_path / "stale", storage)
    of_stale.copy()
    Replica(tmp_path / "second", storage).pull()
    second = journal_of(tmp_path / "second")
    of_second = Replica(tmp_path / "second", storage)
    of_second.pull()
    second.append(b"two")
    of_second.copy()
    second.write_snapshot(b"after two")
    of_second.copy()
    stale.append(b"another two")
    with pytest.raises(FencedError, match="has continued"):
        of_stale.copy()


def test_killed_between_seals_and_snapshot_continues(tmp_path: Path, storage: DirectoryStorage) -> None:
    """Also where a segment was sealed of which the storage has nothing, because its snapshot says it all."""
    journal = journal_of(tmp_path / "here")
    journal.append(b"one")
    first = Replica(tmp_path / "here", storage)
    first.copy()
    journal.write_snapshot(b"after one")
    journal.append(b"two")
    journal.write_snapshot(b"after two")
    first._journal._seal_before(3)

    again = Replica(tmp_path / "here", storage)
    assert not again.pull()
    again.copy()
    Replica(tmp_path / "there", storage).pull()
    assert history(tmp_path / "there") == (b"after two", [])


def sealed_journal(folder: Path, storage: DirectoryStorage, left_out: int = 0) -> tuple[Journal, Replica]:
    """Return a process that has copied one record, sealed the journal, and not stored its snapshot.

    Args:
        folder: its directory.
        storage: where it copies to.
        left_out: how many segments were sealed of which nothing was copied: of an outage with several snapshots.
    """
    journal = journal_of(folder)
    journal.append(b"one")
    replica = Replica(folder, storage)
    replica.copy()
    for number in range(left_out + 1):
        journal.append(b"not copied before the seal %d" % number)
        journal.write_snapshot(b"never stored")
    replica._journal._seal_before(left_out + 2)
    return journal, replica


@pytest.mark.parametrize("left_out", [0, 1, 2])
def test_a_sealed_journal_continues_in_another_segment(
    tmp_path: Path, storage: DirectoryStorage, left_out: int
) -> None:
    _, replica = sealed_journal(tmp_path / "first", storage, left_out)
    next_one = Replica(tmp_path / "next", storage)
    next_one.pull()
    assert next_one.sealed
    journal = journal_of(tmp_path / "next")
    assert list(journal.records()) == [b"one"]
    journal.begin_segment()
    journal.append(b"two")
    next_one.copy()
    with pytest.raises(FencedError):
        replica.copy()
    last = Replica(tmp_path / "last", storage)
    last.pull()
    assert not last.sealed
    found = journal_of(tmp_path / "last")
    assert (found.snapshot, list(found.records())) == (None, [b"one", b"two"])
    found.append(b"three")
    last.copy()
    found.write_snapshot(b"after three")
    last.copy()
    assert sorted(key for key in stored_journal(storage) if ".removed" not in key) == [
        f"{FOLDER}/{left_out + 3:08d}.log/000000000000",
        f"{FOLDER}/{left_out + 3:08d}.snapshot",
    ]


@pytest.mark.parametrize("copied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("left_out", [0, 1, 2])
def test_who_continues_a_sealed_journal_may_die_too(
    tmp_path: Path, storage: DirectoryStorage, left_out: int, copied: bool
) -> None:
    """Before or after what it began came into the storage; its directory is still there."""
    sealed_journal(tmp_path / "first", storage, left_out)
    for folder in ("next", "next", "elsewhere"):
        replica = Replica(tmp_path / folder, storage)
        replica.pull()
        journal = journal_of(tmp_path / folder)
        assert list(journal.records()) == [b"one"]
        if replica.sealed:
            journal.begin_segment()
        if copied:
            replica.copy()
        journal.close()
    last = journal_of(tmp_path / "elsewhere")
    last.append(b"two")
    replica.copy()
    Replica(tmp_path / "last", storage).pull()
    assert history(tmp_path / "last") == (None, [b"one", b"two"])


def test_of_two_that_continue_a_sealed_journal_one_is_stopped(tmp_path: Path, storage: DirectoryStorage) -> None:
    sealed_journal(tmp_path / "first", storage)
    both = []
    for name in ("second", "third"):
        replica = Replica(tmp_path / name, storage)
        replica.pull()
        journal = journal_of(tmp_path / name)
        journal.begin_segment()
        journal.append(name.encode())
        both.append(replica)
    both[1].copy()
    with pytest.raises(FencedError):
        both[0].copy()
    Replica(tmp_path / "last", storage).pull()
    assert history(tmp_path / "last") == (None, [b"one", b"third"])


def test_of_two_that_left_a_segment_out_one_continues(tmp_path: Path, storage: DirectoryStorage) -> None:
    both = []
    for name in ("first", "second"):
        Replica(tmp_path / name, storage).pull()
        journal = journal_of(tmp_path / name)
        if name == "first":
            journal.append(b"one")
            Replica(tmp_path / name, storage).copy()
        journal.write_snapshot(b"after one")
        journal.append(name.encode())
        journal.write_snapshot(b"after " + name.encode())
        both.append(Replica(tmp_path / name, storage))
        both[-1].pull()
    both[0]._journal._seal_before(3)
    with pytest.raises(FencedError):
        both[1].copy()
    both[0].copy()
    Replica(tmp_path / "there", storage).pull()
    assert history(tmp_path / "there") == (b"after first", [])


def test_the_second_of_two_writers_is_stopped(tmp_path: Path, storage: DirectoryStorage) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    journal_of(first).append(b"mine")
    journal_of(second).append(b"yours")
    Replica(first, storage).copy()
    with pytest.raises(FencedError, match="another process writes this experiment"):
        Replica(second, storage).copy()


def test_different_histories_are_refused_at_the_start(tmp_path: Path, storage: DirectoryStorage) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    journal_of(first).append(b"mine")
    journal_of(second).append(b"your")
    Replica(first, storage).copy()
    with pytest.raises(FencedError, match="different histories"):
        Replica(second, storage).pull()


def test_unreplicated_writes_are_copied_by_next_process(tmp_path: Path, storage: DirectoryStorage) -> None:
    here = tmp_path / "here"
    journal = journal_of(here)
    journal.append(b"one")
    Replica(here, storage).copy()
    journal.append(b"two")  # and then the process died
    journal.close()

    journal = journal_of(here)
    replica = Replica(here, storage)
    assert not replica.pull()
    journal.append(b"three")
    replica.copy()
    Replica(tmp_path / "there", storage).pull()
    assert history(tmp_path / "there") == (None, [b"one", b"two", b"three"])


def copy_unheard(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy, and lose the answer to the first write."""
    with monkeypatch.context() as patch:
        real = DirectoryStorage.write_new

        def unheard(self: DirectoryStorage, key: str, data: bytes) -> None:
            real(self, key, data)
            raise StorageUnavailableError("the connection broke")

        patch.setattr(DirectoryStorage, "write_new", unheard)
        with pytest.raises(StorageUnavailableError):
            replica.copy()


def test_a_repeated_write_whose_answer_was_lost_is_no_conflict(tmp_path: Path, storage: DirectoryStorage) -> None:
    here = tmp_path / "here"
    journal_of(here).append(b"one")
    Replica(here, storage).copy()
    Replica(here, storage).copy()  # does not know what is there already


def test_a_write_found_late_is_refused_where_another_continued(
    tmp_path: Path, storage: DirectoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer was lost, and the process that sent it hung: what it decided has been carried out by another one."""
    here = journal_of(tmp_path / "here")
    replica = Replica(tmp_path / "here", storage)
    here.append(b"start the trial")
    copy_unheard(replica, monkeypatch)
    other = Replica(tmp_path / "there", storage)
    other.pull()
    journal_of(tmp_path / "there").append(b"it has begun")
    other.copy()
    reads = DirectoryStorage.read
    with monkeypatch.context() as patch:

        def unavailable(self: DirectoryStorage, key: str) -> bytes:
            if key.rpartition("/")[2].isdigit() and int(key.rpartition("/")[2]):
                raise StorageUnavailableError("not now")
            return reads(self, key)

        patch.setattr(DirectoryStorage, "read", unavailable)
        with pytest.raises(StorageUnavailableError):
            replica.copy()
    for _ in range(2):
        with pytest.raises(FencedError, match="another process writes this experiment"):
            replica.copy()


def test_segment_with_unacknowledged_tail_is_replaceable(
    tmp_path: Path, storage: DirectoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journal_of(tmp_path / "here")
    replica = Replica(tmp_path / "here", storage)
    journal.append(b"one")
    copy_unheard(replica, monkeypatch)
    journal.append(b"two")
    journal.write_snapshot(b"one,two")
    replica.copy()
    assert not list((tmp_path / "here" / TRIALPOD_DIR / JOURNAL_DIR).glob("00000001.*"))
    Replica(tmp_path / "there", storage).pull()
    assert history(tmp_path / "there") == (b"one,two", [])


@pytest.mark.parametrize("theirs", ["records", "snapshot"])
def test_records_behind_a_replaced_segment_are_dropped(
    tmp_path: Path, storage: DirectoryStorage, theirs: str
) -> None:
    here = journal_of(tmp_path / "here")
    here.append(b"one")
    Replica(tmp_path / "here", storage).copy()
    Replica(tmp_path / "there", storage).pull()
    there = journal_of(tmp_path / "there")
    there.append(b"theirs")
    if theirs == "snapshot":
        there.write_snapshot(b"one,theirs")
    of_there = Replica(tmp_path / "there", storage)
    of_there.pull()
    of_there.copy()
    here.write_snapshot(b"one,ours")
    here.append(b"ours")
    with pytest.raises(FencedError, match="different histories"):
        Replica(tmp_path / "here", storage).pull()


def test_object_whose_writer_failed_later_is_no_conflict(
    tmp_path: Path, storage: DirectoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journal_of(tmp_path / "here")
    journal.append(b"one")
    replica = Replica(tmp_path / "here", storage)
    real = DirectoryStorage.read

    def fails(self: DirectoryStorage, key: str) -> bytes:
        if key.endswith(".removed"):
            raise StorageUnavailableError("not now")
        return real(self, key)

    monkeypatch.setattr(DirectoryStorage, "read", fails)
    with pytest.raises(StorageUnavailableError):
        replica.copy()
    monkeypatch.undo()
    journal.append(b"two")
    replica.copy()
    assert Replica(tmp_path / "there", storage).pull()
    assert history(tmp_path / "there") == (None, [b"one", b"two"])


def test_writer_stopped_during_deletion_leaves_nothing(tmp_path: Path, storage: DirectoryStorage) -> None:
    here, now = tmp_path / "here", [100.0]
    journal = journal_of(here)
    replica = Replica(here, storage)
    replica._monotonic = lambda: now[0]
    journal.append(b"one")
    replica.copy()
    now[0] += 60.0
    journal.append(b"two")
    replica.copy()  # it was only idle

    now[0] += 60.0
    storage.delete_many(storage.list())
    journal.append(b"three")
    with pytest.raises(FencedError, match="was deleted meanwhile"):
        replica.copy()
    assert storage.list() == []


class Outage(DirectoryStorage):
    """A folder that cannot be reached for the first so many writes."""

    def __init__(self, root: Path, failures: int, error: Exception | None = None) -> None:
        super().__init__(root)
        self.failures = failures
        self.error = error or StorageError("connection refused")

    def write_new(self, key: str, data: bytes) -> None:
        if self.failures:
            self.failures -= 1
            raise self.error
        super().write_new(key, data)


def test_outage_is_reported_once_and_nothing_is_lost(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    storage = Outage(tmp_path / "storage", failures=2)
    journal_of(here).append(b"one")
    told: list[ReplicaStatus] = []
    fenced: list[FencedError] = []
    healed = threading.Event()

    def report(status: ReplicaStatus) -> None:
        told.append(status)
        if status.reachable:
            healed.set()

    replica = Replica(here, storage)
    replica.start(report, fenced.append)
    replica.request(1, urgent=True)
    assert healed.wait(30)
    assert replica.close(30) is None
    assert [status.reachable for status in told] == [False, True]
    assert "connection refused" in told[0].message
    assert fenced == []
    Replica(there, storage).pull()
    assert history(there) == (None, [b"one"])


class TestUnexpectedError:
    """Not of the storage: a thread more than the pod may have, for example."""

    def test_copying_is_retried_and_the_error_logged_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        storage = Outage(tmp_path / "storage", failures=3, error=RuntimeError("can't start new thread"))
        journal_of(tmp_path / "here").append(b"one")
        told: list[ReplicaStatus] = []
        committed = threading.Event()
        replica = Replica(tmp_path / "here", storage)
        replica.start(told.append, lambda error: None, lambda position: committed.set())
        replica.request(1, urgent=True)
        assert committed.wait(30)
        assert replica.close(30) is None
        assert "can't start new thread" in told[0].message
        tracebacks = [record for record in caplog.records if record.exc_info]
        assert 1 <= len(tracebacks) <= 2, "of each of the two threads at most"
        assert history_of(storage, tmp_path / "there") == (None, [b"one"])

    def test_what_is_not_copied_is_named_at_the_end(self, tmp_path: Path) -> None:
        storage = Outage(tmp_path / "storage", failures=10**6, error=RuntimeError("can't start new thread"))
        journal_of(tmp_path / "here").append(b"one")
        failed = threading.Event()
        replica = Replica(tmp_path / "here", storage)
        replica.start(lambda status: failed.set(), lambda error: None)
        replica.request(1, urgent=True)
        assert failed.wait(30)
        problem = replica.close(0.1)
        replica.abandon()
        assert problem is not None
        assert "not everything is copied" in problem


def history_of(storage: DirectoryStorage, there: Path) -> tuple[bytes | None, list[bytes]]:
    """Return what another machine finds in the storage."""
    Replica(there, storage).pull()
    return history(there)


class Clocked(Replica):
    """Its pauses pass at once, on a clock of its own; the storage is away until a time of that."""

    def __init__(self, directory: Path, storage: MemoryStorage, outage_s: float) -> None:
        super().__init__(directory, storage)
        self._committed = self._note
        self.now = 0.0
        self.committed_at = 0.0
        self.pauses: list[float] = []

        def away(name: str, key: str) -> None:
            if self.now < outage_s:
                raise StorageUnavailableError("connection refused")

        storage.before = away

    def _pause(self, seconds: float, wake: threading.Event) -> None:
        self.now += seconds
        self.pauses.append(seconds)

    def _note(self, position: int) -> None:
        self.committed_at = self.now
        self.abandon()


@pytest.mark.parametrize("outage_s", [0.4, 7.0, 60.0, 3600.0])
def test_commit_waits_at_most_five_seconds_after_outage(tmp_path: Path, outage_s: float) -> None:
    journal_of(tmp_path / "here").append(b"one")
    replica = Clocked(tmp_path / "here", MemoryStorage(), outage_s)
    replica.request(1, urgent=True)
    replica._run()
    assert outage_s <= replica.committed_at <= outage_s + 5.0


def test_experiments_do_not_come_back_in_step_after_an_outage(tmp_path: Path) -> None:
    pauses = []
    for name in ("first", "second"):
        journal_of(tmp_path / name).append(b"one")
        replica = Clocked(tmp_path / name, MemoryStorage(), 60.0)
        replica.request(1, urgent=True)
        replica._run()
        pauses.append(replica.pauses[:-1])  # without the one after the copy
    assert not set(pauses[0]) & set(pauses[1])


STEPS = st.lists(st.sampled_from(["append", "snapshot", "copy", "crash", "move"]), max_size=30)


@settings(max_examples=50)
@given(steps=STEPS)
@example(steps=["snapshot", "copy", "append", "crash"])
@example(steps=["copy", "append", "snapshot", "crash"])
@example(steps=["append", "copy", "append", "snapshot", "append", "snapshot", "crash"])
def test_whatever_happens_the_storage_holds_a_whole_prefix(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    """`move` continues elsewhere from the storage alone: at most what was not yet copied is gone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_replica, "BUNDLE_OF", 3)
        _check_prefix(tmp_path_factory, steps)


def _check_prefix(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    root = tmp_path_factory.mktemp("replica")
    storage = DirectoryStorage(root / "storage")
    machine, here = 0, root / "0"
    journal, replica = journal_of(here), Replica(here, storage)
    written: list[bytes] = []
    copied = 0
    for step in steps:
        if step == "append":
            written.append(b"%d" % len(written))
            journal.append(written[-1])
        elif step == "snapshot":
            journal.write_snapshot(b",".join(written))
        elif step == "copy":
            replica.copy()
            copied = len(written)
        elif step == "crash":
            journal.close()
            replica = Replica(here, storage)
            replica.pull()
            journal = journal_of(here)
        else:
            journal.close()
            machine += 1
            here = root / str(machine)
            replica = Replica(here, storage)
            replica.pull()
            journal = journal_of(here)
            del written[copied:]
        assert all_of(here) == written
    replica.copy()
    Replica(root / "elsewhere", storage).pull()
    assert all_of(root / "elsewhere") == written


def all_of(directory: Path) -> list[bytes]:
    snapshot, records = history(directory)
    return (snapshot.split(b",") if snapshot else []) + records


def test_pass_costs_the_same_with_10_and_500_trials(tmp_path: Path, storage: DirectoryStorage) -> None:
    """Their folders stay beside the policy logs, which are named instead of being looked for."""
    here, steps = tmp_path / "here", []
    journal_of(here).append(b"one")
    replica = Replica(here, storage)
    replica.name_policy_files(lambda: {"pbt_global.txt"})
    replica.copy()
    for most in (10, 500):
        for number in range(most):
            (here / f"trial_{number}").mkdir(exist_ok=True)
        (here / "pbt_global.txt").write_text(f"{most}\n" * most)
        replica.copy()
        assert storage.read("pbt_global.txt") == f"{most}\n".encode() * most
        steps.append(count(replica.copy))
    assert steps[0] == steps[1]


def test_older_version_of_a_file_never_follows_a_newer_one(tmp_path: Path, storage: DirectoryStorage) -> None:
    here = tmp_path / "here"
    copies = FileReplica(here, storage, PostDeleteCleanup(storage, time.monotonic))
    (here / "trial_0").mkdir(parents=True)
    growing, whole = here / "trial_0" / "result.json", here / "trial_0" / "params.json"

    def look(text: str, nanoseconds: int) -> list[Due]:
        for path in (growing, whole):
            path.write_text(text)
            os.utime(path, ns=(nanoseconds, nanoseconds))
        return copies.due_of_trials(["trial_0"])

    older, later = look("1\n", 1_000), look("1\n2\n", 2_000)
    copies.send(later, lambda: None)
    copies.send(older, lambda: None)
    assert storage.read("trial_0/result.json") == storage.read("trial_0/params.json") == b"1\n2\n"
    assert copies.due_of_trials(["trial_0"]) == []


def test_a_snapshot_comes_with_the_files_of_running_trials(tmp_path: Path, storage: DirectoryStorage) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    journal = journal_of(here)
    journal.append(b"a result")
    (here / "trial_0").mkdir()
    (here / "trial_0" / "result.json").write_text('{"loss": 1}\n')
    (here / "trial_0" / "events.out.tfevents.1700000000.box").write_bytes(b"events")
    replica = Replica(here, storage)
    replica.trial_started("trial_0")
    journal.write_snapshot(b"says how long the files are; the result is only there now")
    replica.copy(everything=False)
    assert Replica(there, storage).pull()
    assert (there / "trial_0" / "result.json").read_text() == '{"loss": 1}\n'
    assert (there / "trial_0" / "events.out.tfevents.1700000000.box").read_bytes() == b"events"


class Replaced(DirectoryStorage):
    """Somebody else replaces a trial's result.json, which is noticed when a snapshot is on its way."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.sending, self.sealed = threading.Event(), threading.Event()

    def write_if(self, key: str, data: bytes, version: str | None) -> str:
        if key == "trial_0/result.json" and not self.sending.is_set():
            self.sending.set()
            assert self.sealed.wait(60.0)
            self.write(key, b'{"loss": 1}\n')
        return super().write_if(key, data, version)

    def write_new(self, key: str, data: bytes) -> None:
        super().write_new(key, data)
        if not data:
            self.sealed.set()


def test_repeatedly_changed_file_does_not_delay_a_snapshot(tmp_path: Path) -> None:
    here, storage = tmp_path / "here", Replaced(tmp_path / "storage")
    journal = journal_of(here)
    journal.append(b"one")
    (here / "trial_0").mkdir()
    (here / "trial_0" / "result.json").write_text('{"loss": 1}\n{"loss": 2}\n')
    told = threading.Event()
    replica = Replica(here, storage)
    replica.trial_started("trial_0")
    replica.start(lambda _: None, lambda _: None, lambda _: told.set())
    replica.copy_soon("trial_0")
    assert storage.sending.wait(60.0)
    journal.write_snapshot(b"state after one")
    replica.request(1, urgent=True)
    assert told.wait(60.0)
    assert replica.close(10.0) is None
    assert storage.read("trial_0/result.json") == b'{"loss": 1}\n{"loss": 2}\n'
    assert f"{FOLDER}/00000002.snapshot" in storage.list()


def test_snapshot_waits_only_for_changed_files(tmp_path: Path, storage: DirectoryStorage) -> None:
    here, written = tmp_path / "here", list[str]()
    journal = journal_of(here)
    journal.append(b"one")
    for number in range(2):
        (here / f"trial_{number}").mkdir()
        (here / f"trial_{number}" / "result.json").write_text('{"loss": 1}\n')
    told = threading.Event()
    replica = Replica(here, Recorded(storage, written))
    for number in range(2):
        replica.trial_started(f"trial_{number}")
    replica.start(lambda _: None, lambda _: None, lambda _: told.set())
    assert not replica.catch_up()
    wait_until_caught_up(replica)
    written.remove(EXPERIMENT_KEY)
    assert sorted(written) == ["trial_0/result.json", "trial_1/result.json"]
    assert not replica.catch_up()  # it is for one snapshot

    written.clear()
    (here / "trial_1" / "result.json").write_text('{"loss": 1}\n{"loss": 2}\n')
    journal.write_snapshot(b"state after one")
    replica.request(1, urgent=True)
    assert told.wait(60.0)
    assert replica.close(60.0) is None
    assert {key for key in written if key.startswith("trial_")} == {"trial_1/result.json"}
    assert f"{FOLDER}/00000002.snapshot" in storage.list()
    replica.abandon()


def test_files_changed_during_upload_are_uploaded_again(
    tmp_path: Path, storage: DirectoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trialpod_operator.experiment.replica.replica.MAX_CHANGED_FILES", 0)
    journal_of(tmp_path / "here").append(b"one")
    result = tmp_path / "here" / "trial_0" / "result.json"
    result.parent.mkdir()
    result.write_text("1\n")
    written = list[str]()

    class Busy(Recorded):
        def write(self, key: str, data: bytes) -> None:
            super().write(key, data)
            if len(data) < 6:
                result.write_bytes(data + b"2\n")

    replica = Replica(tmp_path / "here", Busy(storage, written))
    replica.trial_started("trial_0")
    replica.start(lambda _: None, lambda _: None)
    wait_until_caught_up(replica)
    assert storage.read("trial_0/result.json") == b"1\n2\n2\n"
    written.remove(EXPERIMENT_KEY)
    assert written == ["trial_0/result.json"] * 3
    replica.abandon()


class HeldUp(DirectoryStorage):
    """Snapshots, or the files before them, take until they are let through."""

    def __init__(self, root: Path, suffix: str) -> None:
        super().__init__(root)
        self._suffix = suffix
        self.begun, self.through = threading.Event(), threading.Event()

    def _wait(self, key: str) -> None:
        if key.endswith(self._suffix):
            self.begun.set()
            assert self.through.wait(60.0)

    def write_new(self, key: str, data: bytes) -> None:
        self._wait(key)
        super().write_new(key, data)

    def write_if(self, key: str, data: bytes, version: str | None) -> str:
        self._wait(key)
        return super().write_if(key, data, version)


@pytest.mark.parametrize("suffix", ["00000002.snapshot", "result.json"])
def test_records_do_not_wait_for_a_snapshot(tmp_path: Path, suffix: str) -> None:
    """Nor for the files before it. Who continues meanwhile has all records, and who comes later the snapshot too."""
    here, storage = tmp_path / "here", HeldUp(tmp_path / "storage", suffix)
    journal = journal_of(here)
    journal.append(b"one")
    (here / "trial_0").mkdir()
    told = threading.Semaphore(0)
    replica = Replica(here, storage)
    replica.trial_started("trial_0")
    replica.start(lambda _: None, lambda _: None, lambda _: told.release())
    replica.request(1, urgent=True)
    assert told.acquire(timeout=60.0)
    (here / "trial_0" / "result.json").write_text('{"loss": 1}\n')
    journal.write_snapshot(b"state after one")
    assert storage.begun.wait(60.0)
    journal.append(b"two")
    replica.request(2, urgent=True)
    assert told.acquire(timeout=60.0)
    Replica(tmp_path / "meanwhile", storage).pull(journal_only=True)
    assert history(tmp_path / "meanwhile") == (None, [b"one", b"two"])
    storage.through.set()
    assert replica.close(60.0) is None
    Replica(tmp_path / "later", storage).pull(journal_only=True)
    assert history(tmp_path / "later") == (b"state after one", [b"two"])


def test_no_file_is_sent_with_results_that_are_not_stored(tmp_path: Path, storage: DirectoryStorage) -> None:
    """Those that came after the snapshot that the files are sent before, too."""
    here = tmp_path / "here"
    journal = journal_of(here)
    journal.append(b"one")
    replica = Replica(here, storage)
    replica.copy()
    replica.trial_started("trial_0")
    journal.write_snapshot(b"state after one")
    (here / "trial_0").mkdir()
    (here / "trial_0" / "result.json").write_text('{"loss": 2}\n')
    journal.append(b"two, of which the file has the result")
    storage_of = replica._files.send

    def send(due: list[Due], refuse_outdated: Callable[[], None]) -> None:
        if any(each.key.endswith("result.json") for each in due):
            assert any(b"two" in data for data in stored_journal(storage).values())
        storage_of(due, refuse_outdated)

    replica._files.send = send  # type: ignore[method-assign]
    replica._journal.store_snapshot()
    assert storage.read("trial_0/result.json") == b'{"loss": 2}\n'


def test_a_late_snapshot_of_a_stopped_process_harms_nobody(tmp_path: Path, storage: DirectoryStorage) -> None:
    """It stands for records that both have: those before the segment in which the other one continued."""
    journal = journal_of(tmp_path / "stopped")
    journal.append(b"one")
    stopped = Replica(tmp_path / "stopped", storage)
    stopped.copy()
    journal.write_snapshot(b"after one")
    stopped._journal.copy()
    other = Replica(tmp_path / "other", storage)
    other.pull()
    continued = journal_of(tmp_path / "other")
    assert list(continued.records()) == [b"one"]
    continued.append(b"two")
    other.copy()
    stopped._journal.store_snapshot()
    stopped._journal.remove_replaced()
    continued.append(b"three")
    other.copy()
    journal.append(b"of a process that was replaced")
    with pytest.raises(FencedError):
        stopped.copy()
    Replica(tmp_path / "later", storage).pull()
    assert history(tmp_path / "later") == (b"after one", [b"two", b"three"])
    continued.write_snapshot(b"after three")
    other.copy()
    Replica(tmp_path / "last", storage).pull()
    assert history(tmp_path / "last") == (b"after three", [])


def test_code_of_a_start_is_not_replaced_by_the_stored_one(tmp_path: Path, storage: DirectoryStorage) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    journal_of(here).append(b"one")
    for directory, code in ((here, b"old"), (there, b"new")):
        (directory / TRIALPOD_DIR).mkdir(parents=True, exist_ok=True)
        (directory / TRIALPOD_DIR / "trainable.pkl").write_bytes(code)
    (here / "tuner.pkl").write_bytes(b"tuner")
    Replica(here, storage).copy()
    assert storage.read("tuner.pkl") == b"tuner"
    assert Replica(there, storage).pull()
    assert (there / TRIALPOD_DIR / "trainable.pkl").read_bytes() == b"new"


def test_only_missing_files_of_ended_trials_are_copied(tmp_path: Path, storage: DirectoryStorage) -> None:
    here = tmp_path / "here"
    journal_of(here).append(b"one")
    for name, text in (("stored", "complete"), ("behind", "half"), ("unknown", "")):
        (here / name).mkdir()
        (here / name / "result.json").write_text(text)
    before = Replica(here, storage)
    before.trial_ended("stored")
    before.trial_ended("behind")
    before.copy()
    (here / "behind" / "result.json").write_text("half and the rest")  # and then the process died
    (here / "unknown" / "result.json").write_text("never copied")

    written: list[str] = []
    recorded = Recorded(storage, written)
    after = Replica(here, recorded)
    after.compare_soon(["stored", "behind", "unknown"])
    after.copy()
    assert storage.read("behind/result.json") == b"half and the rest"
    assert storage.read("unknown/result.json") == b"never copied"
    assert [key for key in written if key.endswith("result.json")] == ["behind/result.json", "unknown/result.json"]


def test_nothing_is_kept_of_trials_that_ended_minutes_ago(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes of one later, a log or another attempt, is added to what the storage has."""
    here, storage = tmp_path / "here", MemoryStorage()
    replica, now = Replica(here, storage), 0.0
    monkeypatch.setattr(replica, "_monotonic", lambda: now)
    journal_of(here).append(b"one")
    for name in ("ended", "again", "running"):
        (here / name).mkdir()
        for file in ("params.json", "result.json"):
            (here / name / file).write_text("1\n")
        replica.trial_started(name)
    for name in ("ended", "again"):
        replica.trial_ended(name)
    replica.copy_soon("running")
    replica.copy()
    of_all = replica.version_count
    now = REST_S - 1.0
    replica.copy()
    assert replica.version_count == of_all
    replica.trial_started("again")
    now = REST_S
    replica.copy()
    assert replica.version_count == of_all - 2  # not of "again" and "running"

    replica.add_log("ended", "late\n")
    (here / "ended" / "result.json").write_text("1\n2\n")
    replica.copy()
    assert {name: storage.read(f"ended/{name}") for name in ("params.json", "result.json", "log.txt")} == {
        "params.json": b"1\n",
        "result.json": b"1\n2\n",
        "log.txt": b"late\n",
    }


class Recorded(DirectoryStorage):
    """Notes what is written."""

    def __init__(self, storage: DirectoryStorage, written: list[str]) -> None:
        super().__init__(storage.uri)
        self._written = written

    def write(self, key: str, data: bytes) -> None:
        self._written.append(key)
        self._written.sort()
        super().write(key, data)
