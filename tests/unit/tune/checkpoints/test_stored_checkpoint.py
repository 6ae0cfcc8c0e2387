from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from trialpod.errors import CheckpointError, NotSupportedError
from trialpod.protocol.messages import CheckpointInfo
from trialpod.storage.checkpoints.remote import RemoteCheckpointStore
from trialpod.storage.directory import DirectoryStorage
from trialpod.tune.checkpoints import remote_folders
from trialpod.tune.checkpoints.checkpoint import Checkpoint, StoredCheckpoint


@pytest.fixture
def trial_uri(request: pytest.FixtureRequest) -> str:
    return f"s3://bucket/exp/{request.node.name}"


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryStorage:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TRIALPOD_SCRATCH_DIR", str(tmp_path / "scratch"))
    return DirectoryStorage(tmp_path / "remote")


@pytest.fixture
def info(storage: DirectoryStorage) -> CheckpointInfo:
    store = RemoteCheckpointStore(storage)
    folder = store.begin(0)
    (folder / "inner").mkdir()
    (folder / "model").write_text("weights")
    (folder / "inner" / "state").write_text("more")
    made = store.commit(0, iteration=3, metrics={"loss": 1.0}, attempt=1, time=1.0)
    store.close()
    return made


def test_nothing_is_fetched_before_it_is_used_and_then_once(
    trial_uri: str, storage: DirectoryStorage, info: CheckpointInfo, tmp_path: Path
) -> None:
    first, second = (StoredCheckpoint(trial_uri, info, storage) for _ in range(2))
    assert repr(first) == f"Checkpoint(uri='{trial_uri}/checkpoint_000000')"
    assert first == second
    assert len({first, second}) == 1
    assert os.listdir(tmp_path / "scratch") == []
    with first.as_directory() as folder:
        assert Path(folder, "model").read_text() == "weights"
        assert folder.startswith(str(tmp_path / "scratch"))
    assert second.path == first.path
    assert first.get_metadata() == {}


def test_a_directory_gets_the_files_without_a_second_copy(
    trial_uri: str, storage: DirectoryStorage, info: CheckpointInfo, tmp_path: Path
) -> None:
    checkpoint = StoredCheckpoint(trial_uri, info, storage)
    target = checkpoint.to_directory(tmp_path / "mine")
    assert Path(target, "inner", "state").read_text() == "more"
    assert os.listdir(tmp_path / "scratch") == []


def test_damage_is_found_and_leaves_nothing_behind(
    trial_uri: str, storage: DirectoryStorage, info: CheckpointInfo, tmp_path: Path
) -> None:
    for key in storage.list("checkpoint_000000"):
        if b"weights" in storage.read(key):
            storage.write(key, storage.read(key).replace(b"weights", b"damaged"))
    checkpoint = StoredCheckpoint(trial_uri, info, storage)
    with pytest.raises(CheckpointError, match="checksum of model does not match"):
        checkpoint.to_directory(tmp_path / "mine")
    assert os.listdir(tmp_path / "mine") == []
    with pytest.raises(CheckpointError, match="checksum of model does not match"):
        _ = checkpoint.path


def test_one_that_was_removed_is_named(trial_uri: str, storage: DirectoryStorage, info: CheckpointInfo) -> None:
    storage.delete_tree("checkpoint_000000")
    with pytest.raises(CheckpointError, match=r"checkpoint_000000.* does not exist"):
        _ = StoredCheckpoint(trial_uri, info, storage).path


def test_it_travels_by_its_uri(trial_uri: str, storage: DirectoryStorage, info: CheckpointInfo) -> None:
    checkpoint = StoredCheckpoint(trial_uri, info, storage)
    local = checkpoint.path
    copy = pickle.loads(pickle.dumps(checkpoint))
    assert copy == checkpoint
    assert local not in str(copy.__dict__)


def test_metadata_of_a_trials_checkpoint_in_a_bucket_stays(
    trial_uri: str, storage: DirectoryStorage, info: CheckpointInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_folders, "open_storage", lambda _uri: storage.sub(info.name))
    with pytest.raises(NotSupportedError, match="stored by a trial and cannot be changed; change a copy"):
        Checkpoint(f"{trial_uri}/{info.name}").update_metadata({"a": 1})
    copy = Checkpoint(StoredCheckpoint(trial_uri, info, storage).to_directory())
    copy.update_metadata({"a": 1})
    assert copy.get_metadata() == {"a": 1}
