"""What feeds the operator's counters and histograms, and that their series are bounded."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from durable_support import SETTINGS, make_plan, within
from durable_support import results as two_results
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from trialpod.storage.directory import DirectoryStorage
from trialpod_operator.cluster.metrics import instruments
from trialpod_operator.cluster.metrics.instruments import REGISTRY, BoundedCounter, ExperimentMeter
from trialpod_operator.cluster.shell import ClusterShell
from trialpod_operator.engine.actions import Action, StartAttempt
from trialpod_operator.engine.events import ResultsReceived, SettingsObserved, TimerFired
from trialpod_operator.experiment.durable import DurableExperiment


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def results(count: int) -> ResultsReceived:
    return ResultsReceived(trial_id="t_1", attempt=1, first=1, results=[msgspec.Raw(b"\x80")] * count)


class TestBoundedCounter:
    def test_series_are_bounded_and_no_count_is_lost(self) -> None:
        registry = CollectorRegistry()
        counter = BoundedCounter(Counter("x_total", "X.", ("kind", "reason"), registry=registry), max_series=3)
        for number in range(10):
            counter.inc("failure", f"Reason{number}")
        counter.inc("failure", "Reason0")
        (family,) = text_string_to_metric_families(generate_latest(registry).decode())
        assert len(family.samples) == 4
        assert registry.get_sample_value("x_total", {"kind": "failure", "reason": "Reason0"}) == 2
        assert registry.get_sample_value("x_total", {"kind": "other", "reason": "other"}) == 7


class TestExperimentMeter:
    def test_counts_results_and_times_one_commit_at_a_time(self) -> None:
        clock = Clock()
        meter = ExperimentMeter(clock)
        before, times = value("trialpod_results_total"), value("trialpod_commit_seconds_count")
        meter.applied(results(3), 10)
        clock.now = 1.0
        meter.applied(TimerFired(), 20)
        meter.committed(9)
        assert value("trialpod_commit_seconds_count") == times
        meter.committed(15)
        meter.committed(20)
        assert value("trialpod_commit_seconds_count") == times + 1
        meter.applied(TimerFired(), 30)
        meter.committed(30)
        assert value("trialpod_results_total") - before == 3
        assert value("trialpod_commit_seconds_count") - times == 2

    def test_is_fed_by_an_open_experiment(self, tmp_path: Path) -> None:
        async def test() -> None:
            started: list[str] = []

            def perform(action: Action) -> None:
                if isinstance(action, StartAttempt):
                    started.append(action.trial.trial_id)

            storage = DirectoryStorage(tmp_path / "storage")
            experiment = DurableExperiment.open(make_plan, tmp_path / "work", storage, time.time)
            experiment.start(ClusterShell(perform, lambda error: None, lambda: None, lambda: None))
            before, times = value("trialpod_results_total"), value("trialpod_commit_seconds_count")
            experiment.apply(SettingsObserved(settings=SETTINGS))
            await within(experiment.commit())
            assert value("trialpod_commit_seconds_count") == times + 1
            experiment.apply(two_results(started[0], 1, 0.5, 0.6))
            await within(experiment.commit())
            assert value("trialpod_results_total") - before == 2
            assert value("trialpod_commit_seconds_count") - times == 2
            experiment.close()

        asyncio.run(test())

    def test_counts_the_end_of_an_attempt_once(self) -> None:
        meter = ExperimentMeter()

        def counts() -> list[float]:
            pairs = (("completed", "paused"), ("disruption", "EvictionByEvictionAPI"), ("failure", "failed"))
            return [value("trialpod_attempts_ended_total", kind=kind, reason=reason) for kind, reason in pairs]

        before = counts()
        meter.ended("t_1", 1, "paused")
        meter.ended("t_1", 1, "paused")
        meter.ended("t_1", 2, "EvictionByEvictionAPI", "disruption")
        meter.ended("t_1", 2, "failed")
        meter.ended("t_1", 3, "failed")
        assert [new - old for new, old in zip(counts(), before, strict=True)] == [1, 1, 1]


class TestReconcile:
    @pytest.mark.parametrize(
        ("timer_of", "seconds"),
        [
            (instruments.timed_reconcile, "trialpod_reconcile_seconds_count"),
            (instruments.timed_status, "trialpod_status_seconds_count"),
        ],
    )
    def test_failing_work_is_timed_counted_and_raised(self, timer_of: Any, seconds: str) -> None:
        async def fails(key: str) -> float | None:
            raise ValueError(key)

        names = (seconds, "trialpod_reconcile_errors_total")
        before = [value(name) for name in names]
        timed: Any = timer_of(fails)
        with pytest.raises(ValueError, match="a/b"):
            asyncio.run(timed("a/b"))
        assert [value(name) for name in names] == [count + 1 for count in before]


class TestApiRequests:
    @pytest.mark.parametrize(
        ("method", "path", "verb", "resource"),
        [
            ("GET", "/api/v1/namespaces/team/pods", "list", "pods"),
            ("GET", "/api/v1/namespaces/team/pods/x/log", "get", "pods/log"),
            (
                "PATCH",
                "/apis/trialpod.dev/v1alpha1/namespaces/team/tunetrials/x/status",
                "patch",
                "tunetrials/status",
            ),
            ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", "create", "tokenreviews"),
            ("DELETE", "/api/v1/namespaces/team/pods/x", "delete", "pods"),
            ("DELETE", "/api/v1/namespaces/team/pods", "deletecollection", "pods"),
            ("PUT", "/apis/coordination.k8s.io/v1/namespaces/team/leases/x", "update", "leases"),
            ("GET", "/api/v1/nodes", "list", "nodes"),
            ("GET", "/api/v1/namespaces/kube-system", "get", "namespaces"),
        ],
    )
    def test_are_counted_without_names(self, method: str, path: str, verb: str, resource: str) -> None:
        labels = {"verb": verb, "resource": resource, "code": "418"}
        before = value("trialpod_api_requests_total", **labels)
        instruments.count_request(method, path, 418)
        assert value("trialpod_api_requests_total", **labels) == before + 1


class TestSteps:
    def test_of_a_look_are_timed_one_by_one(self) -> None:
        times = iter([0.0, 0.0, 0.004, 1.0, 1.03, 5.0])

        async def look(_key: str) -> float | None:
            await asyncio.sleep(0)
            return 2.0

        names = ("trialpod_reconcile_step_seconds_count", "trialpod_reconcile_step_seconds_sum")
        before = [value(name) for name in names]
        timed: Any = instruments.timed_reconcile(look, lambda: next(times))
        assert asyncio.run(timed("team/digits")) == 2.0
        assert [value(name) - old for name, old in zip(names, before, strict=True)] == pytest.approx([2, 0.034])

    def test_an_error_that_is_thrown_in_reaches_the_look(self) -> None:
        seen: list[str] = []

        async def look(_key: str) -> float | None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise
            return None

        async def test() -> None:
            timed: Any = instruments.timed_reconcile(look)
            task = asyncio.ensure_future(timed("team/digits"))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(test())
        assert seen == ["cancelled"]
