from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from trialpod.errors import InvalidInputError
from trialpod.protocol.http import IO_TIMEOUT_S
from trialpod.protocol.messages import ErrorAnswer
from trialpod_operator.reports.server import Answer, Handler, Limits, Peer, ReportServer, error

POST = b"POST /v1/digits/report HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def post(self, body: bytes) -> None:
        self.send(POST % (len(body), body))

    async def answer(self) -> tuple[int, dict[bytes, bytes], bytes]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), headers, await self.reader.readexactly(int(headers[b"Content-Length"]))

    async def refusal(self) -> tuple[int, str]:
        status, headers, body = await self.answer()
        assert headers[b"Content-Type"] == b"application/msgpack"
        return status, msgspec.msgpack.decode(body, type=ErrorAnswer).error

    async def ended(self) -> bool:
        return await self.reader.read() == b""


class Service:
    def __init__(self, server: ReportServer, path: str) -> None:
        self.server = server
        self.path = path
        self.clients: list[Client] = []

    async def client(self) -> Client:
        client = Client(*await asyncio.open_unix_connection(self.path))
        self.clients.append(client)
        return client


def serve(folder: Path, handler: Handler, work: Callable[[Service], Awaitable[None]], **limits: float) -> None:
    async def main() -> None:
        server = ReportServer(handler, Limits(**limits))  # type: ignore[arg-type]
        path = str(folder / "sock")
        await server.start_unix(path)
        service = Service(server, path)
        try:
            await asyncio.wait_for(work(service), 90)
        finally:
            for client in service.clients:
                client.writer.close()
            await server.close(grace_s=1)

    asyncio.run(main())
    assert not (folder / "sock").exists()


def echo(path: str, body: bytes, peer: Peer) -> Answer:
    return 200, path.encode() + b":" + body


def test_requests_are_answered_on_one_connection(tmp_path: Path) -> None:
    async def work(service: Service) -> None:
        client = await service.client()
        for body in (b"a", b"", b"\x00" * 300_000):
            client.post(body)
            assert await client.answer() == (
                200,
                {b"Content-Type": b"application/msgpack", b"Content-Length": str(len(body) + 18).encode()},
                b"/v1/digits/report:" + body,
            )

    serve(tmp_path, echo, work)


def test_only_this_user_can_open_the_socket(tmp_path: Path) -> None:
    async def work(service: Service) -> None:
        assert stat.S_IMODE(os.stat(service.path).st_mode) == 0o600

    (tmp_path / "sock").touch()  # left by a server that was killed
    serve(tmp_path, echo, work)


def test_a_path_too_long_for_a_socket_is_refused_with_a_remedy(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(InvalidInputError, match="TMPDIR"):
            await ReportServer(echo).start_unix(tmp_path / ("x" * 120))

    asyncio.run(main())


def test_a_request_may_arrive_byte_by_byte(tmp_path: Path) -> None:
    async def work(service: Service) -> None:
        client = await service.client()
        for byte in POST % (2, b"hi"):
            client.send(bytes([byte]))
            await client.writer.drain()
            await asyncio.sleep(0)
        assert (await client.answer())[2] == b"/v1/digits/report:hi"

    serve(tmp_path, echo, work)


def test_a_chunked_body_is_put_together(tmp_path: Path) -> None:
    async def work(service: Service) -> None:
        client = await service.client()
        client.send(b"POST /v1/d/report?x=1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        client.send(b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")
        assert (await client.answer())[2] == b"/v1/d/report:abc"

    serve(tmp_path, echo, work)


def test_the_handler_sees_headers_and_the_peer(tmp_path: Path) -> None:
    def who(path: str, body: bytes, peer: Peer) -> Answer:
        return 200, peer.address.encode() + b"," + (peer.header(b"authorization") or b"-")

    async def work(service: Service) -> None:
        client = await service.client()
        client.send(b"POST /v1/d/report HTTP/1.1\r\nAUTHORIZATION: Bearer t\r\nContent-Length: 0\r\n\r\n")
        assert (await client.answer())[2] == b"unix,Bearer t"

    serve(tmp_path, who, work)


@pytest.mark.parametrize(
    ("request_", "status", "says"),
    [
        (b"GET /v1/d/report HTTP/1.1\r\n\r\n", 405, "use POST"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 404, "/v1/"),
    ],
)
def test_unknown_route_is_refused_and_connection_kept(
    tmp_path: Path, request_: bytes, status: int, says: str
) -> None:
    async def work(service: Service) -> None:
        client = await service.client()
        client.send(request_)
        got, message = await client.refusal()
        assert got == status
        assert says in message
        client.post(b"x")
        assert (await client.answer())[0] == 200

    serve(tmp_path, echo, work)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # a TLS client
        (b"POST /v1/x HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /v1/x HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST /v1/x HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST /v1/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST /v1/x HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", 400),
        (b"POST /v1/x HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (b"POST /v1/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n600\r\n" + b"x" * 0x600, 413),
        (b"POST /v1/x HTTP/1.1\r\nA: " + b"x" * 40_000, 431),
        (b"POST /v1/" + b"x" * 40_000, 431),
        (b"POST /v1/x HTTP/1.1\r\n" + b"A: b\r\n" * 100, 431),
    ],
)
def test_unservable_request_is_refused_and_closed(tmp_path: Path, data: bytes, status: int) -> None:
    async def work(service: Service) -> None:
        client = await service.client()
        # In two reads, as a large request comes; the rest is still on its way when the server refuses.
        client.send(data[:1000])
        await client.writer.drain()
        await asyncio.sleep(0)
        client.send(data[1000:])
        assert (await client.refusal())[0] == status
        assert await client.ended()

    serve(tmp_path, echo, work, body_bytes=1024)


