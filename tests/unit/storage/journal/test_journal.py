from __future__ import annotations

import errno
import os
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trialpod.errors import JournalError, StorageError
from trialpod.storage.journal.journal import Journal


def write(directory, records):
    journal = Journal.open(directory)
    for record in records:
        journal.append(record)
    journal.close()


def read(directory, read_only=True):
    journal = Journal.open(directory, read_only=read_only)
    try:
        return journal.snapshot, list(journal.records())
    finally:
        journal.close()


def next_segment(journal, directory):
    """Begin another segment, as after a snapshot that was lost before the older segments were removed."""
    older = {path: path.read_bytes() for path in directory.iterdir()}
    journal.write_snapshot(b"")
    (snapshot,) = set(directory.glob("*.snapshot")) - set(older)
    snapshot.unlink()
    for path, data in older.items():
        path.write_bytes(data)


def write_apart(directory, records):
    """Append records, each to a segment of its own."""
    journal = Journal.open(directory)
    for record in records:
        journal.append(record)
        next_segment(journal, directory)
    journal.close()


def test_records_come_back_in_order_after_reopening(tmp_path):
    write(tmp_path, [b"a", b"", b"c" * 100_000])
    write(tmp_path, [b"d"])
    assert read(tmp_path) == (None, [b"a", b"", b"c" * 100_000, b"d"])


def test_records_appended_since_opening_are_among_the_records(tmp_path):
    journal = Journal.open(tmp_path)
    assert [journal.append(b"a"), journal.append(b"b")] == [1, 2]
    assert list(journal.records()) == [b"a", b"b"]
    assert journal.sync() == 2
    journal.close()


def test_numbers_continue_after_snapshots_and_reopening(tmp_path):
    write(tmp_path, [b"a", b"b"])
    journal = Journal.open(tmp_path)
    journal.write_snapshot(b"state")
    assert journal.append(b"c") == 3
    journal.close()
    journal = Journal.open(tmp_path)
    assert journal.position == 3
    assert journal.snapshot == b"state"
    assert list(journal.records()) == [b"c"]
    journal.close()


def test_a_snapshot_replaces_the_records_and_files_before_it(tmp_path):
    journal = Journal.open(tmp_path)
    for i in range(3):
        journal.append(b"x" * 1000)
        assert journal.size_since_snapshot > 1000
        journal.write_snapshot(b"state %d" % i)
        assert journal.size_since_snapshot < 1000
    journal.close()
    assert sorted(os.listdir(tmp_path)) == ["00000004.log", "00000004.snapshot"]
    assert read(tmp_path) == (b"state 2", [])


def test_segments_whose_snapshot_was_lost_lose_nothing(tmp_path):
    write_apart(tmp_path, [b"a", b"b", b"c"])
    assert read(tmp_path) == (None, [b"a", b"b", b"c"])


def test_last_segment_cut_anywhere_yields_a_prefix(tmp_path):
    records = [b"one", b"", b"three" * 5, b"4"]
    journal = Journal.open(tmp_path / "whole")
    journal.append(b"zero")
    next_segment(journal, tmp_path / "whole")
    ends = []
    for record in records:
        journal.append(record)
        ends.append(os.path.getsize(tmp_path / "whole" / "00000002.log"))
    journal.close()
    first = (tmp_path / "whole" / "00000001.log").read_bytes()
    data = (tmp_path / "whole" / "00000002.log").read_bytes()
    for cut in range(len(data) + 1):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / "00000001.log").write_bytes(first)
        (folder / "00000002.log").write_bytes(data[:cut])
        expected = [b"zero", *(record for record, end in zip(records, ends, strict=True) if end <= cut)]
        assert read(folder)[1] == expected
        journal = Journal.open(folder)
        assert journal.append(b"new") == len(expected) + 1
        journal.close()
        assert read(folder)[1] == [*expected, b"new"]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_flipped_bit_is_found_or_takes_only_the_last_record(tmp_path_factory, data):
    records = data.draw(st.lists(st.binary(max_size=40), min_size=1, max_size=6))
    folder = tmp_path_factory.mktemp("journal")
    write(folder, records)
    path = folder / "00000001.log"
    content = bytearray(path.read_bytes())
    bit = data.draw(st.integers(min_value=0, max_value=len(content) * 8 - 1))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    try:
        found = read(folder, read_only=False)[1]
    except JournalError as error:
        assert "00000001.log" in str(error)  # noqa: PT017
        assert path.read_bytes() == bytes(content)
    else:
        assert found == records[:-1]


