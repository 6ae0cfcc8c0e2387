from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest
from memory_storage import Died, MemoryStorage, fail_on, unavailable

from trialpod.errors import CheckpointError, StorageError, SupersededError
from trialpod.storage.base import StorageDeniedError, StorageUnavailableError
from trialpod.storage.checkpoints import manifest as manifests
from trialpod.storage.checkpoints import open_checkpoints
from trialpod.storage.checkpoints.packing import Packing
from trialpod.storage.checkpoints.remote import RemoteCheckpointStore
from trialpod.storage.layout import EXPERIMENT_KEY

pytestmark = pytest.mark.once

CLAIM = ".trialpod-claim"
MANIFEST = ".trialpod-manifest.json"


@pytest.fixture
def storage():
    return MemoryStorage()


@pytest.fixture
def make(storage, tmp_path):
    made = []

    def open_store(*, over=None, **options):
        made.append(RemoteCheckpointStore(over or storage, scratch=tmp_path / "scratch", **options))
        return made[-1]

    (tmp_path / "scratch").mkdir()
    yield open_store
    for store in made:
        store.close()
    assert os.listdir(tmp_path / "scratch") == []


@pytest.fixture
def store(make):
    return make()


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "empty folder").mkdir()
    (folder / "weights.bin").write_bytes(os.urandom(300_000))
    (folder / "empty").write_bytes(b"")
    (folder / "a" / "b" / "deep ü.txt").write_text("deep")
    return folder


def commit(store, index, source=None, attempt=1, **metrics):
    if source is not None:
        store.snapshot(index, source)
    return store.commit(index, iteration=index + 1, metrics=metrics, attempt=attempt, time=5.0)


def content(folder: Path):
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")
    }


def again(make):
    """A store of another process on the same storage."""
    return make()


def test_few_copies_stay_of_checkpoints_that_are_replaced(store, source, tmp_path):
    """A trial that reads each of its checkpoints back takes no more room than two of them."""
    before = None
    for index in range(6):
        info = commit(store, index, source)
        fetched = store.fetch(info)
        assert (fetched / "weights.bin").exists()
        if before is not None:
            store.delete(before.name)
        before = info
        # `os.walk` passes over what a thread removes meanwhile.
        folders = [name for _, names, _ in os.walk(tmp_path / "scratch") for name in names]
        assert sum(name.startswith("fetched-") for name in folders) <= 3


def test_the_storage_decides_which_kind_of_store_it_is(storage):
    assert isinstance(open_checkpoints(storage), RemoteCheckpointStore)


def test_a_committed_folder_comes_back_as_it_was_in_rays_layout(store, make, source, storage):
    info = commit(store, 3, source, loss=0.5)
    assert (info.name, info.size, info.metrics) == ("checkpoint_000003", 300_004, {"loss": 0.5})
    assert set(storage.values) == {
        f"checkpoint_000003/{name}" for name in (CLAIM, MANIFEST, "weights.bin", "empty", "a/b/deep ü.txt")
    }
    other = again(make)
    assert other.committed() == [info]
    assert content(other.fetch(info)) == content(source)


def test_the_manifest_is_written_last(store, source, storage):
    commit(store, 0, source)
    writes = [key for name, key in storage.calls if name in ("write", "write_new", "put_file")]
    assert writes[0].endswith(CLAIM)
    assert writes[-1].endswith(MANIFEST)


def test_a_snapshot_is_cut_off_from_its_source(store, source):
    before = content(source)
    assert store.snapshot(0, source) == 300_004
    (source / "weights.bin").write_bytes(b"changed")
    assert content(store.fetch(commit(store, 0))) == before


def test_unchanged_files_are_not_uploaded_again(store, make, source, storage):
    commit(store, 0, source)
    (source / "weights.bin").rename(source / "renamed.bin")
    (source / "small").write_bytes(b"new")
    sent = storage.sent
    info = commit(store, 1, source)
    assert storage.sent - sent < 3000
    assert content(again(make).fetch(info)) == content(source)
    assert any(entry.key for entry in manifests.decode(storage.values[f"{info.name}/{MANIFEST}"], "").files)