def test_client_reads_the_refusal_of_a_large_body(tmp_path: Path) -> None:
    async def work(service: Service) -> None:
        client = await service.client()
        client.post(b"x" * 5_000_000)
        await client.writer.drain()
        status, message = await client.refusal()
        assert status == 413
        assert "1024" in message
        assert await client.ended()

    serve(tmp_path, echo, work, body_bytes=1024)


def test_a_failing_handler_is_a_500_and_the_connection_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(path: str, body: bytes, peer: Peer) -> Answer | Awaitable[Answer]:
        async def later() -> Answer:
            raise RuntimeError("later")

        if body == b"now":
            raise RuntimeError("now")
        return later() if body == b"later" else error(404, "no such experiment")

    async def work(service: Service) -> None:
        client = await service.client()
        for body, status in ((b"now", 500), (b"later", 500), (b"", 404)):
            client.post(body)
            assert (await client.refusal())[0] == status

    serve(tmp_path, fail, work)
    assert "now" in caplog.text
    assert "later" in caplog.text


class LongPoll:
    """A handler whose requests wait until the test answers them; those with body "now" do not."""

    def __init__(self) -> None:
        self.waiting: dict[bytes, asyncio.Future[Answer]] = {}
        self.arrived = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.bodies: list[bytes] = []

    def __call__(self, path: str, body: bytes, peer: Peer) -> Answer | Awaitable[Answer]:
        self.bodies.append(body)
        return (200, body) if body == b"now" else self.wait(body)

    async def wait(self, body: bytes) -> Answer:
        future = self.waiting[body] = asyncio.get_running_loop().create_future()
        self.arrived.set()
        try:
            return await future
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


def test_pipelined_requests_are_answered_in_order_one_at_a_time(tmp_path: Path) -> None:
    poll = LongPoll()

    async def work(service: Service) -> None:
        client = await service.client()
        client.send(b"".join(POST % (len(body), body) for body in [b"now", b"wait", *[b"now"] * 100]))
        assert (await client.answer())[2] == b"now"
        await poll.arrived.wait()
        assert poll.bodies == [b"now", b"wait"]
        poll.waiting[b"wait"].set_result((200, b"waited"))
        assert (await client.answer())[2] == b"waited"
        for _ in range(100):
            assert (await client.answer())[2] == b"now"

    serve(tmp_path, poll, work)


def test_garbage_after_a_waiting_request_is_refused_later(tmp_path: Path) -> None:
    poll = LongPoll()

    async def work(service: Service) -> None:
        client = await service.client()
        client.post(b"wait")
        await poll.arrived.wait()
        client.send(b"nonsense\r\n\r\n")
        await client.writer.drain()
        poll.waiting[b"wait"].set_result((200, b"waited"))
        assert (await client.answer())[2] == b"waited"
        assert (await client.refusal())[0] == 400
        assert await client.ended()

    serve(tmp_path, poll, work)


