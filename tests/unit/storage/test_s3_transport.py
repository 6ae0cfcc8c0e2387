"""minio and its connections: there only where a bucket is used, closed when nobody uses them any more."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from trialpod.errors import StorageError
from trialpod.storage.options import StorageOptions
from trialpod.storage.s3.client import S3Client
from trialpod.storage.s3.credentials import Credentials
from trialpod.storage.s3.storage import S3Storage


class Keys:
    source = "the test"

    def get(self) -> Credentials:
        return Credentials("key", "secret")

    def refused(self, credentials: Credentials) -> bool:
        return False


class TestImports:
    def test_minio_is_not_imported_without_a_request(self) -> None:
        code = """
import sys
from trialpod.storage.registry import storage_class, open_storage
from trialpod.storage.s3.credentials import SuppliedCredentials
open_storage("s3://bucket/prefix", check=False).sub("trial")
print([name for name in ("minio", "urllib3", "ssl") if name in sys.modules])
"""
        printed = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout
        assert printed.strip() == "[]"

    def test_missing_package_is_named_with_the_remedy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "minio", None)
        monkeypatch.delitem(sys.modules, "trialpod.storage.s3.transport", raising=False)
        options = StorageOptions(endpoint="http://127.0.0.1:1").resolved({})
        with pytest.raises(StorageError, match=r"s3:// needs minio, .* pip install minio"):
            S3Storage(S3Client("bucket", options, credentials=Keys())).read("key")


@pytest.mark.parametrize(
    ("options", "url"),
    [
        (StorageOptions(region="eu-west-1"), "https://my-bucket.s3.eu-west-1.amazonaws.com/a%20b/c?uploadId=x%2F"),
        (StorageOptions(endpoint="http://minio:9000"), "http://minio:9000/my-bucket/a%20b/c?uploadId=x%2F"),
        (StorageOptions(endpoint="http://[::1]:9000"), "http://[::1]:9000/my-bucket/a%20b/c?uploadId=x%2F"),
        (
            StorageOptions(endpoint="https://s3.site", addressing="virtual"),
            "https://my-bucket.s3.site/a%20b/c?uploadId=x%2F",
        ),
    ],
)
def test_address_of_an_object(options: StorageOptions, url: str) -> None:
    from trialpod.storage.s3.transport import Transport

    transport = Transport(options.resolved({}), Keys().get, lambda: 0.0, None)
    assert transport.url("PUT", "my-bucket", "a b/c", {"uploadId": "x/"}) == url


class Server:
    """Answers every request with "value", a connection for as long as its client keeps it."""

    def __init__(self) -> None:
        self.connections = 0
        self.answers = threading.Event()
        self.answers.set()
        self.waiting = threading.Semaphore(0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(accepted,), daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        with accepted, accepted.makefile("rb") as lines:
            for line in lines:
                if line == b"\r\n":
                    self.waiting.release()
                    self.answers.wait(60)
                    accepted.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nvalue")

    def close(self) -> None:
        self._listener.close()
        self.answers.set()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


class TestShared:
    """Storages of one process that are reached alike."""

    def storages(self, server: Server, count: int, **more: Any) -> list[S3Storage]:
        options = StorageOptions(endpoint=server.endpoint, share_connections=True, **more).resolved({})
        return [S3Storage(S3Client(f"bucket-{n}", options, credentials=Keys())) for n in range(count)]

    def test_one_after_the_other_use_one_connection(self, server: Server) -> None:
        for storage in self.storages(server, 20):
            assert storage.read("key") == b"value"
            storage.close()
        assert server.connections == 1

    def test_each_has_its_own_without_it(self, server: Server) -> None:
        options = StorageOptions(endpoint=server.endpoint).resolved({})
        storages = [S3Storage(S3Client("bucket", options, credentials=Keys())) for _ in range(3)]
        for storage in storages:
            assert storage.read("key") == b"value"
        assert server.connections == 3

    def test_hanging_one_keeps_no_other_waiting(self, server: Server) -> None:
        """Its requests are limited, and those of all together are not."""
        hanging, *others = self.storages(server, 20, parallelism=4)
        server.answers.clear()
        with ThreadPoolExecutor(64) as pool:
            calls = [pool.submit(hanging.read, f"key-{n}") for n in range(12)]
            calls += [pool.submit(other.read, "key") for other in others for _ in range(2)]
            for _ in range(4 + 2 * len(others)):
                assert server.waiting.acquire(timeout=60)
            assert not server.waiting.acquire(blocking=False), "the hanging one has no more than its four"
            server.answers.set()
            assert {call.result(60) for call in calls} == {b"value"}
        assert server.connections <= 4 + 2 * len(others) + 8


class TestConnections:
    def test_client_in_a_cycle_closes_them(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
            served = pool.submit(answer_once, listener)
            options = StorageOptions(endpoint=f"http://127.0.0.1:{listener.getsockname()[1]}").resolved({})
            storage = S3Storage(S3Client("bucket", options, credentials=Keys()))
            assert storage.read("key") == b"value"
            cycle: list[object] = [storage]
            cycle.append(cycle)
            del storage, cycle
            gc.collect()
            assert served.result(90) == b""


WHOLE = b'HTTP/1.1 200 OK\r\nETag: "a"\r\nContent-Length: 5\r\n\r\nvalue'


class TestBrokenAnswers:
    @pytest.mark.parametrize("by_minio", [False, True])
    def test_cut_off_anywhere_is_no_success(self, tmp_path: Path, by_minio: bool) -> None:
        """At each byte of the headers, the first answer ends; the next one is whole."""
        local = tmp_path / "local"
        broken = [WHOLE[:end] for end in range(WHOLE.index(b"value"))] + [b"no HTTP\r\n\r\n"]
        answers = [answer for each in broken for answer in (each, WHOLE)]
        with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
            served = pool.submit(answer_each, listener, answers)
            options = StorageOptions(endpoint=f"http://127.0.0.1:{listener.getsockname()[1]}").resolved({})
            client = S3Client("bucket", options, credentials=Keys(), sleep=lambda seconds: None)
            for _ in range(len(answers) // 2):
                if by_minio:  # whose client sends this on connections of its own
                    S3Storage(client).get_file("key", local)
                assert (local.read_bytes() if by_minio else S3Storage(client).read("key")) == b"value"
            served.result(60)

    @pytest.mark.parametrize("code", ["InternalError", "SlowDown"])
    def test_copy_that_failed_after_status_200_is_repeated(self, code: str) -> None:
        """Amazon begins to answer before it has copied."""
        failed = f'<?xml version="1.0"?>\n\n<Error><Code>{code}</Code><Message>again</Message></Error>'
        copied = "<CopyObjectResult><ETag>a</ETag></CopyObjectResult>"
        with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
            served = pool.submit(answer_each, listener, [in_full(failed), in_full(copied)])
            options = StorageOptions(endpoint=f"http://127.0.0.1:{listener.getsockname()[1]}").resolved({})
            client = S3Client("bucket", options, credentials=Keys(), sleep=lambda seconds: None)
            S3Storage(client).copy("source", "target")
            served.result(60)  # both requests were made

    def test_removal_of_some_that_failed_for_now_is_repeated(self) -> None:
        failed = "<DeleteResult><Error><Key>a</Key><Code>SlowDown</Code></Error></DeleteResult>"
        with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
            served = pool.submit(answer_each, listener, [in_full(failed), in_full("<DeleteResult></DeleteResult>")])
            options = StorageOptions(endpoint=f"http://127.0.0.1:{listener.getsockname()[1]}").resolved({})
            client = S3Client("bucket", options, credentials=Keys(), sleep=lambda seconds: None)
            S3Storage(client).delete_many(["a", "b"])
            served.result(60)  # both requests were made

    def test_copy_that_was_refused_after_status_200_is_no_success(self) -> None:
        refused = "<Error><Code>InvalidRequest</Code><Message>too large</Message></Error>"
        with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
            served = pool.submit(answer_each, listener, [in_full(refused)])
            options = StorageOptions(endpoint=f"http://127.0.0.1:{listener.getsockname()[1]}").resolved({})
            with pytest.raises(StorageError, match="InvalidRequest"):
                S3Storage(S3Client("bucket", options, credentials=Keys())).copy("source", "target")
            served.result(60)


def in_full(body: str) -> bytes:
    """Return an answer that says of itself that all went well."""
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def answer_each(listener: socket.socket, answers: list[bytes]) -> None:
    """Answer one request on each connection, and end it."""
    listener.settimeout(60.0)
    for answer in answers:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as lines:
            for line in lines:
                if line == b"\r\n":
                    break
            connection.sendall(answer)


def answer_once(listener: socket.socket) -> bytes:
    """Answer a request, keep the connection, and return what comes next on it."""
    listener.settimeout(60.0)
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(60.0)
        received = b""
        while b"\r\n\r\n" not in received:
            data = connection.recv(65536)
            assert data, received
            received += data
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nvalue")
        return connection.recv(1)
