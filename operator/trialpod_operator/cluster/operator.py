"""The operator's process: kopf watches, the controller decides, the report service listens, all in one event loop.

Order of a start: the API server, the certificates, the probes, the Lease, then the report service and the watches. A
process that waits for the Lease is alive; it is ready only where several are wanted (`standby`). Order of an end: the
report service stops answering, what is under way is committed or dropped (nobody has seen it), the Lease is released.
Trials notice none of it; they try again.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import json
import logging
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import kopf

from trialpod.errors import TrialpodError
from trialpod_operator.cluster import names
from trialpod_operator.cluster.api_errors import ApiError
from trialpod_operator.cluster.certificates import StoredAuthority
from trialpod_operator.cluster.controller import Controller
from trialpod_operator.cluster.identity import Gate, TokenReviewer
from trialpod_operator.cluster.kube import Kube
from trialpod_operator.cluster.lease import LeaderLabel, Lease
from trialpod_operator.cluster.metrics.instruments import REPORT_SECONDS
from trialpod_operator.cluster.metrics.page import CONTENT_TYPE, page
from trialpod_operator.cluster.options import OperatorOptions
from trialpod_operator.reports.probes import Page, ProbeServer
from trialpod_operator.reports.server import ReportServer
from trialpod_operator.reports.service import ReportService

logger = logging.getLogger(__name__)

LEASE_NAME = "trialpod-operator"
CERTIFICATES_INTERVAL_S = 3600.0
LOOP_LATE_S = 30.0
"""A loop that is later than this with its own heartbeat is not alive."""


async def run_operator(options: OperatorOptions) -> int:
    """Run until SIGTERM, or until another operator has the Lease; return the exit status."""
    share_arenas()
    kube = await Kube.connect()
    process = _Process(kube, options)
    try:
        return await process.run()
    finally:
        await process.close()
        await kube.close()


class _Process:
    def __init__(self, kube: Kube, options: OperatorOptions) -> None:
        self._kube = kube
        self._options = options
        short = options.service.removesuffix(".cluster.local")
        server_names = [options.service, *({short, f"{short}.cluster.local"} - {options.service}), "localhost"]
        self._authority = StoredAuthority(kube, options.own_namespace, server_names, time.time)
        self._controller = Controller(kube, options, time.time, lambda: self._authority.bundle)
        self._lease = Lease(
            kube,
            options.own_namespace,
            LEASE_NAME,
            options.identity,
            facts=options.facts,
            alone=not options.standby,
        )

        async def review(token: str) -> dict[str, Any]:
            return await kube.review_token(token, names.TOKEN_AUDIENCE)

        service = ReportService(self._controller, REPORT_SECONDS.observe)
        self._server = ReportServer(Gate(service, TokenReviewer(review)))
        probes = {"/healthz": self._healthy, "/readyz": self._ready}
        self._probes = ProbeServer(probes, {"/metrics": Page(CONTENT_TYPE, self._metrics)})
        self._beat_at = time.monotonic()
        self._watching = asyncio.Event()
        self._waiting = False
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    async def run(self) -> int:
        mark = LeaderLabel(self._kube, self._options.own_namespace, self._options.identity)
        stop = asyncio.Event()
        waiting = asyncio.ensure_future(self._until_leading(mark))
        told: list[int] = []

        def end(number: int) -> None:
            told.append(number)
            waiting.cancel()
            stop.set()

        # Until kopf listens for them: the first process of a container hears no signal that it does not ask for, and
        # would stand by, or even take over, while its pod is being deleted.
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, end, number)
        try:
            await waiting
        except asyncio.CancelledError:
            if not told:
                raise
            logger.info("told to end before it was at work")
            return 0
        logger.info("this operator is at work: %s", self._options.identity)
        self._kube.lease_valid = self._lease.lease_valid
        # While this process waited, the one at work may have made new certificates.
        await self._authority.begin()
        keeping = asyncio.ensure_future(self._lease.keep())
        self._tasks.append(keeping)
        await self._server.start_tcp(self._options.host, self._options.report_port, self._authority.context())
        if self._options.standby:
            self._tasks.append(asyncio.ensure_future(mark.put()))
        self._controller.start()
        self._tasks.append(asyncio.ensure_future(self._renew_certificates()))
        self._tasks.append(asyncio.ensure_future(self._trim()))
        keeping.add_done_callback(lambda _: stop.set())
        try:
            await kopf.operator(
                registry=self._registry(),
                settings=_settings(),
                standalone=True,
                clusterwide=not self._options.namespaces,
                namespaces=self._options.namespaces,
                stop_flag=stop,
                ready_flag=self._watching,
            )
        except Exception as error:
            if not stop.is_set():
                raise
            # It waits for everybody's tasks in the end, and raises what they do: the Lease was the reason, not they.
            logger.info("while this operator ended: %s: %s", type(error).__name__, error)
        return 1 if stop.is_set() and not told else 0

    async def _until_leading(self, mark: LeaderLabel) -> None:
        await self._probes.start(self._options.host, self._options.probe_port)
        self._tasks.append(asyncio.ensure_future(self._beat()))
        await self._authority.begin()
        if self._options.standby:
            await mark.clear()
        self._waiting = True
        await self._lease.acquire()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await self._server.close(grace_s=2.0)
        await self._controller.close()
        await self._lease.release()
        await self._probes.close()

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        controller = self._controller

        def login(**arguments: Any) -> kopf.ConnectionInfo | None:
            return kopf.login_with_service_account(**arguments) or kopf.login_with_kubeconfig(**arguments)

        # Coroutines that await nothing: kopf runs plain functions in threads, and the event loop owns the cache.
        async def on_experiment(event: kopf.RawEvent, **_: Any) -> None:
            controller.on_experiment(dict(event["object"]), deleted=event["type"] == "DELETED")

        async def on_trial(event: kopf.RawEvent, **_: Any) -> None:
            controller.on_trial(dict(event["object"]), deleted=event["type"] == "DELETED")

        async def on_pod(event: kopf.RawEvent, **_: Any) -> None:
            controller.on_pod(dict(event["object"]), deleted=event["type"] == "DELETED")

        kopf.on.login(registry=registry)(login)
        kopf.on.event(names.GROUP, names.VERSION, names.EXPERIMENTS, registry=registry)(on_experiment)
        kopf.on.event(names.GROUP, names.VERSION, names.TRIALS, registry=registry)(on_trial)
        kopf.on.event("", "v1", "pods", registry=registry)(on_pod)
        return registry

    # -- probes --

    def _healthy(self) -> tuple[bool, str]:
        late = time.monotonic() - self._beat_at
        return late < LOOP_LATE_S, f"the event loop was last seen {late:.1f} s ago"

    def _ready(self) -> tuple[bool, str]:
        if not self._lease.held:
            return self._options.standby and self._waiting, "standing by: another operator is at work"
        queue = self._controller.queue.depth
        return self._watching.is_set(), f"{self._controller.open_count} experiments open, {queue} wait for a look"

    def _metrics(self) -> str:
        return page(
            self._controller.cache.experiments,
            active=self._lease.held,
            queue_depth=self._controller.queue.depth,
            open_count=self._controller.open_count,
            accounts=self._controller.accounts(),
        )

    # -- in the background --

    async def _beat(self) -> None:
        while True:
            self._beat_at = time.monotonic()
            await asyncio.sleep(1.0)

    async def _trim(self) -> None:
        while True:
            await asyncio.sleep(TRIM_INTERVAL_S)
            await asyncio.get_running_loop().run_in_executor(None, trim)

    async def _renew_certificates(self) -> None:
        while True:
            await asyncio.sleep(CERTIFICATES_INTERVAL_S)
            try:
                if await self._authority.refresh():
                    self._server.replace_tls(self._authority.context())
                await self._controller.services.publish_everywhere()
            except (ApiError, TrialpodError) as error:
                logger.warning("the certificates could not be renewed: %s", error)


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.loggers = False
    settings.posting.worker_limit = 10
    settings.peering.standalone = True
    # It would look for kinds and namespaces that come and go, which takes rights over the whole cluster.
    settings.scanning.disabled = True
    settings.watching.chunk_size = 500
    settings.watching.connect_timeout = 5
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.networking.connect_timeout = 5
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = _ForEver()
    settings.execution.default_backoff = 10
    settings.persistence.diffbase_storage = _NoDiff()
    settings.queueing.worker_limit = None
    ours = f"{names.MANAGED_BY_LABEL}={names.MANAGER}"
    settings.watching.label_selectors["pods"] = ours
    settings.watching.label_selectors[names.TRIALS] = ours
    return settings


class _ForEver:
    """The seconds between two tries of kopf: a watch that gave up would end the operator."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((1.0, 1.0, 2.0, 3.0), itertools.repeat(5.0))


class _NoDiff(kopf.DiffBaseStorage):
    """Remembers nothing of objects: kopf would copy each of them with every event, for handlers of other kinds."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Return what is compared with the state before: nothing."""
        return {}

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        """Return that state: none."""
        return None

    def store(self, **_: Any) -> None:
        """Keep it nowhere."""


class JsonLines(logging.Formatter):
    """One JSON object for each record, on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logging(level: str) -> None:
    """Log JSON lines to standard error: of trialpod from `level` on, of libraries what is wrong."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = JsonLines()
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("trialpod", "trialpod_operator"):
        logging.getLogger(name).setLevel(level)


ARENAS = 2
"""glibc gives each thread an arena of its own, up to eight for each core, and returns little of them."""
_M_ARENA_MAX = -8  # malloc.h

TRIM_INTERVAL_S = 60.0


def share_arenas() -> None:
    """Have all threads share a few arenas; to be called before the first thread."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, ARENAS)


def trim() -> bool:
    """Hand free memory back to the system; return whether there was any. It takes milliseconds: for a thread."""
    with contextlib.suppress(OSError, AttributeError):
        return bool(ctypes.CDLL(None).malloc_trim(0))
    return False
