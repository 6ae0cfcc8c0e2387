"""What the operator's page of metrics says, asked for over HTTP as Prometheus does."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, cast

import msgspec
from cluster_objects import NOW, Run
from fake_api import FakeApi, FakeKube
from prometheus_client.parser import text_string_to_metric_families

from trialpod.errors import StorageError
from trialpod.protocol.messages import ReportAnswer, ReportRequest
from trialpod_operator.api import status_models
from trialpod_operator.cluster import operator
from trialpod_operator.cluster.metrics import instruments
from trialpod_operator.cluster.metrics.account import Account
from trialpod_operator.cluster.metrics.page import CONTENT_TYPE, STATES
from trialpod_operator.cluster.metrics.page import page as metrics_page
from trialpod_operator.cluster.options import OperatorOptions
from trialpod_operator.cluster.status.build import experiment_status
from trialpod_operator.cluster.status.conditions import Problem
from trialpod_operator.reports.probes import Page, ProbeServer
from trialpod_operator.reports.service import ReportService, Served

ROOT = Path(__file__).resolve().parents[4]


def families(text: str) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def values(family: Any, *labels: str) -> dict[tuple[str, ...], float]:
    return {tuple(sample.labels[label] for label in labels): sample.value for sample in family.samples}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def item(run: Run | None, generation: int = 1, **more: Any) -> dict[str, Any]:
    status = experiment_status(run.engine if run else None, name="digits", generation=generation, now=NOW, **more)
    return {"metadata": {"generation": generation}, "status": status}


def finished(cause: Any) -> Run:
    run = Run(1)
    run.result(0, 1.0)
    run.end(0, cause, "boom" if cause == "failed" else "")
    return run


def experiments() -> dict[str, dict[str, Any]]:
    running = Run(3)
    running.result(0, 1.0)
    running.end(0)
    away = Problem(reason="StorageUnavailable", message="m")
    wrong = Problem(reason="InvalidSpec", message="m", stalled=True)
    waiting = status_models.Waiting(reason="Queued", message="in a queue", count=3)
    return {
        "a/running": item(running),
        "a/waiting": item(Run(), waiting=waiting),
        "b/away": item(Run(2), problem=away),
        "b/wrong": item(None, problem=wrong),
        "b/good": item(finished("completed")),
        "b/bad": item(finished("failed")),
        "b/new": {"metadata": {"generation": 1}, "status": {"observedGeneration": -1}},
    }


def page(found: dict[str, dict[str, Any]] | None = None) -> str:
    return metrics_page(found or {}, active=True, queue_depth=4, open_count=2, connections=7, refused=3)


def test_a_scrape_over_http_is_what_prometheus_can_read() -> None:
    async def main() -> bytes:
        server = ProbeServer({}, {"/metrics": Page(CONTENT_TYPE, lambda: page(experiments()))})
        host, port = await server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: text/plain;version=0.0.4\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        await server.close()
        return answer

    head, _, body = asyncio.run(main()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n" in head
    assert f"Content-Length: {len(body)}\r\n".encode() in head + b"\r\n"
    found = families(body.decode())
    assert values(found["trialpod_active"]) == {(): 1}
    assert values(found["trialpod_queue_depth"]) == {(): 4}
    assert values(found["trialpod_connections"]) == {(): 7}
    assert values(found["trialpod_connections_refused"]) == {(): 3}
    assert values(found["process_resident_memory_bytes"])[()] > 10_000_000
    assert found["trialpod_results"].type == "counter"


def test_failing_page_is_answered_with_500() -> None:
    def broken() -> str:
        raise ValueError("oops")

    async def main() -> bytes:
        server = ProbeServer({}, {"/metrics": Page("text/plain", broken)})
        host, port = await server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        await server.close()
        return answer

    assert asyncio.run(main()).startswith(b"HTTP/1.1 500 ")


def test_experiment_counts_once_under_its_main_condition() -> None:
    found = values(families(page(experiments()))["trialpod_experiments"], "condition")
    assert {condition: count for (condition,), count in found.items()} == {
        "Running": 1,
        "Waiting": 1,
        "Suspended": 0,
        "StorageUnavailable": 1,
        "Stalled": 1,
        "Succeeded": 1,
        "Failed": 1,
        "NotObserved": 1,
    }


def test_trials_of_unfinished_experiments_count_by_state() -> None:
    found = values(families(page(experiments()))["trialpod_trials"], "namespace", "experiment", "state")
    assert {(namespace, name) for namespace, name, _ in found} == {("a", "running"), ("a", "waiting"), ("b", "away")}
    assert {state: found["a", "running", state] for state in STATES} == {
        "pending": 2,  # their pods do not run yet
        "running": 0,
        "paused": 0,
        "terminated": 1,
        "error": 0,
    }


def test_a_label_may_hold_anything() -> None:
    queue = 'a "queue"\\, {x="y"}\n1'
    account = Account(key="team/ü", queue=queue, decided={("cpu", "useful"): 2.5})
    text = metrics_page({}, active=False, queue_depth=0, open_count=0, connections=0, refused=0, accounts=[account])
    (sample,) = families(text)["trialpod_resource_seconds"].samples
    assert (sample.labels["experiment"], sample.labels["queue"], sample.value) == ("ü", queue, 2.5)


def test_new_operator_serves_the_whole_page() -> None:
    options = OperatorOptions.from_environment({"TRIALPOD_OPERATOR_NAMESPACE": "t", "TRIALPOD_SERVICE": "s.t.svc"})
    found = families(operator.OperatorProcess(FakeKube(FakeApi()), options).metrics())
    assert values(found["trialpod_active"]) == {(): 0}
    assert values(found["trialpod_open_experiments"]) == {(): 0}
    assert set(values(found["trialpod_experiments"], "condition").values()) == {0}


class OneExperiment:
    """Plays an experiment that commits at once, or takes half a second to do so or to fail."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.waits = False
        self.fails = False

    def find(self, name: str) -> Any:
        return Served(cast("Any", self), cast("Any", None))

    def received(self, trial_id: str, attempt: int) -> int:
        return 0

    def apply(self, event: Any) -> None:
        self.clock.now += 0.25

    def answer(self, trial_id: str, attempt: int) -> ReportAnswer:
        return ReportAnswer(received=0)

    def undecided(self) -> None:
        return None

    def committed(self) -> Awaitable[None] | None:
        return self._later() if self.waits else None

    async def _later(self) -> None:
        self.clock.now += 0.5
        if self.fails:
            raise StorageError("away")


