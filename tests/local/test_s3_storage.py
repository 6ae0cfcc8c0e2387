from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from minio_server import ACCESS_KEY, SECRET_KEY, Ca, FixedKeys, MinioServer, environment_keys

from trialpod.errors import StorageError
from trialpod.storage.base import (
    ConditionalWriteUnsupportedError,
    KeyChangedError,
    KeyExistsError,
    KeyMissingError,
    StorageUnavailableError,
)
from trialpod.storage.registry import open_storage
from trialpod.storage.s3.client import S3Client
from trialpod.storage.s3.storage import S3Storage

pytestmark = [pytest.mark.local, pytest.mark.once]

MEBIBYTE = 1024 * 1024
SMALL_PARTS = {"part_bytes": 5 * MEBIBYTE, "multipart_bytes": 6 * MEBIBYTE}
DOMAIN = "s3.localhost"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with MinioServer(tmp_path_factory.mktemp("minio")) as started:
        yield started


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    folder = tmp_path_factory.mktemp("minio-tls")
    ca = Ca(folder / "ca", (DOMAIN, f"*.{DOMAIN}"))
    with MinioServer(folder, ca=ca, domain=DOMAIN) as started:
        yield started


@pytest.fixture
def storage(server: MinioServer, request: pytest.FixtureRequest) -> S3Storage:
    return server.storage(f"s3://tests/{request.node.name}", **SMALL_PARTS)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(17 * MEBIBYTE + 3))
    return path


def round_trip(storage: S3Storage, large: Path) -> None:
    storage.write("small/a", b"one")
    assert storage.read("small/a") == b"one"
    checksum = zlib.crc32(large.read_bytes())
    assert storage.put_file(large, "large") == checksum
    back = large.with_name("back")
    assert storage.get_file("large", back) == checksum
    assert back.read_bytes() == large.read_bytes()
    assert storage.sizes() == {"large": large.stat().st_size, "small/a": 3}
    storage.delete_tree("small")
    storage.delete("large")
    assert storage.list() == []


