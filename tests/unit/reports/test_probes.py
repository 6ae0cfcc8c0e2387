from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from trialpod_operator.reports.probes import ProbeServer


def broken() -> tuple[bool, str]:
    raise ValueError("oops")


def serve(work: Callable[[str, int], Awaitable[None]], timeout_s: float = 60.0) -> None:
    async def main() -> None:
        server = ProbeServer(
            {
                "/healthz": lambda: (True, "the loop answers"),
                "/readyz": lambda: (False, "waits for the lease"),
                "/broken": broken,
            },
            timeout_s=timeout_s,
        )
        host, port = await server.start("127.0.0.1", 0)
        await asyncio.wait_for(work(host, port), 60)
        await server.close()

    asyncio.run(main())


async def asked(host: str, port: int, request: bytes) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(request)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]) if head else 0, body.decode()


@pytest.mark.parametrize(
    ("line", "status", "text"),
    [
        (b"GET /healthz HTTP/1.1", 200, "the loop answers\n"),
        (b"HEAD /healthz HTTP/1.1", 200, ""),
        (b"GET /readyz?verbose HTTP/1.1", 503, "waits for the lease\n"),
        (b"GET /broken HTTP/1.1", 503, "the probe itself failed: ValueError\n"),
        (b"GET /v1/a/report HTTP/1.1", 404, "the probes are /healthz, /readyz, /broken\n"),
        (b"POST /healthz HTTP/1.1", 405, "use GET\n"),
        (b"nonsense", 405, "use GET\n"),
    ],
)
def test_a_probe_is_answered_in_a_sentence(line: bytes, status: int, text: str) -> None:
    async def work(host: str, port: int) -> None:
        assert await asked(host, port, line + b"\r\nHost: x\r\n\r\n") == (status, text)

    serve(work)


def test_a_head_that_is_too_long_or_never_ends_is_dropped() -> None:
    async def work(host: str, port: int) -> None:
        for request in (b"GET /healthz HTTP/1.1\r\n" + b"x" * 100_000, b"GET /healthz"):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(request)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()

    serve(work, timeout_s=0.05)


def test_clients_that_say_nothing_keep_no_probe_out() -> None:
    async def work(host: str, port: int) -> None:
        silent = [await asyncio.open_connection(host, port) for _ in range(100)]
        assert await asked(host, port, b"GET /healthz HTTP/1.1\r\n\r\n") == (200, "the loop answers\n")
        with contextlib.suppress(ConnectionResetError):
            assert await silent[0][0].read() == b"", "the oldest is dropped"
        for _, writer in silent:
            writer.close()

    serve(work)


def test_closing_drops_a_client_in_the_middle() -> None:
    async def work(host: str, port: int) -> None:
        _, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET /he")
        await writer.drain()
        assert (await asked(host, port, b"GET /healthz HTTP/1.1\r\n\r\n"))[0] == 200
        writer.close()

    serve(work)