def test_a_file_of_the_same_size_with_another_content_is_sent(store, source):
    commit(store, 0, source)
    data = bytearray((source / "weights.bin").read_bytes())
    data[100_000] ^= 1  # not where samples are taken
    (source / "weights.bin").write_bytes(data)
    assert content(store.fetch(commit(store, 1, source))) == content(source)


def test_another_attempt_refers_to_nothing_of_the_one_before(store, make, source, storage):
    commit(store, 0, source)
    other = again(make)
    other.fetch(other.committed()[0])
    info = commit(other, 1, source, attempt=2)
    assert all(not entry.key for entry in manifests.decode(storage.values[f"{info.name}/{MANIFEST}"], "").files)


def test_objects_of_a_kept_checkpoint_stay(store, make, source, storage):
    infos = [commit(store, index, source) for index in range(3)]
    for info in infos[:2]:
        store.delete(info.name, attempt=1)
    assert "checkpoint_000000/weights.bin" in storage.values
    assert again(make).committed() == [infos[2]]
    assert content(again(make).fetch(infos[2])) == content(source)
    assert again(make).sweep([infos[2].name]) == []
    assert content(again(make).fetch(infos[2])) == content(source)
    store.delete(infos[2].name, attempt=1)
    assert storage.values == {}


def test_many_small_files_share_an_object_and_come_back(make, source, storage, tmp_path):
    for number in range(200):
        (source / f"small{number}").write_bytes(os.urandom(number * 40))
    store = make(packing=Packing(more_than=64, below_bytes=10_000, pack_bytes=200_000))
    info = commit(store, 0, source)
    assert len(storage.values) < 10
    assert content(again(make).fetch(info)) == content(source)
    (source / "small7").write_bytes(b"other")
    sent = storage.sent
    second = commit(store, 1, source)
    assert storage.sent - sent < 80_000
    store.delete(info.name)
    assert content(again(make).fetch(second)) == content(source)


def test_packing_can_be_switched_off(source, storage, tmp_path, monkeypatch):
    monkeypatch.setenv("TRIALPOD_PACK_CHECKPOINTS", "0")
    for number in range(100):
        (source / f"small{number}").write_bytes(b"x")
    store = RemoteCheckpointStore(storage, scratch=tmp_path)
    commit(store, 0, source)
    assert len(storage.values) == 105
    store.close()


def test_second_commit_of_an_index_is_refused(store, make, source, storage, tmp_path):
    info = commit(store, 0, source, attempt=2)
    before = dict(storage.values)
    (source / "weights.bin").write_bytes(b"other")
    with pytest.raises(SupersededError, match="begun by attempt 2"):
        commit(again(make), 0, source, attempt=1)
    assert storage.values == before
    assert again(make).fetch(info)


def test_unclaimed_copied_checkpoint_is_not_replaced(store, make, source, storage):
    commit(store, 0, source)
    del storage.values[f"checkpoint_000000/{CLAIM}"]
    with pytest.raises(SupersededError, match=r"committed by attempt 1; .* never replaced"):
        commit(again(make), 0, source, attempt=2)


def test_lost_answer_to_manifest_or_claim_is_no_conflict(store, source, storage):
    for part in (CLAIM, MANIFEST):
        storage.after = fail_on("write_new", part)
        store.snapshot(0, source) if part == CLAIM else None
        with pytest.raises(StorageUnavailableError):
            commit(store, 0)
    assert content(store.fetch(commit(store, 0))) == content(source)


def test_after_an_interruption_only_what_is_missing_is_sent(store, source, storage):
    (source / "other.bin").write_bytes(os.urandom(200_000))
    storage.before = fail_on("put_file", "other.bin")
    store.snapshot(0, source)
    with pytest.raises(StorageUnavailableError):
        commit(store, 0)
    sent = storage.sent
    commit(store, 0)
    assert [key for name, key in storage.calls if name == "put_file"].count("checkpoint_000000/weights.bin") == 1
    assert storage.sent - sent < 210_000