@pytest.mark.parametrize("addressing", ["path", "virtual"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_http_and_https_work_with_both_address_styles(
    server: MinioServer, secure: MinioServer, large: Path, tmp_path: Path, scheme: str, addressing: str
) -> None:
    if scheme == "http" and addressing == "virtual":
        with MinioServer(tmp_path, domain=DOMAIN) as plain:
            round_trip(plain.storage("s3://virtual-plain/x", **SMALL_PARTS), large)
        return
    used = server if scheme == "http" else secure
    round_trip(used.storage(f"s3://by-{addressing}/x", addressing=addressing, **SMALL_PARTS), large)


def test_dialed_server_needs_no_address(secure: MinioServer, large: Path) -> None:
    """By a port-forward, say: the certificate and the signature are for the server's own name."""
    options = secure.options(endpoint=f"https://{DOMAIN}:1", addressing="path", **SMALL_PARTS).resolved({})
    dialed: list[float] = []

    def dial(timeout_s: float) -> socket.socket:
        dialed.append(timeout_s)
        return socket.create_connection(("127.0.0.1", secure.port))

    client = S3Client("dialed", options, credentials=secure.keys, dial=dial)
    try:
        round_trip(S3Storage.open("s3://dialed/x", client=client), large)
        assert set(dialed) == {options.connect_timeout_s}
    finally:
        client.close()


def test_a_value_is_replaced_read_in_part_and_removed(storage: S3Storage) -> None:
    storage.write("a/b", b"first")
    storage.write("a/b", b"second")
    assert storage.read("a/b") == b"second"
    assert storage.read_range("a/b", 2, 3) == b"con"
    assert storage.read_range("a/b", 4, 100) == b"nd"
    assert storage.read_range("a/b", 6, 1) == b""
    assert storage.exists("a/b")
    assert storage.exists("a")
    assert not storage.exists("b")
    storage.delete("a/b")
    storage.delete("a/b")
    assert not storage.exists("a/b")
    with pytest.raises(KeyMissingError, match="no such object"):
        storage.read("a/b")


def test_a_folder_is_found_behind_names_that_sort_between(storage: S3Storage) -> None:
    storage.write("trial-2/x", b"")
    assert not storage.exists("trial")
    storage.write("trial/x", b"")
    assert storage.exists("trial")


def test_only_the_folders_directly_below_are_listed(storage: S3Storage) -> None:
    for key in ("a/b/c/d", "a/b&ü 1/x", "a/file", "b/x"):
        storage.write(key, b"")
    assert storage.folders() == ["a", "b"]
    assert storage.folders("a") == ["b", "b&ü 1"]
    assert storage.folders("a/file") == storage.folders("none") == []


def test_keys_with_spaces_signs_and_unicode_work(storage: S3Storage) -> None:
    names = ["a b", "a+b", "a%20b", "a&b<c>'\"", "größe=0.1,ü", "日本", "x/~-_.!*()", "q?x=1#y"]
    for name in names:
        storage.write(name, name.encode())
    assert storage.list() == sorted(names)
    assert [storage.read(name).decode() for name in names] == names
    storage.delete_many(names)
    assert storage.list() == []


@pytest.mark.slow
def test_more_than_one_page_is_listed_and_removed(storage: S3Storage) -> None:
    from functools import partial

    from trialpod.storage.parallel import run_all

    keys = [f"k/{index:04}/x" for index in range(1003)]
    run_all((partial(storage.write, key, b"x") for key in keys), 8)
    assert storage.sizes("k") == dict.fromkeys(keys, 1)
    assert storage.folders("k") == [f"{index:04}" for index in range(1003)]
    storage.delete_tree("k")
    assert storage.list() == []


def test_a_folder_goes_there_and_back(storage: S3Storage, tmp_path: Path, large: Path) -> None:
    source = tmp_path / "source"
    (source / "a" / "b").mkdir(parents=True)
    (source / "empty").write_bytes(b"")
    (source / "a" / "b" / "ü").write_text("deep")
    shutil.copy(large, source / "a" / "large")
    storage.put_directory(source, "folder")
    storage.get_directory("folder", tmp_path / "back")
    subprocess.run(["diff", "-r", source, tmp_path / "back"], check=True)
    with pytest.raises(KeyMissingError):
        storage.get_directory("nowhere", tmp_path / "back")


def test_a_part_of_a_storage_has_its_own_root(storage: S3Storage) -> None:
    below = storage.sub("a").sub("b")
    below.write("c", b"x")
    assert storage.list() == ["a/b/c"]
    assert below.list() == ["c"]
    assert below.uri == f"{storage.uri}/a/b"


def test_an_empty_file_goes_there_and_back(storage: S3Storage, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    storage.put_file(tmp_path / "empty", "e")
    for size in (None, 0):
        storage.get_file("e", tmp_path / "back", size=size)
        assert (tmp_path / "back").read_bytes() == b""


def test_a_file_of_another_size_than_expected_is_refused(storage: S3Storage, tmp_path: Path, large: Path) -> None:
    storage.put_file(large, "large")
    with pytest.raises(StorageError, match="bytes instead of 7"):
        storage.get_file("large", tmp_path / "back", size=7)
    assert not (tmp_path / "back").exists()
    with pytest.raises(KeyMissingError):
        storage.get_file("missing", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_of_many_writers_of_a_new_key_one_wins(server: MinioServer) -> None:
    writers = 4
    storages = [server.storage("s3://tests/race", **SMALL_PARTS) for _ in range(writers)]
    start = threading.Barrier(writers)
    outcomes: list[str | None] = [None] * writers

    def write(index: int) -> None:
        start.wait()
        try:
            storages[index].write_new("key", bytes([index]))
            outcomes[index] = "won"
        except KeyExistsError:
            outcomes[index] = "lost"

    threads = [threading.Thread(target=write, args=(index,)) for index in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, outcomes)) == ["lost"] * (writers - 1) + ["won"]
    assert storages[0].read_range("key", 0, 1) == bytes([outcomes.index("won")])


def test_a_value_is_replaced_only_in_the_version_that_is_known(storage: S3Storage) -> None:
    first = storage.write_if("key", b"one", None)
    assert storage.read_version("key") == (b"one", first)
    second = storage.write_if("key", b"two", first)
    for stale in (first, None):
        with pytest.raises(KeyChangedError):
            storage.write_if("key", b"three", stale)
    assert storage.read_version("key") == (b"two", second)
    storage.delete("key")
    with pytest.raises(KeyChangedError):
        storage.write_if("key", b"three", second)
    assert not storage.exists("key")
    with pytest.raises(ConditionalWriteUnsupportedError):
        storage.write_if("key", b"three", "")


def test_of_many_who_replace_one_version_one_wins(server: MinioServer) -> None:
    storages = [server.storage("s3://tests/replaced", **SMALL_PARTS) for _ in range(4)]
    version = storages[0].write_if("key", b"first", None)
    start = threading.Barrier(len(storages))
    won: list[int] = []

    def write(index: int) -> None:
        start.wait()
        with contextlib.suppress(KeyChangedError):
            storages[index].write_if("key", bytes([index]), version)
            won.append(index)

    threads = [threading.Thread(target=write, args=(index,)) for index in range(len(storages))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [storages[0].read("key")] == [bytes([index]) for index in won]


def test_keys_come_from_environment_file_or_secret(server: MinioServer, tmp_path: Path) -> None:
    with environment_keys():
        open_storage("s3://sources/x", server.options()).write("environment", b"")
    file = tmp_path / "credentials"
    file.write_text(f"[team]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n")
    open_storage("s3://sources/x", server.options(credentials_file=str(file), profile="team")).write("file", b"")
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "AWS_ACCESS_KEY_ID").write_text(ACCESS_KEY + "\n")
    (secret / "AWS_SECRET_ACCESS_KEY").write_text(SECRET_KEY)
    opened = open_storage("s3://sources/x", server.options(credentials_dir=str(secret)))
    opened.write("secret", b"")
    assert opened.list() == ["environment", "file", "secret"]


def test_secret_rotated_at_run_time_is_used_at_once(tmp_path: Path) -> None:
    """As the kubelet does it: `..data` is a link to a folder, and is replaced by a rename."""
    mount = tmp_path / "mount"

    def publish(version: str, access: str, secret: str) -> None:
        folder = mount / f"..{version}"
        folder.mkdir(parents=True)
        (folder / "AWS_ACCESS_KEY_ID").write_text(access)
        (folder / "AWS_SECRET_ACCESS_KEY").write_text(secret)
        (mount / "..new").symlink_to(folder.name)
        (mount / "..new").rename(mount / "..data")

    publish("1", ACCESS_KEY, SECRET_KEY)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        (mount / name).symlink_to(f"..data/{name}")
    folder = tmp_path / "server"
    folder.mkdir()
    with MinioServer(folder) as server:
        storage = open_storage("s3://rotation/x", server.options(credentials_dir=str(mount)))
        storage.write("before", b"")
        server.keys = FixedKeys("second-user", "second-secret")
        server.restart()
        publish("2", "second-user", "second-secret")
        storage.write("after", b"")
        assert storage.list() == ["after", "before"]


def test_wrong_keys_are_named_with_where_they_came_from(server: MinioServer, tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailableError, match=r"refuses the credentials from the test: InvalidAccessKeyId"):
        server.storage("s3://tests", keys=FixedKeys("nobody", "nothing-at-all"))
    with pytest.raises(StorageError, match="SignatureDoesNotMatch"):
        server.storage("s3://tests", keys=FixedKeys(ACCESS_KEY, "wrong-secret"))


def test_a_missing_bucket_is_an_error_with_the_remedy_or_is_made(server: MinioServer) -> None:
    with pytest.raises(StorageError, match=r"bucket does not exist.*`createBucket: true`"):
        server.storage("s3://not-yet/x", create_bucket=False)
    server.storage("s3://not-yet/x", create_bucket=True)
    server.storage("s3://not-yet/x", create_bucket=False)


def test_unknown_certificate_authority_is_refused(secure: MinioServer) -> None:
    with pytest.raises(StorageError, match=r"is not trusted.*AWS_CA_BUNDLE"):
        secure.storage("s3://tests", ca_file="")


def test_the_wrong_scheme_in_the_endpoint_is_named(server: MinioServer, secure: MinioServer) -> None:
    with pytest.raises(StorageError, match="speaks TLS; write https://"):
        secure.storage("s3://tests", endpoint=secure.endpoint.replace("https", "http"), ca_file="")
    with pytest.raises(StorageError, match="does not speak TLS; write http://"):
        server.storage("s3://tests", endpoint=server.endpoint.replace("http", "https"))


def test_an_endpoint_where_nothing_listens_is_named(server: MinioServer) -> None:
    with pytest.raises(StorageUnavailableError, match=r"127.0.0.1:1 cannot be reached: nothing listens there"):
        server.storage("s3://tests", endpoint="http://127.0.0.1:1", retry_s=0.0)


def test_connections_of_a_parent_are_not_used_after_a_fork(storage: S3Storage) -> None:
    storage.write("a", b"parent")
    child = os.fork()
    if child == 0:
        try:
            storage.write("b", b"child")
            os._exit(0 if storage.read("a") == b"parent" else 2)
        finally:
            os._exit(1)
    assert storage.read("a") == b"parent"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert storage.list() == ["a", "b"]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(server: MinioServer, tmp_path: Path) -> None:
    path = tmp_path / "large"
    with open(path, "wb") as file:
        file.truncate(200 * MEBIBYTE)
    code = f"""
import resource, sys
from pathlib import Path
from trialpod.storage.registry import open_storage
from trialpod.storage.options import StorageOptions
storage = open_storage("s3://memory", StorageOptions(endpoint={server.endpoint!r}, create_bucket=True))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
storage.put_file(Path({str(path)!r}), "large")
storage.get_file("large", Path({str(path) + ".back"!r}))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    with environment_keys():
        grown = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, timeout=60).stdout
    assert int(grown) < 40 * 1024  # kB


def test_folder_storage_does_not_import_the_client(tmp_path: Path) -> None:
    code = f"""
import sys
from trialpod.storage.registry import open_storage
open_storage({str(tmp_path)!r}).write("a", b"")
print([name for name in sys.modules if name == "ssl" or ".s3" in name])
"""
    printed = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert printed.strip() == "[]"
