"""Several report services, of which one serves the experiment: attempts find it, wherever they ask, over real TLS."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from trialpod.protocol.attempt_link import AttemptLink
from trialpod.protocol.client import ReportClient
from trialpod.protocol.http import Connection, TransportError
from trialpod.protocol.messages import AssignmentAnswer, AssignmentRequest, AttemptEnd, ErrorAnswer, ReportAnswer
from trialpod_operator.cluster.identity.certificates import (
    BUNDLE,
    SERVER_CERTIFICATE,
    SERVER_KEY,
    plan_rotation,
    ssl_context,
)
from trialpod_operator.engine.events import AnyEvent, ResultsReceived
from trialpod_operator.experiment.durable import NotReadyError
from trialpod_operator.reports.server import ReportServer
from trialpod_operator.reports.service import ElsewhereError, ReportService, Served

T = TypeVar("T")
NAME = "localhost"


class Experiment:
    """Takes results, and keeps them where every replica finds them."""

    def __init__(self, results: list[int]) -> None:
        self.results = results

    def apply(self, event: AnyEvent) -> None:
        if isinstance(event, ResultsReceived):
            new = event.results[len(self.results) - event.first + 1 :]
            self.results += [msgspec.msgpack.decode(each) for each in new]

    def received(self, trial_id: str, attempt: int) -> int:
        return len(self.results)

    def answer(self, trial_id: str, attempt: int) -> ReportAnswer:
        return ReportAnswer(received=len(self.results))

    def committed(self) -> None:
        return None

    def undecided(self) -> None:
        """No decider is waited for."""

    def require_fencing_check(self) -> None:
        """Nobody else writes."""

    def assign(self, request: AssignmentRequest) -> AssignmentAnswer:
        return AssignmentAnswer(reason="none")

    def attempt_ended(self, trial_id: str, attempt: int, end: AttemptEnd) -> AttemptEnd:
        return end

    def permits(self, caller: object, trial_id: str) -> str | None:
        return None


class Replica:
    """A report service of its own port. `owner` says who serves the experiment: a replica, None or itself."""

    def __init__(self, replicas: Replicas) -> None:
        self.replicas = replicas
        self.owner: Replica | None = self
        self.cut_off = False
        self.asked = 0
        self.server = ReportServer(lambda path, body, _peer: service.handle(path, body))
        service = ReportService(self, uniform=lambda: 0.0)
        _, self.port = replicas.call(
            self.server.start_tcp(
                "127.0.0.1", 0, ssl_context(replicas.tls[SERVER_CERTIFICATE], replicas.tls[SERVER_KEY])
            )
        )

    def find(self, _name: str) -> Served:
        self.asked += 1
        if self.cut_off:
            raise NotReadyError("not open at the moment")
        if self.owner is not self:
            raise ElsewhereError("not served here", f"127.0.0.1:{self.owner.port}" if self.owner else "")
        experiment = Experiment(self.replicas.results)
        return Served(experiment, experiment)

    def stop(self) -> None:
        self.replicas.call(self.server.close(grace_s=0.0))


class Replicas:
    """Two of them. The address is the first one's, as if the Service had chosen it."""

    def __init__(self, folder: Path) -> None:
        self.results: list[int] = []
        self.tls = plan_rotation({}, [NAME], time.time()).data
        self.ca_file = folder / "ca.crt"
        self.ca_file.write_bytes(self.tls[BUNDLE])
        self.now = 0.0
        self.naps: list[float] = []
        self.on_sleep: list[Any] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.first, self.second = Replica(self), Replica(self)
        self.client = ReportClient(
            f"https://{NAME}:{self.first.port}",
            "team/digits",
            ca_file=str(self.ca_file),
            clock=lambda: self.now,
            sleep=self._sleep,
            uniform=lambda: 0.0,
        )
        self.link = AttemptLink(self.client, "t_1", 1)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def _sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds
        if self.on_sleep:
            self.on_sleep.pop(0)()

    def report(self, value: int) -> None:
        self.link.publish(msgspec.msgpack.encode(value), wake=False)
        self.link.wait_decision()

    def close(self) -> None:
        self.client.close()
        for each in (self.first, self.second):
            each.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    made = Replicas(tmp_path)
    yield made
    made.close()