def test_pack_whose_answer_was_lost_is_replaced(make, storage, tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(100):
        (folder / f"file{number:03d}").write_bytes(os.urandom(1000))
    store = make(packing=Packing(more_than=10, below_bytes=2000, pack_bytes=200_000))
    storage.after = fail_on("put_file", "pack", times=2)
    store.snapshot(0, folder)
    for _ in range(2):
        with pytest.raises(StorageUnavailableError):
            commit(store, 0)
    info = commit(store, 0)
    manifest = manifests.decode(storage.values[f"{info.name}/{MANIFEST}"], "")
    own = {f"{info.name}/{name}" for name in (CLAIM, MANIFEST)}
    assert set(storage.values) - own == manifest.object_keys()
    assert content(make().fetch(info)) == content(folder)


def test_a_refused_upload_leaves_nothing_but_the_claim(store, source, storage, tmp_path):
    storage.before = fail_on("put_file", "weights", StorageError)
    with pytest.raises(StorageError, match="failed"):
        commit(store, 0, source)
    assert set(storage.values) == {f"checkpoint_000000/{CLAIM}"}


def test_superseded_during_an_upload_removes_nothing(store, source, storage):
    class Superseded(BaseException): ...

    def progress(done, total):
        if done == total:
            raise Superseded

    store.snapshot(0, source)
    with pytest.raises(Superseded):
        store.commit(0, iteration=1, metrics={}, attempt=1, time=5.0, progress=progress)
    assert "delete" not in {name for name, _ in storage.calls}


def test_superseded_attempt_can_neither_commit_nor_delete(store, make, source, storage):
    old = commit(store, 0, source)
    store.snapshot(1, source)
    (source / "more").write_bytes(os.urandom(1000))
    successor = again(make)
    seen = []

    def takeover(name, key):
        if name == "write_new" and key == f"checkpoint_000001/{MANIFEST}" and not seen:
            seen.append(key)
            assert successor.sweep([old.name]) == ["checkpoint_000001"]
            seen.append(successor.reserve(1, 2))

    storage.before = takeover
    with pytest.raises(CheckpointError, match="given up by a later attempt"):
        commit(store, 1)
    assert seen[1] == 2
    new = commit(successor, 2, source, attempt=2)
    with pytest.raises(SupersededError, match="begun by attempt 2"):
        commit(store, 2, source)
    with pytest.raises(CheckpointError, match="attempt 1 has been superseded"):
        store.delete(old.name, attempt=1)
    assert again(make).committed() == [old, new]
    assert content(again(make).fetch(new)) == content(source)


def test_reserved_index_is_refused_to_others(store, make, source):
    commit(store, 0, source)
    assert again(make).reserve(0, 2) == 1
    with pytest.raises(SupersededError, match="begun by attempt 2"):
        commit(store, 1, source)


def test_late_attempt_claims_nothing_after_its_successor(make, source, storage):
    again(make).reserve(0, 2)
    late = again(make)
    with pytest.raises(SupersededError, match="begun by attempt 2; attempt 1 has been superseded"):
        late.reserve(0, 1)
    assert set(storage.values) == {f"checkpoint_000000/{CLAIM}"}


def test_late_attempt_sweeps_nothing_of_its_successor(store, make, source):
    old = commit(store, 0, source)
    new = commit(again(make), 1, source, attempt=3)
    with pytest.raises(SupersededError, match="begun by attempt 3; attempt 2 has been superseded"):
        again(make).sweep([old.name], attempt=2)
    assert again(make).committed() == [old, new]


def test_sweep_removes_unknown_and_unfinished_checkpoints(store, make, source, storage):
    known, unknown = commit(store, 0, source), commit(store, 1, source)
    storage.values["checkpoint_000007/part"] = b"x"
    storage.values["result.json"] = b"{}"
    other = again(make)
    other.reserve(8, 2)
    assert other.sweep([known.name]) == [unknown.name, "checkpoint_000007"]
    assert other.committed() == [known]
    assert other.first_free_index(0) == 9
    assert other.sweep([known.name]) == []
    assert content(other.fetch(known)) == content(source)
    assert "result.json" in storage.values


def test_old_tombstones_go(make, storage):
    now = [1000.0]
    storage.values["checkpoint_000007/part"] = b"x"
    store = make(wall=lambda: now[0])
    store.sweep([])
    assert list(storage.values) == [f"checkpoint_000007/{MANIFEST}"]
    now[0] += 90_000
    store.sweep([])
    assert storage.values == {}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda values, key: values.pop(key), "object .*weights.bin is missing"),
        (lambda values, key: values.update({key: values[key][:-1]}), "has 299999 bytes instead of 300000"),
        (lambda values, key: values.update({key: b"x" * 300_000}), "checksum of weights.bin"),
    ],
)
def test_damage_is_found_and_previous_one_is_latest_valid(make, source, storage, damage, message):
    store = make()
    infos = []
    for index in range(2):
        (source / "weights.bin").write_bytes(os.urandom(300_000))
        infos.append(commit(store, index, source))
    damage(storage.values, "checkpoint_000001/weights.bin")
    found, warnings = again(make).latest_valid(infos)
    assert found == infos[0]
    assert len(warnings) == 1
    with pytest.raises(CheckpointError, match=message):
        again(make).fetch(infos[1])


