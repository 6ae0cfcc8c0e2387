"""The operator's counters and histograms, and what feeds them.

They belong to the process, as those of any Prometheus client do; `REGISTRY` holds them, the event loop feeds them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics

from trialpod_operator.engine.events import AnyEvent, CheckpointsChanged, ResultsReceived

disable_created_metrics()  # type: ignore[no-untyped-call]

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

LAG_INTERVAL_S = 0.1

MAX_SERIES = 200
"""Maximum number of series of a counter with labels."""

OTHER = "other"
"""The labels of what comes after a counter's series were used up."""

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class BoundedCounter:
    """A counter with labels that has at most `MAX_SERIES` series, whatever strings it is given."""

    def __init__(self, counter: Counter, max_series: int = MAX_SERIES) -> None:
        self._counter = counter
        self._max_series = max_series
        self._series: dict[tuple[str, ...], Counter] = {}

    def inc(self, *values: str) -> None:
        """Count one, with these values of the labels in their order."""
        series = self._series.get(values)
        if series is None:
            if len(self._series) >= self._max_series:
                values = (OTHER,) * len(values)
            series = self._series[values] = self._counter.labels(*values)
        series.inc()


def _counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
    return Counter(name, text, labels, registry=REGISTRY)


def _histogram(name: str, text: str) -> Histogram:
    return Histogram(name, text, registry=REGISTRY, buckets=_BUCKETS)


RESULTS = _counter("trialpod_results_total", "Results received from trials.")
REPORT_SECONDS = _histogram("trialpod_report_seconds", "From a trial's report to its answer, commit included.")
COMMIT_SECONDS = _histogram("trialpod_commit_seconds", "From a sampled event until it is in the storage.")
DURABLE_SECONDS = _histogram(
    "trialpod_result_durable_seconds", "From the arrival of a batch of results until it is in the storage."
)
DECISION_SECONDS = _histogram(
    "trialpod_decision_seconds", "From a report that needs a decision until the decision is in the storage."
)
STORAGE_ERRORS = _counter(
    "trialpod_storage_errors_total", "Failed attempts to read or write the storage of experiments."
)
CHECKPOINTS = _counter("trialpod_checkpoints_total", "Checkpoints that trials committed.")
CHECKPOINT_BYTES = _counter("trialpod_checkpoint_bytes_total", "Total size of committed checkpoints in bytes.")
RECONCILE_SECONDS = _histogram("trialpod_reconcile_seconds", "One reconcile pass of one experiment.")
RECONCILE_STEP_SECONDS = _histogram(
    "trialpod_reconcile_step_seconds", "A part of a reconcile pass during which the event loop runs nothing else."
)
STATUS_SECONDS = _histogram(
    "trialpod_status_seconds", "Duration of one status update of an experiment and its trials."
)
LOOP_LAG_SECONDS = _histogram(
    "trialpod_loop_lag_seconds", "Lag of the event loop, sampled ten times a second; every answer is late by it."
)
RECONCILE_ERRORS = _counter(
    "trialpod_reconcile_errors_total", "Reconcile passes, and writings of statuses, that ended in an error."
)
API_REQUESTS = BoundedCounter(
    _counter(
        "trialpod_api_requests_total",
        "Requests to the API server, without the watches; code 0 means that there was no answer.",
        ("verb", "resource", "code"),
    )
)
ATTEMPTS_ENDED = BoundedCounter(
    _counter(
        "trialpod_attempts_ended_total",
        "Ended attempts, by kind and reason.",
        ("kind", "reason"),
    )
)

_KINDS = {"completed": "completed", "stopped": "completed", "paused": "completed", "failed": "failure"}
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}

Timer = Callable[[], float]


