from __future__ import annotations

import logging
import math
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from trialpod.errors import CheckpointError, SupersededError
from trialpod.storage.checkpoints import open_checkpoints
from trialpod.storage.directory import DirectoryStorage
from trialpod.storage.layout import MANIFEST_FILE
from trialpod.tune.checkpoints.checkpoint import METADATA_FILE, Checkpoint


@pytest.fixture
def trial(tmp_path):
    return tmp_path / "trial"


@pytest.fixture
def store(trial):
    return open_checkpoints(DirectoryStorage(trial))


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "empty folder").mkdir()
    (folder / "weights.bin").write_bytes(os.urandom(600_000))
    (folder / "empty").write_bytes(b"")
    (folder / "a" / "b" / "deep ü.txt").write_text("deep")
    return folder


def commit(store, index, source=None, attempt=1, **metrics):
    if source is not None:
        store.snapshot(index, source)
    return store.commit(index, iteration=index + 1, metrics=metrics, attempt=attempt, time=5.0)


def content(folder):
    found = {}
    for root, folders, files in os.walk(folder):
        for name in folders:
            found[os.path.relpath(os.path.join(root, name), folder)] = None
        for name in files:
            if name != MANIFEST_FILE:
                with open(os.path.join(root, name), "rb") as file:
                    found[os.path.relpath(os.path.join(root, name), folder)] = file.read()
    return found


def test_a_committed_folder_comes_back_as_it_was(store, source, trial):
    info = commit(store, 3, source, loss=0.5)
    assert (info.name, info.index, info.iteration, info.attempt, info.time) == ("checkpoint_000003", 3, 4, 1, 5.0)
    assert info.size == 600_004
    assert store.fetch(info) == trial / "checkpoint_000003"
    assert content(store.fetch(info)) == content(source)
    assert store.committed() == [info]
    assert os.listdir(trial) == ["checkpoint_000003"]


def test_what_was_written_in_the_begun_folder_is_committed(store, trial):
    folder = store.begin(0)
    assert os.listdir(folder) == []
    assert trial in folder.parents
    (folder / "sub").mkdir()
    (folder / "sub" / "x").write_bytes(b"x")
    assert store.committed() == []
    info = commit(store, 0)
    assert content(store.fetch(info)) == {"sub": None, "sub/x": b"x"}
    assert not folder.exists()


def test_the_begun_folder_may_be_named_as_the_source(store):
    folder = store.begin(0)
    (folder / "x").write_bytes(b"x")
    assert content(store.fetch(commit(store, 0, folder))) == {"x": b"x"}


def test_a_source_after_begin_is_copied_into_the_begun_folder(store, source, trial):
    store.begin(0)
    assert content(store.fetch(commit(store, 0, source))) == content(source)
    assert os.listdir(trial) == ["checkpoint_000000"]


def test_begin_again_throws_away_what_was_written(store):
    (store.begin(0) / "old").write_bytes(b"x")
    (store.begin(0) / "new").write_bytes(b"y")
    assert content(store.fetch(commit(store, 0))) == {"new": b"y"}


def test_an_empty_checkpoint_is_a_checkpoint(store):
    store.begin(0)
    info = commit(store, 0)
    assert info.size == 0
    assert content(store.fetch(info)) == {}


def test_only_scalar_metrics_are_kept_and_no_float_is_lost(store):
    store.begin(0)
    metrics = {
        "nan": math.nan,
        "inf": math.inf,
        "low": -math.inf,
        "n": 3,
        "s": "x",
        "none": None,
        "l": [1],
        "b": True,
    }
    commit(store, 0, **metrics)
    (info,) = store.committed()
    assert math.isnan(info.metrics.pop("nan"))
    assert info.metrics == {"inf": math.inf, "low": -math.inf, "n": 3, "s": "x", "none": None, "b": True}


def test_later_changes_to_the_source_do_not_reach_the_checkpoint(store, source):
    before = content(source)
    info = commit(store, 0, source)
    with open(source / "weights.bin", "r+b") as file:
        file.write(b"changed")
    assert content(store.fetch(info)) == before


