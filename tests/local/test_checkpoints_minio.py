"""Checkpoints on a real MinIO server: commit, restore, damage, two attempts, and the server killed in mid-upload."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from minio_server import MinioServer, environment_keys

from trialpod.errors import CheckpointError
from trialpod.protocol.messages import CheckpointInfo, CheckpointRules
from trialpod.storage.base import Storage
from trialpod.storage.checkpoints.commit_queue import CommitQueue
from trialpod.storage.checkpoints.remote import RemoteCheckpointStore
from trialpod.storage.options import StorageOptions
from trialpod.storage.s3.storage import S3Storage

pytestmark = [pytest.mark.local, pytest.mark.once]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with MinioServer(tmp_path_factory.mktemp("minio")) as running:
        yield running


@pytest.fixture(autouse=True)
def keys() -> Iterator[None]:
    with environment_keys():
        yield


@pytest.fixture
def storage(server: MinioServer, request: pytest.FixtureRequest) -> Iterator[Storage]:
    made = opened(server, request.node.name)
    yield made
    made.close()


def opened(server: MinioServer, name: str, **options: Any) -> S3Storage:
    clean = "".join(letter if letter.isalnum() else "-" for letter in name)
    return S3Storage.open(
        f"s3://checkpoints/{clean}", StorageOptions(endpoint=server.endpoint, create_bucket=True, **options)
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    (folder / "weights.bin").write_bytes(os.urandom(3_000_000))
    (folder / "sub" / "ü.txt").write_text("deep")
    (folder / "empty").write_bytes(b"")
    return folder


def commit(store: RemoteCheckpointStore, index: int, source: Path, attempt: int = 1) -> CheckpointInfo:
    store.snapshot(index, source)
    return store.commit(index, iteration=index, metrics={"i": index}, attempt=attempt, time=1.0)


def content(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")
    }


def test_what_is_committed_comes_back(storage: Storage, source: Path, tmp_path: Path) -> None:
    for number in range(300):
        (source / f"small{number}").write_bytes(os.urandom(100))
    info = commit(RemoteCheckpointStore(storage, scratch=tmp_path), 0, source)
    reader = RemoteCheckpointStore(storage, scratch=tmp_path)
    assert reader.committed() == [info]
    assert content(reader.fetch(info)) == content(source)
    assert len(storage.list("checkpoint_000000")) == 4


@pytest.mark.parametrize("damage", ["missing", "changed", "short"])
def test_damaged_objects_are_found_and_the_one_before_is_used(
    storage: Storage, source: Path, tmp_path: Path, damage: str
) -> None:
    store = RemoteCheckpointStore(storage, scratch=tmp_path)
    infos = []
    for index in range(2):
        (source / "weights.bin").write_bytes(os.urandom(3_000_000))
        infos.append(commit(store, index, source))
    key = "checkpoint_000001/weights.bin"
    if damage == "missing":
        storage.delete(key)
    else:
        storage.write(key, os.urandom(3_000_000 if damage == "changed" else 100))
    found, warnings = RemoteCheckpointStore(storage, scratch=tmp_path).latest_valid(infos)
    assert found == infos[0]
    assert len(warnings) == 1
    assert "checkpoint_000001" in warnings[0]


def test_one_of_two_concurrent_attempts_gets_the_index(storage: Storage, source: Path, tmp_path: Path) -> None:
    outcomes: list[CheckpointInfo | CheckpointError] = []

    def race(attempt: int) -> None:
        store = RemoteCheckpointStore(storage, scratch=tmp_path)
        try:
            outcomes.append(commit(store, 0, source, attempt))
        except CheckpointError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=race, args=(attempt,)) for attempt in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["CheckpointInfo", "SupersededError"]
    reader = RemoteCheckpointStore(storage, scratch=tmp_path)
    (info,) = reader.committed()
    assert content(reader.fetch(info)) == content(source)


def test_server_killed_in_mid_upload_costs_only_time(server: MinioServer, source: Path, tmp_path: Path) -> None:
    storage = opened(server, "killed", retry_s=1.0)
    store = RemoteCheckpointStore(storage, scratch=tmp_path)
    first = commit(store, 0, source)
    told: list[str] = []
    writer = CommitQueue(
        store,
        attempt=1,
        rules=CheckpointRules(num_to_keep=1),
        known=[first],
        announce=lambda info: told.append(info.name),
        deleted=told.extend,
        check=lambda: None,
    )
    (source / "weights.bin").write_bytes(os.urandom(40_000_000))
    size = store.snapshot(1, source)
    writer.submit(msgspec.structs.replace(first, name="checkpoint_000001", index=1, size=size))
    server.kill()
    assert told == []
    writer.wait_committed_or_unavailable(1)  # returns although nothing is stored: training continues
    server.start()
    assert writer.drain(lambda: None)
    assert told == ["checkpoint_000001", "checkpoint_000000"]
    reader = RemoteCheckpointStore(storage, scratch=tmp_path)
    (info,) = reader.committed()
    assert content(reader.fetch(info)) == content(source)
    writer.close()
    storage.close()
