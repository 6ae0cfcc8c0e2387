"""What the start of an attempt costs does not depend on how many pods wait for one, or on how many attempts run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest
from cluster_objects import EXPERIMENT, NOW, OPTIONS, ObjectRef, build_pod, experiment

from python_steps import count
from trialpod.protocol.messages import AssignmentRequest
from trialpod_operator.cluster.cache import ObjectCache
from trialpod_operator.cluster.pods.assignments import Assignments
from trialpod_operator.cluster.pods.binding import PodBinding
from trialpod_operator.cluster.pods.experiment_pods import ExperimentPods
from trialpod_operator.cluster.pods.pod_work import PodWork
from trialpod_operator.cluster.pods.reuse import IdlePods, InPlaceReservations
from trialpod_operator.engine.trial import Trial

KEY = "team/digits"
STARTS = 50


def attempt(number: int) -> PodBinding:
    trial = Trial(trial_id=f"d75de_{number:05d}", index=number, tag="1", params=b"\x80", created_at=NOW)
    trial.start_attempt(NOW)
    return PodBinding(trial, 1, 1)


class Pods:
    """An experiment with pods that have ended their first attempts."""

    def __init__(self) -> None:
        self.manifest = experiment(reusePods=True)
        self.cache = ObjectCache()
        unused: Any = None
        durable: Any = SimpleNamespace(
            require_fencing_check=lambda: None,
            last_contact={},
            assignment=lambda trial: SimpleNamespace(trial_id=trial.trial_id),
            dirname=lambda trial: "folder",
        )
        self.work = PodWork(EXPERIMENT, lambda: self.manifest, unused, self.cache, OPTIONS, lambda: NOW, unused)
        self.idle_pods = IdlePods(KEY, self.cache, self.work, lambda: NOW, lambda: None, lambda name: None)
        self.pods = ExperimentPods(
            KEY,
            lambda: self.manifest,
            durable,
            unused,
            self.work,
            self.cache,
            lambda: NOW,
            lambda: None,
            unused,
            InPlaceReservations(lambda: NOW),
            idle_pods=self.idle_pods,
        )

    def add_pod(self, binding: PodBinding) -> None:
        owner = ObjectRef(namespace="team", name="t", uid="t-uid")
        pod = build_pod(self.manifest, EXPERIMENT, owner, binding.trial.trial_id, 1, OPTIONS)
        pod["metadata"] |= {"uid": pod["metadata"]["name"]}
        pod["status"] = {"phase": "Running", "containerStatuses": []}
        self.cache.update_pod(pod, deleted=False)

    def make_idle(self, idle: int, first: int = 0) -> None:
        for number in range(first, first + idle):
            binding = attempt(number)
            self.add_pod(binding)
            assert self.idle_pods.expect(binding)


class TestStart:
    @pytest.mark.parametrize("other", [False, True], ids=["equal pods", "other pods"])
    def test_costs_the_same_with_60_and_600_idle_pods(self, other: bool) -> None:
        found = {}
        for idle in (60, 600):
            pods = Pods()
            pods.make_idle(idle)
            if other:
                pods.manifest = experiment(reusePods=True, image="r/other:2")
            starts = [attempt(10_000 + number) for number in range(STARTS)]
            found[idle] = count(lambda: [pods.idle_pods.take(each) for each in starts])  # noqa: B023  # called here
            assert [each.in_reused_pod for each in starts] == [not other] * STARTS
            assert len({each.pod_key for each in starts}) == STARTS
        assert found[600] < found[60] * 1.1

    def test_prefers_the_own_pod_and_skips_dead_ones(self) -> None:
        pods = Pods()
        pods.make_idle(4)
        dead = pods.cache.pod(KEY, "digits-d75de-00000-1")
        assert dead is not None
        pods.work.deleted.add(dead["metadata"]["uid"])
        again = attempt(2)
        again.attempt = 2
        other, more, none = attempt(7), attempt(8), attempt(9)
        assert [pods.idle_pods.take(each) for each in (again, other, more, none)] == [True, True, True, False]
        assert [each.pod_key[0] for each in (again, other, more)] == ["d75de_00002", "d75de_00001", "d75de_00003"]


class TestAssignment:
    def test_costs_the_same_with_20_and_2000_attempts(self) -> None:
        found = {}
        for running in (20, 2000):
            pods = Pods()
            for number in range(running):
                pods.pods.bind(attempt(number))
            pods.make_idle(1, first=10_000)
            moved = attempt(running)
            assert pods.idle_pods.take(moved)
            moved.assigned = True
            pods.pods.bind(moved)
            assignments = Assignments(pods.pods)
            request = AssignmentRequest(runner="d75de_10000/1", pid=1, hostname="h")
            answers: list[Any] = []
            found[running] = count(lambda: answers.append(assignments.assign(request)))  # noqa: B023  # called here
            assert answers[0].assignment.trial_id == moved.trial.trial_id
        assert found[2000] <= found[20] + 10

    def test_that_returns_to_its_own_pod_leaves_the_other_one(self) -> None:
        pods = Pods()
        pods.make_idle(1, first=10_000)
        moved = attempt(1)
        pods.idle_pods.take(moved)
        pods.pods.bind(moved)
        assert pods.pods.bound_to(("d75de_10000", 1)) is moved
        moved.return_to_own_pod()
        assert pods.pods.bound_to(("d75de_10000", 1)) is None
        assert pods.pods.bound_to(("d75de_00001", 1)) is moved
        assert pods.pods.unbind("d75de_00001") is moved
        assert pods.pods.bound_to(("d75de_00001", 1)) is None

    def test_that_returns_before_the_other_one_asks_needs_its_own(self) -> None:
        """An operator that was stopped for a minute finds both in one turn: the delay is over, and the pod asks."""

        async def test() -> None:
            pods = Pods()
            pods.make_idle(1, first=10_000)
            moved = attempt(1)
            pods.idle_pods.take(moved)
            pods.pods.bind(moved)
            request = AssignmentRequest(runner="d75de_10000/1", pid=1, hostname="h", afresh=True)
            answer = Assignments(pods.pods).assign(request)
            assert isinstance(answer, Awaitable)
            asked = asyncio.ensure_future(answer)
            moved.reset_pod(NOW)
            for _ in range(5):
                await asyncio.sleep(0)
            assert not moved.expected_by
            asked.cancel()

        asyncio.run(test())
