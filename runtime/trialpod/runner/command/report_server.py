"""Where a command's program reports by HTTP: ``curl -d 'loss=0.3 step=4' "$TRIALPOD_REPORT_URL"``.

It listens on the loopback interface only, below a path that cannot be guessed. What the answer 200 confirms is in
the runner's hands. Nothing of Python's HTTP server is imported before the first call: most commands make none.
"""

from __future__ import annotations

import contextlib
import json
import queue
import secrets
import select
import socket
import threading
from typing import TYPE_CHECKING, Any

from trialpod.tune.command.metrics.text import Number, json_numbers, pairs
from trialpod.variables import REPORT_URL

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler

STEP = "step"
MAX_BODY_BYTES = 1024 * 1024
_QUEUED = 1024


class CheckpointRequest:
    """A program that waits until its folder has been copied."""

    def __init__(self) -> None:
        self.answered = threading.Event()
        self.taken = False

    def answer(self, *, taken: bool) -> None:
        """Let the program continue; `taken` says whether its folder is kept."""
        self.taken = taken
        self.answered.set()


class ReportServer:
    """Takes reports in a thread of its own."""

    def __init__(self) -> None:
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(16)
        self._path = f"/{secrets.token_urlsafe(16)}"
        self._reports: queue.Queue[tuple[dict[str, Number], int | None]] = queue.Queue(_QUEUED)
        self._closed = threading.Event()
        self._requests: queue.SimpleQueue[CheckpointRequest] = queue.SimpleQueue()
        self._released = threading.Event()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}{self._path}"
        self._thread = threading.Thread(target=self._serve, name="trialpod-reports", daemon=True)
        self._thread.start()

    def next(self) -> tuple[dict[str, Number], int | None] | None:
        """Return the next report and the step that it names, None when there is none."""
        try:
            return self._reports.get_nowait()
        except queue.Empty:
            return None

    def checkpoint_requests(self) -> list[CheckpointRequest]:
        """Return the calls of ``URL/checkpoint`` that wait: the folder is complete now."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._requests.get_nowait())
        return found

    def release(self) -> None:
        """Let calls of ``URL/checkpoint`` wait no more: the program is to end, and its last state is kept then."""
        self._released.set()

    def close(self) -> None:
        """Take no more reports."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join(1.0)
        self._listener.close()

    def _serve(self) -> None:
        while not select.select([self._listener], [], [], 0.25)[0] and not self._closed.is_set():
            pass
        if self._closed.is_set():
            return
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

        reports = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 10

            def do_POST(self) -> None:
                reports.answer(self)

            do_PUT = do_POST  # noqa: N815 - named by http.server

            def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - named by http.server
                return

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
        server.socket.close()
        server.socket = self._listener
        server.server_address = self._listener.getsockname()
        server.daemon_threads = True
        server.timeout = 0.1
        while not self._closed.is_set():
            server.handle_request()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Take one call and answer it."""
        length = request.headers.get("Content-Length", "")
        status, text = 200, "ok"
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            status, text = 411, "send a Content-Length, of at most 1 MiB"
            request.close_connection = True
        else:
            body = request.rfile.read(int(length)).decode("utf-8", "replace").strip()
            if request.path == f"{self._path}/checkpoint":
                status, text = self._checkpoint()
            elif request.path != self._path:
                status, text = 404, f"call the URL of {REPORT_URL} as it is, or with /checkpoint appended"
            else:
                status, text = self._take(body)
        data = f"{text}\n".encode()
        request.send_response(status)
        request.send_header("Content-Type", "text/plain")
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    def _checkpoint(self) -> tuple[int, str]:
        request = CheckpointRequest()
        self._requests.put(request)
        while not request.answered.wait(0.25):
            if self._released.is_set() or self._closed.is_set():
                return 200, "ok"
        return (200, "ok") if request.taken else (409, "the folder changed while it was copied; ask again")

    def _take(self, body: str) -> tuple[int, str]:
        values, problem = read_report(body)
        if problem:
            return 400, problem
        step = values.pop(STEP, None)
        if not values:
            return 400, "only a step; give a metric too, such as loss=0.3 step=4"
        while not self._closed.is_set():
            try:
                self._reports.put((values, step if isinstance(step, int) else None), timeout=0.25)
            except queue.Full:
                continue  # the trial waits for a decision
            return 200, "ok"
        return 503, "the trial is over"


def read_report(text: str) -> tuple[dict[str, Number], str]:
    """Return the values of a report, ``loss=0.3 step=4`` or a JSON object, and what is wrong with it, or ""."""
    if text.startswith("{"):
        try:
            json.loads(text)
        except ValueError as error:
            return {}, f"is not a JSON object: {error}"
        found = json_numbers(text) or {}
        return found, "" if found else "has no number"
    found = {}
    for word in text.replace("&", " ").split():
        name, equals, _ = word.partition("=")
        values = pairs(word)
        if not equals or list(values) != [name]:
            return {}, f"{word!r} is not a metric; write name=number, such as loss=0.3 step=4"
        found.update(values)
    return found, "" if found else "is empty; write name=number, such as loss=0.3 step=4"
