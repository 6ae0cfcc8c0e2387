"""What the operator measures of itself, for Prometheus.

Numbers that grow are counted where things happen, in this process; how things stand now is read at each scrape from
what the watches have shown. So a finished experiment has no series of its own any more, and a standby shows none.

The counters belong to the process, as those of any Prometheus client do. Owned by the event loop.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trialpod_operator.cluster.experiment_metrics import Account, account_families
from trialpod_operator.cluster.metrics import (
    Counter,
    Family,
    Histogram,
    LabelledCounter,
    count_by,
    exposition,
)
from trialpod_operator.cluster.status.conditions import whole
from trialpod_operator.engine.events import AnyEvent, CheckpointsChanged, ResultsReceived

RESULTS = Counter("trialpod_results_total", "Results of trials that were taken in.")
REPORT_SECONDS = Histogram("trialpod_report_seconds", "From a trial's report to its answer, commit included.")
COMMIT_SECONDS = Histogram("trialpod_commit_seconds", "From a sampled event until the storage has it.")
DURABLE_SECONDS = Histogram(
    "trialpod_result_durable_seconds", "From a batch of results that came in until the storage has it."
)
DECISION_SECONDS = Histogram(
    "trialpod_decision_seconds", "From a report at which a trial waits until what was decided is in the storage."
)
STORAGE_ERRORS = Counter("trialpod_storage_errors_total", "Attempts to reach the storage of experiments that failed.")
CHECKPOINTS = Counter("trialpod_checkpoints_total", "Checkpoints that trials committed.")
CHECKPOINT_BYTES = Counter("trialpod_checkpoint_bytes_total", "Their sizes.")
RECONCILE_SECONDS = Histogram("trialpod_reconcile_seconds", "One look at one experiment.")
RECONCILE_ERRORS = Counter("trialpod_reconcile_errors_total", "Looks at an experiment that ended in an error.")
API_REQUESTS = LabelledCounter(
    "trialpod_api_requests_total",
    "Requests to the API server, without the watches; code 0 is no answer.",
    ("verb", "resource", "code"),
)
ATTEMPTS_ENDED = LabelledCounter(
    "trialpod_attempts_ended_total",
    "Attempts that ended: by their own word, or as their pod tells.",
    ("kind", "reason"),
)

CONDITIONS = (
    "Running",
    "Waiting",
    "Suspended",
    "StorageUnavailable",
    "Stalled",
    "Succeeded",
    "Failed",
    "NotObserved",
)
"""Each experiment counts as exactly one of these."""

STATES = ("pending", "running", "paused", "terminated", "error")
"""Of trials; the keys of an experiment's status.trials."""

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
            RESULTS.value += len(event.results)
            if event.results:
                self._batches.append((position, self._timer(), waits))
        if type(event) is ResultsReceived or type(event) is CheckpointsChanged:
            for checkpoint in event.committed:
                if checkpoint.index > self._saved.get(event.trial_id, -1):  # else it was sent again
                    self._saved[event.trial_id] = checkpoint.index
                    CHECKPOINTS.value += 1
                    CHECKPOINT_BYTES.value += checkpoint.size
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
        """An attempt ended; heard of again, it is not counted again.

        Args:
            trial_id: of the trial.
            attempt: its number.
            reason: the cause that the attempt gave, or the reason that its pod shows.
            kind: completed, failure or disruption; by default that of the cause.
        """
        if self._ended.get(trial_id, 0) < attempt:
            self._ended[trial_id] = attempt
            ATTEMPTS_ENDED.add(kind or _KINDS.get(reason, "disruption"), reason)


def timed_reconcile(
    reconcile: Callable[[str], Awaitable[float | None]], timer: Timer = time.perf_counter
) -> Callable[[str], Awaitable[float | None]]:
    """Return a reconcile that is timed, and whose errors are counted."""

    async def timed(key: str) -> float | None:
        began = timer()
        try:
            return await reconcile(key)
        except Exception:
            RECONCILE_ERRORS.value += 1
            raise
        finally:
            RECONCILE_SECONDS.observe(timer() - began)

    return timed


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
    API_REQUESTS.add(verb, resource, str(code))