def test_restoring_downloads_once(make, source, storage):
    info = commit(make(), 0, source)
    store = make()
    storage.calls.clear()
    found, _ = store.latest_valid([info])
    store.fetch(found)
    assert [key for name, key in storage.calls if name == "get_file"].count("checkpoint_000000/weights.bin") == 1


def test_unreachable_storage_does_not_condemn_a_checkpoint(make, source, storage):
    info = commit(make(), 0, source)
    storage.before = unavailable
    with pytest.raises(StorageUnavailableError):
        make().latest_valid([info])


def test_a_refusal_of_the_storage_is_no_damage(make, source, storage):
    info = commit(make(), 0, source)
    storage.before = fail_on("get_file", "weights", StorageError, times=9)
    with pytest.raises(StorageError, match="failed"):
        make().latest_valid([info])


def test_what_is_being_fetched_is_not_deleted(make, source, storage):
    store = make()
    info = commit(store, 0, source)
    reader = make()
    refused = []

    def delete_meanwhile(name, key):
        if name == "get_file" and not refused:
            with pytest.raises(CheckpointError, match="is being read"):
                reader.delete(info.name)
            refused.append(key)

    storage.before = delete_meanwhile
    assert content(reader.fetch(info)) == content(source)
    assert refused
    reader.delete(info.name)
    assert storage.values == {}


def test_a_manifest_of_a_newer_format_is_refused_with_what_to_do(make, source, storage):
    info = commit(make(), 0, source)
    key = f"{info.name}/{MANIFEST}"
    body = storage.values[key].rsplit(b'"crc32"', 1)[0].removeprefix(b'{"manifest":').rstrip(b",")
    newer = body.replace(b'"format":1', b'"format":99')
    storage.values[key] = b'{"manifest":%s,"crc32":%d}' % (newer, zlib.crc32(newer))
    with pytest.raises(CheckpointError, match=r"format version 99.*upgrade trialpod"):
        make().fetch(info)


def test_crash_in_mid_commit_leaves_the_previous_checkpoint(make, source, storage):
    first = commit(make(), 0, source)
    storage.before = fail_on("write_new", MANIFEST, Died)
    with pytest.raises(Died):
        commit(make(), 1, source)
    storage.before = lambda name, key: None
    assert again(make).committed() == [first]
    assert again(make).latest_valid([first]) == (first, [])


MEBIBYTE = 1024 * 1024


@pytest.fixture
def large(tmp_path):
    folder = tmp_path / "large"
    folder.mkdir()
    (folder / "model.bin").write_bytes(os.urandom(20 * MEBIBYTE + 17))
    return folder


def change(folder, start, count=1000):
    with open(folder / "model.bin", "r+b") as file:
        file.seek(start)
        file.write(os.urandom(count))


