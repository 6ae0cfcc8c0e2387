"""What a process writes behind the deletion of its experiment does not stay."""

from __future__ import annotations

import itertools
import json
import threading
from functools import partial
from pathlib import Path

import pytest
from memory_storage import MemoryStorage, fail_on
from sample_experiment import SampleExperiment

from trialpod.errors import InvalidInputError
from trialpod.storage.base import ConditionalWriteUnsupportedError, StorageUnavailableError
from trialpod.storage.journal.journal import Journal
from trialpod.storage.layout import EXPERIMENT_KEY, JOURNAL_DIR, TRIALPOD_DIR
from trialpod_operator.experiment.fsck.examine import examine
from trialpod_operator.experiment.replica.files import FileReplica
from trialpod_operator.experiment.replica.journal_copy import JournalCopy
from trialpod_operator.experiment.replica.journal_layout import JOURNAL, folder_of
from trialpod_operator.experiment.replica.post_delete_cleanup import IDLE_S, LATELY_S, FencedError, PostDeleteCleanup
from trialpod_operator.experiment.replica.replica import EmptiedError, Replica
from trialpod_operator.experiment.stored import JOURNAL_ID, read_stored, write_stored

ID, OTHER = "0123456789abcdef", "fedcba9876543210"


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The directory of an experiment with a trial, whose journal has one record."""
    (tmp_path / "trial_0").mkdir()
    (tmp_path / TRIALPOD_DIR).mkdir()
    write_stored(tmp_path, {JOURNAL_ID: ID})
    (tmp_path / "trial_0" / "params.json").write_text("{}")
    journal_of(tmp_path).append(b"one")
    return tmp_path


def document(journal_id: str) -> bytes:
    return json.dumps({"version": 1, JOURNAL_ID: journal_id}).encode()


def journal_of(directory: Path) -> Journal:
    return Journal.open(directory / TRIALPOD_DIR / JOURNAL_DIR)


def placed(here: Path, storage: MemoryStorage, step_s: float = 0.0) -> FileReplica:
    """Return the copies of an experiment that has its place; each reading of their clock takes this time."""
    clock = partial(next, itertools.count(0.0, step_s))
    copies = FileReplica(here, storage, PostDeleteCleanup(storage, clock))
    assert copies.claim_location()
    return copies


def send(copies: FileReplica) -> None:
    copies.send([*copies.due_of_trials(["trial_0"]), *copies.due_of_experiment()], lambda: None)


@pytest.mark.parametrize("finished", [False, True])
def test_releasing_process_removes_what_came_late(here: Path, storage: MemoryStorage, finished: bool) -> None:
    replica = Replica(here, storage)
    replica.pull()
    assert replica.claim_location()
    storage.delete_many(storage.list())
    copied = threading.Event()
    replica.start(lambda _: None, lambda _: None, lambda _: copied.set())
    replica.request(1, urgent=True)
    assert copied.wait(60.0)
    assert storage.list() != []
    if not finished:
        replica.abandon()
    replica.close(10.0)
    assert storage.list() == []


@pytest.mark.parametrize("conditions", [True, False])
def test_the_mark_of_a_place_is_not_made_again(
    here: Path, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch, conditions: bool
) -> None:
    def unknown(*_: object) -> str:
        raise ConditionalWriteUnsupportedError("no such condition")

    if not conditions:
        monkeypatch.setattr(storage, "write_if", unknown)
    copies = placed(here, storage)
    storage.delete_many(storage.list())
    write_stored(here, {"changed": True})
    with pytest.raises(FencedError, match="was deleted meanwhile"):
        copies.send(copies.due_of_experiment(), lambda: None)
    assert storage.list() == []


def test_the_mark_of_a_place_is_replaced_while_it_is_there(here: Path, storage: MemoryStorage) -> None:
    copies = placed(here, storage)
    write_stored(here, {"changed": True})
    send(copies)
    assert json.loads(storage.read(EXPERIMENT_KEY)) == {"version": 1, "changed": True, JOURNAL_ID: ID}


def test_a_file_that_took_long_is_taken_away_at_once(here: Path, storage: MemoryStorage) -> None:
    copies = placed(here, storage, step_s=IDLE_S)
    send(copies)
    assert set(storage.list()) == {EXPERIMENT_KEY, "trial_0/params.json"}
    storage.delete_many(storage.list())
    (here / "trial_0" / "result.json").write_text('{"loss": 1}\n')
    with pytest.raises(FencedError, match="was deleted meanwhile"):
        send(copies)
    assert storage.list() == []


class Late:
    """Someone who has a place, and writes there."""

    def __init__(self, storage: MemoryStorage, *, marked: bool = True) -> None:
        self.now, self.storage = 100.0, storage
        self.objects = PostDeleteCleanup(storage, lambda: self.now)
        if marked:
            self.objects.journal = ID
            self.write(EXPERIMENT_KEY, document(ID))

    def write(self, key: str, data: bytes = b"x") -> None:
        self.objects.write_soon(key)
        self.storage.write(key, data)
        self.objects.written(key)


def test_nothing_goes_while_the_experiment_is_there(storage: MemoryStorage) -> None:
    late = Late(storage)
    late.write("trial_0/params.json")
    late.objects.leave_none()
    assert set(storage.list()) == {EXPERIMENT_KEY, "trial_0/params.json"}


def test_nothing_goes_of_a_place_that_had_no_mark(storage: MemoryStorage) -> None:
    late = Late(storage, marked=False)
    late.write("trial_0/params.json")
    late.objects.leave_none()
    assert storage.list() == ["trial_0/params.json"]


def test_nothing_goes_when_only_the_mark_was_removed(storage: MemoryStorage) -> None:
    """That is not how an experiment is deleted."""
    storage.write("trial_0/checkpoint_000000/model", b"x")
    late = Late(storage)
    late.write("trial_0/params.json")
    storage.delete(EXPERIMENT_KEY)
    late.objects.leave_none()
    assert set(storage.list()) == {"trial_0/checkpoint_000000/model", "trial_0/params.json"}


def test_nothing_goes_that_was_written_long_ago(storage: MemoryStorage) -> None:
    late = Late(storage)
    late.write("trial_0/params.json")
    late.now += LATELY_S + 1.0
    late.write("trial_1/params.json")
    storage.delete(EXPERIMENT_KEY)
    late.objects.leave_none()
    assert set(storage.list()) == {"trial_0/params.json", "trial_1/params.json"}


class TestAnotherExperimentThere:
    """The location was emptied, and another experiment has begun there."""

    def test_only_the_former_journal_is_deleted(self, storage: MemoryStorage) -> None:
        late = Late(storage)
        storage.delete_many(storage.list())
        others = {EXPERIMENT_KEY: document(OTHER), f"{folder_of(OTHER)}/00000001.log/000000000000": b"x"}
        for key, data in others.items():
            storage.write(key, data)
        late.write("tuner.pkl")
        late.write(f"{folder_of(ID)}/00000001.log/000000000100")
        late.objects.leave_none()
        assert set(storage.list()) == {*others, "tuner.pkl"}

    def test_a_slow_write_takes_nothing_of_the_other_away(self, here: Path, storage: MemoryStorage) -> None:
        copies = placed(here, storage, step_s=IDLE_S)
        storage.write(EXPERIMENT_KEY, document(OTHER))
        storage.write("tuner.pkl", b"the other's")
        (here / "tuner.pkl").write_bytes(b"the other's")
        with pytest.raises(EmptiedError, match="was deleted meanwhile"):
            send(copies)
        assert storage.read("tuner.pkl") == b"the other's"
        assert storage.read(EXPERIMENT_KEY) == document(OTHER)

    def test_its_document_is_never_replaced(self, here: Path, storage: MemoryStorage) -> None:
        replica = Replica(here, storage)
        replica.copy()
        storage.delete_many(storage.list())
        storage.write(EXPERIMENT_KEY, document(OTHER))
        write_stored(here, {"changed": True})
        with pytest.raises(EmptiedError):
            replica.copy()
        assert storage.read(EXPERIMENT_KEY) == document(OTHER)

    def test_an_object_of_the_former_journal_is_not_read(self, here: Path, storage: MemoryStorage) -> None:
        """It lands after the deletion, and its writer ends before it has looked."""
        first = Replica(here / "first", storage)
        write_stored(here / "first", {})
        journal = journal_of(here / "first")
        journal.append(b"one")
        first.copy()
        pieces = {key: storage.read(key) for key in storage.list(JOURNAL)}
        storage.delete_many(storage.list())
        for key in pieces:
            storage.write(f"{key.rpartition('/')[0]}/000000000500", b"late")

        again = Replica(here / "again", storage)
        assert not again.pull()
        write_stored(here / "again", {})
        assert again.claim_location()
        journal_of(here / "again").append(b"of the new one")
        again.copy()
        Replica(here / "there", storage).pull()
        found = Journal.open(here / "there" / JOURNAL, read_only=True)
        assert list(found.records()) == [b"of the new one"]

    def test_fsck_names_what_is_left(self, tmp_path: Path, storage: MemoryStorage) -> None:
        replica = Replica(SampleExperiment(tmp_path / "e", [1, 2]).folder, storage)
        replica.copy()
        left = f"{folder_of(OTHER)}/00000001.log/000000000100"
        storage.write(left, b"late")
        found = examine(storage)
        assert [each.what for each in found.findings if each.check == "unknown"] == [
            f"not of this experiment: {folder_of(OTHER)}"
        ]
        storage.write(EXPERIMENT_KEY, b"{}")
        assert not examine(storage).whole


class TestClaim:
    def test_nothing_is_written_before_the_document(self, here: Path, storage: MemoryStorage) -> None:
        Replica(here, storage).copy()
        written = [key for name, key in storage.calls if name.startswith("write")]
        assert written[0] == EXPERIMENT_KEY
        assert len(written) > 1

    def test_the_later_of_two_that_begin_writes_nothing(self, here: Path, storage: MemoryStorage) -> None:
        replica = Replica(here, storage)
        replica.pull()
        storage.write(EXPERIMENT_KEY, document(OTHER))
        with pytest.raises(FencedError, match="has just begun an experiment"):
            replica.copy()
        assert storage.list() == [EXPERIMENT_KEY]

    def test_a_lost_answer_is_recognized(self, here: Path, storage: MemoryStorage) -> None:
        replica = Replica(here, storage)
        storage.after = fail_on("write_if", EXPERIMENT_KEY)
        with pytest.raises(StorageUnavailableError):
            replica.claim_location()
        assert replica.claim_location()

    def test_an_emptied_location_gets_a_journal_of_its_own(self, here: Path, storage: MemoryStorage) -> None:
        Replica(here, storage).copy()
        before = read_stored(here)
        storage.delete_many(storage.list())
        again = Replica(here, storage)
        assert again.pull()
        again.copy()
        now = read_stored(here)
        assert before is not None
        assert now is not None
        assert now[JOURNAL_ID] != before[JOURNAL_ID]
        assert json.loads(storage.read(EXPERIMENT_KEY))[JOURNAL_ID] == now[JOURNAL_ID]

    def test_a_directory_of_another_experiment_is_refused(self, here: Path, storage: MemoryStorage) -> None:
        storage.write(EXPERIMENT_KEY, document(OTHER))
        with pytest.raises(FencedError, match="different histories"):
            Replica(here, storage).pull()
        assert storage.list() == [EXPERIMENT_KEY]

    @pytest.mark.parametrize("data", [b"{}", b'{"version": 1}', b'{"version": 1, "journal": "../x"}'])
    def test_a_document_without_a_journal_is_refused(self, here: Path, storage: MemoryStorage, data: bytes) -> None:
        storage.write(EXPERIMENT_KEY, data)
        with pytest.raises(InvalidInputError, match="restore it from a backup"):
            Replica(here, storage).pull()
        assert storage.read(EXPERIMENT_KEY) == data

    def test_a_start_reads_one_document_and_lists_once(self, here: Path, storage: MemoryStorage) -> None:
        Replica(here, storage).copy()
        storage.calls.clear()
        Replica(here / "there", storage).pull(journal_only=True)
        assert storage.calls[:2] == [("read", EXPERIMENT_KEY), ("sizes", folder_of(ID))]
        assert [key for name, key in storage.calls].count(EXPERIMENT_KEY) == 1


def test_a_reader_follows_to_the_next_experiment(here: Path, storage: MemoryStorage, tmp_path: Path) -> None:
    Replica(here, storage).copy()
    copy = JournalCopy(storage, tmp_path / "copy")
    copy.refresh()
    storage.delete_many(storage.list())
    write_stored(here / "next", {})
    journal_of(here / "next").append(b"of the next one")
    Replica(here / "next", storage).copy()
    copy.refresh()
    found = Journal.open(tmp_path / "copy" / JOURNAL, read_only=True)
    assert list(found.records()) == [b"of the next one"]
    assert read_stored(tmp_path / "copy") == read_stored(here / "next")
