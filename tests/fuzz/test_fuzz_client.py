"""Whatever answers an attempt's calls: it trains on, results are kept and sent again, nonsense is not obeyed."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from fuzz_values import MESSAGE_PACK_ONLY, WRONG, changed, damaged, examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trialpod.protocol.attempt_link import AttemptLink, Superseded
from trialpod.protocol.client import RefusedError, ReportClient
from trialpod.protocol.http import Connection, TransportError
from trialpod.protocol.messages import AssignmentRequest, AttemptEnd, ErrorAnswer, ReportAnswer, ReportRequest


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Answers:
    """In the place of a connection: the next of these answers each call; then comes what an honest server says."""

    retry_after_s = None

    def __init__(self, *script: tuple[int, bytes]) -> None:
        self.script = list(script)
        self.results: dict[int, bytes] = {}
        self.ends = 0
        self.calls = 0

    def post(self, path: str, body: bytes, *, timeout_s: float | None = None) -> tuple[int, bytes]:
        self.calls += 1
        assert self.calls < 200, "it calls without end"
        if self.script:
            return self.script.pop(0)
        request = msgspec.msgpack.decode(body, type=ReportRequest)
        for number, result in enumerate(request.results, request.first):
            assert self.results.setdefault(number, bytes(result)) == bytes(result)
        self.ends += request.end is not None
        received = next(number for number in range(1000) if number + 1 not in self.results)
        return 200, msgspec.msgpack.encode(ReportAnswer(received=received, durable=received))

    def close(self) -> None:
        pass


def linked(*script: tuple[int, bytes]) -> tuple[AttemptLink, Answers, Clock]:
    server, clock = Answers(*script), Clock()
    client = ReportClient(
        "unix:/x",
        "e",
        clock=clock,
        sleep=clock.sleep,
        uniform=lambda: 0.5,
        connection=cast("Connection", server),
    )
    return AttemptLink(client, "t", 1), server, clock


def train(link: AttemptLink) -> None:
    for number in range(1, 6):
        link.publish(msgspec.msgpack.encode({"n": number}), wake=False)
        if number % 2:
            link.wait_decision()
    link.finish(AttemptEnd(cause="completed"))


def delivered(server: Answers) -> bool:
    sent = {number: msgspec.msgpack.encode({"n": number}) for number in range(1, 6)}
    return server.results == sent and server.ends >= 1


HONEST = msgspec.msgpack.encode(ReportAnswer(received=1, durable=1))
NONSENSE = [
    (200, b""),
    (200, b"<html>Sign in to the network</html>"),
    (200, b"\xff" * 40),
    (200, b"\x91" * 90_000),
    (200, b"\x81\xa8received\xa1\xff"),
    (200, msgspec.msgpack.encode(ReportAnswer(received=1_000_000, durable=1_000_000))),
    (200, msgspec.msgpack.encode(ReportAnswer(received=-1, durable=-1))),
    (200, msgspec.msgpack.encode(ReportAnswer(received=0, durable=7))),
    (200, msgspec.msgpack.encode({"decision": "explode"})),
    (200, msgspec.msgpack.encode({"received": 1, "durable": 1, "horizons": [["x", float("nan")]]})),
    (200, msgspec.msgpack.encode({"received": 1, "horizons": [{"attr": "x", "at": float("nan")}]})),
    (204, b""),
    (302, b"<a href=https://login>"),
    (404, b"default backend - 404"),
    (403, b"<html>Blocked by policy</html>"),
    (400, b"\x81\xa5error\xa1\xff"),
    (500, b"\xff\xfe"),
    (599, b""),
]


@pytest.mark.parametrize("answer", NONSENSE, ids=lambda answer: f"{answer[0]} {answer[1][:30]!r}")
def test_impossible_answer_is_rejected_and_call_repeated(answer: tuple[int, bytes]) -> None:
    link, server, clock = linked(answer, answer, answer)
    train(link)
    assert delivered(server)
    assert clock.slept[:3] == sorted(clock.slept[:3])  # with back-off
    assert clock.slept[2] > clock.slept[0] > 0.0
    assert link.decision is None


@settings(max_examples=examples(80))
@given(script=st.lists(st.tuples(st.sampled_from([200, 200, 200, 404, 500]), damaged(HONEST)), max_size=5))
def test_damaged_answers_cost_nothing_but_time(script: list[tuple[int, bytes]]) -> None:
    link, server, _ = linked(*script)
    with contextlib.suppress(RefusedError):  # "its storage has lost data": what a damaged number may look like
        train(link)
        assert delivered(server)


ANSWER = {
    "received": 1,
    "durable": 1,
    "horizons": [["training_iteration", 3.0]],
    "decision": "stop",
    "deletable": ["checkpoint_000000"],
    "superseded": False,
}


@settings(max_examples=examples(80))
@given(answer=changed(ANSWER, st.one_of(WRONG, MESSAGE_PACK_ONLY)))
def test_answer_with_arbitrary_fields_is_obeyed_or_repeated(answer: Any) -> None:
    link, server, _ = linked((200, msgspec.msgpack.encode(answer)))
    try:
        train(link)
    except Superseded:
        assert answer["superseded"] is True
        return
    except RefusedError as error:
        assert "lost data" in str(error)
        return
    assert delivered(server)
    assert link.decision in (None, "stop", "pause", "exploit")


@pytest.mark.parametrize(
    "work",
    [
        {"attempt": 0},
        {"attempt": "1"},
        {"heartbeat_s": 0.0},
        {"heartbeat_s": float("nan")},
        {"rank": 3},
        {"trial_id": None},
        {"checkpoint": {"name": 3}},
    ],
    ids=str,
)
def test_work_that_cannot_be_is_asked_for_again(work: dict[str, Any]) -> None:
    whole = {
        "trial_id": "t",
        "attempt": 1,
        "trial_name": "train_t",
        "experiment": "e",
        "experiment_tag": "0",
        "trial_dir": "/tmp",
        "params": {},
        "trainable": {"entrypoint": "a:b"},
    }
    none = msgspec.msgpack.encode({"reason": "no work"})
    server, clock = (
        Answers((200, msgspec.msgpack.encode({"assignment": whole | work})), (200, b"\x91" * 5000), (200, none)),
        Clock(),
    )
    client = ReportClient("unix:/x", "e", clock=clock, sleep=clock.sleep, connection=cast("Connection", server))
    assert client.assignment(AssignmentRequest(runner="r", pid=1, hostname="h")).reason == "no work"
    assert len(clock.slept) == 2


def test_the_services_own_refusal_is_still_final() -> None:
    link, _, _ = linked((400, msgspec.msgpack.encode(ErrorAnswer(error="a result must be a map"))))
    with pytest.raises(RefusedError, match="must be a map"):
        train(link)


class Wire:
    """A server that reads a request's beginning, sends what it was told, and hangs up."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.says = b""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen(8)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, contextlib.suppress(OSError):
                client.recv(65536)
                client.sendall(self.says)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    made = Wire(tmp_path_factory.mktemp("w") / "s")
    yield made
    made.close()


def ask(wire: Wire, says: bytes) -> tuple[int, bytes] | None:
    wire.says = says
    connection = Connection(f"unix:{wire.path}", timeout_s=5.0, max_answer_bytes=100_000)
    try:
        return connection.post("/v1/e/report", b"x")
    except TransportError as error:
        assert len(str(error)) > 10
        return None
    finally:
        connection.close()


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/msgpack\r\nRetry-After: 3\r\nContent-Length: 3\r\n\r\nabc"


@settings(max_examples=examples(80), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(says=damaged(WHOLE))
def test_arbitrary_bytes_are_an_answer_or_a_transport_error(wire: Wire, says: bytes) -> None:
    found = ask(wire, says)
    assert found is None or len(found[1]) <= 100_000


@pytest.mark.parametrize(
    "says",
    [
        b"",
        b"HTTP/1.1 \xb2\xb3\xb9 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 2000,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000,
        b"\0" * 100_000,
        b"\x15\x03\x03\x00\x02\x02\x28",
    ],
    ids=lambda says: repr(says[:40]),
)
def test_what_is_no_answer_is_a_transport_error(wire: Wire, says: bytes) -> None:
    assert ask(wire, says) is None
