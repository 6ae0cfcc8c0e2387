"""`Checkpoint.from_uri` and `to_uri` with a real MinIO server."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from minio_server import MinioServer, environment_keys

from trialpod.errors import CheckpointError
from trialpod.legacy.durable import DurableTrainable
from trialpod.storage.checkpoints.remote import RemoteCheckpointStore
from trialpod.storage.options import StorageOptions
from trialpod.storage.s3.storage import S3Storage
from trialpod.tune import Checkpoint, Trainable

pytestmark = [pytest.mark.local, pytest.mark.once]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with MinioServer(tmp_path_factory.mktemp("minio")) as running:
        yield running


@pytest.fixture
def storage(server: MinioServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Storage]:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    with environment_keys():
        made = S3Storage.open("s3://uris/exp", StorageOptions(endpoint=server.endpoint, create_bucket=True))
        yield made
        made.close()


@pytest.mark.usefixtures("storage")
def test_a_checkpoint_is_copied_to_a_bucket_and_read_from_there(tmp_path: Path) -> None:
    made = Checkpoint.from_dict({"step": 3})
    made.set_metadata({"epoch": 1})
    assert made.to_uri("s3://uris/own/one") == "s3://uris/own/one"
    found = Checkpoint.from_uri("s3://uris/own/one")
    assert found.to_dict() == {"step": 3}
    assert found.get_metadata() == {"epoch": 1}
    found.update_metadata({"epoch": 2})
    assert Checkpoint("s3://uris/own/one").get_metadata() == {"epoch": 2}
    with found.as_directory() as folder:
        assert Path(folder, "_dict_checkpoint.pkl").exists()
    assert not Path(folder).exists()
    assert Path(pickle.loads(pickle.dumps(found)).to_directory(tmp_path / "copy"), "_dict_checkpoint.pkl").exists()


@pytest.mark.usefixtures("storage")
def test_a_uri_with_nothing_there_says_so() -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint at s3://uris/own/none"):
        Checkpoint.from_uri("s3://uris/own/none").to_dict()


def test_a_trials_checkpoint_is_found_by_its_manifest(storage: S3Storage, tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"w" * 1000)
    store = RemoteCheckpointStore(storage.sub("trial"))
    store.snapshot(0, tmp_path)
    store.commit(0, iteration=1, metrics={"loss": 0.5}, attempt=1, time=1.0)
    found = Checkpoint.from_uri("s3://uris/exp/trial/checkpoint_000000")
    with found.as_directory() as folder:
        assert Path(folder, "weights").read_bytes() == b"w" * 1000


@pytest.mark.usefixtures("storage")
def test_a_durable_trainable_lives_in_a_bucket(tmp_path: Path) -> None:
    class Counter(DurableTrainable):
        def _setup(self, config: object) -> None:
            self.n = 0

        def _train(self) -> dict[str, int]:
            self.n += 1
            return {"n": self.n}

        def _save(self, checkpoint_dir: str) -> dict[str, int]:
            return {"n": self.n}

        def _restore(self, checkpoint: dict[str, int]) -> None:
            self.n = checkpoint["n"]

    first: Trainable = Counter("s3://uris/durable")
    first.train()
    first.save(str(tmp_path / "lost" / "checkpoint_1"))
    second: Trainable = Counter("s3://uris/durable")
    second.restore(str(tmp_path / "elsewhere" / "checkpoint_1"))
    result = second.train()
    assert (result["n"], result["training_iteration"]) == (2, 2)
    first.delete_checkpoint("checkpoint_1")
    with pytest.raises(CheckpointError):
        Counter("s3://uris/durable").restore("checkpoint_1")
