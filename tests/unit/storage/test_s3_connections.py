"""Answers on connections that stay open: whole or an error, and never a part of another one."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialpod.storage.s3.connections import Connection, Connections, CutOffError, NotHttpError, head_of
from trialpod.storage.s3.errors import Answer
from trialpod.storage.s3.files import FilePart

SIZED = b'HTTP/1.1 200 OK\r\nETag: "a"\r\nContent-Length: 5\r\n\r\nvalue'
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nval\r\n2;x=y\r\nue\r\n0\r\nMore: 1\r\n\r\n"
TO_THE_END = b"HTTP/1.1 200 OK\r\n\r\nvalue"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED
HEAD = head_of("GET", "/bucket/key", {"host": "here"})


class Pair:
    """A connection, and its server's end, which a thread feeds in pieces."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        ours.settimeout(20.0)
        self.connection = Connection(ours)

    def answer(self, *pieces: bytes, end: bool = False, method: str = "GET") -> Answer:
        """Return what is made of an answer that comes in these pieces."""

        def feed() -> None:
            for piece in pieces:
                self.theirs.sendall(piece)
            if end:
                self.theirs.shutdown(socket.SHUT_WR)

        feeding = threading.Thread(target=feed)
        feeding.start()
        try:
            return self.connection.exchange(method, HEAD, b"")
        finally:
            feeding.join()

    def close(self) -> None:
        self.connection.close()
        self.theirs.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


class TestAnswers:
    @pytest.mark.parametrize("answer", [SIZED, CHUNKED, CONTINUED])
    def test_any_pieces_make_the_same_answer(self, answer: bytes) -> None:
        for cut in range(1, len(answer)):
            pair = Pair()
            assert pair.answer(answer[:cut], answer[cut:]).body == b"value"
            assert pair.connection.reusable
            pair.close()

    @pytest.mark.parametrize("answer", [SIZED, CHUNKED, CONTINUED])
    def test_cut_off_anywhere_is_an_error(self, answer: bytes) -> None:
        for cut in range(len(answer)):
            pair = Pair()
            with pytest.raises(CutOffError):
                pair.answer(answer[:cut], end=True)
            pair.close()

    def test_one_without_a_length_ends_with_its_connection(self, pair: Pair) -> None:
        assert pair.answer(TO_THE_END, end=True).body == b"value"
        assert not pair.connection.reusable

    def test_no_content_has_no_body(self, pair: Pair) -> None:
        assert pair.answer(EMPTY) == Answer(204, {}, b"")
        assert pair.connection.reusable

    def test_head_has_a_length_and_no_body(self, pair: Pair) -> None:
        answer = pair.answer(SIZED.removesuffix(b"value"), method="HEAD")
        assert (answer.headers["content-length"], answer.body) == ("5", b"")
        assert pair.connection.reusable

    def test_headers_are_joined_and_unfolded(self, pair: Pair) -> None:
        head = b"HTTP/1.1 404 Not Found\r\nA: 1\r\nB: x\r\n  y\r\na:2\r\nContent-Length: 0\r\n\r\n"
        assert pair.answer(head) == Answer(404, {"a": "1, 2", "b": "x y", "content-length": "0"}, b"")

    @pytest.mark.parametrize(
        "answer",
        [
            b"SSH-2.0-OpenSSH_9.2\r\n",
            b"\x15\x03\x01\x00\x02\x02\x46",
            b"HTTP/1.1 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nA: 1\nB: 2\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\nvalue",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nvalue",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfive\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nval\r\n",
            b"HTTP/1.1 200 OK\r\n" + b"A: 1\r\n" * 20_000,
        ],
    )
    def test_what_is_no_http_is_refused_at_once(self, pair: Pair, answer: bytes) -> None:
        """Without waiting for the rest: the server's end stays open."""
        with pytest.raises(NotHttpError):
            pair.answer(answer)

    @given(st.binary(max_size=300), st.integers(0, len(CHUNKED)))
    def test_no_garbage_raises_anything_else(self, garbage: bytes, cut: int) -> None:
        pair = Pair()
        try:
            pair.answer(CHUNKED[:cut] + garbage, end=True)
        except (OSError, HTTPException):
            pass
        finally:
            pair.close()