def test_damage_before_the_end_says_where_and_changes_nothing(tmp_path):
    write(tmp_path, [b"a" * 10, b"b" * 10, b"c" * 10])
    path = tmp_path / "00000001.log"
    data = path.read_bytes().replace(b"bbbb", b"bbXb", 1)
    path.write_bytes(data)
    with pytest.raises(JournalError, match=r"00000001.log is damaged at byte \d+: record 2 is broken.*truncate"):
        Journal.open(tmp_path)
    assert path.read_bytes() == data


def test_a_torn_end_in_a_segment_that_is_not_the_last_is_damage(tmp_path):
    journal = Journal.open(tmp_path)
    journal.append(b"a")
    next_segment(journal, tmp_path)
    journal.close()
    path = tmp_path / "00000001.log"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(JournalError, match=r"00000001.log is damaged.*record 1"):
        Journal.open(tmp_path)


def test_a_segment_begun_without_a_snapshot_loses_nothing(tmp_path):
    journal = Journal.open(tmp_path)
    journal.append(b"one")
    journal.begin_segment()
    journal.append(b"two")
    assert list(journal.records()) == [b"one", b"two"]
    journal.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000001.log", "00000002.log"]
    assert read(tmp_path) == (None, [b"one", b"two"])


def test_an_empty_segment_between_others_has_no_records(tmp_path):
    """A copy of a journal has one where a segment was ended before any of its records was copied."""
    write(tmp_path, [b"one"])
    (tmp_path / "00000002.log").touch()
    (tmp_path / "00000003.log").touch()
    for _ in range(2):
        journal = Journal.open(tmp_path)
        assert (journal.position, list(journal.records())) == (1, [b"one"])
        journal.close()
    write(tmp_path, [b"two"])
    assert read(tmp_path) == (None, [b"one", b"two"])


def test_a_segment_emptied_of_its_records_is_damage(tmp_path):
    write_apart(tmp_path, [b"one", b"two", b"three"])
    os.truncate(tmp_path / "00000002.log", 0)
    with pytest.raises(JournalError, match="begins with record 3, but record 2 is next"):
        read(tmp_path)


def test_a_missing_segment_is_named(tmp_path):
    journal = Journal.open(tmp_path)
    for _ in range(3):
        journal.append(b"a")
        next_segment(journal, tmp_path)
    journal.close()
    (tmp_path / "00000002.log").unlink()
    with pytest.raises(JournalError, match=r"00000002.log is missing"):
        Journal.open(tmp_path)


def test_a_segment_of_another_journal_is_refused(tmp_path):
    write(tmp_path / "other", [b"a"])
    write(tmp_path / "own", [b"a", b"b"])
    os.rename(tmp_path / "other" / "00000001.log", tmp_path / "own" / "00000002.log")
    with pytest.raises(JournalError, match="not of one journal"):
        Journal.open(tmp_path / "own")


def test_a_damaged_snapshot_whose_records_are_gone_is_an_error(tmp_path):
    journal = Journal.open(tmp_path)
    journal.append(b"a")
    journal.write_snapshot(b"state")
    journal.close()
    path = tmp_path / "00000002.snapshot"
    path.write_bytes(path.read_bytes()[:-1] + b"X")
    with pytest.raises(JournalError, match=r"00000002.snapshot is damaged"):
        Journal.open(tmp_path)
    assert path.exists()


@pytest.mark.parametrize("complete", [True, False])
def test_a_crash_before_the_old_files_are_removed_loses_nothing(tmp_path, complete):
    """The new snapshot is used if it is whole; else the state from before it."""
    journal = Journal.open(tmp_path)
    journal.append(b"a")
    journal.write_snapshot(b"old")
    journal.append(b"b")
    saved = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    journal.write_snapshot(b"new")
    journal.append(b"c")
    journal.close()
    for name, data in saved.items():
        (tmp_path / name).write_bytes(data)
    path = tmp_path / "00000003.snapshot"
    if not complete:
        path.write_bytes(path.read_bytes()[:-1])
    expected = (b"new", [b"c"]) if complete else (b"old", [b"b", b"c"])
    assert read(tmp_path) == expected
    assert read(tmp_path, read_only=False) == expected
    assert (tmp_path / "00000002.log").exists() is not complete


def test_a_crash_between_the_snapshot_and_its_segment_is_mended(tmp_path):
    journal = Journal.open(tmp_path)
    journal.append(b"a")
    journal.write_snapshot(b"state")
    journal.close()
    (tmp_path / "00000002.log").unlink()
    journal = Journal.open(tmp_path)
    assert journal.append(b"b") == 2
    journal.close()
    assert read(tmp_path) == (b"state", [b"b"])


