"""What the operator's page of metrics says, asked for over HTTP as Prometheus does."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cluster_objects import NOW, Run
from prometheus_client.parser import text_string_to_metric_families
from test_hosted import SETTINGS, Shell, within
from test_hosted import results as two_results

from trialpod.errors import StorageError
from trialpod.protocol.messages import ReportAnswer, ReportRequest
from trialpod.storage.directory import DirectoryStorage
from trialpod_operator.api import status_models
from trialpod_operator.cluster import metrics, operator, operator_metrics
from trialpod_operator.cluster.options import OperatorOptions
from trialpod_operator.cluster.status.build import experiment_status
from trialpod_operator.cluster.status.conditions import Problem
from trialpod_operator.engine.events import ResultsReceived, SettingsObserved, TimerFired
from trialpod_operator.reports.probes import Page, ProbeServer
from trialpod_operator.reports.service import ReportService

ROOT = Path(__file__).resolve().parents[3]


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
    return operator_metrics.page(found or {}, active=True, queue_depth=4, open_count=2)


def test_a_scrape_over_http_is_what_prometheus_can_read() -> None:
    async def main() -> bytes:
        server = ProbeServer({}, {"/metrics": Page(metrics.CONTENT_TYPE, lambda: page(experiments()))})
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
    assert values(found["process_resident_memory_bytes"])[()] > 10_000_000
    assert found["trialpod_results"].type == "counter"


def test_a_page_that_fails_is_an_error_of_the_server_and_not_the_end_of_it() -> None:
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


def test_each_experiment_counts_once_under_the_condition_that_matters_most() -> None:
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


def test_trials_are_counted_by_state_and_a_finished_experiment_has_no_series() -> None:
    found = values(families(page(experiments()))["trialpod_trials"], "namespace", "experiment", "state")
    assert {(namespace, name) for namespace, name, _ in found} == {("a", "running"), ("a", "waiting"), ("b", "away")}
    assert {state: found["a", "running", state] for state in operator_metrics.STATES} == {
        "pending": 2,  # their pods do not run yet
        "running": 0,
        "paused": 0,
        "terminated": 1,
        "error": 0,
    }


def results(count: int) -> ResultsReceived:
    return ResultsReceived(trial_id="t_1", attempt=1, first=1, results=[msgspec.Raw(b"\x80")] * count)


def test_results_and_the_time_until_they_are_committed() -> None:
    clock = Clock()
    meter = operator_metrics.ExperimentMeter(clock)
    before, times = operator_metrics.RESULTS.value, operator_metrics.COMMIT_SECONDS.count
    meter.applied(results(3), 10)
    clock.now = 1.0
    meter.applied(TimerFired(), 20)
    meter.committed(9)
    assert operator_metrics.COMMIT_SECONDS.count == times
    meter.committed(15)
    meter.committed(20)
    assert operator_metrics.COMMIT_SECONDS.count == times + 1
    meter.applied(TimerFired(), 30)
    meter.committed(30)
    assert (operator_metrics.RESULTS.value - before, operator_metrics.COMMIT_SECONDS.count - times) == (3, 2)


def test_an_open_experiment_tells_its_meter_what_is_applied_and_committed(tmp_path: Path) -> None:
    async def test() -> None:
        shell = Shell(DirectoryStorage(tmp_path / "storage"), tmp_path / "work")
        hosted = shell.start()
        before, times = operator_metrics.RESULTS.value, operator_metrics.COMMIT_SECONDS.count
        hosted.apply(SettingsObserved(settings=SETTINGS))
        await within(hosted.settle())
        assert operator_metrics.COMMIT_SECONDS.count == times + 1
        hosted.apply(two_results(shell.starts()[0], 1, 0.5, 0.6))
        await within(hosted.settle())
        assert (operator_metrics.RESULTS.value - before, operator_metrics.COMMIT_SECONDS.count - times) == (2, 2)
        await hosted.close(complete=False)

    asyncio.run(test())


def test_the_operator_serves_all_of_it_before_it_has_done_anything() -> None:
    options = OperatorOptions.from_environment({"TRIALPOD_OPERATOR_NAMESPACE": "t", "TRIALPOD_SERVICE": "s.t.svc"})
    kube: Any = object()
    found = families(operator._Process(kube, options)._metrics())
    assert values(found["trialpod_active"]) == {(): 0}
    assert values(found["trialpod_open_experiments"]) == {(): 0}
    assert set(values(found["trialpod_experiments"], "condition").values()) == {0}


def test_an_attempt_that_ends_is_counted_once_however_often_it_is_heard_of() -> None:
    meter = operator_metrics.ExperimentMeter()

    def count(kind: str, reason: str) -> float:
        return operator_metrics.ATTEMPTS_ENDED.values.get((kind, reason), 0)

    before = count("completed", "paused"), count("disruption", "EvictionByEvictionAPI"), count("failure", "failed")
    meter.ended("t_1", 1, "paused")
    meter.ended("t_1", 1, "paused")
    meter.ended("t_1", 2, "EvictionByEvictionAPI", "disruption")
    meter.ended("t_1", 2, "failed")
    meter.ended("t_1", 3, "failed")
    after = count("completed", "paused"), count("disruption", "EvictionByEvictionAPI"), count("failure", "failed")
    assert [new - old for new, old in zip(after, before, strict=True)] == [1, 1, 1]


class OneExperiment:
    """Plays an experiment that commits at once, or takes half a second to do so or to fail."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.waits = False
        self.fails = False

    def find(self, name: str) -> Any:
        return self

    def apply(self, event: Any) -> None:
        self.clock.now += 0.25

    def answer(self, trial_id: str, attempt: int) -> ReportAnswer:
        return ReportAnswer(received=0)

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


