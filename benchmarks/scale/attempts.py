"""The attempts of the fake nodes' pods: no process runs, but each speaks the real protocol to the real operator.

One process and one event loop stand for all of them. Each pod has a token of its own, an address of its own and a
connection of its own, as it would have on a node. What a kubelet does beside that is here, too: the pod is Succeeded
when its attempt has ended.

Scores grow with every result of the whole run, so a scheduler that compares them stops no trial.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import random
import ssl
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec
from plane import KUBECONFIG, NAMESPACE, REPORT_PORT, TokenIssuer

from trialpod.protocol.http import SILENCE_S
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

API = "https://127.0.0.1:6443"
PODS = f"{API}/api/v1/namespaces/{NAMESPACE}/pods"
SELECTOR = "app.kubernetes.io/name=trialpod-trial"
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
    """

    results: int
    seconds: float
    spread: float = 0.0


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


class Attempts:
    """Follows the pods and plays their attempts.

    Args:
        work: by the first word of an experiment's name (up to "-"), what its attempts do.
        operators: how many there are. Their Service sends a new connection to any of them.
    """

    def __init__(self, work: Mapping[str, Work], operators: int = 1) -> None:
        self._work = work
        self._service = [("127.0.0.1", REPORT_PORT + number) for number in range(operators)]
        self._issuer = TokenIssuer(NAMESPACE, "default", "trialpod.dev")
        self._playing: dict[str, asyncio.Task[None]] = {}  # by the pod's uid
        self._known: dict[str, float] = {}  # uid -> when it was first seen
        self._addresses = itertools.count(1)
        self._scores = itertools.count(1)
        self.tls = ssl.create_default_context()
        self.tls.check_hostname = False
        self.tls.verify_mode = ssl.CERT_NONE  # the trial's own client checks it; here it is but processor time
        self.experiments: defaultdict[str, Seen] = defaultdict(Seen)
        self.calls = 0
        self.refused: defaultdict[int, int] = defaultdict(int)
        self.interrupted: list[tuple[float, float]] = []
        """Calls that met a broken connection: when it broke, and when they were answered at last."""
        self.problems: list[str] = []

    @property
    def playing(self) -> int:
        """How many attempts are under way."""
        return len(self._playing)

    def any_operator(self) -> tuple[str, int]:
        """Return where the Service sends a new connection."""
        return random.choice(self._service)

    async def run(self) -> None:
        """Follow the pods until cancelled."""
        context = ssl.create_default_context(cafile=_file("certificate-authority-data"))
        context.load_cert_chain(_file("client-certificate-data"), _file("client-key-data"))
        connector = aiohttp.TCPConnector(ssl=context, limit=16)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            self._session = session
            version = ""
            while True:
                try:
                    version = await self._watch(version or await self._list())
                except (aiohttp.ClientError, TimeoutError, ValueError):
                    version = ""
                    await asyncio.sleep(0.2)

    async def _list(self) -> str:
        async with self._session.get(PODS, params={"labelSelector": SELECTOR}) as answer:
            found = await answer.json()
        for pod in found["items"]:
            self._take(pod, deleted=False)
        return str(found["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> str:
        query = {"labelSelector": SELECTOR, "watch": "true", "resourceVersion": version, "timeoutSeconds": "600"}
        async with self._session.get(PODS, params=query) as answer:
            rest = b""
            async for piece in answer.content.iter_any():
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        return ""
                    version = event["object"]["metadata"]["resourceVersion"]
                    self._take(event["object"], deleted=event["type"] == "DELETED")
        return version

    def _take(self, pod: Mapping[str, Any], *, deleted: bool) -> None:
        now = time.monotonic()
        uid = pod["metadata"]["uid"]
        if deleted:
            task = self._playing.pop(uid, None)
            if task is not None:
                task.cancel()
            self._known.pop(uid, None)
            return
        seen = self.experiments[pod["metadata"]["labels"][EXPERIMENT_LABEL]]
        if uid not in self._known:
            self._known[uid] = now
            seen.pods += 1
            seen.first_pod = seen.first_pod or now
            if seen.ends:
                seen.to_next_pod.append(now - seen.ends.popleft())
        leaving = "deletionTimestamp" in pod["metadata"]
        if pod["status"].get("phase") == "Running" and uid not in self._playing and not leaving:
            task = self._playing[uid] = asyncio.ensure_future(self._play(pod, seen))
            task.add_done_callback(lambda done: self._over(uid, done))

    def _over(self, uid: str, done: asyncio.Task[None]) -> None:
        self._playing.pop(uid, None)
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self.problems.append(f"{type(error).__name__}: {error}")

    async def _play(self, pod: Mapping[str, Any], seen: Seen) -> None:
        metadata = pod["metadata"]
        labels = metadata["labels"]
        line = _Line(self, next(self._addresses), self._issuer.issue(pod))
        try:
            came_to_its_end = await self._attempt(labels, line, seen, metadata["uid"])
            seen.finished += came_to_its_end  # in a line of its own: others count while it is awaited
        finally:
            line.close()
        await self._succeeded(metadata["name"])

    async def _attempt(self, labels: Mapping[str, str], line: _Line, seen: Seen, uid: str) -> bool:
        """Play an attempt; return whether it came to its end."""
        name = labels[EXPERIMENT_LABEL]
        work = self._work[name.partition("-")[0]]
        runner = f"{labels[TRIAL_ID_LABEL]}/{labels[ATTEMPT_LABEL]}"
        request = AssignmentRequest(runner=runner, pid=1, hostname=runner.replace("/", "-"))
        answer = await line.call(path(f"{NAMESPACE}/{name}", "assignment"), request, AssignmentAnswer)
        given = answer.assignment
        if given is None:
            return False
        seen.assigned += 1
        seen.to_assignment.append(time.monotonic() - self._known.get(uid, time.monotonic()))
        report = path(f"{NAMESPACE}/{name}", "report")
        began = time.monotonic()
        seconds = work.seconds * random.uniform(1.0 - work.spread, 1.0 + work.spread)
        horizons = given.horizons
        cause: Any = "completed"
        for number in range(1, work.results + 1):
            until = began + seconds * number / work.results
            while (left := until - time.monotonic()) > 0:
                await asyncio.sleep(min(left, given.heartbeat_s))
                if until - time.monotonic() > 0.5:
                    await line.call(
                        report, ReportRequest(trial_id=given.trial_id, attempt=given.attempt), ReportAnswer
                    )
            request_ = ReportRequest(
                trial_id=given.trial_id, attempt=given.attempt, first=number, results=[self._result(number, work)]
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
        end = ReportRequest(
            trial_id=given.trial_id, attempt=given.attempt, first=number + 1, end=AttemptEnd(cause=cause)
        )
        await line.call(report, end, ReportAnswer)
        return True

    def _result(self, number: int, work: Work) -> msgspec.Raw:
        now = time.time()
        return msgspec.Raw(
            _encode(
                {
                    "score": float(next(self._scores)),
                    "loss": random.random(),
                    "training_iteration": number,
                    "time_this_iter_s": work.seconds / work.results,
                    "time_total_s": work.seconds * number / work.results,
                    "time_since_restore": work.seconds * number / work.results,
                    "iterations_since_restore": number,
                    "timestamp": int(now),
                    "date": "2026-01-01_00-00-00",
                    "done": number == work.results,
                }
            )
        )

    async def _succeeded(self, name: str) -> None:
        ended = {"terminated": {"exitCode": 0, "reason": "Completed"}}
        status = {"phase": "Succeeded", "containerStatuses": [{"name": "trial", "state": ended, **_CONTAINER}]}
        headers = {"Content-Type": "application/merge-patch+json"}
        body = json.dumps({"status": status})
        async with self._session.patch(f"{PODS}/{name}/status", data=body, headers=headers) as answer:
            await answer.read()


_CONTAINER = {"ready": False, "restartCount": 0, "image": "trial:none", "imageID": ""}


class _Line:
    """One attempt's connection to the operator; a call is made again until it is answered."""

    def __init__(self, attempts: Attempts, number: int, token: str) -> None:
        self._attempts = attempts
        self._address = f"127.{1 + (number >> 16) % 200}.{number >> 8 & 255}.{number & 255}"
        self._authorization = f"Authorization: Bearer {token}\r\n"
        self._direct: tuple[str, int] | None = None  # the operator that another one named
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def call(self, where: str, message: Message, answer: type[T]) -> T:
        body = _encode(message)
        attempts = self._attempts
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
            attempts.calls += 1
            if status == 200:
                if broke:
                    attempts.interrupted.append((broke, time.monotonic()))
                return msgspec.msgpack.decode(data, type=answer)
            attempts.refused[status] += 1
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
                *(self._direct or self._attempts.any_operator()),
                ssl=self._attempts.tls,
                local_addr=(self._address, 0),
            )
        head = f"POST {where} HTTP/1.1\r\nHost: localhost\r\n{self._authorization}Content-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        async with asyncio.timeout(60):
            status = 0
            while status < 200:  # until then it says that it is at work
                async with asyncio.timeout(SILENCE_S):
                    lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                status = int(lines[0].split()[1])
            fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
            data = await self._reader.readexactly(int(fields.get("content-length") or 0))
        if fields.get("connection", "").lower() == "close":
            self.close()
        return status, float(fields.get("retry-after") or 0), data


def _file(field_name: str) -> str:
    """Return a file with what the administrator's kubeconfig has inside it."""
    config = json.loads(KUBECONFIG.read_text())
    found = {**config["clusters"][0]["cluster"], **config["users"][0]["user"]}
    file = Path(KUBECONFIG).with_name(field_name)
    file.write_bytes(base64.b64decode(found[field_name]))
    return str(file)