def condition_of(item: Mapping[str, Any]) -> str:
    """Return which of `CONDITIONS` holds for a TuneExperiment, the one that matters most first."""
    status = item.get("status") or {}
    conditions = {each["type"]: each for each in whole(status.get("conditions"))}
    true = {kind for kind, each in conditions.items() if each.get("status") == "True"}
    for kind in ("Succeeded", "Failed", "Stalled", "Suspended"):
        if kind in true:
            return kind
    ready = conditions.get("Ready")
    if ready is None:
        return "NotObserved"
    if "Ready" in true:
        return "Running"
    return "StorageUnavailable" if ready.get("reason") == "StorageUnavailable" else "Waiting"


def experiment_families(experiments: Mapping[str, Mapping[str, Any]]) -> Iterator[Family]:
    """Return how the experiments and their trials stand.

    Args:
        experiments: the TuneExperiments as they were last seen, by "namespace/name".
    """
    conditions = {key: condition_of(item) for key, item in experiments.items()}
    counts = count_by(conditions.values(), CONDITIONS)
    yield Family(
        "trialpod_experiments",
        "gauge",
        "Experiments, each by the one condition that matters most.",
        ("condition",),
        [((condition,), count) for condition, count in counts.items()],
    )
    samples: list[tuple[tuple[str, ...], float]] = []
    for key, item in experiments.items():
        trials = (item.get("status") or {}).get("trials")
        if trials is None or conditions[key] in ("Succeeded", "Failed"):
            continue
        namespace, _, name = key.partition("/")
        samples += [((namespace, name, state), trials.get(state) or 0) for state in STATES]
    yield Family(
        "trialpod_trials",
        "gauge",
        "Trials of experiments that have not finished.",
        ("namespace", "experiment", "state"),
        samples,
    )


def process_families(proc: Path = Path("/proc/self")) -> Iterator[Family]:
    """Return what the process takes, under the names that all Prometheus clients use."""
    memory = int((proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    spent = time.process_time()
    yield Family("process_resident_memory_bytes", "gauge", "Memory of the operator.", (), [((), memory)])
    yield Family("process_cpu_seconds_total", "counter", "Processor time of the operator.", (), [((), spent)])


def page(
    experiments: Mapping[str, Mapping[str, Any]],
    *,
    active: bool,
    queue_depth: int,
    open_count: int,
    accounts: Iterable[Account] = (),
) -> str:
    """Return the whole text of a scrape.

    Args:
        experiments: the TuneExperiments as they were last seen, by "namespace/name".
        active: this operator is the one at work.
        queue_depth: experiments that wait for a look.
        open_count: experiments in memory.
        accounts: of them, and of those that have just finished.
    """
    gauges = (
        ("trialpod_active", "1 when this operator is the one at work, 0 when it stands by.", int(active)),
        ("trialpod_queue_depth", "Experiments that wait for a look.", queue_depth),
        ("trialpod_open_experiments", "Experiments whose engine is in memory.", open_count),
    )
    counted = (
        RESULTS,
        REPORT_SECONDS,
        COMMIT_SECONDS,
        DURABLE_SECONDS,
        DECISION_SECONDS,
        STORAGE_ERRORS,
        CHECKPOINTS,
        CHECKPOINT_BYTES,
        RECONCILE_SECONDS,
        RECONCILE_ERRORS,
        API_REQUESTS,
    )
    return exposition(
        [
            *(Family(name, "gauge", text, (), [((), value)]) for name, text, value in gauges),
            *experiment_families(experiments),
            *account_families(accounts),
            *counted,
            ATTEMPTS_ENDED,
            *process_families(),
        ]
    )
