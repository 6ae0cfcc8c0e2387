from __future__ import annotations

from typing import Any

import msgspec
import pytest

from trialpod.protocol.attempt_link import AttemptLink, Superseded
from trialpod.protocol.client import RefusedError, ReportClient
from trialpod.protocol.http import TransportError
from trialpod.protocol.messages import (
    AssignmentAnswer,
    AssignmentRequest,
    AttemptEnd,
    CheckpointInfo,
    ErrorAnswer,
    Horizon,
    ReportAnswer,
    ReportRequest,
)


class Server:
    """Stands in for the connection: each entry of `script` answers one call; then everything is durable at once."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.requests: list[ReportRequest] = []
        self.closed = False
        self.retry_after_s: float | None = None

    def post(self, path: str, body: bytes, *, timeout_s: float | None = None) -> tuple[int, bytes]:
        if path.endswith("assignment"):
            answer = self.script.pop(0)
        else:
            request = msgspec.msgpack.decode(body, type=ReportRequest)
            self.requests.append(request)
            upto = request.first + len(request.results) - 1
            answer = self.script.pop(0) if self.script else ReportAnswer(received=upto, durable=upto)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            return answer, msgspec.msgpack.encode(ErrorAnswer(error=f"status {answer}"))
        return 200, msgspec.msgpack.encode(answer)

    def close(self) -> None:
        self.closed = True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def linked(*script: Any, server: type[Any] = Server, **options: Any) -> tuple[AttemptLink, Any, Clock]:
    server, clock = server(*script), Clock()
    client = ReportClient(
        "unix:/x",
        "e",
        clock=clock,
        sleep=clock.sleep,
        uniform=lambda: 1.0,
        connection=server,  # type: ignore[arg-type]
    )
    return AttemptLink(client, "t", 1, **options), server, clock


def encoded(number: int) -> bytes:
    return msgspec.msgpack.encode({"n": number})


def values(request: ReportRequest) -> list[int]:
    return [msgspec.msgpack.decode(raw)["n"] for raw in request.results]


def info(index: int) -> CheckpointInfo:
    return CheckpointInfo(name=f"checkpoint_{index:06d}", index=index, iteration=index, metrics={}, attempt=1)


def test_results_are_numbered_from_one_and_leave_in_order() -> None:
    link, server, _ = linked()
    assert [link.publish(encoded(n)) for n in (1, 2, 3)] == [1, 2, 3]
    assert link.wait_decision() is None
    link.publish(encoded(4))
    link.wait_decision()
    assert [(r.first, values(r)) for r in server.requests] == [(1, [1, 2, 3]), (4, [4])]


def test_received_but_undurable_results_are_sent_again() -> None:
    link, server, _ = linked(ReportAnswer(received=2, durable=1), ReportAnswer(received=1, durable=1))
    link.publish(encoded(1))
    link.publish(encoded(2))
    link.wait_decision()
    link.publish(encoded(3))
    link.wait_decision()
    assert [(r.first, values(r)) for r in server.requests] == [(1, [1, 2]), (3, [3]), (2, [2, 3])]


def test_a_refused_gap_is_filled_from_the_oldest_kept_result() -> None:
    link, server, _ = linked(ReportAnswer(received=1), 409)
    link.publish(encoded(1))
    link.wait_decision()
    link.publish(encoded(2))
    link.wait_decision()
    assert [r.first for r in server.requests] == [1, 2, 1]


def test_a_server_that_lost_durable_results_is_an_error() -> None:
    link, _, _ = linked(ReportAnswer(received=1, durable=1), ReportAnswer(received=0))
    link.publish(encoded(1))
    link.wait_decision()
    link.publish(encoded(2))
    with pytest.raises(RefusedError, match="durable"):
        link.wait_decision()


def test_unreachable_server_is_retried_with_backoff() -> None:
    away = TransportError("away")
    link, server, clock = linked(away, away, 503, 429)
    link.publish(encoded(1))
    assert link.wait_decision() is None
    assert clock.slept == pytest.approx([0.05, 0.1, 0.2, 0.4])
    assert all(values(r) == [1] for r in server.requests)


def test_permanent_refusal_ends_the_link_with_its_message() -> None:
    link, _, _ = linked(413)
    link.publish(encoded(1))
    with pytest.raises(RefusedError, match="status 413"):
        link.wait_decision()
    with pytest.raises(RefusedError):
        link.publish(encoded(2))


def test_foreign_process_ends_as_superseded() -> None:
    link, _, _ = linked(403)
    link.publish(encoded(1))
    with pytest.raises(Superseded, match="attempt 1 of trial t may not report any more: status 403"):
        link.wait_decision()
    with pytest.raises(Superseded):
        link.publish(encoded(2))


def test_a_token_that_is_not_accepted_is_no_error_of_the_trial() -> None:
    link, server, _ = linked(401, 401, 401)
    link.publish(encoded(1))
    assert link.wait_decision() is None
    assert len(server.requests) == 4


def test_the_server_says_when_to_come_back() -> None:
    link, server, clock = linked(429)
    server.retry_after_s = 7.0
    link.publish(encoded(1))
    assert link.wait_decision() is None
    assert clock.now == 7.0


def test_the_decision_and_the_next_horizon_come_with_the_answer() -> None:
    link, _, _ = linked(
        ReportAnswer(received=1, horizons=[Horizon("training_iteration", 9.0)]),
        ReportAnswer(received=2, decision="pause"),
        horizons=[Horizon("training_iteration", 1.0)],
    )
    link.publish(encoded(1))
    assert link.wait_decision() is None
    assert link.horizons == (("training_iteration", 9.0),)
    link.publish(encoded(2))
    assert link.wait_decision() == "pause"
    assert link.horizons == ()


def test_superseded_unwinds_and_sends_nothing_more() -> None:
    link, server, _ = linked(ReportAnswer(superseded=True))
    link.publish(encoded(1))
    with pytest.raises(Superseded):
        link.wait_decision()
    with pytest.raises(Superseded):
        link.publish(encoded(2))
    assert link.superseded
    assert len(server.requests) == 1


def test_checkpoint_is_sent_with_its_result_and_resent() -> None:
    link, server, _ = linked(ReportAnswer(received=1, durable=0), ReportAnswer(received=0, durable=0))
    link.publish(encoded(1), info(0))
    link.wait_decision()
    link.publish(encoded(2))
    link.wait_decision()
    assert [[c.name for c in r.checkpoints] for r in server.requests] == [
        ["checkpoint_000000"],
        [],
        ["checkpoint_000000"],
    ]


def test_deleted_checkpoints_are_repeated_until_answered() -> None:
    link, server, _ = linked(TransportError("lost"))
    link.deleted(["checkpoint_000000"])
    link.publish(encoded(1))
    link.wait_decision()
    link.publish(encoded(2))
    link.wait_decision()
    assert [r.deleted_checkpoints for r in server.requests] == [["checkpoint_000000"]] * 2 + [[]]


def test_permitted_removals_wait_for_the_next_report() -> None:
    link, server, _ = linked()
    link.deleted_as_allowed(["checkpoint_000000"])
    assert server.requests == []
    link.publish(encoded(1))
    link.wait_decision()
    link.deleted_as_allowed(["checkpoint_000001"])
    link.finish(AttemptEnd(cause="completed"))
    assert [r.deleted_checkpoints for r in server.requests] == [["checkpoint_000000"], ["checkpoint_000001"]]


def test_end_goes_with_the_last_batch_and_waits_for_commit() -> None:
    link, server, clock = linked(ReportAnswer(received=2, durable=0), ReportAnswer(received=2, durable=2))
    link.publish(encoded(1))
    link.publish(encoded(2))
    link.finish(AttemptEnd(cause="completed"))
    assert [r.end is not None for r in server.requests] == [True, True]
    assert clock.slept


def test_the_end_is_not_sent_before_the_last_result() -> None:
    link, server, _ = linked()
    for number in range(1, 3001):
        link.publish(encoded(number))
    link.finish(AttemptEnd(cause="completed"))
    assert [r.end is not None for r in server.requests] == [False, True]
    assert [n for r in server.requests for n in values(r)] == list(range(1, 3001))


class EndsWhenCalled(Server):
    """Has the trial's own thread report and store more while the end is being sent by another one."""

    link: AttemptLink

    def post(self, path: str, body: bytes, *, timeout_s: float | None = None) -> tuple[int, bytes]:
        assert self.link.publish(encoded(3)) == 2
        self.link.announce(info(3))
        status, answer = super().post(path, body, timeout_s=timeout_s)
        assert len(self.requests) < 5, "it never ends"
        return status, answer


