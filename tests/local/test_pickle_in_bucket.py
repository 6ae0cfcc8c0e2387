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

from trialpod.errors import TrainableError
from trialpod.protocol.messages import TrainableRef
from trialpod.protocol.packed import pack
from trialpod.runner.load import load_trainable
from trialpod.storage.base import StorageUnavailableError
from trialpod.storage.options import StorageOptions

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
