from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trialpod.storage.checkpoints.manifest import FileEntry
from trialpod.storage.checkpoints.packing import Packing, packs, spans

SIZES = st.lists(st.integers(0, 300), max_size=30)


def test_few_small_files_keep_an_object_each():
    assert packs([("a", 1), ("b", 1)], Packing(more_than=2)) == (["a", "b"], [])
    assert packs([("a", 1), ("b", 1)], None) == (["a", "b"], [])


@given(SIZES)
def test_each_file_is_in_one_pack_and_large_ones_are_alone(sizes):
    files = [(str(number), size) for number, size in enumerate(sizes)]
    packing = Packing(more_than=3, below_bytes=100, pack_bytes=150)
    alone, together = packs(files, packing)
    assert sorted([*alone, *(path for pack in together for path in pack)], key=int) == [path for path, _ in files]
    if together:
        assert alone == [path for path, size in files if size >= 100]
        assert all(sum(sizes[int(path)] for path in pack) < 150 + 100 for pack in together)


@given(SIZES, st.sets(st.integers(0, 29)))
def test_spans_cover_exactly_the_files_that_are_asked_for(sizes, unwanted):
    entries, offset = [], 0
    for number, size in enumerate(sizes):
        entries.append(FileEntry(str(number), size, 0, f"pack{number % 2}", offset))
        offset += size
    wanted = [entry for entry in entries if int(entry.path) not in unwanted]
    found = spans(wanted)
    assert sorted((entry for span in found for entry in span.entries), key=lambda e: int(e.path)) == wanted
    for span in found:
        for entry in span.entries:
            assert entry.key == span.key
            assert span.start <= entry.offset
            assert entry.offset + entry.size <= span.start + span.length
