"""Whatever is sent to the report service: it answers in words or closes, and continues serving everybody else."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from fuzz_values import MESSAGE_PACK_ONLY, WRONG, changed, damaged, examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from live_service import NAME, LiveService, answers, words

SHARED = [HealthCheck.function_scoped_fixture]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    with LiveService(
        tmp_path_factory.mktemp("s"), body_bytes=100_000, request_s=0.4, idle_s=1.0, linger_s=0.2
    ) as live:
        yield live


@pytest.fixture(autouse=True)
def nothing_told(service: LiveService) -> None:
    service.problems.clear()


def trial(live: LiveService) -> tuple[str, int, int]:
    """Return id, attempt and number of results of a trial that runs."""
    running = live.within(lambda: next(iter(live.served.host.engine.state.running.values())))
    return running.trial_id, running.attempt, running.current.received


def report(live: LiveService) -> dict[str, Any]:
    """Return a whole report with everything in it."""
    trial_id, attempt, received = trial(live)
    state = live.served.host.engine.state.trials[trial_id]
    index = state.next_checkpoint_index
    return {
        "trial_id": trial_id,
        "attempt": attempt,
        "first": received + 1,
        "results": [{"training_iteration": received + 1, "value": 0.5, "done": False, "a/b": [1]}],
        "checkpoints": [
            {
                "name": f"checkpoint_{index:06d}",
                "index": index,
                "iteration": received + 1,
                "metrics": {"value": 0.5},
                "attempt": attempt,
                "size": 10,
                "time": 1.0,
            }
        ],
        "deleted_checkpoints": ["checkpoint_000000"],
        "unneeded_checkpoints": ["checkpoint_000001"],
        "end": None,
    }


def assert_well(live: LiveService) -> None:
    """The service has logged no error, holds nothing, and takes an ordinary report; what is stored can be read."""
    assert live.problems == []
    trial_id, attempt, received = trial(live)
    body = msgspec.msgpack.encode(
        {"trial_id": trial_id, "attempt": attempt, "first": received + 1, "results": [{"value": 1.0}]}
    )
    status, answer = live.post(body)
    assert status == 200
    assert msgspec.msgpack.decode(answer)["received"] == received + 1
    live.within(live.served.host.flush)


def reopened(live: LiveService) -> None:
    """Snapshots and restarts the experiment: what was taken in can be read by the next process."""

    def restart() -> None:
        host = live.served.host
        before = {
            trial.trial_id: (trial.current.received, trial.attempt) for trial in host.engine.state.trials.values()
        }
        host.write_snapshot()
        host.close()
        live.served.open()
        state = live.served.host.engine.state
        assert before == {trial.trial_id: (trial.current.received, trial.attempt) for trial in state.trials.values()}

    live.within(restart)


def judge(status: int, answer: bytes) -> None:
    assert status in (200, 400, 404, 405, 408, 413, 426, 431), (status, answer)
    if status != 200:
        assert len(words(answer)) > 12


@settings(max_examples=examples(80), suppress_health_check=SHARED)
@given(data=st.data())
def test_report_with_arbitrary_fields_is_accepted_or_refused(service: LiveService, data: st.DataObject) -> None:
    message = data.draw(changed(report(service), st.one_of(WRONG, MESSAGE_PACK_ONLY)))
    try:
        body = msgspec.msgpack.encode(message)
    except OverflowError:
        return
    judge(*service.post(body))
    assert_well(service)
    reopened(service)


@settings(max_examples=examples(50), suppress_health_check=SHARED)
@given(data=st.data())
def test_a_damaged_report_is_taken_or_refused_in_words(service: LiveService, data: st.DataObject) -> None:
    body = data.draw(damaged(msgspec.msgpack.encode(report(service))))
    judge(*service.post(body))
    assert_well(service)
    reopened(service)


def test_a_result_with_a_map_for_a_key_is_refused_in_words(service: LiveService) -> None:
    message = report(service) | {"results": [msgspec.Raw(b"\x81\xa1a\x81\x80\x01")]}  # {"a": {{}: 1}}
    status, body = service.post(msgspec.msgpack.encode(message))
    assert (status, "a result cannot be read" in words(body)) == (400, True)
    assert_well(service)


@settings(max_examples=examples(60), suppress_health_check=SHARED)
@given(data=st.data(), call=st.sampled_from(["assignment", "credentials"]))
def test_other_calls_with_anything_in_any_field_are_answered(
    service: LiveService, data: st.DataObject, call: str
) -> None:
    message = {
        "runner": "a/1",
        "pid": 1,
        "hostname": "h",
        "node_ip": "::1",
        "rank": 0,
        "oldest": 1,
        "newest": 1,
        "release": "0.1.0",
        "trial_id": "x",
        "attempt": 1,
    }
    try:
        body = msgspec.msgpack.encode(data.draw(changed(message, st.one_of(WRONG, MESSAGE_PACK_ONLY))))
    except OverflowError:
        return
    judge(*service.post(body, call))
    assert_well(service)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"first": 0}, "first"),
        ({"first": -5}, "first"),
        ({"attempt": "1"}, "attempt"),
        ({"results": [[1]]}, "a result must be a map"),
        ({"results": [{1: 2}]}, "str"),
        ({"results": [{"value": msgspec.msgpack.Ext(5, b"")}]}, "extension 5"),
        ({"results": [{"value": msgspec.msgpack.Ext(2, b"x")}]}, "kind"),
        ({"results": [{"a": [{"b": msgspec.msgpack.Ext(5, b"x\0y")}]}]}, "'a'"),
        ({"end": {"cause": "bored"}}, "bored"),
    ],
)
def test_a_refusal_names_what_was_wrong_and_nothing_is_applied(
    service: LiveService, change: dict[str, Any], says: str
) -> None:
    before = trial(service)
    status, answer = service.post(msgspec.msgpack.encode(report(service) | change))
    assert status == 400
    assert says in words(answer)
    assert trial(service) == before
    assert_well(service)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../../other/checkpoint_000000"},
        {"name": "checkpoint_000999"},  # its index is another
        {"name": ""},
        {"index": -1},
        {"index": 2**64 - 1, "name": f"checkpoint_{2**64 - 1}"},
        {"attempt": 99},
        {"attempt": 0},
        {"size": -1},
        {"iteration": 2**63},
    ],
    ids=str,
)
def test_a_checkpoint_that_cannot_be_is_refused(service: LiveService, change: dict[str, Any]) -> None:
    message = report(service)
    message["checkpoints"][0] |= change
    before = trial(service)
    status, answer = service.post(msgspec.msgpack.encode(message))
    assert (status, "checkpoint" in words(answer)) == (400, True)
    assert trial(service) == before
    reopened(service)


@pytest.mark.parametrize("field", ["results", "unknown", "metrics"])
@pytest.mark.parametrize("depth", [70, 5000, 90_000])
def test_what_is_nested_too_deep_is_refused(service: LiveService, depth: int, field: str) -> None:
    deep = b"\x91" * depth + b"\x00"
    body = msgspec.msgpack.encode(report(service))
    key = {"results": b"\xa3a/b", "unknown": b"\xaaunneeded_x", "metrics": b"\xa5value"}[field]
    if field == "unknown":
        body = b"\x89" + body[1:] + key + deep
    elif field == "results":
        body = body.replace(key + b"\x91\x01", key + deep)
    else:
        body = body.replace(b"\xa7metrics\x81" + key, b"\xa7metrics\x82\xa1x" + deep + key)
    status, answer = service.post(body)
    if field != "unknown" or depth > 70:
        assert (status, "nested" in words(answer)) == (400, True)
    assert_well(service)


def test_text_that_is_not_utf_8_is_refused(service: LiveService) -> None:
    body = msgspec.msgpack.encode(report(service))
    for text in (b"training_", b"checkpoint_000001"):
        broken = body.replace(text, text[:-1] + b"\xff")
        status, answer = service.post(broken)
        assert (status, "UTF-8" in words(answer)) == (400, True)
    assert_well(service)


def test_names_lead_nowhere_else(service: LiveService) -> None:
    body = msgspec.msgpack.encode(report(service))
    for name in (
        "..",
        "../fuzzed",
        "%2e%2e/fuzzed",
        "fuzzed%2f..",
        "fuzzed/",
        "%00",
        "x" * 2000,
        "%ff",
        "fuzzed;a",
        "",
        "a/b/c",
    ):
        status, answer = service.post(body, name=name)
        assert status in (400, 404)
        assert len(words(answer)) > 12
    assert_well(service)


GOOD = b"POST /v1/%s/report HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n\x81\xa0" % NAME.encode()
WIRE = [
    GOOD,
    GOOD + GOOD,
    b"POST /v1/e/report HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n\x81\xa0\r\n1;a=b\r\nx\r\n0\r\n\r\n",
    b"POST /v1/fuzzed/report HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
    b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + GOOD,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)),
]


@settings(max_examples=examples(150), suppress_health_check=SHARED)
@given(data=st.sampled_from(WIRE).flatmap(damaged))
def test_arbitrary_bytes_get_an_answer_or_close(service: LiveService, data: bytes) -> None:
    for status, answer in answers(service.exchange(data)):
        judge(status, answer)
    assert service.problems == []
    assert service.server.held_bytes == 0


@pytest.mark.parametrize(
    "data",
    [
        b"POST /v1/x/report HTTP/1.1\r\nContent-Length: 999999999999999999999999999999\r\n\r\n",
        b"POST /v1/x/report HTTP/1.1\r\nContent-Length: 18446744073709551616\r\n\r\n",
        b"POST /v1/x/report HTTP/1.1\r\nContent-Length: +3\r\n\r\nabc",
        b"POST /v1/x/report HTTP/1.1\r\nContent-Length: 3_0\r\n\r\nabc",
        b"POST /v1/x/report HTTP/1.1\r\nContent-Length: \xd9\xa3\r\n\r\nabc",
        b"POST /v1/x/report HTTP/1.1\r\nContent-Length:\r\n\r\n",
        b"POST /v1/x/report HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        b"POST /v1/x/report HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n-1\r\n",
        b"POST /v1/x/report HTTP/1.1\r\nTransfer-Encoding: identity\r\n\r\nx",
        b"POST /v1/x/report HTTP/9.9\r\n\r\n",
        b"POST /v1/\xff\xfe/report HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        b"POST http://[::1/v1/x HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        b"\0" * 1000,
    ],
    ids=lambda data: repr(data[22:70]),
)
def test_lengths_and_versions_that_cannot_be_are_refused(service: LiveService, data: bytes) -> None:
    found = answers(service.exchange(data))
    assert found
    for status, answer in found:
        judge(status, answer)
    assert_well(service)


def test_slow_clients_block_nobody_and_are_dropped(service: LiveService) -> None:
    slow = [service.connect() for _ in range(30)]
    for client in slow:
        client.sendall(GOOD[:20])
    ended = 0
    for byte in GOOD[20:60]:
        for client in slow:
            try:
                client.sendall(bytes([byte]))
            except OSError:
                ended += 1
        assert_well(service)
        if ended:
            break
    for client in slow:
        client.settimeout(60.0)
        with contextlib.suppress(ConnectionResetError):
            assert b" 408 " in client.recv(1000)
        client.close()
    assert service.server.held_bytes == 0


def test_memory_is_bounded_for_half_sent_requests(service: LiveService) -> None:
    half = b"POST /v1/fuzzed/report HTTP/1.1\r\nContent-Length: 90000\r\n\r\n" + b"x" * 50_000
    clients = [service.connect() for _ in range(20)]
    for client in clients:
        client.sendall(half)
    assert_well(service)
    assert service.server.held_bytes <= 20 * 50_000
    for client in clients:
        client.close()
    assert_well(service)
    for client in [service.connect() for _ in range(20)]:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.sendall(half)
        client.close()
    assert_well(service)
    assert service.server.held_bytes == 0


def test_an_error_of_megabytes_is_cut_to_what_kubernetes_takes(service: LiveService) -> None:
    running = service.served.host.engine.state.running.values()
    failed = next(trial for trial in running if trial.current.decision is None and not trial.completion_reported)
    end = {"cause": "failed", "error": "e" * 30_000, "traceback": "t" * 60_000 + "end"}
    message = {"trial_id": failed.trial_id, "attempt": failed.attempt, "end": end}
    assert service.post(msgspec.msgpack.encode(message))[0] == 200
    assert len(failed.error) <= 8000
    assert failed.traceback.endswith("end")
    assert_well(service)
