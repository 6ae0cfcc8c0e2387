"""The operator's process: kopf watches, the controller decides, the report service listens, all in one event loop.

Order of a start: the API server, the probes, the certificates, the Lease, then the report service and the watches.
One that is alone waits until no other has the Lease; several have one each, and share the experiments (`shards`).
Order of an end: each experiment is committed and closed, and its shard released for others; the Leases are released;
then kopf, the report service and the rest stop, without a wait. Until then trials are sent to the replicas that serve
them.

kopf logs in, discovers, and lists and watches TuneExperiments, with its settings and its retries; TuneTrials and pods
are followed by `object_watch`. kopf's last-handled state and its events for log records are switched off
(`_settings`). Lease, work queue, cache and probes are the operator's own; each says
why where it is made.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import resource
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from trialpod_operator.api.document import allow_deep_json
from trialpod_operator.cluster import first_lists, names
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster.controller import Controller
from trialpod_operator.cluster.identity.certificates import StoredAuthority
from trialpod_operator.cluster.identity.reviewer import Gate, TokenReviewer
from trialpod_operator.cluster.identity.token_keys import TokenKeys
from trialpod_operator.cluster.kube import Kube
from trialpod_operator.cluster.lean_kopf import kopf
from trialpod_operator.cluster.metrics.instruments import REPORT_SECONDS, sample_loop_lag
from trialpod_operator.cluster.metrics.page import CONTENT_TYPE, page
from trialpod_operator.cluster.object_watch import ObjectWatch
from trialpod_operator.cluster.options import OperatorOptions
from trialpod_operator.cluster.process_memory import (
    collect_fully,
    freeze_modules,
    leave_out_full_collections,
    share_arenas,
    trim,
)
from trialpod_operator.cluster.shards.membership import Membership
from trialpod_operator.cluster.shards.ownership import Ownership
from trialpod_operator.reports.probes import Page, ProbeServer
from trialpod_operator.reports.server import CONNECTIONS, Limits, ReportServer
from trialpod_operator.reports.service import ReportService

logger = logging.getLogger(__name__)

LEASE_NAME = "trialpod-operator"
HAND_OVER_TIMEOUT_S = 5.0
"""Maximum time that an operator which ends waits until all experiments are committed and closed."""
TRIM_INTERVAL_S = 60.0
UNSERVED_INTERVAL_S = 5.0
LOOP_LATE_S = 30.0
"""A loop that is later than this with its own heartbeat is not alive."""


async def run_operator(options: OperatorOptions) -> int:
    """Run until SIGTERM, or until another operator has the Lease of one that is alone; return the exit status."""
    share_arenas()
    allow_deep_json()
    kube = await Kube.connect()
    process = OperatorProcess(kube, options, allow_connections())
    freeze_modules()
    leave_out_full_collections()
    try:
        return await process.run()
    finally:
        await process.close()
        await kube.close()


class OperatorProcess:
    """One operator: it waits for its Lease, then works until it has to stop.

    Args:
        kube: the API server.
        options: the operator's settings.
        connections: how many the report service takes.
    """

    def __init__(self, kube: Kube, options: OperatorOptions, connections: int = CONNECTIONS) -> None:
        self._kube = kube
        self._options = options
        short = options.service.removesuffix(".cluster.local")
        server_names = [options.service, *({short, f"{short}.cluster.local"} - {options.service}), "localhost"]
        self._authority = StoredAuthority(kube, options.own_namespace, server_names, time.time)
        ownership = Ownership(options.identity)
        self._controller = Controller(kube, options, time.time, lambda: self._authority.bundle, ownership)
        # kopf's peering has no fencing, takes a resource definition of its own, and has one active operator.
        self._membership = Membership(
            kube,
            options.own_namespace,
            LEASE_NAME,
            options.identity,
            ownership,
            self._controller.release,
            self._controller.gain,
            address=options.direct_address,
            facts=options.facts,
            alone=options.replicas <= 1,
            on_outage=self._controller.record_outage,
        )

        async def review(token: str) -> dict[str, Any]:
            return await kube.review_token(token, names.TOKEN_AUDIENCE)

        service = ReportService(self._controller, REPORT_SECONDS.observe)
        keys = TokenKeys(kube.token_keys, self._controller.cache.pod_by_uid)
        self._server = ReportServer(
            Gate(service, TokenReviewer(review, keys.pod_of)),
            Limits(connections=connections),
            needs_authorization=True,
        )
        # kopf serves liveness only, and only while it runs: one that waits for its Lease answers before that.
        probes = {"/healthz": self.liveness, "/readyz": self.readiness}
        self._probes = ProbeServer(probes, {"/metrics": Page(CONTENT_TYPE, self.metrics)})
        self._beat_at = time.monotonic()
        self._watching = asyncio.Event()
        self._watches: dict[str, tuple[ObjectWatch, ...]] = {}  # by namespace
        self._followed_at = 0.0  # loop time
        self._stopping = asyncio.Event()
        self._unwatch = asyncio.Event()
        self._signalled = False
        self._tasks: list[asyncio.Task[None]] = []
        self._keeping: asyncio.Task[None] | None = None  # the Lease
        self._closed = False

    async def run(self) -> int:
        """Run until SIGTERM, or until another has the Lease of one that is alone; return the exit status."""
        joining = asyncio.ensure_future(self._join())

        def end() -> None:
            self._signalled = True
            joining.cancel()
            self._stopping.set()

        # Process 1 of a container gets no signal that it does not handle.
        self._handle_signals(end)
        try:
            await joining
        except asyncio.CancelledError:
            if not self._signalled:
                raise
            logger.info("stopped while waiting for the Lease")
            return 0
        await self._begin_to_work()
        watches = asyncio.ensure_future(self._watch(end))
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((watches, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        # Before kopf stops, which takes seconds, and while its watches still show what ends.
        await self._hand_over()
        self._unwatch.set()
        try:
            await watches
        except Exception as error:
            if not self._stopping.is_set():
                raise
            # kopf awaits all tasks of the loop at its end and raises what they raise; why it ended is known here.
            logger.info("while this operator stopped: %s: %s", type(error).__name__, error)
        return 1 if self._stopping.is_set() and not self._signalled else 0

    async def close(self) -> None:
        """Stop serving; commit or drop what is in progress and release the Lease, unless `run` has."""
        if self._closed:
            return
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await self._server.close(grace_s=2.0)
        await self._controller.close()
        await self._membership.leave()
        await self._probes.close()

    # -- waiting, then active --

    async def _join(self) -> None:
        # One that waits is alive.
        await self._probes.start(self._options.host, self._options.probe_port)
        self._in_background(self._beat())
        self._in_background(sample_loop_lag())
        self._in_background(collect_fully(time.monotonic))
        await self._authority.begin()
        await self._membership.join()

    async def _begin_to_work(self) -> None:
        logger.info("this operator is active: %s", self._options.identity)
        self._kube.lease_valid = self._membership.lease_valid
        self._keeping = self._in_background(self._membership.keep())
        self._keeping.add_done_callback(lambda _: self._stopping.set())
        # The operator before may have renewed the certificates meanwhile.
        await self._authority.begin()
        host, port = self._options.host, self._options.report_port
        await self._server.start_tcp(host, port, self._authority.context(), accept=False)
        self._controller.start()
        self._follow_objects()
        self._in_background(self._accept())
        publish = self._controller.services.publish_everywhere
        self._in_background(self._authority.keep(self._server.replace_tls, publish))
        self._in_background(self._trim())
        self._in_background(self._report_unserved())

    def _follow_objects(self) -> None:
        """Follow what kopf does not: TuneTrials and pods."""

        def on_trial(item: dict[str, Any], deleted: bool) -> None:
            self._controller.on_trial(item, deleted=deleted)

        def on_pod(item: dict[str, Any], deleted: bool) -> None:
            self._controller.on_pod(item, deleted=deleted)

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error("a watch has ended, and so does this operator", exc_info=error)
                self._stopping.set()

        selector = f"{names.MANAGED_BY_LABEL}={names.MANAGER}"
        namespaces = self._options.namespaces or ("",)
        pods = [ObjectWatch(self._kube, paths.pods(each), selector, on_pod) for each in namespaces]
        trials = [ObjectWatch(self._kube, paths.trials(each), selector, on_trial) for each in namespaces]
        self._watches = dict(zip(namespaces, zip(pods, trials, strict=True), strict=True))
        self._followed_at = asyncio.get_running_loop().time()
        self._controller.begin_lists([each.listed for each in pods], [each.listed for each in trials])
        for watch in itertools.chain(pods, trials):
            self._in_background(watch.run()).add_done_callback(ended)

    async def _accept(self) -> None:
        """Accept attempts once their pods are known: each would have to prove who it is in a review of its token."""
        await self._controller.services.first_lists.pods_shown()  # or not in time: then tokens are reviewed
        await self._server.accept()

    async def _hand_over(self) -> None:
        await self._membership.hand_over(HAND_OVER_TIMEOUT_S)
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait((self._keeping,))  # a tick that is in progress would make the Lease again
        await self._membership.leave()

    async def _watch(self, end: Callable[[], None]) -> None:
        others = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            registry=_registry(self._controller),
            settings=_settings(),
            standalone=True,
            clusterwide=not self._options.namespaces,
            namespaces=self._options.namespaces,
            stop_flag=self._unwatch,
            ready_flag=self._watching,
        )
        self._handle_signals(end)  # kopf has just put its own in this place, which would stop the watches at once
        await kopf.run_tasks(tasks, ignored=others)

    @staticmethod
    def _handle_signals(end: Callable[[], None]) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, end)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.append(task)
        return task

    # -- probes --

    def liveness(self) -> tuple[bool, str]:
        """Return whether the event loop runs, and how late it is."""
        late = time.monotonic() - self._beat_at
        return late < LOOP_LATE_S, f"the event loop is {late:.1f} s late"

    def readiness(self) -> tuple[bool, str]:
        """Return whether this process can serve."""
        membership = self._membership
        if not membership.joined:
            return False, "waiting for the Lease: another operator is active"
        if self._options.replicas > 1 and not membership.lease_valid():
            text = "the Lease could not be renewed, or the shard map not be read"
            return False, f"{text}: another operator may serve what this one served"
        shards, queue = len(membership.ownership.serving), self._controller.queue.depth
        serves = f"{shards} shards, {self._controller.open_count} experiments open, {queue} queued"
        missing = [
            name for name, watches in self._watches.items() if not all(watch.listed.is_set() for watch in watches)
        ]
        if missing:
            serves += f"; not listed yet: {', '.join(name or 'all namespaces' for name in missing)}"
        # One that cannot be listed at all, such as one that was deleted, keeps no trial of the others waiting.
        late = asyncio.get_running_loop().time() - self._followed_at > first_lists.WAIT_S
        listed = not missing or (late and len(missing) < len(self._watches))
        return self._watching.is_set() and listed, serves

    def metrics(self) -> str:
        """Return the page for Prometheus."""
        return page(
            self._controller.own_experiments(),
            active=self._membership.joined,
            shards=self._controller.shard_loads(),
            unserved=self._membership.unserved(),
            queue_depth=self._controller.queue.depth,
            open_count=self._controller.open_count,
            connections=self._server.connections,
            refused=self._server.refused,
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

    async def _report_unserved(self) -> None:
        while True:
            await asyncio.sleep(UNSERVED_INTERVAL_S)
            await self._controller.report_unserved(self._membership.abandoned())


def _registry(controller: Controller) -> kopf.OperatorRegistry:
    """Return kopf's handlers: its watch feeds the operator's cache, which keeps less of each object than an index.

    They are coroutines, because kopf runs plain functions in threads, and the event loop owns the cache.
    """
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**arguments) or kopf.login_with_kubeconfig(**arguments)

    @kopf.on.event(names.GROUP, names.VERSION, names.EXPERIMENTS, registry=registry)
    async def on_experiment(event: kopf.RawEvent, **_: Any) -> None:
        controller.on_experiment(dict(event["object"]), deleted=event["type"] == "DELETED")

    return registry


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    # Events are the status writer's: one for a transition, not one for each log record.
    settings.posting.loggers = False
    settings.peering.standalone = True
    # Scanning for kinds and namespaces takes permissions over the whole cluster.
    settings.scanning.disabled = True
    settings.watching.chunk_size = 500
    settings.watching.connect_timeout = 5
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.networking.connect_timeout = 5
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = _EndlessBackoff()
    settings.persistence.diffbase_storage = _NoDiff()
    return settings


class _EndlessBackoff:
    """The seconds between kopf's retries of a request: a watch that gave up would end the operator."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((1.0, 1.0, 2.0, 3.0), itertools.repeat(5.0))


class _NoDiff(kopf.DiffBaseStorage):
    """Stores no last-handled state: kopf would build a copy of each object for each event, to find no difference."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Return what is compared with the state before: nothing."""
        return {}

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        """Return that state: none."""
        return None

    def store(self, **_: Any) -> None:
        """Store nothing."""


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
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # more connections than it keeps are expected
    for name in ("trialpod", "trialpod_operator"):
        logging.getLogger(name).setLevel(level)


OTHER_DESCRIPTORS = 1024
"""Of the process, for everything but the connections of attempts."""


def allow_connections() -> int:
    """Let this process have as many descriptors as it may; return how many connections it then takes.

    A container often starts with 1,024, and may have more.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most == resource.RLIM_INFINITY:
        return CONNECTIONS
    return min(CONNECTIONS, max(most - OTHER_DESCRIPTORS, most // 2))