class TestSending:
    @pytest.mark.parametrize("size", [0, 100, 300_000])
    def test_head_and_body_arrive_once(self, pair: Pair, size: int) -> None:
        body = os.urandom(size)
        received = bytearray()

        def serve() -> None:
            while len(received) < len(HEAD) + size:
                received.extend(pair.theirs.recv(65536))
            pair.theirs.sendall(SIZED)

        serving = threading.Thread(target=serve)
        serving.start()
        assert pair.connection.exchange("PUT", HEAD, body).status == 200
        serving.join()
        assert bytes(received) == HEAD + body

    def test_refusal_before_the_whole_body_is_the_answer(self, pair: Pair, tmp_path: Path) -> None:
        pair.theirs.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        pair.theirs.shutdown(socket.SHUT_RD)
        file = tmp_path / "large"
        file.write_bytes(bytes(4_000_000))
        with open(file, "rb") as opened:
            part = FilePart(opened.fileno(), 0, 4_000_000)
            assert pair.connection.exchange("PUT", HEAD, part).status == 403
        assert not pair.connection.reusable

    @pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb: c", "a\rb: c"])
    def test_line_break_in_a_header_is_refused(self, value: str) -> None:
        with pytest.raises(ValueError, match="line break"):
            head_of("GET", "/", {"a": value})


class Served:
    """Makes connections, and keeps the servers' ends of them."""

    def __init__(self) -> None:
        self.ends: list[socket.socket] = []

    def connect(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.settimeout(20.0)
        self.ends.append(theirs)
        theirs.sendall(SIZED)
        return ours

    def close(self) -> None:
        for end in self.ends:
            end.close()


class TestReuse:
    @pytest.fixture
    def served(self) -> Iterator[Served]:
        made = Served()
        yield made
        made.close()

    @pytest.fixture
    def connections(self) -> Iterator[Connections]:
        made = Connections(2)
        yield made
        made.clear()

    def call(self, connections: Connections, served: Served) -> None:
        assert connections.exchange(served.connect, "GET", HEAD, b"").body == b"value"

    def test_idle_one_is_used_again(self, connections: Connections, served: Served) -> None:
        self.call(connections, served)
        answering = threading.Thread(target=self.answer_request, args=(served.ends[0], 2 * len(HEAD)))
        answering.start()
        self.call(connections, served)
        answering.join()
        assert len(served.ends) == 1

    def answer_request(self, end: socket.socket, count: int) -> None:
        received = 0
        while received < count:
            received += len(end.recv(65536))
        end.sendall(SIZED)

    @pytest.mark.parametrize("more", [b"", b"HTTP/1.1 408 Request Timeout\r\n\r\n"])
    def test_one_that_was_closed_meanwhile_is_not(
        self, connections: Connections, served: Served, more: bytes
    ) -> None:
        self.call(connections, served)
        served.ends[0].sendall(more)
        served.ends[0].shutdown(socket.SHUT_WR)
        self.call(connections, served)
        assert len(served.ends) == 2

    def test_one_with_bytes_behind_its_answer_is_not(self, connections: Connections, served: Served) -> None:
        def connect() -> socket.socket:
            made = served.connect()
            served.ends[-1].sendall(b"HTTP/1.1 500 Of another\r\n")
            return made

        assert connections.exchange(connect, "GET", HEAD, b"").status == 200
        self.call(connections, served)
        assert len(served.ends) == 2

    @pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\nConnection: close", b"HTTP/1.0 200 OK"])
    def test_one_whose_server_ends_it_is_not(self, pair: Pair, answer: bytes) -> None:
        assert pair.answer(answer + b"\r\nContent-Length: 5\r\n\r\nvalue").body == b"value"
        assert not pair.connection.reusable

    def test_failed_one_is_closed(self, connections: Connections, served: Served) -> None:
        def connect() -> socket.socket:
            ours, theirs = socket.socketpair()
            served.ends.append(theirs)
            theirs.sendall(b"no HTTP")
            return ours

        with pytest.raises(NotHttpError):
            connections.exchange(connect, "GET", HEAD, b"")
        served.ends[0].settimeout(20.0)
        assert served.ends[0].recv(65536) == HEAD
        assert served.ends[0].recv(1) == b""

    def test_only_so_many_stay_open(self, served: Served) -> None:
        connections = Connections(2)
        barrier = threading.Barrier(5)

        def connect() -> socket.socket:
            made = served.connect()
            barrier.wait(20)
            return made

        threads = [threading.Thread(target=connections.exchange, args=(connect, "GET", HEAD, b"")) for _ in range(5)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert sum(self.is_open(end) for end in served.ends) == 2
        connections.clear()
        assert sum(self.is_open(end) for end in served.ends) == 0

    def is_open(self, end: socket.socket) -> bool:
        """Return whether the client has not closed it; its request was received before."""
        end.setblocking(False)
        try:
            while end.recv(65536):
                pass
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False
        return False