def test_a_look_that_fails_is_timed_and_counted_and_still_fails() -> None:
    async def fails(key: str) -> float | None:
        raise ValueError(key)

    before = operator_metrics.RECONCILE_SECONDS.count, operator_metrics.RECONCILE_ERRORS.value
    with pytest.raises(ValueError, match="a/b"):
        asyncio.run(operator_metrics.timed_reconcile(fails)("a/b"))  # type: ignore[arg-type]
    assert (operator_metrics.RECONCILE_SECONDS.count, operator_metrics.RECONCILE_ERRORS.value) == (
        before[0] + 1,
        before[1] + 1,
    )


@pytest.mark.parametrize(
    ("method", "path", "verb", "resource"),
    [
        ("GET", "/api/v1/namespaces/team/pods", "list", "pods"),
        ("GET", "/api/v1/namespaces/team/pods/x/log", "get", "pods/log"),
        ("PATCH", "/apis/trialpod.dev/v1alpha1/namespaces/team/tunetrials/x/status", "patch", "tunetrials/status"),
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", "create", "tokenreviews"),
        ("DELETE", "/api/v1/namespaces/team/pods/x", "delete", "pods"),
        ("DELETE", "/api/v1/namespaces/team/pods", "deletecollection", "pods"),
        ("PUT", "/apis/coordination.k8s.io/v1/namespaces/team/leases/x", "update", "leases"),
        ("GET", "/api/v1/nodes", "list", "nodes"),
        ("GET", "/api/v1/namespaces/kube-system", "get", "namespaces"),
    ],
)
def test_requests_to_the_api_server_are_counted_without_names(
    method: str, path: str, verb: str, resource: str
) -> None:
    labels = (verb, resource, "418")
    before = operator_metrics.API_REQUESTS.values.get(labels, 0)
    operator_metrics.count_request(method, path, 418)
    assert operator_metrics.API_REQUESTS.values[labels] == before + 1


def test_rules_dashboard_and_documentation_name_metrics_that_exist_and_explain_all() -> None:
    operator_metrics.API_REQUESTS.add("get", "pods", "200")
    operator_metrics.ATTEMPTS_ENDED.add("completed", "completed")
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
