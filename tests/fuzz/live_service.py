"""The real report service of a real experiment on a real socket, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from pathlib import Path
from typing import Any

import msgspec

from trialpod.protocol.messages import AssignmentAnswer, AssignmentRequest, AttemptEnd, ReportAnswer, TrainableRef
from trialpod.tune.schedulers.async_hyperband import AsyncHyperBandScheduler
from trialpod.tune.search.basic_variant import BasicVariantGenerator
from trialpod.tune.search.sample import grid_search
from trialpod.tune.stopper.trial_plateau import TrialPlateauStopper
from trialpod_operator.engine.events import AnyEvent, AttemptStarted, SettingsObserved
from trialpod_operator.engine.settings import Settings
from trialpod_operator.experiment.journaled_engine import JournaledEngine
from trialpod_operator.experiment.plan import ExperimentPlan
from trialpod_operator.reports.server import Limits, ReportServer
from trialpod_operator.reports.service import Caller, ReportService
from trialpod_operator.reports.service import Served as Service

NAME = "fuzzed"


def make_plan() -> ExperimentPlan:
    """Return twenty trials whose results are looked at by a scheduler and a stopper."""
    search = BasicVariantGenerator(seed=1)
    search.configure({"x": grid_search(list(range(20)))}, 1)
    return ExperimentPlan(
        settings=Settings(name=NAME, trainable_name="train", metric="value", mode="max", max_failures=1_000_000),
        search=search,
        scheduler=AsyncHyperBandScheduler(max_t=1000, grace_period=900),
        stopper=TrialPlateauStopper("value", std=1e-9, num_results=10_000, grace_period=10_000),
        trainable=TrainableRef(source=""),
    )


class Served:
    """An experiment as the service sees it. All trials run at once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now = 1_700_000_000.0
        self.open()
        self.apply(SettingsObserved(settings=self.host.plan.settings))
        for trial in self.host.engine.state.trials.values():
            self.apply(AttemptStarted(trial_id=trial.trial_id, attempt=trial.attempt, pid=7))

    def open(self) -> None:
        """Open the experiment from what is stored, as a new process does."""
        self.host = JournaledEngine(make_plan(), self.directory, lambda: self.now, lambda action: None)

    def find(self, name: str) -> Service | None:
        return Service(self, self) if name == NAME else None

    def apply(self, event: AnyEvent) -> None:
        self.now += 1.0
        self.host.apply(event)

    def received(self, trial_id: str, attempt: int) -> int | None:
        return self.host.engine.received(trial_id, attempt)

    def answer(self, trial_id: str, attempt: int) -> ReportAnswer:
        return self.host.engine.answer(trial_id, attempt)

    def attempt_ended(self, trial_id: str, attempt: int, end: AttemptEnd) -> AttemptEnd:
        return end

    def assign(self, request: AssignmentRequest) -> AssignmentAnswer:
        return AssignmentAnswer(reason="no work")

    def permits(self, caller: Caller, trial_id: str) -> str | None:
        return None

    def undecided(self) -> None:
        return None

    def committed(self) -> None:
        return None

    def require_fencing_check(self) -> None:
        return None


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []
        self.setFormatter(logging.Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(self.format(record))


class LiveService:
    """The service on a Unix socket; `problems` has every error that it logged or left to the event loop."""

    def __init__(self, directory: Path, **limits: Any) -> None:
        self.served = Served(directory / "experiment")
        self.path = str(directory / "s")
        self._log = _Errors()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _loop, context: self._log.told.append(f"{context}"))
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._limits = Limits(**limits)

    def __enter__(self) -> LiveService:
        logging.getLogger("trialpod_operator").addHandler(self._log)
        self._thread.start()
        self.call(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self.server.close(grace_s=0.2))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        logging.getLogger("trialpod_operator").removeHandler(self._log)
        self.served.host.close()

    async def _start(self) -> None:
        service = ReportService(self.served)
        self.server = ReportServer(lambda path, body, peer: service.handle(path, body), self._limits)
        await self.server.start_unix(self.path)

    def call(self, work: Any) -> Any:
        """Await something in the service's thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(90)

    def within(self, function: Any) -> Any:
        """Call something in the service's thread."""

        async def now() -> Any:
            return function()

        return self.call(now())

    @property
    def problems(self) -> list[str]:
        return self._log.told

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.settimeout(60.0)
        client.connect(self.path)
        return client

    def exchange(self, data: bytes) -> bytes:
        """Send bytes, close the sending half, and return all that comes until the server closes."""
        with self.connect() as client:
            try:
                client.sendall(data)
                client.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # refused before it was all sent; the answer may be there
            return read_all(client)

    def post(self, body: bytes, call: str = "report", name: str = NAME) -> tuple[int, bytes]:
        """Send one request and return status and body of its answer."""
        head = f"POST /v1/{name}/{call} HTTP/1.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        with self.connect() as client:
            client.sendall(head.encode() + body)
            ((status, answer),) = answers(read_all(client))
            return status, answer


def read_all(client: socket.socket) -> bytes:
    found = b""
    try:
        while data := client.recv(65536):
            found += data
    except ConnectionResetError:
        pass
    return found


def answers(data: bytes) -> list[tuple[int, bytes]]:
    """Return status and body of each HTTP answer in `data`, which must consist of whole answers."""
    found = []
    while data:
        head, separator, data = data.partition(b"\r\n\r\n")
        assert separator, data
        lines = head.split(b"\r\n")
        assert lines[0].startswith(b"HTTP/1.1 "), lines[0]
        status = int(lines[0].split()[1])
        if status < 200:
            continue
        headers = dict(line.lower().split(b": ", 1) for line in lines[1:])
        length = int(headers[b"content-length"])
        assert len(data) >= length
        found.append((status, data[:length]))
        data = data[length:]
    return found


def words(answer: bytes) -> str:
    """Return the message of a refusal."""
    return str(msgspec.msgpack.decode(answer)["error"])
