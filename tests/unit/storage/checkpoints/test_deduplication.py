from __future__ import annotations

import os
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialpod.errors import CheckpointError
from trialpod.storage.checkpoints import deduplication
from trialpod.storage.checkpoints.deduplication import StoredFile, StoredFiles
from trialpod.storage.checkpoints.manifest import FileEntry, Piece
from trialpod.storage.checkpoints.staging import LocalFile

MEBIBYTE = 1024 * 1024


@pytest.mark.parametrize(("size", "expected"), [(0, 1), (1, 1), (8 << 30, 1), ((8 << 30) + 1, 2), (100 << 30, 16)])
def test_blocks_grow_with_the_file_so_that_their_number_does_not(size, expected):
    assert deduplication.block_bytes(size) == expected * MEBIBYTE
    assert deduplication.block_count(size) <= 8192


@given(st.integers(0, 5 * MEBIBYTE))
def test_blocks_cover_a_file_without_a_gap(size):
    spans = [deduplication.block_span(size, block) for block in range(deduplication.block_count(size))]
    assert [start for start, _ in spans] == [sum(length for _, length in spans[:n]) for n in range(len(spans))]
    assert sum(length for _, length in spans) == size


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.data())
def test_ranges_of_a_file_in_pieces_are_where_its_bytes_are(sizes, data):
    objects = {f"o{number}": bytes(os.urandom(size + 3)) for number, size in enumerate(sizes)}
    pieces = tuple(Piece(f"o{number}", number % 4, size) for number, size in enumerate(sizes))
    whole = b"".join(objects[piece.key][piece.offset : piece.offset + piece.size] for piece in pieces)
    known = StoredFile(FileEntry("f", sum(sizes), 0, pieces=pieces), "c", ((), {}))
    start = data.draw(st.integers(0, len(whole)))
    length = data.draw(st.integers(0, len(whole) - start))
    found = b"".join(
        objects[piece.key][piece.offset : piece.offset + piece.size] for piece in known.ranges(start, length)
    )
    assert found == whole[start : start + length]


def stored(path, name="c"):
    file = LocalFile(path.name, path.stat().st_size, str(path))
    entry = FileEntry(path.name, file.size, zlib.crc32(path.read_bytes()))
    return deduplication.hash_files([file], {path.name: entry}, name, {}, True, lambda: False)


def match(known, path):
    file = LocalFile(path.name, path.stat().st_size, str(path))
    for one, descriptor in deduplication.opened([file]):
        return known.match(one, descriptor, (deduplication.samples(one, descriptor), {}))
    return None, False


def test_blocks_are_the_same_by_content_not_by_their_samples(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(os.urandom(3 * MEBIBYTE + 5))
    before = stored(path)
    assert match(before, path)[0].same == {0, 1, 2, 3}
    with open(path, "r+b") as file:
        file.seek(MEBIBYTE + 50_000)  # behind the sample
        file.write(b"other")
    found, resembles = match(before, path)
    assert found.same == {0, 2, 3}
    assert resembles


def test_a_file_in_which_all_changed_looks_like_nothing(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(os.urandom(2 * MEBIBYTE))
    before = stored(path)
    path.write_bytes(os.urandom(2 * MEBIBYTE))
    assert match(before, path) == (None, False)
    assert not StoredFiles()


def test_a_copy_whose_checksum_is_another_is_not_trusted(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(os.urandom(2 * MEBIBYTE))
    file = LocalFile("f", 2 * MEBIBYTE, str(path))
    entry = FileEntry("f", file.size, zlib.crc32(path.read_bytes()))
    assert match(deduplication.compare_copies([file], {"f": entry}, "c"), path)[0].same == {0, 1}
    with open(path, "r+b") as changed:
        changed.seek(100_000)
        changed.write(b"other")
    assert match(deduplication.compare_copies([file], {"f": entry}, "c"), path)[0] is None


def test_a_file_that_is_missing_or_becomes_shorter_is_named(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"x" * 1000)
    with pytest.raises(CheckpointError, match="cannot read"):
        list(deduplication.opened([LocalFile("f", 1, str(tmp_path / "missing"))]))
    for size in (2000, MEBIBYTE):
        file = LocalFile("f", size, str(path))
        for _, descriptor in deduplication.opened([file]):
            with pytest.raises(CheckpointError, match="became shorter"):
                deduplication.checksum(file, descriptor)
