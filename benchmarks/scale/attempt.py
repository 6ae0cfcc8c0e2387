"""One attempt of the scale benchmark: it speaks the protocol of a real one, and says when what was answered.

It is played by `attempts` against a real operator, and by a test of `make test` against the operator's report
service, so that the benchmark follows the protocol.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import ssl
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from trialpod.protocol.http import IO_TIMEOUT_S
from trialpod.protocol.messages import (
    AssignmentAnswer,
    AssignmentRequest,
    AttemptEnd,
    ErrorAnswer,
    Message,
    ReportAnswer,
    ReportRequest,
    path,
)

EXPERIMENT_LABEL, TRIAL_ID_LABEL = "trialpod.dev/experiment", "trialpod.dev/trial-id"
ATTEMPT_LABEL = "trialpod.dev/attempt"
LEAST_WAIT_S = 0.2
T = TypeVar("T", bound=Message)
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True)
class Work:
    """What an attempt does: so many results in so many seconds, evenly.

    Attributes:
        results: how many.
        seconds: how long it takes.
        spread: by so much of `seconds` it takes more or less, by chance. Without that all trials that were begun
            together end together, and what is measured is a burst of a thousand pods.
        interval: seconds from one result to the next; then there are as many as fit. 0 = `results` of them.
    """

    results: int
    seconds: float
    spread: float = 0.0
    interval: float = 0.0


@dataclass
class Seen:
    """What was measured of one experiment, in seconds; moments are of `time.monotonic`."""

    first_pod: float = 0.0
    pods: int = 0
    finished: int = 0
    assigned: int = 0
    to_assignment: list[float] = field(default_factory=list)
    """From a pod's creation as the watch showed it to its work: scheduler and kwok included."""
    decisions: list[float] = field(default_factory=list)
    """From a result at a horizon to its answer."""
    to_next_pod: list[float] = field(default_factory=list)
    """From an attempt's report of its end to the next pod of the experiment."""
    ends: deque[float] = field(default_factory=deque)
    """Of which no pod came yet."""


@dataclass
class Calls:
    """The calls of all attempts.

    Attributes:
        service: where the operators' Service sends a new connection, by chance.
        tls: None = without.
    """

    service: Sequence[tuple[str, int]]
    tls: ssl.SSLContext | None
    made: int = 0
    refused: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    interrupted: list[tuple[float, float]] = field(default_factory=list)
    """Those that met a broken connection: when it broke, and when they were answered at last."""
    scores: Iterator[int] = field(default_factory=lambda: itertools.count(1))


async def play(namespace: str, labels: Mapping[str, str], line: Line, work: Work, seen: Seen, made: float) -> bool:
    """Play an attempt; return whether it came to its end.

    Args:
        namespace: of its pod.
        labels: of its pod.
        line: its connection.
        work: what it does.
        seen: takes what is measured.
        made: when its pod was seen first.
    """
    name = labels[EXPERIMENT_LABEL]
    runner = f"{labels[TRIAL_ID_LABEL]}/{labels[ATTEMPT_LABEL]}"
    request = AssignmentRequest(runner=runner, pid=1, hostname=runner.replace("/", "-"))
    answer = await line.call(path(f"{namespace}/{name}", "assignment"), request, AssignmentAnswer)
    given = answer.assignment
    if given is None:
        return False
    seen.assigned += 1
    seen.to_assignment.append(time.monotonic() - made)
    report = path(f"{namespace}/{name}", "report")
    began = time.monotonic()
    seconds = work.seconds * random.uniform(1.0 - work.spread, 1.0 + work.spread)
    results = max(1, round(seconds / work.interval)) if work.interval else work.results
    horizons = given.horizons
    cause: Any = "completed"
    for number in range(1, results + 1):
        until = began + seconds * number / results
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, given.heartbeat_s))
            if until - time.monotonic() > 0.5:
                await line.call(report, ReportRequest(trial_id=given.trial_id, attempt=given.attempt), ReportAnswer)
        request_ = ReportRequest(
            trial_id=given.trial_id,
            attempt=given.attempt,
            first=number,
            results=[_result(next(line.calls.scores), number, results, seconds)],
        )
        meets = any(number >= each.at for each in horizons)
        asked = time.monotonic()
        answer = await line.call(report, request_, ReportAnswer)
        if meets:
            seen.decisions.append(time.monotonic() - asked)
        if answer.superseded:
            return False
        horizons = answer.horizons
        if answer.decision is not None:
            cause = {"stop": "stopped", "pause": "paused"}.get(answer.decision, "completed")
            break
    seen.ends.append(time.monotonic())
    end = ReportRequest(trial_id=given.trial_id, attempt=given.attempt, first=number + 1, end=AttemptEnd(cause=cause))
    await line.call(report, end, ReportAnswer)
    return True


