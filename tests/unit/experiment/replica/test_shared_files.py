"""Files that two processes write: the one that was replaced never puts back what they were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from memory_storage import MemoryStorage, fail_on

from trialpod.errors import StorageError
from trialpod.storage.base import ConditionalWriteUnsupportedError, KeyChangedError, StorageUnavailableError
from trialpod.storage.journal.journal import Journal
from trialpod.storage.layout import JOURNAL_DIR, TRIALPOD_DIR
from trialpod_operator.experiment.replica.replica import FencedError, Replica
from trialpod_operator.experiment.replica.shared_files import TRIES, SharedFiles
from trialpod_operator.experiment.stored import write_stored

RESULTS = "trial_0/result.json"


class OutdatedError(Exception):
    """Another process has continued."""


class Journals:
    """Where a process stands."""

    def __init__(self, outdated: bool = False) -> None:
        self.outdated = outdated
        self.looked = 0

    def __call__(self) -> None:
        self.looked += 1
        if self.outdated:
            raise OutdatedError


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


def test_files_cost_one_request_each_and_no_look_at_the_journal(storage: MemoryStorage) -> None:
    files, journal = SharedFiles(storage), Journals()
    for data in (b"1", b"12", b"123"):
        files.write(RESULTS, data, journal)
    assert (storage.values[RESULTS], storage.calls, journal.looked) == (b"123", [("write_if", RESULTS)] * 3, 0)


def test_who_was_replaced_does_not_replace_what_the_other_wrote(storage: MemoryStorage) -> None:
    stale, right = SharedFiles(storage), SharedFiles(storage)
    stale.write(RESULTS, b"1", Journals())
    right.read(RESULTS)
    right.look_ended(right.look_begins())
    right.write(RESULTS, b"12", Journals())
    with pytest.raises(OutdatedError):
        stale.write(RESULTS, b"1x", Journals(outdated=True))
    assert storage.values[RESULTS] == b"12"


def test_file_is_replaced_after_reading_the_journal(storage: MemoryStorage) -> None:
    storage.values.update({RESULTS: b"1", "other": b"1"})
    files, outdated, right = SharedFiles(storage), Journals(outdated=True), Journals()
    assert files.read(RESULTS) == b"1"
    assert files.read("other") == b"1"
    with pytest.raises(OutdatedError):
        files.write(RESULTS, b"2", outdated)
    files.write(RESULTS, b"2", right)
    files.write("other", b"2", right)
    assert (storage.values, right.looked) == ({RESULTS: b"2", "other": b"2"}, 1)
    files.read(RESULTS)
    files.look_ended(files.look_begins())
    files.write(RESULTS, b"3", outdated)
    assert storage.values[RESULTS] == b"3"


def test_a_look_says_nothing_of_what_was_found_during_it(storage: MemoryStorage) -> None:
    storage.values.update({RESULTS: b"1", "other": b"1"})
    files, outdated = SharedFiles(storage), Journals(outdated=True)
    files.read(RESULTS)
    look = files.look_begins()
    files.read("other")  # by another thread; another process may have written it since
    files.look_ended(look)
    files.write(RESULTS, b"2", outdated)
    with pytest.raises(OutdatedError):
        files.write("other", b"2", outdated)
    assert (storage.values, outdated.looked) == ({RESULTS: b"2", "other": b"1"}, 1)


def test_a_write_whose_answer_was_lost_is_recognised(storage: MemoryStorage) -> None:
    files, outdated, journal = SharedFiles(storage), Journals(outdated=True), Journals()
    storage.after = fail_on("write_if")
    with pytest.raises(StorageUnavailableError):
        files.write(RESULTS, b"1", outdated)
    files.write(RESULTS, b"1", outdated)
    files.write(RESULTS, b"12", journal)  # it may have been another's
    assert (storage.values[RESULTS], outdated.looked, journal.looked) == (b"12", 0, 1)


def test_the_right_process_gets_the_better_of_a_late_write(storage: MemoryStorage) -> None:
    right = SharedFiles(storage)
    right.write(RESULTS, b"1", Journals())
    storage.values[RESULTS] = b"1 of another"
    journal = Journals()
    right.write(RESULTS, b"12", journal)
    assert (storage.values[RESULTS], journal.looked) == (b"12", 1)


def test_what_is_longer_and_otherwise_the_same_stays(storage: MemoryStorage) -> None:
    storage.values[RESULTS] = b"123"
    files, journal = SharedFiles(storage), Journals()
    files.write(RESULTS, b"12", journal)
    assert storage.values[RESULTS] == b"123"
    files.write(RESULTS, b"1234", journal)
    assert storage.values[RESULTS] == b"1234"


def test_who_was_replaced_takes_no_longer_file_for_its_own(storage: MemoryStorage) -> None:
    storage.values[RESULTS] = b"123"
    stale, outdated = SharedFiles(storage), Journals(outdated=True)
    stale.write(RESULTS, b"1", outdated)
    with pytest.raises(OutdatedError):
        stale.write(RESULTS, b"1x", outdated)
    assert storage.values[RESULTS] == b"123"


def test_a_file_that_somebody_removed_is_made_again(storage: MemoryStorage) -> None:
    files = SharedFiles(storage)
    files.write(RESULTS, b"1", Journals())
    storage.values.clear()
    files.write(RESULTS, b"12", Journals())
    assert storage.values == {RESULTS: b"12"}


def test_a_file_that_never_stays_is_an_error(storage: MemoryStorage) -> None:
    storage.values[RESULTS] = b"another"
    storage.before = fail_on("write_if", error=KeyChangedError, times=TRIES)
    with pytest.raises(StorageError, match="keep replacing"):
        SharedFiles(storage).write(RESULTS, b"1", Journals())


def test_without_conditions_the_journal_precedes_each_file(storage: MemoryStorage) -> None:
    files, journal = SharedFiles(storage), Journals()
    storage.before = fail_on("write_if", error=ConditionalWriteUnsupportedError)
    for data in (b"1", b"12"):
        files.write(RESULTS, data, journal)
    assert [name for name, _ in storage.calls] == ["write_if", "write", "write"]
    assert (storage.values[RESULTS], journal.looked) == (b"12", 2)
    with pytest.raises(OutdatedError):
        files.write(RESULTS, b"123", Journals(outdated=True))
    assert storage.values[RESULTS] == b"12"


class Writer:
    """One process that writes an experiment, with one trial that runs."""

    def __init__(self, directory: Path, storage: MemoryStorage) -> None:
        self._file = directory / RESULTS
        self.replica = Replica(directory, storage)
        self.replica.pull()
        write_stored(directory, {})
        self._journal = Journal.open(directory / TRIALPOD_DIR / JOURNAL_DIR)
        self._file.parent.mkdir(exist_ok=True)

    def result(self, text: str) -> None:
        self._journal.append(text.encode())
        with open(self._file, "a") as file:
            file.write(text)
        self.replica.copy_soon("trial_0")

    def snapshot(self) -> None:
        self._journal.write_snapshot(self._file.read_bytes())

    def keep(self, text: str) -> None:
        self._file.write_text(text)
        self.replica.copy_soon("trial_0")


@pytest.fixture
def writer(tmp_path: Path, storage: MemoryStorage) -> Callable[[str], Writer]:
    return lambda name: Writer(tmp_path / name, storage)


def test_what_a_file_says_is_in_the_stored_journal_before(
    storage: MemoryStorage, writer: Callable[[str], Writer]
) -> None:
    first = writer("first")
    first.result("1")
    first.replica.copy()
    storage.calls.clear()
    first.result("2")
    first.replica._copy_files(everything=False)  # by the thread of the files, ahead of the journal's
    assert [name for name, key in storage.calls] == ["write_new", "read", "write_if"]


def test_file_follows_its_records_and_the_rest_waits(storage: MemoryStorage, writer: Callable[[str], Writer]) -> None:
    first = writer("first")
    first.result("1")

    def more(name: str, key: str) -> None:
        if name == "write_new":
            storage.after = lambda name, key: None
            first.result("2")

    storage.after = more
    first.replica.copy()
    assert storage.values[RESULTS] == b"1"
    first.replica.copy()
    assert storage.values[RESULTS] == b"12"


@pytest.mark.parametrize("advanced", ["record", "snapshot"])
def test_a_replica_that_was_replaced_copies_no_file_any_more(
    storage: MemoryStorage, writer: Callable[[str], Writer], advanced: str
) -> None:
    stale = writer("stale")
    stale.result("1")
    stale.replica.copy()
    right = writer("right")
    right.result("2")
    right.replica.copy()
    if advanced == "snapshot":
        right.snapshot()
        right.replica.copy()
    stale.keep("1 of old")  # something that has no record of its own
    with pytest.raises(FencedError):
        stale.replica.copy()
    assert storage.values[RESULTS] == b"12"


def test_replica_that_started_behind_replaces_nothing(
    storage: MemoryStorage, writer: Callable[[str], Writer]
) -> None:
    right = writer("right")
    right.result("1")
    right.replica.copy()
    stale = writer("stale")
    right.result("2")
    right.replica.copy()
    stale.replica._files.stored.read(RESULTS)  # files are read after the journal
    stale.keep("1")
    with pytest.raises(FencedError):
        stale.replica.copy()
    assert storage.values[RESULTS] == b"12"
    right.result("3")
    right.replica.copy()
    assert storage.values[RESULTS] == b"123"


def test_next_replica_reads_the_journal_once_when_idle(
    storage: MemoryStorage, writer: Callable[[str], Writer]
) -> None:
    first = writer("first")
    first.result("1")
    first.replica.copy()
    second = writer("second")
    storage.calls.clear()
    second.keep("1 and what was not copied")
    second.replica.copy()
    assert storage.values[RESULTS] == b"1 and what was not copied"
    assert [name for name, _ in storage.calls] == ["read", "read", "read", "write_if"]


def test_snapshot_of_a_replaced_replica_uploads_no_files(
    storage: MemoryStorage, writer: Callable[[str], Writer]
) -> None:
    stale = writer("stale")
    stale.result("1")
    stale.replica.copy()
    right = writer("right")
    right.result("2")
    right.replica.copy()
    stale.result("another")
    stale.snapshot()
    with pytest.raises(FencedError):
        stale.replica.copy()
    assert storage.values[RESULTS] == b"12"