def test_a_long_poll_is_cancelled_when_its_client_goes_away(tmp_path: Path) -> None:
    poll = LongPoll()

    async def work(service: Service) -> None:
        client = await service.client()
        client.post(b"wait")
        await poll.arrived.wait()
        client.writer.transport.abort()
        await poll.cancelled.wait()

    serve(tmp_path, poll, work)


def test_a_long_poll_may_wait_longer_than_any_limit(tmp_path: Path) -> None:
    poll = LongPoll()

    async def work(service: Service) -> None:
        client, idle = await service.client(), await service.client()
        client.post(b"wait")
        assert await idle.ended()  # the idle limit has passed
        poll.waiting[b"wait"].set_result((200, b"waited"))
        assert (await client.answer())[2] == b"waited"

    serve(tmp_path, poll, work, idle_s=0.05, request_s=0.02)


def test_a_client_too_slow_with_its_request_is_told_and_dropped(tmp_path: Path) -> None:
    async def work(service: Service) -> None:
        in_head, in_body = await service.client(), await service.client()
        in_head.send(b"POST /v1/d/report HTT")
        in_body.send(b"POST /v1/d/report HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc")
        for client in (in_head, in_body):
            assert (await client.refusal())[0] == 408
            assert await client.ended()

    serve(tmp_path, echo, work, request_s=0.05)


def test_slow_pipelined_request_loses_no_earlier_answer(tmp_path: Path) -> None:
    """It is refused after the answer before it, and meanwhile the deadlines of other clients hold."""
    poll = LongPoll()

    async def work(service: Service) -> None:
        client, idle = await service.client(), await service.client()
        client.post(b"wait")
        client.send(b"POST /v1/d/report HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc")
        assert await idle.ended()  # the request limit has passed several times
        poll.waiting[b"wait"].set_result((200, b"waited"))
        while (head := await client.reader.readuntil(b"\r\n\r\n")) == WORKING:
            pass
        assert head.startswith(b"HTTP/1.1 200 ")
        assert await client.reader.readexactly(6) == b"waited"
        assert (await client.refusal())[0] == 408
        assert await client.ended()

    serve(tmp_path, poll, work, idle_s=0.2, request_s=0.02, working_s=0.02)


def test_a_client_that_does_not_read_its_answers_is_dropped(tmp_path: Path) -> None:
    called = asyncio.Event()

    def large(path: str, body: bytes, peer: Peer) -> Answer:
        called.set()
        return 200, b"x" * 20_000_000

    async def work(service: Service) -> None:
        _, writer = await asyncio.open_unix_connection(service.path, limit=1024)
        writer.write(POST % (0, b""))
        await called.wait()
        await service.server._all_closed.wait()
        writer.transport.abort()

    serve(tmp_path, large, work, write_s=0.05)


def test_connections_over_the_limit_are_refused(tmp_path: Path) -> None:
    async def work(service: Service) -> None:
        first = await service.client()
        first.post(b"1")
        await first.answer()
        second = await service.client()
        assert (await second.refusal())[0] == 503
        assert await second.ended()
        first.post(b"2")
        assert (await first.answer())[0] == 200

    serve(tmp_path, echo, work, connections=1)


def test_close_or_http_1_0_is_closed_after_the_answer(tmp_path: Path) -> None:
    async def work(service: Service) -> None:
        for start in (b"POST /v1/d HTTP/1.1\r\nConnection: close\r\n", b"POST /v1/d HTTP/1.0\r\n"):
            client = await service.client()
            client.send(start + b"Content-Length: 1\r\n\r\nx" + POST % (1, b"y"))
            status, headers, body = await client.answer()
            assert (status, headers[b"Connection"], body) == (200, b"close", b"/v1/d:x")
            assert await client.ended()

    serve(tmp_path, echo, work)


def test_expect_100_continue_is_answered_before_the_body(tmp_path: Path) -> None:
    async def work(service: Service) -> None:
        client = await service.client()
        client.send(b"POST /v1/d HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n")
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(b"x")
        assert (await client.answer())[2] == b"/v1/d:x"

    serve(tmp_path, echo, work)