def test_what_is_reported_after_the_end_is_dropped() -> None:
    link, server, _ = linked(
        TransportError("the server is paused"), ReportAnswer(received=2, durable=2), server=EndsWhenCalled
    )
    server.link = link
    link.publish(encoded(1))
    link.publish(encoded(2))
    link.finish(AttemptEnd(cause="preempted"))
    assert [(r.first, values(r), len(r.checkpoints)) for r in server.requests] == [(1, [1, 2], 0)] * 2
    assert link.ended


def test_superseded_after_the_end_was_taken_is_a_normal_finish() -> None:
    link, _, _ = linked(ReportAnswer(received=1, durable=0), ReportAnswer(superseded=True))
    link.publish(encoded(1))
    link.finish(AttemptEnd(cause="completed"))


def test_publishing_waits_for_a_full_queue_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    link, server, _ = linked(max_queued_bytes=50)
    for number in range(1, 101):
        link.publish(b"\x81\xa1n" + msgspec.msgpack.encode(number))
    assert len(server.requests) >= 2
    assert sum("waits until it catches up" in record.message for record in caplog.records) == 1


def test_back_pressure_lasts_until_results_are_durable() -> None:
    link, server, clock = linked(
        ReportAnswer(received=3), ReportAnswer(received=3), ReportAnswer(received=3, durable=3), max_queued_bytes=10
    )
    for number in range(1, 4):
        link.publish(encoded(number))
    assert [len(r.results) for r in server.requests] == [3, 0, 0]
    assert clock.slept == [0.002, 0.004]