class TestRedirect:
    def test_is_followed_at_once_and_remembered(self, replicas: Replicas) -> None:
        replicas.first.owner = replicas.second
        for value in range(5):
            replicas.report(value)
        assert replicas.results == list(range(5))
        assert replicas.naps == []
        assert (replicas.first.asked, replicas.second.asked) == (1, 5)

    def test_follows_a_shard_that_moves_back(self, replicas: Replicas) -> None:
        replicas.first.owner = replicas.second
        replicas.report(0)
        replicas.first.owner = replicas.second.owner = replicas.first
        replicas.report(1)
        replicas.report(2)
        assert replicas.results == [0, 1, 2]
        assert replicas.naps == []
        assert replicas.second.asked == 2

    def test_owner_that_died_is_left_at_once(self, replicas: Replicas) -> None:
        replicas.first.owner = replicas.second
        replicas.report(0)
        replicas.second.stop()
        replicas.first.owner = replicas.first
        replicas.report(1)
        assert replicas.results == [0, 1]
        assert replicas.naps == []

    def test_owner_that_is_cut_off_is_left(self, replicas: Replicas) -> None:
        replicas.first.owner = replicas.second
        replicas.report(0)
        replicas.second.cut_off, replicas.first.owner = True, replicas.first
        replicas.report(1)
        assert replicas.results == [0, 1]
        assert len(replicas.naps) == 1

    def test_two_that_name_each_other_are_asked_with_pauses(self, replicas: Replicas) -> None:
        replicas.first.owner, replicas.second.owner = replicas.second, replicas.first

        def agree() -> None:
            replicas.second.owner = replicas.second

        replicas.on_sleep = [lambda: None, agree]
        replicas.report(0)
        assert replicas.results == [0]
        assert len(replicas.naps) == 2
        assert replicas.first.asked + replicas.second.asked <= 8

    def test_while_nobody_serves_it_the_server_says_when(self, replicas: Replicas) -> None:
        replicas.first.owner = None
        replicas.on_sleep = [lambda: None] * 9 + [lambda: setattr(replicas.first, "owner", replicas.first)]
        replicas.report(0)
        assert replicas.results == [0]
        assert replicas.naps == [1.0] * 10, "not longer each time: it may be served any moment"

    def test_impostor_without_the_certificate_gets_nothing(self, replicas: Replicas, tmp_path: Path) -> None:
        other = plan_rotation({}, [NAME], time.time()).data
        impostor = Replica.__new__(Replica)
        impostor.asked = 0
        impostor.server = ReportServer(lambda *_: pytest.fail("it was asked"))
        context = ssl_context(other[SERVER_CERTIFICATE], other[SERVER_KEY])
        _, impostor.port = replicas.call(impostor.server.start_tcp("127.0.0.1", 0, context))
        replicas.first.owner = impostor

        replicas.on_sleep = [lambda: setattr(replicas.first, "owner", replicas.first)]
        replicas.report(0)
        replicas.call(impostor.server.close(grace_s=0.0))
        assert replicas.results == [0]
        assert len(replicas.naps) == 1


@pytest.mark.parametrize("target", ["nowhere", ":80", "host:", "host:port", "host:80x"])
def test_redirect_to_no_address_is_no_answer(target: str) -> None:
    with pytest.raises(TransportError, match="not a host and port"):
        Connection("https://localhost:1").redirect(target)


def test_redirect_from_a_unix_socket_is_no_answer() -> None:
    with pytest.raises(TransportError):
        Connection("unix:/nowhere").redirect("127.0.0.1:80")


def test_redirect_without_an_address_is_no_answer() -> None:
    class Server:
        retry_after_s = None

        def post(self, *_: Any, **__: Any) -> tuple[int, bytes]:
            return 421, msgspec.msgpack.encode(ErrorAnswer(error="elsewhere"))

    client = ReportClient("unix:/x", "e", connection=Server())  # type: ignore[arg-type]
    with client.lock, pytest.raises(TransportError, match="redirects to another one without naming its address"):
        client.call("report", b"", bytes)