def test_a_graceful_close_answers_what_is_in_progress(tmp_path: Path) -> None:
    poll = LongPoll()

    async def work(service: Service) -> None:
        client, idle = await service.client(), await service.client()
        idle.post(b"now")
        await idle.answer()
        client.post(b"wait")
        await poll.arrived.wait()
        closing = asyncio.ensure_future(service.server.close(grace_s=20))
        assert await idle.ended()
        poll.waiting[b"wait"].set_result((200, b"waited"))
        status, headers, _ = await client.answer()
        assert (status, headers[b"Connection"]) == (200, b"close")
        for each in service.clients:
            each.writer.close()
        await closing

    serve(tmp_path, poll, work)


def test_a_close_cancels_what_outlasts_its_grace(tmp_path: Path) -> None:
    poll = LongPoll()

    async def work(service: Service) -> None:
        client = await service.client()
        client.post(b"wait")
        await poll.arrived.wait()
        await service.server.close(grace_s=0.05)
        assert poll.cancelled.is_set() or await poll.cancelled.wait()

    serve(tmp_path, poll, work)


def test_it_serves_tcp_on_a_free_port() -> None:
    async def main() -> None:
        server = ReportServer(echo)
        host, port = await server.start_tcp("127.0.0.1", 0)
        client = Client(*await asyncio.open_connection(host, port))
        client.post(b"x")
        assert (await client.answer())[0] == 200
        client.writer.close()
        await server.close()

    asyncio.run(main())


def test_clients_wait_connected_until_they_are_accepted() -> None:
    async def main() -> None:
        server = ReportServer(echo)
        host, port = await server.start_tcp("127.0.0.1", 0, accept=False)
        client = Client(*await asyncio.open_connection(host, port))
        client.post(b"x")
        answer = asyncio.ensure_future(client.answer())
        await asyncio.sleep(0)
        assert not server._connections
        assert not answer.done()
        await server.accept()
        assert (await answer)[0] == 200
        client.writer.close()
        await server.close()

    asyncio.run(main())


def test_an_answer_may_ask_the_client_to_come_back_later(tmp_path: Path) -> None:
    async def work(service: Service) -> None:
        client = await service.client()
        for _ in range(2):
            client.post(b"")
            status, headers, _ = await client.answer()
            assert (status, headers[b"Retry-After"]) == (429, b"3")

    serve(tmp_path, lambda path, body, peer: error(429, "too often", 2.1), work)


def test_all_clients_together_may_hold_so_many_bytes_only(tmp_path: Path) -> None:
    async def work(service: Service) -> None:
        slow, other = await service.client(), await service.client()
        slow.send(POST[:-2] % 900 + b"x" * 800)
        slow.send(b"")
        await slow.writer.drain()
        while service.server.held_bytes < 800:  # noqa: ASYNC110 - nothing tells that the server has read
            await asyncio.sleep(0)
        other.post(b"y" * 300)
        status, text = await other.refusal()
        assert (status, text) == (503, "the server holds too many requests; try again")
        slow.send(b"x" * 100)
        assert (await slow.answer())[0] == 200
        third = await service.client()
        third.post(b"z" * 700)
        assert (await third.answer())[0] == 200
        assert await other.ended()
        other.writer.close()
        while service.server.held_bytes:  # noqa: ASYNC110
            await asyncio.sleep(0)

    serve(tmp_path, echo, work, held_bytes=1000)


def test_one_address_gets_so_many_connections_only() -> None:
    async def main() -> None:
        server = ReportServer(echo, Limits(connections_per_address=2))
        host, port = await server.start_tcp("127.0.0.1", 0)
        clients = [Client(*await asyncio.open_connection(host, port)) for _ in range(3)]
        assert (await clients[2].refusal())[0] == 503
        for client in clients[:2]:
            client.post(b"x")
            assert (await client.answer())[0] == 200
        for client in clients:
            client.writer.close()
        await server.close()

    asyncio.run(main())