class SlowServer(Server):
    """Takes a second for each batch, unless an entry of its script says otherwise."""

    clock: Clock

    def post(self, path: str, body: bytes, *, timeout_s: float | None = None) -> tuple[int, bytes]:
        self.clock.now += 1.0
        return super().post(path, body, timeout_s=timeout_s)


def flooding(*script: Any) -> tuple[AttemptLink, Server]:
    """A link that has measured a server which receives 2,048 results in a second."""
    link, server, clock = linked(*script)
    server.__class__, server.clock = SlowServer, clock  # type: ignore[attr-defined]
    for number in range(2048):
        link.publish(encoded(number))
    link.wait_decision()
    return link, server


def test_a_flood_never_runs_far_ahead_of_the_server() -> None:
    link, server = flooding()
    received = 2048
    for number in range(2049, 20_000):
        link.publish(encoded(number))
        received = sum(len(request.results) for request in server.requests)
        assert number - received <= 2 * 2048
    assert received >= 15_000


def test_a_flood_is_not_held_up_while_nobody_answers() -> None:
    link, server = flooding()
    server.script = [TransportError("away")]
    for number in range(2049, 10_001):
        link.publish(encoded(number))
    assert len(server.requests) == 2, "the one that was not answered is the last"
    link.wait_decision()
    assert values(server.requests[-1])[-1] == 10_000


def test_an_assignment_is_asked_for_until_there_is_an_answer() -> None:
    server, clock = Server(TransportError("away"), 500, AssignmentAnswer(reason="no work")), Clock()
    client = ReportClient("unix:/x", "e", clock=clock, sleep=clock.sleep, connection=server)  # type: ignore[arg-type]
    answer = client.assignment(AssignmentRequest(runner="r", pid=1, hostname="h"))
    assert (answer.assignment, answer.reason) == (None, "no work")
    assert len(clock.slept) == 2


def test_a_runner_that_is_refused_work_learns_why() -> None:
    server = Server(404)
    client = ReportClient("unix:/x", "e", connection=server)  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match="status 404"):
        client.assignment(AssignmentRequest(runner="r", pid=1, hostname="h"))


class TestNamesOfNestedMetrics:
    def test_are_sent_with_their_result_and_once(self) -> None:
        link, server, _ = linked()
        for number, name in ((1, "a"), (2, "b"), (3, "")):
            if name:
                link.nested.add(name)
            link.publish(encoded(number))
            link.wait_decision()
        assert [request.nested for request in server.requests] == [["a"], ["b"], []]

    def test_are_sent_again_when_the_server_may_lack_them(self) -> None:
        """The second call repeats results that the server may have taken from the first, without the second name."""
        link, server, _ = linked(TransportError("away"))
        link.nested.add("a")
        link.publish(encoded(1))
        link._call()
        link.nested.add("b")
        link.wait_decision()
        link.publish(encoded(2))
        link.wait_decision()
        assert [(values(r), r.nested) for r in server.requests] == [
            ([1], ["a"]),
            ([1], ["a", "b"]),
            ([2], ["a", "b"]),
        ]

    def test_are_sent_again_to_a_server_that_lost_results(self) -> None:
        link, server, _ = linked(ReportAnswer(received=1), ReportAnswer(received=0))
        link.nested.add("a")
        link.publish(encoded(1))
        link.wait_decision()
        link.publish(encoded(2))
        link.wait_decision()
        assert [(values(r), r.nested) for r in server.requests] == [([1], ["a"]), ([2], []), ([1, 2], ["a"])]
