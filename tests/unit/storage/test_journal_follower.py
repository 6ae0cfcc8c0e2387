from __future__ import annotations

from pathlib import Path

import pytest

from trialpod.errors import JournalError
from trialpod.storage.journal.follower import JournalFollower
from trialpod.storage.journal.journal import Journal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journal"


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