def test_one_address_may_hold_so_many_bytes_only() -> None:
    async def main() -> None:
        server = ReportServer(echo, Limits(held_bytes=10_000, held_bytes_per_address=1000))
        host, port = await server.start_tcp("127.0.0.1", 0)
        hogs = [Client(*await asyncio.open_connection(host, port)) for _ in range(2)]
        for hog in hogs:
            hog.send((POST % (600, b"x" * 600))[:-1])
        assert await hogs[1].refusal() == (503, "the server holds too many requests of this address; try again")
        victim = Client(*await asyncio.open_connection(host, port, local_addr=("127.0.0.2", 0)))
        victim.post(b"x" * 900)
        assert (await victim.answer())[0] == 200
        hogs[0].send(b"x")
        assert (await hogs[0].answer())[0] == 200
        assert server.held_bytes == 0
        hogs[0].post(b"x" * 900)
        assert (await hogs[0].answer())[0] == 200, "what was served or refused is not counted any more"
        for client in (*hogs, victim):
            client.writer.close()
        await server.close()

    asyncio.run(main())


def test_request_without_authorization_is_refused_at_its_head() -> None:
    async def main() -> None:
        server = ReportServer(echo, needs_authorization=True)
        host, port = await server.start_tcp("127.0.0.1", 0)
        clients = [Client(*await asyncio.open_connection(host, port)) for _ in range(2)]
        clients[0].send(POST % (1000, b""))
        status, text = await clients[0].refusal()
        assert (status, "no Authorization header" in text) == (401, True)
        clients[1].send((POST % (1, b"x")).replace(b"Host: x", b"Host: x\r\nAuthorization: Bearer x"))
        assert (await clients[1].answer())[0] == 200
        for client in clients:
            client.writer.close()
        await server.close()

    asyncio.run(main())


def test_connections_beyond_the_limit_are_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        server = ReportServer(echo, Limits(connections=2))
        host, port = await server.start_tcp("127.0.0.1", 0)
        clients = [Client(*await asyncio.open_connection(host, port)) for _ in range(4)]
        for client in clients[2:]:
            assert (await client.refusal())[0] == 503
        for client in clients[:2]:
            client.post(b"x")
            assert (await client.answer())[0] == 200
        assert server.refused == 2
        for client in clients:
            client.writer.close()
        await server.close()

    asyncio.run(main())
    assert [record.message for record in caplog.records] == [
        "refused a connection: 2 are open, which is the limit; clients try again (1 refused until now)"
    ]


WORKING = b"HTTP/1.1 102 Processing\r\n\r\n"


def test_a_client_is_told_that_its_request_is_being_worked_on(tmp_path: Path) -> None:
    async def slow(path: str, body: bytes, peer: Peer) -> Answer:
        await done.wait()
        return 200, body

    def handler(path: str, body: bytes, peer: Peer) -> Answer | Awaitable[Answer]:
        return slow(path, body, peer) if body == b"slow" else (200, body)

    async def work(service: Service) -> None:
        client = await service.client()
        client.post(b"slow")
        for _ in range(3):
            assert await client.reader.readexactly(len(WORKING)) == WORKING
        client.post(b"next")
        assert await client.reader.readexactly(len(WORKING)) == WORKING
        done.set()
        assert (await client.answer())[::2] == (200, b"slow")
        assert (await client.answer())[::2] == (200, b"next")
        client.post(b"quick")
        assert (await client.answer())[::2] == (200, b"quick")

    done = asyncio.Event()
    serve(tmp_path, handler, work, working_s=0.05)


def test_http_1_0_client_gets_no_interim_response(tmp_path: Path) -> None:
    async def handler(path: str, body: bytes, peer: Peer) -> Answer:
        await asyncio.wait_for(other.wait(), 60)
        return 200, body

    async def work(service: Service) -> None:
        old, new = await service.client(), await service.client()
        old.send(b"POST /v1/digits/report HTTP/1.0\r\nContent-Length: 1\r\n\r\nx")
        new.post(b"y")
        for _ in range(3):
            assert await new.reader.readexactly(len(WORKING)) == WORKING
        other.set()
        assert (await old.answer())[0] == 200

    other = asyncio.Event()
    serve(tmp_path, handler, work, working_s=0.05)


def test_a_client_is_given_more_signs_than_it_needs() -> None:
    assert Limits().working_s <= IO_TIMEOUT_S / 3