def test_of_a_large_file_only_the_blocks_that_changed_are_sent(store, make, large, storage):
    infos = [commit(store, 0, large)]
    contents = [content(large)]
    for index in range(1, 6):
        change(large, 2 * index * MEBIBYTE + 5000)
        sent = storage.sent
        infos.append(commit(store, index, large))
        contents.append(content(large))
        assert storage.sent - sent < 1.2 * MEBIBYTE
    assert any(entry.pieces for entry in manifests.decode(storage.values[f"{infos[5].name}/{MANIFEST}"], "").files)
    for info, expected in zip(infos, contents, strict=True):
        assert content(again(make).fetch(info)) == expected
    for info in infos[:5]:
        store.delete(info.name, attempt=1)
    assert content(again(make).fetch(infos[5])) == contents[5]
    assert again(make).sweep([infos[5].name]) == []
    store.delete(infos[5].name, attempt=1)
    assert storage.values == {}


def test_a_large_file_that_grew_sends_its_end(store, make, large, storage):
    commit(store, 0, large)
    with open(large / "model.bin", "ab") as file:
        file.write(os.urandom(3 * MEBIBYTE))
    sent = storage.sent
    info = commit(store, 1, large)
    assert storage.sent - sent < 4.2 * MEBIBYTE
    assert content(again(make).fetch(info)) == content(large)


def test_large_file_takes_less_than_twice_its_size(store, make, large, storage):
    previous = None
    size = (large / "model.bin").stat().st_size
    for index in range(12):
        for block in range(8):
            change(large, ((index + block) % 20) * MEBIBYTE)
        info = commit(store, index, large)
        if previous is not None:
            store.delete(previous.name, attempt=1)
        previous = info
        assert sum(len(value) for value in storage.values.values()) < 2 * size + 20_000
    assert content(again(make).fetch(previous)) == content(large)


def test_without_packing_a_large_file_is_one_object(make, large, storage):
    store = make(packing=None)
    commit(store, 0, large)
    change(large, 5000)
    commit(store, 1, large)
    assert storage.values["checkpoint_000001/model.bin"] == (large / "model.bin").read_bytes()


def test_a_piece_that_is_missing_or_damaged_is_found(store, make, large, storage):
    commit(store, 0, large)
    change(large, 5000)
    info = commit(store, 1, large)
    blocks = "checkpoint_000001/.trialpod-blocks-0000"
    whole = storage.values[blocks]
    storage.values[blocks] = bytes([whole[0] ^ 1]) + whole[1:]
    with pytest.raises(CheckpointError, match=r"checksum of model\.bin"):
        again(make).fetch(info)
    storage.values[blocks] = whole[:100]
    with pytest.raises(CheckpointError, match=r"ends within model\.bin"):
        again(make).fetch(info)
    del storage.values[blocks]
    with pytest.raises(CheckpointError, match="blocks-0000 is missing"):
        again(make).fetch(info)


def test_first_checkpoint_of_an_attempt_is_server_copied(store, make, large, storage):
    for number in range(100):
        (large / f"small{number}").write_bytes(os.urandom(1000))
    first = commit(store, 0, large)
    change(large, 5 * MEBIBYTE)
    (large / "small7").write_bytes(os.urandom(1000))
    other = again(make)
    assert other.latest_valid([first])[0] == first
    sent = storage.sent
    info = commit(other, 1, large, attempt=2)
    assert storage.sent - sent < 1.2 * MEBIBYTE
    store.delete(first.name)
    assert content(again(make).fetch(info)) == content(large)
    assert all(not key.startswith("checkpoint_000000") for key in storage.values)


def test_changed_copy_or_missing_object_is_uploaded(store, make, large, storage):
    first = commit(store, 0, large)
    for spoil in ("copy", "object"):
        other = again(make)
        folder = other.fetch(first)
        if spoil == "copy":
            change(folder, 5 * MEBIBYTE + 7000)
        else:
            storage.before = fail_on("copy", "model.bin", StorageError)
        index = 1 if spoil == "copy" else 2
        info = commit(other, index, large, attempt=index + 1)
        assert content(again(make).fetch(info)) == content(large)
        assert storage.values[f"{info.name}/model.bin"] == (large / "model.bin").read_bytes()