def test_a_report_is_timed_until_its_answer_whatever_that_is() -> None:
    clock = Clock()
    experiment: Any = OneExperiment(clock)
    times: list[float] = []
    service = ReportService(experiment, times.append, clock)
    raw = msgspec.Raw(b"\x80")
    body = msgspec.msgpack.encode(ReportRequest(trial_id="t_1", attempt=1, results=[raw]))

    async def main() -> None:
        for waits, fails in ((False, False), (True, False), (True, True)):
            experiment.waits, experiment.fails = waits, fails
            reply = service.handle("/v1/a/b/report", body)
            status, _ = reply if isinstance(reply, tuple) else await reply
            assert status == (503 if fails else 200)

    asyncio.run(main())
    assert times == [0.25, 0.75, 0.75]
    assert ReportService(experiment).handle("/v1/a/b/report", b"?") != (200, b"")
    assert len(times) == 3


def test_rules_dashboards_and_docs_name_existing_metrics() -> None:
    instruments.API_REQUESTS.inc("get", "pods", "200")
    instruments.ATTEMPTS_ENDED.inc("completed", "completed")
    there = set(re.findall(r"^# TYPE (\w+)", page(experiments()), re.MULTILINE))
    suffix = re.compile("_(bucket|sum|count)$")
    chart = ROOT / "charts/trialpod"
    texts = [
        (chart / "templates/prometheusrule.yaml").read_text(),
        (chart / "dashboards/operator.json").read_text(),
        (chart / "dashboards/fleet.json").read_text(),
        (ROOT / "docs/monitoring.md").read_text(),
    ]
    pattern = re.compile(r"\b(?:trialpod|process)_[a-z_]+")
    for text in texts:
        named = {suffix.sub("", name) for name in pattern.findall(text)} - {"trialpod_operator"}
        assert named <= there
    assert {name for name in there if f"`{name}" in texts[-1]} == there
