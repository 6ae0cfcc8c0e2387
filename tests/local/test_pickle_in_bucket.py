"""A Trainable that travels to the pods as a pickle in a bucket, with the options of the assignment."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest
from minio_server import ACCESS_KEY, SECRET_KEY, MinioServer

from trialpod import tune
from trialpod.errors import TrainableError
from trialpod.protocol.messages import TrainableRef
from trialpod.protocol.packed import pack
from trialpod.runner.load import load_trainable
from trialpod.storage.base import StorageUnavailableError
from trialpod.storage.options import StorageOptions
from trialpod.tune.shipping import stored_objects
from trialpod.tune.shipping.package import pack_trainable

pytestmark = [pytest.mark.local, pytest.mark.once]

DATA = pack(cloudpickle.dumps(lambda config: config["x"] + 1), name="f", cloudpickle=cloudpickle.__version__)
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with MinioServer(tmp_path_factory.mktemp("minio")) as started:
        started.storage("s3://code/team").write("trainable.pkl", DATA)
        yield started


@pytest.fixture
def options(server: MinioServer, tmp_path: Path) -> dict[str, Any]:
    """As the assignment carries them: the keys are files of a mounted Secret."""
    (tmp_path / "AWS_ACCESS_KEY_ID").write_text(ACCESS_KEY)
    (tmp_path / "AWS_SECRET_ACCESS_KEY").write_text(SECRET_KEY)
    made = StorageOptions(endpoint=server.endpoint, credentials_dir=str(tmp_path), retry_s=0.0)
    data: dict[str, Any] = msgspec.to_builtins(made)
    return data


def test_it_is_read_verified_and_loaded(options: dict[str, Any]) -> None:
    found: Any = load_trainable(TrainableRef(pickle="s3://code/team/trainable.pkl", sha256=DIGEST), options)
    assert found({"x": 1}) == 2


def test_one_that_was_exchanged_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(TrainableError, match="was changed after it had been submitted"):
        load_trainable(TrainableRef(pickle="s3://code/team/trainable.pkl", sha256="f" * 64), options)


def test_one_that_is_gone_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(TrainableError, match=r"s3://code/team/other.pkl cannot be read"):
        load_trainable(TrainableRef(pickle="s3://code/team/other.pkl", sha256=DIGEST), options)


def test_a_store_that_is_away_is_not_the_codes_fault(options: dict[str, Any]) -> None:
    options["endpoint"] = "http://127.0.0.1:9"
    with pytest.raises(StorageUnavailableError):
        load_trainable(TrainableRef(pickle="s3://code/team/trainable.pkl", sha256=DIGEST, path=["/away"]), options)


@pytest.fixture
def ref(server: MinioServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainableRef:
    """A Trainable with a large parameter, both in the bucket."""
    monkeypatch.setattr(stored_objects, "_loaded", {})
    data = bytes(range(256)) * 20_000
    packed = pack_trainable(tune.with_parameters(lambda config, data: len(data), data=data), tmp_path)
    storage = server.storage("s3://code/params")
    storage.put_file(tmp_path / "trainable.pkl", "trainable.pkl")
    for file in (tmp_path / "objects").iterdir():
        storage.put_file(file, f"objects/{file.name}")
    return TrainableRef(pickle="s3://code/params/trainable.pkl", sha256=packed.sha256, path=[str(tmp_path)])


def test_a_large_parameter_is_read_from_beside_it(ref: TrainableRef, options: dict[str, Any]) -> None:
    found: Any = load_trainable(ref, options)
    assert found({}) == 5_120_000


def test_replaced_or_missing_large_parameter_is_named(
    ref: TrainableRef, options: dict[str, Any], server: MinioServer
) -> None:
    storage = server.storage("s3://code/params")
    (key,) = storage.list("objects")
    storage.write(key, b"other")
    with pytest.raises(TrainableError, match="is damaged: its contents have another checksum"):
        load_trainable(ref, options)
    storage.delete(key)
    with pytest.raises(TrainableError, match=r"an object of the Trainable, s3://code/params/objects.*cannot be read"):
        load_trainable(ref, options)