def test_many_small_files_are_copied_into_one_for_the_snapshot(make, source, tmp_path):
    for number in range(100):
        (source / f"small{number}").write_bytes(os.urandom(number))
    before = content(source)
    store = make()
    assert store.snapshot(0, source) == sum(len(data) for data in before.values() if data is not None)
    (folder,) = (tmp_path / "scratch").glob("*/checkpoint_000000-*")
    assert len([path for path in folder.rglob("*") if path.is_file()]) == 2  # the pack, and what is no small file
    (source / "small7").unlink()
    assert content(again(make).fetch(commit(store, 0))) == before


def test_blocks_whose_answer_was_lost_are_replaced(store, make, large, storage):
    commit(store, 0, large)
    change(large, 5000)
    storage.after = fail_on("put_file", "blocks")
    store.snapshot(1, large)
    with pytest.raises(StorageUnavailableError):
        commit(store, 1)
    info = commit(store, 1)
    assert [key for key in storage.values if key.startswith(f"{info.name}/") and "blocks" in key] == [
        f"{info.name}/.trialpod-blocks-0000"
    ]
    assert content(make().fetch(info)) == content(large)


def test_sweeping_ends_uploads_in_parts_that_a_dead_attempt_left(store, make, large, storage):
    first = commit(store, 0, large)
    storage.before = fail_on("put_file", "model", Died)
    change(large, 0, 20 * MEBIBYTE)
    with pytest.raises(Died):
        commit(make(), 1, large)
    storage.before = lambda name, key: None
    storage.calls.clear()
    assert again(make).sweep([first.name]) == ["checkpoint_000001"]
    aborted = [key for name, key in storage.calls if name == "abort_uploads"]
    assert aborted[:2] == ["checkpoint_000001/", "checkpoint_000001/model.bin"]


def test_deleted_index_is_never_used_again(store, source):
    for index in range(20):
        commit(store, index, source)
        (source / "weights.bin").write_bytes(os.urandom(1000))
        if index >= 2:
            store.delete(f"checkpoint_{index - 2:06d}", attempt=1)
    assert len(store._claimed) <= 4
    store.delete("checkpoint_000019", attempt=1)
    assert store.first_free_index(0) == 20


@pytest.fixture
def place(storage):
    """An experiment's location; its trials' folders are in it."""
    storage.write(EXPERIMENT_KEY, b"{}")
    return storage


def test_checkpoint_after_experiment_deletion_is_removed(make, place, source):
    store = make(over=place.sub("trial"), experiment=place)
    commit(store, store.reserve(0, attempt=1), source)
    assert len(store.committed()) == 1
    place.values.clear()
    with pytest.raises(SupersededError, match="was deleted, or its experiment"):
        commit(store, 1, source)
    assert place.list() == []


def test_reservation_after_experiment_deletion_is_undone(make, place):
    store = make(over=place.sub("trial"), experiment=place)
    place.values.clear()
    with pytest.raises(SupersededError, match="was deleted, or its experiment"):
        store.reserve(0, attempt=1)
    assert place.list() == []


def test_a_look_that_fails_is_made_again_with_the_same_commit(make, place, source):
    store = make(over=place.sub("trial"), experiment=place)
    place.before = fail_on("exists", EXPERIMENT_KEY)
    with pytest.raises(StorageUnavailableError):
        commit(store, 0, source)
    place.values.clear()
    with pytest.raises(SupersededError):
        commit(store, 0)
    assert place.list() == []


def test_keys_without_access_to_the_experiment_suffice(make, place, source):
    def deny(name, key):
        if name == "exists" and key == EXPERIMENT_KEY:
            raise StorageDeniedError("denied")

    store = make(over=place.sub("trial"), experiment=place)
    place.before = deny
    assert commit(store, store.reserve(0, attempt=1), source) in store.committed()