def test_a_half_written_snapshot_is_ignored_and_removed(tmp_path):
    write(tmp_path, [b"a"])
    (tmp_path / "00000002.snapshot.tmp").write_bytes(b"half")
    assert read(tmp_path, read_only=False) == (None, [b"a"])
    assert os.listdir(tmp_path) == ["00000001.log"]


def test_a_newer_format_is_refused_with_the_remedy(tmp_path):
    write(tmp_path, [b"a"])
    path = tmp_path / "00000001.log"
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, 8, 99)
    struct.pack_into("<I", data, 20, zlib.crc32(data[:20]))
    path.write_bytes(data)
    with pytest.raises(JournalError, match=r"version 99.*upgrade"):
        Journal.open(tmp_path)


def test_a_reader_changes_nothing_and_cannot_append(tmp_path):
    write(tmp_path, [b"a"])
    path = tmp_path / "00000001.log"
    torn = path.read_bytes() + b"\x05\0\0"
    path.write_bytes(torn)
    journal = Journal.open(tmp_path, read_only=True)
    assert list(journal.records()) == [b"a"]
    with pytest.raises(StorageError, match="read-only"):
        journal.append(b"b")
    assert path.read_bytes() == torn


def test_a_reader_keeps_its_records_when_the_writer_moves_on(tmp_path):
    writer = Journal.open(tmp_path)
    writer.append(b"a")
    reader = Journal.open(tmp_path, read_only=True)
    writer.write_snapshot(b"state")
    assert list(reader.records()) == [b"a"]
    writer.close()


def test_missing_journal_reads_empty_and_is_not_created(tmp_path):
    assert read(tmp_path / "none") == (None, [])
    assert not (tmp_path / "none").exists()


def test_a_closed_journal_says_so(tmp_path):
    journal = Journal.open(tmp_path)
    journal.close()
    journal.close()
    for use in (lambda: journal.append(b"a"), journal.sync, lambda: journal.write_snapshot(b"s")):
        with pytest.raises(StorageError, match="closed"):
            use()


def test_a_segment_is_there_only_behind_its_snapshot(tmp_path, monkeypatch):
    """Who copies the files meanwhile would else copy records behind a segment that may still grow elsewhere."""
    journal = Journal.open(tmp_path)
    journal.append(b"a")
    seen = []
    real = os.rename

    def rename(source, target):
        seen.append(sorted(name for name in os.listdir(tmp_path) if not name.endswith(".tmp")))
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    journal.write_snapshot(b"state")
    journal.close()
    assert seen == [["00000001.log"], ["00000001.log", "00000002.snapshot"]]


@pytest.mark.parametrize("fails", ["00000002.snapshot", "00000002.log"])
def test_a_snapshot_that_fails_changes_nothing(tmp_path, monkeypatch, fails):
    journal = Journal.open(tmp_path)
    journal.append(b"a")
    real = os.rename

    def rename(source, target):
        if os.fspath(target).endswith(fails):
            raise OSError(errno.EIO, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(StorageError, match="cannot write the snapshot"):
        journal.write_snapshot(b"state")
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["00000001.log"]
    journal.append(b"b")
    journal.close()
    assert read(tmp_path) == (None, [b"a", b"b"])


def test_append_on_a_full_disk_leaves_the_journal_as_it_was(tmp_path, monkeypatch):
    journal = Journal.open(tmp_path)
    journal.append(b"a")
    real = os.write
    calls = []

    def half_then_full(fd, data):
        calls.append(len(data))
        if len(calls) == 1:
            return real(fd, data[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", half_then_full)
    with pytest.raises(StorageError, match=r"no space left on the device \(1012 bytes needed, .* free\)"):
        journal.append(b"b" * 1000)
    monkeypatch.undo()
    assert journal.append(b"c") == 2
    journal.close()
    assert read(tmp_path)[1] == [b"a", b"c"]


def test_after_a_failed_sync_nothing_more_is_taken(tmp_path, monkeypatch):
    journal = Journal.open(tmp_path)
    journal.append(b"a")

    def fail(fd):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(StorageError, match="cannot sync"):
        journal.sync()
    monkeypatch.undo()
    with pytest.raises(StorageError, match="open it again"):
        journal.append(b"b")
    journal.close()


def test_a_snapshot_that_fails_leaves_the_records(tmp_path, monkeypatch):
    journal = Journal.open(tmp_path)
    journal.append(b"a")

    def fail(source, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(StorageError, match="cannot write the snapshot"):
        journal.write_snapshot(b"state")
    monkeypatch.undo()
    journal.append(b"b")
    assert journal.snapshot is None
    journal.close()
    assert read(tmp_path) == (None, [b"a", b"b"])
