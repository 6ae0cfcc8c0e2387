from __future__ import annotations

import asyncio
import gc
import ssl
import time
import tracemalloc
from collections.abc import Awaitable, Callable

import pytest

from trialpod_operator.cluster.identity.certificates import (
    BUNDLE,
    SERVER_CERTIFICATE,
    SERVER_KEY,
    Rotation,
    plan_rotation,
    ssl_context,
)
from trialpod_operator.reports.connection import Connection
from trialpod_operator.reports.server import Answer, Limits, Peer, ReportServer

MADE, OTHER = (plan_rotation({}, ["127.0.0.1"], time.time()) for _ in range(2))
POST = b"POST /v1/digits/report HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


def context(made: Rotation) -> ssl.SSLContext:
    return ssl_context(made.data[SERVER_CERTIFICATE], made.data[SERVER_KEY])


def trusting(made: Rotation) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=made.data[BUNDLE].decode())


def echo(path: str, body: bytes, peer: Peer) -> Answer:
    return 200, peer.address.encode() + b":" + body


def serve(work: Callable[[ReportServer, int], Awaitable[None]], limits: Limits | None = None) -> None:
    async def main() -> None:
        server = ReportServer(echo, limits)
        _, port = await server.start_tcp("127.0.0.1", 0, context(MADE))
        await asyncio.wait_for(work(server, port), 90)
        await server.close(grace_s=1)

    asyncio.run(main())


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
    return head.split()[1], await reader.readexactly(length)


def test_requests_may_arrive_with_the_end_of_the_handshake() -> None:
    async def work(server: ReportServer, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(MADE))
        for size in (0, 1, 300_000):
            writer.write(POST % size + b"x" * size)
        for size in (0, 1, 300_000):
            assert await answer(reader) == (b"200", b"127.0.0.1:" + b"x" * size)
        writer.close()

    serve(work)


def test_new_context_serves_new_connections_only() -> None:
    async def work(server: ReportServer, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(MADE))
        server.replace_tls(context(OTHER))
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("127.0.0.1", port, ssl=trusting(MADE))
        reader2, writer2 = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(OTHER))
        for one, other in ((reader, writer), (reader2, writer2)):
            other.write(POST % 0)
            assert (await answer(one))[0] == b"200"
            other.close()

    serve(work)


def test_a_refusal_in_the_middle_of_a_request_can_be_read() -> None:
    async def work(server: ReportServer, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(MADE))
        writer.write(POST % 5_000_000)
        for _ in range(50):
            writer.write(b"x" * 100_000)
            await writer.drain()
        assert (await answer(reader))[0] == b"413"
        writer.close()

    serve(work, Limits(body_bytes=1000))


def test_a_client_without_tls_gets_nothing() -> None:
    async def work(server: ReportServer, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(POST % 0)
        try:
            data = await reader.read()
        except ConnectionError:
            data = b""
        assert b"HTTP" not in data
        writer.close()

    serve(work)


def test_closing_ends_idle_clients_and_handshakes_in_progress() -> None:
    async def work(server: ReportServer, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(MADE))
        silent = await asyncio.open_connection("127.0.0.1", port)
        writer.write(POST % 0)
        await answer(reader)
        await server.close(grace_s=5)
        assert await reader.read() == b""
        writer.close()
        silent[1].close()

    serve(work)


def test_close_is_obeyed() -> None:
    async def work(server: ReportServer, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(MADE))
        writer.write(POST.replace(b"Host: x", b"Connection: close") % 0)
        assert (await answer(reader))[0] == b"200"
        assert await reader.read() == b""
        writer.close()

    serve(work)


def test_idle_connection_takes_less_than_100_kb() -> None:
    async def work(server: ReportServer, port: int) -> None:
        clients = trusting(MADE)
        first = await asyncio.open_connection("127.0.0.1", port, ssl=clients)
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        others = [await asyncio.open_connection("127.0.0.1", port, ssl=clients) for _ in range(10)]
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        for _, writer in (first, *others):
            writer.close()
        assert (after - before) / len(others) < 100_000

    serve(work)


def test_closed_connections_need_no_garbage_collection() -> None:
    async def work(server: ReportServer, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(MADE))
        writer.write(POST % 0)
        assert (await answer(reader))[0] == b"200"
        assert any(isinstance(each, Connection) for each in gc.get_objects())
        writer.close()
        await writer.wait_closed()
        for _ in range(100):
            if not any(isinstance(each, Connection) for each in gc.get_objects()):
                return
            await asyncio.sleep(0.05)
        raise AssertionError("the connection is still there")

    gc.collect()
    gc.disable()
    try:
        serve(work)
    finally:
        gc.enable()