def test_a_committed_checkpoint_is_never_replaced(store, source, trial):
    info = commit(store, 0, source)
    other = open_checkpoints(DirectoryStorage(trial))
    with pytest.raises(SupersededError, match=r"committed by attempt 1; .* never replaced"):
        other.begin(0)
    with pytest.raises(SupersededError, match="never replaced"):
        commit(other, 0, source, attempt=2)
    assert store.fetch(info)


def test_first_commit_of_an_index_wins(trial):
    stores = [open_checkpoints(DirectoryStorage(trial)) for _ in range(2)]
    for number, store in enumerate(stores):
        (store.begin(0) / "who").write_text(str(number))
    info = commit(stores[1], 0, attempt=2)
    with pytest.raises(CheckpointError, match="committed by attempt 2"):
        commit(stores[0], 0, attempt=1)
    assert content(stores[0].fetch(info)) == {"who": b"1"}
    assert os.listdir(trial) == ["checkpoint_000000"]


def test_content_without_manifest_in_the_way_is_not_overwritten(store, trial):
    (trial / "checkpoint_000000").mkdir(parents=True)
    (trial / "checkpoint_000000" / "data").write_bytes(b"x")
    store.begin(0)
    with pytest.raises(CheckpointError, match="in the way"):
        commit(store, 0)
    assert (trial / "checkpoint_000000" / "data").exists()


def test_committing_what_was_not_begun_is_refused(store):
    with pytest.raises(CheckpointError, match=r"call begin\(4\)"):
        commit(store, 4)


def damage_missing(folder):
    (folder / "weights.bin").unlink()


def damage_flip(folder):
    data = bytearray((folder / "weights.bin").read_bytes())
    data[300_000] ^= 4
    (folder / "weights.bin").write_bytes(data)


def damage_short(folder):
    os.truncate(folder / "weights.bin", 10)


def damage_manifest(folder):
    os.truncate(folder / MANIFEST_FILE, 100)


def damage_metrics(folder):
    data = (folder / MANIFEST_FILE).read_bytes()
    (folder / MANIFEST_FILE).write_bytes(data.replace(b'"iteration":3', b'"iteration":4'))


def damage_incomplete(folder):
    (folder / MANIFEST_FILE).unlink()


def damage_folder(folder):
    (folder / "empty folder").rmdir()


def damage_gone(folder):
    shutil.rmtree(folder)


