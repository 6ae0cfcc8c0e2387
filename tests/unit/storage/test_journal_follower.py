from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from trialpod.errors import JournalError
from trialpod.storage.journal.follower import JournalFollower
from trialpod.storage.journal.journal import Journal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def replaced(folder: Path, *records: bytes, snapshot_after: int = 0) -> None:
    """Put another journal in the folder's place."""
    shutil.rmtree(folder)
    journal = Journal.open(folder)
    for number, record in enumerate(records, start=1):
        journal.append(record)
        if number == snapshot_after:
            journal.write_snapshot(b"state")
    journal.close()


class TestAnotherJournal:
    @pytest.mark.parametrize("records", [[b"x"], [b"x", b"y"], [b"x" * 30, b"y" * 40, b"z" * 50]])
    @pytest.mark.parametrize("read", [[b"aa"], [b"a", b"b"]])
    def test_is_read_from_its_beginning(self, folder: Path, read: list[bytes], records: list[bytes]) -> None:
        journal = Journal.open(folder)
        follower = JournalFollower(folder)
        follower.poll()
        for record in read:
            journal.append(record)
        assert follower.poll().records == read
        replaced(folder, *records)
        update = follower.poll()
        assert (update.restart, update.snapshot, update.records) == (True, None, records)
        assert follower.poll().records == []

    @pytest.mark.parametrize("known", [True, False])
    def test_is_recognised_behind_a_snapshot(self, folder: Path, known: bool) -> None:
        """Its first segment has another number: the one that was followed is not there."""
        journal = Journal.open(folder)
        follower = JournalFollower(folder)
        journal.append(b"a")
        if known:
            follower.poll()
        journal.write_snapshot(b"state")
        follower.poll()
        replaced(folder, b"x", b"y")
        update = follower.poll()
        assert (update.restart, update.records) == (True, [b"x", b"y"])

    def test_is_recognised_by_records_it_still_has(self, folder: Path) -> None:
        journal = Journal.open(folder)
        follower = JournalFollower(folder)
        for record in (b"a", b"b", b"c"):
            journal.append(record)
        follower.poll()
        replaced(folder, b"x", b"y", b"z", b"more", snapshot_after=1)
        assert follower.poll().restart


class TestFollowing:
    def test_returns_each_record_once(self, folder: Path) -> None:
        follower = JournalFollower(folder)
        assert follower.poll().records == []
        journal = Journal.open(folder)
        seen: list[bytes] = []
        for number in range(6):
            journal.append(b"%d" % number)
            if number % 2:
                seen += follower.poll().records
        assert seen == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert follower.poll().records == []

    def test_continues_behind_a_snapshot_without_a_restart(self, folder: Path) -> None:
        journal = Journal.open(folder)
        journal.append(b"a")
        follower = JournalFollower(folder)
        assert follower.poll().restart
        journal.append(b"b")
        assert follower.poll().records == [b"b"]
        journal.write_snapshot(b"state")
        journal.append(b"c")
        update = follower.poll()
        assert (update.restart, update.records) == (False, [b"c"])

    def test_restarts_when_a_snapshot_has_replaced_unread_records(self, folder: Path) -> None:
        journal = Journal.open(folder)
        journal.append(b"a")
        follower = JournalFollower(folder)
        follower.poll()
        journal.append(b"b")
        journal.write_snapshot(b"state")
        journal.append(b"c")
        update = follower.poll()
        assert (update.restart, update.snapshot, update.records) == (True, b"state", [b"c"])

    def test_reads_a_segment_that_was_kept_to_its_end(self, folder: Path) -> None:
        journal = Journal.open(folder, keep_replaced=True)
        journal.append(b"a")
        follower = JournalFollower(folder)
        follower.poll()
        journal.append(b"b")
        journal.write_snapshot(b"state")
        journal.append(b"c")
        assert follower.poll().records == [b"b", b"c"]

    def test_leaves_a_torn_record_for_later(self, folder: Path) -> None:
        journal = Journal.open(folder)
        journal.append(b"a")
        follower = JournalFollower(folder)
        follower.poll()
        journal.append(b"second")
        (segment,) = folder.glob("*.log")
        whole = segment.read_bytes()
        segment.write_bytes(whole[:-3])
        assert follower.poll().records == []
        segment.write_bytes(whole)
        assert follower.poll().records == [b"second"]

    def test_damage_is_an_error(self, folder: Path) -> None:
        journal = Journal.open(folder)
        journal.append(b"a")
        follower = JournalFollower(folder)
        follower.poll()
        journal.append(b"bbbbbb")
        journal.append(b"c")
        (segment,) = folder.glob("*.log")
        data = bytearray(segment.read_bytes())
        data[-20] ^= 0xFF
        segment.write_bytes(bytes(data))
        with pytest.raises(JournalError, match="record 2 is broken") as found:
            follower.poll()
        with pytest.raises(JournalError) as whole:
            Journal.open(folder, read_only=True)
        assert str(found.value) == str(whole.value)  # its remedy names a byte of the whole file