def _result(score: int, number: int, results: int, seconds: float) -> msgspec.Raw:
    now = time.time()
    return msgspec.Raw(
        _encode(
            {
                "score": float(score),
                "loss": random.random(),
                "training_iteration": number,
                "time_this_iter_s": seconds / results,
                "time_total_s": seconds * number / results,
                "time_since_restore": seconds * number / results,
                "iterations_since_restore": number,
                "timestamp": int(now),
                "date": "2026-01-01_00-00-00",
                "done": number == results,
            }
        )
    )


class Line:
    """One attempt's connection to the operator; a call is made again until it is answered."""

    def __init__(self, calls: Calls, number: int, token: str) -> None:
        self.calls = calls
        self._address = f"127.{1 + (number >> 16) % 200}.{number >> 8 & 255}.{number & 255}"
        self._authorization = f"Authorization: Bearer {token}\r\n"
        self._direct: tuple[str, int] | None = None  # the operator that another one named
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    def close(self) -> None:
        """End the connection, if there is one."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def call(self, where: str, message: Message, answer: type[T]) -> T:
        """Make a call until it is answered."""
        body = _encode(message)
        calls = self.calls
        broke, wait = 0.0, LEAST_WAIT_S
        while True:
            try:
                status, retry_after, data = await self._exchange(where, body)
            except (OSError, asyncio.IncompleteReadError, ValueError):
                self.close()
                self._direct = None
                broke = broke or time.monotonic()
                await asyncio.sleep(wait * random.uniform(0.5, 1.0))
                wait = min(wait * 2, 2.0)
                continue
            calls.made += 1
            if status == 200:
                if broke:
                    calls.interrupted.append((broke, time.monotonic()))
                return msgspec.msgpack.decode(data, type=answer)
            calls.refused[status] += 1
            if status == 421:
                host, _, port = msgspec.msgpack.decode(data, type=ErrorAnswer).address.rpartition(":")
                self.close()
                self._direct = (host, int(port))
                continue
            if status == 503 and self._direct is not None:
                self.close()
                self._direct = None
            if status not in (401, 429, 503):
                raise RuntimeError(f"{where}: {status} {data[:300]!r}")
            await asyncio.sleep(max(LEAST_WAIT_S, retry_after) * random.uniform(1.0, 1.5))

    async def _exchange(self, where: str, body: bytes) -> tuple[int, float, bytes]:
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(
                *(self._direct or random.choice(self.calls.service)),
                ssl=self.calls.tls,
                local_addr=(self._address, 0),
            )
        head = f"POST {where} HTTP/1.1\r\nHost: localhost\r\n{self._authorization}Content-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        async with asyncio.timeout(60):
            status = 0
            while status < 200:  # until then it says that it is active
                async with asyncio.timeout(IO_TIMEOUT_S):
                    lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                status = int(lines[0].split()[1])
            fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
            data = await self._reader.readexactly(int(fields.get("content-length") or 0))
        if fields.get("connection", "").lower() == "close":
            self.close()
        return status, float(fields.get("retry-after") or 0), data