DAMAGES = {
    damage_missing: "weights.bin is missing",
    damage_flip: "checksum of weights.bin",
    damage_short: "has 10 bytes instead of 600000",
    damage_manifest: "damaged",
    damage_metrics: "checksum does not match",
    damage_incomplete: "no manifest",
    damage_folder: "folder empty folder is missing",
    damage_gone: "does not exist",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_and_previous_checkpoint_is_latest(store, source, trial, damage):
    infos = [commit(store, index, source) for index in range(3)]
    damage(trial / "checkpoint_000002")
    left = sorted(os.listdir(trial))
    with pytest.raises(CheckpointError, match=DAMAGES[damage]):
        store.fetch(infos[2])
    newest, warnings = store.latest_valid(infos)
    assert newest == infos[1]
    assert len(warnings) == 1
    assert "checkpoint_000002" in warnings[0]
    assert sorted(os.listdir(trial)) == left


def test_without_a_valid_checkpoint_each_is_warned_about(store, source, trial):
    infos = [commit(store, index, source) for index in range(2)]
    for info in infos:
        damage_missing(trial / info.name)
    assert store.latest_valid(infos)[0] is None
    assert len(store.latest_valid(infos)[1]) == 2
    assert store.latest_valid([]) == (None, [])


def test_same_named_checkpoint_of_another_attempt_is_ignored(store, source):
    info = commit(store, 0, source, attempt=1)
    store.delete(info.name)
    commit(store, 0, source, attempt=2)
    with pytest.raises(CheckpointError, match="written by attempt 2"):
        store.fetch(info)


def test_files_added_later_do_not_matter(store, source, trial):
    info = commit(store, 0, source)
    (trial / "checkpoint_000000" / "notes.txt").write_text("mine")
    assert store.fetch(info)


def test_a_damaged_manifest_is_logged_and_not_listed(store, source, trial, caplog):
    infos = [commit(store, index, source) for index in range(2)]
    damage_manifest(trial / "checkpoint_000001")
    with caplog.at_level(logging.WARNING):
        assert store.committed() == [infos[0]]
    assert "checkpoint_000001" in caplog.text


def test_sweeping_removes_what_nobody_knows_and_keeps_the_rest(store, source, trial):
    known = commit(store, 0, source)
    damaged = commit(store, 1, source)
    commit(store, 2, source)
    damage_manifest(trial / damaged.name)
    (trial / "checkpoint_000003").mkdir()
    (trial / "result.json").write_text("{}")
    (trial / "checkpoint_000004").write_text("a file of the user")
    dead = open_checkpoints(DirectoryStorage(trial)).begin(9)
    own = store.begin(10)
    removed = store.sweep([known.name, damaged.name])
    assert set(removed) >= {"checkpoint_000002", "checkpoint_000003", dead.name}
    assert own.exists()
    assert not dead.exists()
    assert store.fetch(known)
    assert (trial / damaged.name).exists()
    assert (trial / "result.json").exists()
    assert (trial / "checkpoint_000004").exists()


def test_deleting_removes_one_and_is_repeatable(store, source, trial):
    infos = [commit(store, index, source) for index in range(2)]
    store.delete(infos[0].name)
    store.delete(infos[0].name)
    assert os.listdir(trial) == ["checkpoint_000001"]


@pytest.mark.parametrize("name", ["result.json", "..", "checkpoint_1", "a/checkpoint_000001"])
def test_only_checkpoints_can_be_deleted(store, name):
    with pytest.raises(CheckpointError, match="not the name of a checkpoint"):
        store.delete(name)


def test_an_attempt_may_not_delete_what_a_later_one_wrote(store, source):
    info = commit(store, 0, source, attempt=2)
    with pytest.raises(CheckpointError, match="written by attempt 2"):
        store.delete(info.name, attempt=1)
    store.delete(info.name, attempt=3)
    assert store.committed() == []


def test_the_first_free_index_is_above_every_directory(store, source, trial):
    assert store.first_free_index(0) == 0
    commit(store, 2, source)
    assert (store.first_free_index(0), store.first_free_index(7)) == (3, 7)
    (trial / "checkpoint_000008").mkdir()
    assert store.first_free_index(0) == 9


def test_a_fetched_checkpoint_can_be_committed_again(store, source):
    first = commit(store, 0, source)
    second = commit(store, 1, store.fetch(first))
    assert content(store.fetch(second)) == content(source)


def test_links_are_followed_and_hard_links_broken(store, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "data").write_bytes(b"old")
    folder = store.begin(0)
    (folder / "file").symlink_to(outside / "data")
    (folder / "folder").symlink_to(outside)
    os.link(outside / "data", folder / "hard")
    first = commit(store, 0)
    second = commit(store, 1, store.fetch(first))
    (outside / "data").write_bytes(b"new")
    expected = {"file": b"old", "folder": None, "folder/data": b"old", "hard": b"old"}
    assert content(store.fetch(first)) == content(store.fetch(second)) == expected


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: (folder / "x").symlink_to("nowhere"), "symbolic link to nowhere, which does not exist"),
        (lambda folder: (folder / "x").symlink_to("x"), "leads back to itself"),
        (lambda folder: (folder / "x").symlink_to(folder), "links to a folder that contains it"),
        (lambda folder: os.mkfifo(folder / "x"), "a socket, a pipe or a device"),
    ],
)
def test_what_cannot_be_copied_is_named_and_nothing_is_left(store, trial, tmp_path, begun, make, message):
    folder = store.begin(0) if begun else tmp_path / "source"
    folder.mkdir(exist_ok=True)
    (folder / "good").write_bytes(b"x")
    make(folder)
    with pytest.raises(CheckpointError, match=message):
        commit(store, 0, None if begun else folder)
    assert not trial.exists() or os.listdir(trial) == []


