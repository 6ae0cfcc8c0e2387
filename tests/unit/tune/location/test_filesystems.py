from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trialpod.errors import InvalidInputError, NotSupportedError
from trialpod.storage.s3.routes import endpoint_of, forget, region_of
from trialpod.tune import Checkpoint, RunConfig
from trialpod.tune.location.filesystems import uri_of

# Stand-ins with the attributes by which objects of pyarrow 24 and s3fs 2026.6 tell what they are.


class LocalFileSystem:
    pass


class S3FileSystem:
    def __init__(self, **options: Any) -> None:
        self.options = {"access_key": None, "secret_key": None, "endpoint_override": "", "scheme": "https", **options}

    def __reduce__(self) -> tuple[Any, ...]:
        return S3FileSystem, (self.options,)


class SubTreeFileSystem:
    def __init__(self, base_path: str, base_fs: Any) -> None:
        self.base_path, self.base_fs = base_path, base_fs


class FromFsspec:
    protocol = ("s3", "s3a")
    key, secret, token, endpoint_url, anon = "id", "word", None, None, False
    client_kwargs = {"endpoint_url": "http://minio:9000", "region_name": "eu"}  # noqa: RUF012


class PyFileSystem:
    class Handler:
        fs = FromFsspec()

    handler = Handler()


class Memory:
    protocol = "memory"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "before")
    forget()
    yield
    forget()


def keys() -> list[str | None]:
    return [os.environ.get(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")]


class TestS3:
    def test_pyarrow_tells_server_region_and_keys(self) -> None:
        made = S3FileSystem(
            access_key="id", secret_key="word", endpoint_override="minio:9000", scheme="http", region="eu"
        )
        config = RunConfig(storage_path="ml/runs", storage_filesystem=made)
        assert (config.storage_path, config.storage_filesystem) == ("s3://ml/runs", None)
        assert (endpoint_of("s3://ml/x"), region_of("s3://ml/x")) == ("http://minio:9000", "eu")
        assert keys() == ["id", "word", None]

    def test_without_keys_those_of_the_environment_stay(self) -> None:
        assert uri_of("here", "ml/runs", S3FileSystem(region="eu")) == "s3://ml/runs"
        assert endpoint_of("s3://ml") == ""
        assert keys() == ["before"] * 3

    @pytest.mark.parametrize("filesystem", [FromFsspec(), PyFileSystem()])
    def test_fsspec_too_also_within_pyarrow(self, filesystem: Any) -> None:
        assert uri_of("here", "ml/runs", filesystem) == "s3://ml/runs"
        assert endpoint_of("s3://ml") == "http://minio:9000"
        assert keys() == ["id", "word", None]

    def test_a_part_of_a_file_system(self) -> None:
        assert uri_of("here", "runs", SubTreeFileSystem("ml/", S3FileSystem())) == "s3://ml/runs"

    def test_a_checkpoint_in_it(self) -> None:
        assert Checkpoint("ml/one", filesystem=S3FileSystem()).path == "s3://ml/one"


class TestOthers:
    def test_this_machine(self, tmp_path: Path) -> None:
        assert uri_of("here", tmp_path, LocalFileSystem()) == str(tmp_path)

    def test_what_is_neither_is_refused(self) -> None:
        with pytest.raises(NotSupportedError, match="a Memory is not supported; give storage_path a folder"):
            RunConfig(storage_path="x", storage_filesystem=Memory())
        with pytest.raises(NotSupportedError, match="anonymous"):
            uri_of("here", "ml", S3FileSystem(anonymous=True))

    def test_a_path_is_needed_without_scheme(self) -> None:
        with pytest.raises(InvalidInputError, match="give storage_path too"):
            RunConfig(storage_filesystem=LocalFileSystem())
        with pytest.raises(InvalidInputError, match="'ml/runs'"):
            uri_of("here", "s3://ml/runs", S3FileSystem())
