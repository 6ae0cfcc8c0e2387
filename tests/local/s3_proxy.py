"""What stands between a client and an S3 server in tests, and does harm at a chosen moment."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import urlsplit

ERROR = '<?xml version="1.0"?><Error><Code>{code}</Code><Message>as the test wants</Message></Error>'


class CuttingProxy:
    """Passes bytes on, and calls `then` and cuts all connections once `after` bytes have come from clients.

    Args:
        port: where the server listens on this machine.
        after: bytes from clients to pass on before the cut; there is one cut.
        then: is called at the cut.
        bytes_per_s: what all clients together can send; None is no limit.
    """

    def __init__(
        self,
        port: int,
        *,
        after: int,
        then: Callable[[], None] = lambda: None,
        bytes_per_s: float | None = None,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0
        self._port = port
        self._left = after
        self._then = then
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._open: list[socket.socket] = []
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        if bytes_per_s is not None:
            # What waits in the kernel has been sent, as far as the client can see.
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._acceptor = threading.Thread(target=self._serve, daemon=True)
        self._acceptor.start()

    def __enter__(self) -> CuttingProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        self._cut_all()
        with self._lock:
            assert self._ended.wait_for(lambda: not self._open, 20)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open += [client, server]
            threading.Thread(target=self._join, args=(client, server), daemon=True).start()

    def _join(self, client: socket.socket, server: socket.socket) -> None:
        back = threading.Thread(target=self._pass, args=(server, client, False), daemon=True)
        back.start()
        self._pass(client, server, True)
        back.join()
        with self._lock:
            self._open = [end for end in self._open if end not in (client, server)]
            client.close()
            server.close()
            self._ended.notify_all()

    def _pass(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        with suppress(OSError):  # an end is gone; so is the other soon
            while data := source.recv(65536):
                if counted and self._is_time(len(data)):
                    self._then()
                    self._cut_all()
                    return
                if counted and self._bytes_per_s is not None:
                    self._take_turn(len(data) / self._bytes_per_s)
                target.sendall(data)
        # Only this direction has ended: an answer on its way back must arrive.
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)
        if counted:
            return
        with suppress(OSError):
            source.shutdown(socket.SHUT_RD)

    def _take_turn(self, seconds: float) -> None:
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + seconds
            wait = self._free_at - now
        time.sleep(wait)

    def _is_time(self, count: int) -> bool:
        with self._lock:
            before, self._left = self._left, self._left - count
            if before > 0 >= self._left:
                self.cuts += 1
                return True
            return False

    def _cut_all(self) -> None:
        with self._lock:
            for end in self._open:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)


Rule = Callable[[str, str, Callable[[], object]], tuple[int, str] | None]
"""Given method, target, and what sends the request on without its answer reaching the client: an answer, or None."""


class AnsweringProxy:
    """Passes requests on, except those for which `rule` has an answer: a status (0: cut) and an S3 error code."""

    def __init__(
        self, endpoint: str, rule: Rule = lambda method, target, forward: None, *, damage_first_body: bool = False
    ) -> None:
        upstream = urlsplit(endpoint)
        self.seen: list[str] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if damage_first_body and not proxy.seen:
                    body = bytes([body[0] ^ 1]) + body[1:]
                proxy.seen.append(f"{self.command} {self.path}")

                def forward() -> tuple[int, list[tuple[str, str]], bytes]:
                    connection = http.client.HTTPConnection(str(upstream.hostname), upstream.port, timeout=30)
                    connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        connection.putheader(name, value)
                    connection.endheaders(body)
                    answer = connection.getresponse()
                    result = answer.status, answer.getheaders(), answer.read()
                    connection.close()
                    return result

                made = rule(self.command, self.path, lambda: list(forward()))
                if made is None:
                    status, headers, data = forward()
                else:
                    status, headers, data = made[0], [], ERROR.format(code=made[1]).encode()
                if status == 0:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.send_response_only(status)
                for name, value in headers:
                    if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def __enter__(self) -> AnsweringProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
