"""The report path's HTTP server and client beside the libraries that could replace them.

    .venv/bin/python benchmarks/http_libraries.py [--rounds N] [--requests N]

Each server answers the same small POST on a Unix socket from one process; one connection sends one request after
another. Printed is the least CPU time per request over all rounds, which other load on the machine disturbs least.
uvicorn is measured where it is installed; aiohttp comes with kopf.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import importlib.util
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

BODY = b"x" * 400
ANSWER = b"\x83\xa8received\x05\xa7durable\x05\xa7horizon\x64"
TOKEN = "t" * 900
SERVERS = ("trialpod", "uvicorn", "aiohttp")
CLIENTS = ("trialpod", "http.client")
WARM_UP = 300


def cpu_s() -> float:
    """Return the CPU seconds that this process has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def start_server(kind: str, path: str) -> None:
    """Serve on the socket `path` with the server `kind`."""
    if kind == "trialpod":
        from trialpod_operator.reports.server import ReportServer

        await ReportServer(lambda _path, _body, _peer: (200, ANSWER)).start_unix(path)
    elif kind == "uvicorn":
        import uvicorn

        async def app(_scope, receive, send):  # type: ignore[no-untyped-def]
            body, more = b"", True
            while more:
                message = await receive()
                body += message.get("body", b"")
                more = message.get("more_body", False)
            headers = [(b"content-type", b"application/msgpack"), (b"content-length", b"%d" % len(ANSWER))]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": ANSWER})

        options = {"http": "httptools", "log_level": "error", "access_log": False, "lifespan": "off"}
        server = uvicorn.Server(uvicorn.Config(app, uds=path, server_header=False, date_header=False, **options))
        server.capture_signals = nullcontext
        start_server.task = asyncio.ensure_future(server.serve())  # type: ignore[attr-defined]
    else:
        from aiohttp import web

        async def answer(request: web.BaseRequest) -> web.Response:
            await request.read()
            return web.Response(body=ANSWER, content_type="application/msgpack")

        runner = web.ServerRunner(web.Server(answer, access_log=None))
        await runner.setup()
        await web.UnixSite(runner, path).start()


async def serve(kind: str, path: str) -> None:
    """Run a server until SIGTERM; SIGUSR1 prints the CPU seconds so far."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGUSR1, lambda: print(cpu_s(), flush=True))
    await start_server(kind, path)
    await stop.wait()
    os._exit(0)


def exchange(connection: socket.socket, request: bytes) -> None:
    """Send one request and read its whole answer."""
    connection.sendall(request)
    data = b""
    while not data.endswith(ANSWER):
        piece = connection.recv(65536)
        if not piece:
            raise SystemExit(f"the server closed the connection after {data[:200]!r}")
        data += piece


class RunningServer:
    """A server in a process of its own."""

    def __init__(self, kind: str, folder: str) -> None:
        self.path = str(Path(folder, "socket"))
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", kind, self.path], stdout=subprocess.PIPE, text=True
        )

    def connect(self) -> socket.socket:
        """Return a connection, within ten seconds."""
        until = time.monotonic() + 10.0
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(self.path)
            except OSError:
                connection.close()
                if time.monotonic() > until or self.process.poll() is not None:
                    raise SystemExit("the server did not start") from None
                time.sleep(0.05)
            else:
                return connection

    def cpu_s(self) -> float:
        """Return the CPU seconds that the server has used."""
        self.process.send_signal(signal.SIGUSR1)
        assert self.process.stdout is not None
        return float(self.process.stdout.readline())

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait(10)


def measure_server(kind: str, requests: int) -> float:
    """Return the CPU microseconds of the server `kind` per request."""
    head = (
        f"POST /v1/report HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Type: application/msgpack\r\nContent-Length: {len(BODY)}\r\n\r\n"
    )
    request = head.encode() + BODY
    with tempfile.TemporaryDirectory() as folder:
        server = RunningServer(kind, folder)
        try:
            with server.connect() as connection:
                for _ in range(WARM_UP):
                    exchange(connection, request)
                before = server.cpu_s()
                for _ in range(requests):
                    exchange(connection, request)
                return (server.cpu_s() - before) / requests * 1e6
        finally:
            server.stop()


def client(kind: str, path: str, requests: int) -> None:
    """Send requests with the client `kind`; print CPU milliseconds of its import and microseconds per request."""
    began = cpu_s()
    if kind == "trialpod":
        from trialpod.protocol.http import Connection

        ours = Connection("unix:" + path)

        def post() -> None:
            ours.post("/v1/report", BODY)
    else:
        theirs = http.client.HTTPConnection("localhost")
        theirs.sock = socket.socket(socket.AF_UNIX)
        theirs.sock.connect(path)

        def post() -> None:
            theirs.request("POST", "/v1/report", BODY, {"Content-Type": "application/msgpack"})
            theirs.getresponse().read()

    imported = cpu_s() - began
    for _ in range(WARM_UP):
        post()
    began = cpu_s()
    for _ in range(requests):
        post()
    print(imported * 1e3, (cpu_s() - began) / requests * 1e6)


def measure_client(kind: str, requests: int) -> float:
    """Return the CPU microseconds of the client `kind` per request."""
    with tempfile.TemporaryDirectory() as folder:
        server = RunningServer("trialpod", folder)
        try:
            server.connect().close()
            command = [sys.executable, __file__, "--client", kind, server.path, "--requests", str(requests)]
            printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=120).stdout
            return float(printed.split()[1])
        finally:
            server.stop()


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--serve", nargs=2, metavar=("KIND", "SOCKET"), help=argparse.SUPPRESS)
    parser.add_argument("--client", nargs=2, metavar=("KIND", "SOCKET"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(*options.serve))
    elif options.client:
        client(*options.client, options.requests)
    else:
        servers = [kind for kind in SERVERS if kind == "trialpod" or importlib.util.find_spec(kind)]
        for kind in servers:
            best = min(measure_server(kind, options.requests) for _ in range(options.rounds))
            print(f"server {kind:12} {best:6.1f} us of CPU per request", flush=True)
        for kind in CLIENTS:
            best = min(measure_client(kind, options.requests) for _ in range(options.rounds))
            print(f"client {kind:12} {best:6.1f} us of CPU per request", flush=True)


if __name__ == "__main__":
    main()