def test_a_source_that_is_missing_is_a_checkpoint_error(store, tmp_path, trial):
    with pytest.raises(CheckpointError, match="vanished"):
        commit(store, 0, tmp_path / "none")
    assert not trial.exists()


def test_vanishing_source_is_an_error_and_leaves_nothing(store, source, trial, monkeypatch):
    real = os.copy_file_range

    def vanish(*arguments):
        shutil.rmtree(source, ignore_errors=True)
        return real(*arguments)

    monkeypatch.setattr(os, "copy_file_range", vanish)
    with pytest.raises(CheckpointError, match="vanished"):
        commit(store, 0, source)
    assert os.listdir(trial) == []


def test_an_abandoned_checkpoint_leaves_nothing(store, trial):
    store.begin(0)
    store.abandon(0)
    store.abandon(0)
    assert os.listdir(trial) == []


def test_snapshot_is_independent_of_its_source(store, source, trial):
    before = content(source)
    assert store.snapshot(0, source) == 600_004
    (source / "weights.bin").write_bytes(b"changed")
    assert store.committed() == []
    assert content(store.fetch(commit(store, 0))) == before
    assert os.listdir(trial) == ["checkpoint_000000"]


def test_snapshot_of_the_open_folder_breaks_outside_links(store, tmp_path):
    (tmp_path / "outside").write_bytes(b"old")
    folder = store.begin(0)
    os.link(tmp_path / "outside", folder / "hard")
    (folder / "soft").symlink_to(tmp_path / "outside")
    store.snapshot(0)
    (tmp_path / "outside").write_bytes(b"new")
    assert content(store.fetch(commit(store, 0))) == {"hard": b"old", "soft": b"old"}


def test_a_snapshot_that_fails_leaves_nothing(store, source, trial):
    os.mkfifo(source / "pipe")
    with pytest.raises(CheckpointError, match="a pipe"):
        store.snapshot(0, source)
    assert not trial.exists()


def test_verified_checkpoint_is_kept_and_not_verified_again(store, source, trial, monkeypatch):
    infos = [commit(store, index, source) for index in range(2)]
    found, _ = store.latest_valid(infos)
    with pytest.raises(CheckpointError, match="is being read"):
        store.delete(found.name)
    monkeypatch.setattr("trialpod.storage.checkpoints.local.checksum_file", None)
    assert store.fetch(found) == trial / found.name
    store.delete(found.name)
    assert store.committed() == infos[:1]


class TestMetadataOfACommittedCheckpoint:
    @pytest.mark.parametrize("before", [None, {"a": 1}])
    def test_may_change(self, store, source, before):
        if before is not None:
            Checkpoint(source).set_metadata(before)
        info = commit(store, 0, source, loss=math.nan)
        Checkpoint(store.fetch(info)).update_metadata({"b": 2})
        assert store.latest_valid([info]) == (info, [])
        assert Checkpoint(store.fetch(info)).get_metadata() == {**(before or {}), "b": 2}
        assert str(store.committed()) == str([info])
        (store.fetch(info) / METADATA_FILE).write_text("{}")
        with pytest.raises(CheckpointError, match=f"damaged: {METADATA_FILE} has 2 bytes"):
            store.verify(info)

    def test_may_be_changed_by_several_at_once(self, store, source):
        info = commit(store, 0, source)
        checkpoint = Checkpoint(store.fetch(info))
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: checkpoint.set_metadata({"n": "x" * number}), range(40)))
        store.verify(info)
        assert sorted(os.listdir(checkpoint)) == sorted([*os.listdir(source), METADATA_FILE, MANIFEST_FILE])
