"""A report service for tests: real HTTP over a real Unix socket, answers and faults scripted by the test."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from trialpod.protocol.messages import (
    Assignment,
    AssignmentAnswer,
    AssignmentRequest,
    AttemptEnd,
    CheckpointInfo,
    CredentialsAnswer,
    CredentialsRequest,
    ErrorAnswer,
    ReportAnswer,
    ReportRequest,
)

Policy = Callable[[ReportRequest, ReportAnswer], ReportAnswer]


class ReportServer:
    """Applies results exactly once, as the protocol asks of a server, and misbehaves on request.

    `faults` is consumed one per report call: "drop" closes before reading it in, "lose" applies it and closes without
    an answer, an int answers with that status, None behaves.
    """

    def __init__(self, folder: Path, assignments: list[Assignment] | None = None, *, tcp: bool = False) -> None:
        self.path = folder / "r.sock"
        self.assignments = deque(assignments or [])
        self.faults: deque[str | int | None] = deque()
        self.policy: Policy = lambda request, answer: answer
        self.keys: Callable[[CredentialsRequest], CredentialsAnswer] = lambda request: CredentialsAnswer(
            problem="none"
        )
        self.results: list[dict[str, Any]] = []
        self.numbers: list[int] = []
        self.requests: list[ReportRequest] = []
        self.asked: list[AssignmentRequest] = []
        self.checkpoints: list[CheckpointInfo] = []
        self.deleted: list[str] = []
        self.ends: list[AttemptEnd] = []
        self.current: tuple[str, int] | None = None
        self.received = 0
        self.durable_lag = 0
        self.changed = threading.Condition()
        self.gives = threading.Event()
        self.gives.set()  # while it is not set, who asks for work waits for the answer
        if tcp:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        else:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(self.path))
            self._listener.listen(16)
            self.address = f"unix:{self.path}"
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def __enter__(self) -> ReportServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.disconnect()
        self._accepting.join()
        for thread in self._threads:
            thread.join(5)

    def disconnect(self) -> None:
        """Drop all connections."""
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def wait(self, condition: Callable[[], bool], timeout: float = 90.0) -> None:
        """Wait until `condition` holds, judged after every call."""
        with self.changed:
            assert self.changed.wait_for(condition, timeout), (self.results, self.ends, self.requests[-3:])

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.add(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        try:
            while first := stream.readline():
                length = 0
                while (line := stream.readline()) not in (b"\r\n", b""):
                    name, _, value = line.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                body = stream.read(length)
                if len(body) < length or line == b"":
                    return  # the client was killed in the middle
                path = first.split()[1].decode()
                answer = self._answer(path, body)
                if path.endswith("/assignment"):
                    self.gives.wait(60.0)
                if answer is None:
                    return
                status, data = answer
                head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n\r\n"
                connection.sendall(head.encode() + data)
        except OSError:
            return
        finally:
            self._open.discard(connection)
            stream.close()
            connection.close()

    def _answer(self, path: str, body: bytes) -> tuple[int, bytes] | None:
        with self.changed:
            try:
                if path.endswith("/assignment"):
                    self.asked.append(msgspec.msgpack.decode(body, type=AssignmentRequest))
                    given = self.assignments.popleft() if self.assignments else None
                    self.current, self.received = None, 0
                    return 200, msgspec.msgpack.encode(AssignmentAnswer(assignment=given))
                if path.endswith("/credentials"):
                    wanted = msgspec.msgpack.decode(body, type=CredentialsRequest)
                    return 200, msgspec.msgpack.encode(self.keys(wanted))
                request = msgspec.msgpack.decode(body, type=ReportRequest)
                fault = self.faults.popleft() if self.faults else None
                if fault == "drop":
                    return None
                if isinstance(fault, int):
                    return fault, msgspec.msgpack.encode(ErrorAnswer(error=f"scripted {fault}"))
                answer = self._apply(request)
                if isinstance(answer, tuple):
                    return answer
                return None if fault == "lose" else (200, msgspec.msgpack.encode(self.policy(request, answer)))
            finally:
                self.changed.notify_all()

    def _apply(self, request: ReportRequest) -> ReportAnswer | tuple[int, bytes]:
        self.requests.append(request)
        if request.first > self.received + 1:
            return 409, msgspec.msgpack.encode(ErrorAnswer(error="gap"))
        for number, raw in enumerate(request.results, request.first):
            if number == self.received + 1:
                self.results.append(msgspec.msgpack.decode(raw))
                self.numbers.append(number)
                self.received = number
        known = {info.name for info in self.checkpoints}
        self.checkpoints += [info for info in request.checkpoints if info.name not in known]
        self.deleted += [name for name in request.deleted_checkpoints if name not in self.deleted]
        if request.end is not None and (not self.ends or self.ends[-1] != request.end or self.durable_lag == 0):
            self.ends.append(request.end)
        return ReportAnswer(received=self.received, durable=max(0, self.received - self.durable_lag))