class ExperimentMeter:
    """Counts and times what happens to one open experiment.

    Of the events one at a time is followed to its commit: timing all would cost more and say the same.

    Args:
        timer: monotonic seconds.
    """

    def __init__(self, timer: Timer = time.perf_counter) -> None:
        self._timer = timer
        self._timed = -1  # position of the event whose commit is being timed
        self._began = 0.0
        self._ended: dict[str, int] = {}  # trial_id -> its latest attempt that was counted as ended
        self._saved: dict[str, int] = {}  # trial_id -> index of its latest checkpoint that was counted
        self._batches: deque[tuple[int, float, bool]] = deque()  # of results: position, when, a trial waits

    def applied(self, event: AnyEvent, position: int, *, waits: bool = False) -> None:
        """An event was applied and is in the journal up to `position`.

        Args:
            event: what happened.
            position: of the journal.
            waits: it is a report at which its trial waits for a decision.
        """
        if type(event) is ResultsReceived:
            RESULTS.inc(len(event.results))
            if event.results:
                self._batches.append((position, self._timer(), waits))
        if type(event) is ResultsReceived or type(event) is CheckpointsChanged:
            for checkpoint in event.committed:
                if checkpoint.index > self._saved.get(event.trial_id, -1):  # else it was sent again
                    self._saved[event.trial_id] = checkpoint.index
                    CHECKPOINTS.inc()
                    CHECKPOINT_BYTES.inc(checkpoint.size)
        if self._timed < 0:
            self._timed, self._began = position, self._timer()

    def committed(self, position: int) -> None:
        """The storage has the journal up to `position`."""
        while self._batches and self._batches[0][0] <= position:
            _, began, waits = self._batches.popleft()
            lag = self._timer() - began
            DURABLE_SECONDS.observe(lag)
            if waits:
                DECISION_SECONDS.observe(lag)
        if 0 <= self._timed <= position:
            COMMIT_SECONDS.observe(self._timer() - self._began)
            self._timed = -1

    def ended(self, trial_id: str, attempt: int, reason: str, kind: str = "") -> None:
        """An attempt ended; repeated, it is not counted again.

        Args:
            trial_id: of the trial.
            attempt: its number.
            reason: the cause that the attempt gave, or the reason that its pod shows.
            kind: completed, failure or disruption; by default that of the cause.
        """
        if self._ended.get(trial_id, 0) < attempt:
            self._ended[trial_id] = attempt
            ATTEMPTS_ENDED.inc(kind or _KINDS.get(reason, "disruption"), reason)


def timed_reconcile(
    reconcile: Callable[[str], Awaitable[float | None]], timer: Timer = time.perf_counter
) -> Callable[[str], Awaitable[float | None]]:
    """Return a reconcile that is timed, as are its steps, and whose errors are counted."""
    return _timed(lambda key: _Stepwise(reconcile(key), timer), RECONCILE_SECONDS, timer)


def timed_status(
    write: Callable[[str], Awaitable[float | None]], timer: Timer = time.perf_counter
) -> Callable[[str], Awaitable[float | None]]:
    """Return a writing of statuses that is timed, and whose errors are counted."""
    return _timed(write, STATUS_SECONDS, timer)


def _timed(
    work: Callable[[str], Awaitable[float | None]], seconds: Histogram, timer: Timer
) -> Callable[[str], Awaitable[float | None]]:
    async def timed(key: str) -> float | None:
        began = timer()
        try:
            return await work(key)
        except Exception:
            RECONCILE_ERRORS.inc()
            raise
        finally:
            seconds.observe(timer() - began)

    return timed


class _Stepwise:
    """Awaits something, and times each of its steps."""

    def __init__(self, work: Awaitable[float | None], timer: Timer) -> None:
        self._work = work
        self._timer = timer

    def __await__(self) -> Generator[Any, Any, float | None]:
        steps: Any = self._work.__await__()
        resume, value = steps.send, None
        while True:
            began = self._timer()
            try:
                waits_for = resume(value)
            except StopIteration as end:
                result: float | None = end.value
                return result
            finally:
                RECONCILE_STEP_SECONDS.observe(self._timer() - began)
            try:
                resume, value = steps.send, (yield waits_for)
            except BaseException as error:  # noqa: BLE001 - given to what is awaited
                resume, value = steps.throw, error


async def sample_loop_lag(timer: Timer = time.perf_counter) -> None:
    """Sample how late the event loop is, until cancelled."""
    while True:
        due = timer() + LAG_INTERVAL_S
        await asyncio.sleep(LAG_INTERVAL_S)
        LOOP_LAG_SECONDS.observe(max(0.0, timer() - due))


def count_request(method: str, path: str, code: int) -> None:
    """Count a request to the API server.

    Args:
        method: of HTTP.
        path: below the server's root.
        code: the HTTP status; 0 when there was no answer.
    """
    parts = path.split("?", 1)[0].strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if len(rest) > 2 and rest[0] == "namespaces":
        rest = rest[2:]
    resource = "/".join([rest[0], *rest[2:3]]) if rest else path
    named = len(rest) > 1
    if method == "GET":
        verb = "get" if named else "list"
    elif method == "DELETE":
        verb = "delete" if named else "deletecollection"
    else:
        verb = _VERBS.get(method, method.lower())
    API_REQUESTS.inc(verb, resource, str(code))
