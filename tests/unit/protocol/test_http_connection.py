from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from trialpod.errors import InvalidInputError
from trialpod.protocol.http import Connection, TransportError


@contextlib.contextmanager
def serving(folder: Path, *conversations: list[bytes]) -> Iterator[str]:
    """Serve one connection per conversation; each of its answers follows one request, then the connection closes."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "s"))
    listener.listen(8)

    def serve() -> None:
        for answers in conversations:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # the test is over
            with connection, contextlib.suppress(OSError):
                for answer in answers:
                    if not read_request(connection):
                        break
                    connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"unix:{folder / 's'}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()


def read_request(connection: socket.socket) -> bool:
    """Read one request; return whether all of it came before the client hung up."""
    request = b""
    while b"\r\n\r\n" not in request:
        if not (data := connection.recv(65536)):
            return False
        request += data
    head, _, body = request.partition(b"\r\n\r\n")
    left = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0]) - len(body)
    while left > 0:
        if not (data := connection.recv(65536)):
            return False
        left -= len(data)
    return True


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def test_two_requests_share_one_connection(tmp_path: Path) -> None:
    with serving(tmp_path, [ok(b"one"), ok(b"two")]) as address:
        connection = Connection(address)
        assert connection.post("/a", b"x") == (200, b"one")
        assert connection.post("/b", b"y" * 300_000) == (200, b"two")
        connection.close()


def test_a_dropped_keep_alive_connection_is_opened_again(tmp_path: Path) -> None:
    with serving(tmp_path, [ok(b"one")], [ok(b"two")]) as address:
        connection = Connection(address)
        connection.post("/", b"")
        assert connection.post("/", b"") == (200, b"two")
        connection.close()


def test_fresh_connection_closed_without_answer_is_an_error(tmp_path: Path) -> None:
    with serving(tmp_path, [b""]) as address, pytest.raises(TransportError, match="without an answer"):
        Connection(address).post("/", b"")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "only Content-Length"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "without a Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "Content-Length '-1'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "Content-Length '2'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "middle of an answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nabc", "more than it announced"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n", "the limit is 1000"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n", "malformed header"),
    ],
)
def test_unreadable_answer_is_an_error_with_a_reason(tmp_path: Path, answer: bytes, message: str) -> None:
    with serving(tmp_path, [answer]) as address, pytest.raises(TransportError, match=message):
        Connection(address, max_answer_bytes=1000).post("/", b"")


def test_a_server_that_asks_to_close_gets_a_new_connection(tmp_path: Path) -> None:
    closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    with serving(tmp_path, [closing], [ok(b"")]) as address:
        connection = Connection(address)
        assert connection.post("/", b"")[0] == 200
        assert connection.post("/", b"")[0] == 200
        connection.close()


def test_an_interim_answer_is_passed_over(tmp_path: Path) -> None:
    with serving(tmp_path, [b"HTTP/1.1 100 Continue\r\n\r\n" + ok(b"x")]) as address:
        connection = Connection(address)
        assert connection.post("/", b"") == (200, b"x")
        connection.close()


def test_nobody_listening_is_a_transport_error(tmp_path: Path) -> None:
    with pytest.raises(TransportError):
        Connection(f"unix:{tmp_path / 'none'}").post("/", b"")


@pytest.mark.parametrize(
    "first", [b"H", b"HTTP/1.1 100 Continue\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"]
)
def test_trickling_server_is_given_up_after_the_timeout(first: bytes) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    given_up = threading.Event()

    def trickle() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            connection.sendall(first)
            while not given_up.wait(0.02):
                connection.sendall(b"x")

    thread = threading.Thread(target=trickle, daemon=True)
    thread.start()
    try:
        began = time.monotonic()
        with pytest.raises(TransportError, match=r"did not answer /report within 0.3 s"):
            Connection("http://{}:{}".format(*listener.getsockname())).post("/report", b"x", timeout_s=0.3)
        assert time.monotonic() - began < 60.0
    finally:
        given_up.set()
        thread.join(5)
        listener.close()


def test_the_time_of_a_call_begins_again_with_each_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead_s = 0.0
    monkeypatch.setattr("trialpod.protocol.http.time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead_s))
    with serving(tmp_path, [ok(b"one"), ok(b"two")]) as address:
        connection = Connection(address, timeout_s=90.0)
        assert connection.post("/", b"", timeout_s=60.0) == (200, b"one")
        ahead_s = 61.0
        assert connection.post("/", b"", timeout_s=60.0) == (200, b"two")
        connection.close()


def test_a_silent_server_is_given_up_after_the_timeout(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen(1)
    with listener, pytest.raises(TransportError, match=r"did not answer /x within 0.05 s"):
        Connection(f"unix:{tmp_path / 's'}").post("/x", b"", timeout_s=0.05)


WORKING = b"HTTP/1.1 102 Processing\r\n\r\n"


@contextlib.contextmanager
def one_that_says(folder: Path, *pieces: bytes, every_s: float = 0.1) -> Iterator[str]:
    """Serve one connection, which is sent these pieces one after the other, and nothing more."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "s"))
    listener.listen(1)
    over = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            for piece in pieces:
                over.wait(every_s)
                connection.sendall(piece)
            over.wait(30)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"unix:{folder / 's'}"
    finally:
        over.set()
        thread.join(5)
        listener.close()


def test_a_server_that_says_that_it_is_at_work_is_waited_for(tmp_path: Path) -> None:
    began = time.monotonic()
    with one_that_says(tmp_path, *[WORKING] * 25, ok(b"done")) as address:
        connection = Connection(address, io_timeout_s=2.0)
        assert connection.post("/x", b"") == (200, b"done")
        connection.close()
    assert time.monotonic() - began > 2.0


def test_silent_server_is_given_up_long_before_the_timeout(tmp_path: Path) -> None:
    began = time.monotonic()
    with (
        one_that_says(tmp_path, WORKING) as address,
        pytest.raises(TransportError, match=r"did not answer /x, nor say that it is active, for 0.3 s"),
    ):
        Connection(address, io_timeout_s=0.3).post("/x", b"")
    assert time.monotonic() - began < 60.0


def test_server_that_stops_reading_is_given_up(tmp_path: Path) -> None:
    began = time.monotonic()
    with one_that_says(tmp_path) as address, pytest.raises(TransportError, match=r"nor say that it is active"):
        Connection(address, io_timeout_s=0.3).post("/x", bytes(8_000_000))
    assert time.monotonic() - began < 60.0


@pytest.mark.parametrize("address", ["", "unix:", "ftp://x:1", "http://", "http://host:1/path", "host:80"])
def test_an_address_of_another_form_is_refused(address: str) -> None:
    with pytest.raises(InvalidInputError, match="unix:/path"):
        Connection(address)
