"""Attempts that are asked to end by their node: whether that counts as a failure."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from cluster_objects import NOW, at, live_pod, target, terminated
from cluster_world import Play, World
from fake_jobs import FakeJobs
from virtual_time import until

from trialpod.protocol.messages import AttemptEnd
from trialpod_operator.cluster.cache import ObjectCache
from trialpod_operator.cluster.pods.sigterm import SIGTERM_EXPLAINED_S, judge_sigterm

PREEMPTED = AttemptEnd(cause="preempted")
DEADLINE = {"terminationGracePeriodSeconds": 15, "activeDeadlineSeconds": 60}


@dataclass
class Asked:
    """What stands for a pod."""

    sigterm_by: float = 0.0


def running(since: float = -60, metadata: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A pod that began at this second, now being 0, with a deadline of 60 s."""
    status = {"startTime": at(since), **more}
    return live_pod(phase="Running", state={"running": {}}, status=status, metadata=metadata, **DEADLINE)


def job(**pod: Any) -> dict[str, Any]:
    """Return the part of a manifest that makes trials Jobs of such pods."""
    spec = {"containers": [{"name": "trial", "image": "any:1"}], **pod}
    template = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": spec}}}
    return {"template": {}, "trialResource": {"template": template}}


class TestJudged:
    def test_past_the_deadline_it_is_a_failure(self) -> None:
        end = judge_sigterm(Asked(), running(), PREEMPTED, NOW)
        assert end is not None
        assert end.cause == "failed"
        assert "at its activeDeadlineSeconds of 60 s; raise it" in end.error

    @pytest.mark.parametrize(
        "pod",
        [
            running(metadata={"deletionTimestamp": at(20), "deletionGracePeriodSeconds": 30}),
            running(conditions=[target("DisruptionTarget", "EvictionByEvictionAPI", "drained")]),
            running(conditions=[target("TerminationTarget", "WorkloadEvictedDueToPreempted", "preempted")]),
            None,
        ],
        ids=["deleted", "drained", "preempted by Kueue", "gone"],
    )
    def test_what_the_cluster_takes_is_a_disruption_at_once(self, pod: dict[str, Any] | None) -> None:
        assert judge_sigterm(Asked(), pod, PREEMPTED, NOW) == PREEMPTED

    def test_other_ends_are_what_they_say(self) -> None:
        for end in (AttemptEnd(cause="completed"), AttemptEnd(cause="failed", error="ValueError")):
            assert judge_sigterm(Asked(), running(), end, NOW) is end

    def test_without_a_reason_it_waits_and_is_a_disruption(self) -> None:
        asked, pod = Asked(), running(since=-10)
        assert judge_sigterm(asked, pod, PREEMPTED, NOW) is None
        assert judge_sigterm(asked, pod, PREEMPTED, NOW + SIGTERM_EXPLAINED_S - 0.1) is None
        assert judge_sigterm(asked, pod, PREEMPTED, NOW + SIGTERM_EXPLAINED_S) == PREEMPTED

    def test_reason_that_the_pod_shows_meanwhile_counts(self) -> None:
        asked = Asked()
        assert judge_sigterm(asked, running(since=-10), PREEMPTED, NOW) is None
        words = {"reason": "Evicted", "message": "Pod ephemeral local storage usage exceeds the total limit of 1Gi. "}
        pod = live_pod(phase="Failed", state=terminated(137), status=words)
        end = judge_sigterm(asked, pod, PREEMPTED, NOW + 1)
        assert end is not None
        assert end.cause == "failed"
        assert "ephemeral-storage" in end.error


class TestStartupProbe:
    """It is given 20 s: its kubelet ends a container that has not started by then."""

    @staticmethod
    def judged(since: float, *, started: bool) -> AttemptEnd | None:
        pod = live_pod(phase="Running", state={"running": {"startedAt": at(since)}})
        pod["spec"]["containers"][0]["startupProbe"] = {"periodSeconds": 5, "failureThreshold": 4}
        pod["status"]["containerStatuses"][0]["started"] = started
        cache = ObjectCache()
        cache.update_pod(pod, deleted=False)
        (seen,) = cache.pods("team/digits")
        asked = Asked()
        assert judge_sigterm(asked, seen, PREEMPTED, NOW) is None, "the pod may still show another reason"
        return judge_sigterm(asked, seen, PREEMPTED, NOW + SIGTERM_EXPLAINED_S)

    def test_that_did_not_succeed_in_time_is_a_failure(self) -> None:
        end = self.judged(-20, started=False)
        assert end is not None
        assert end.cause == "failed"
        assert "its startupProbe did not succeed within 20 s" in end.error

    def test_that_has_time_left_explains_nothing(self) -> None:
        assert self.judged(-8, started=False) == PREEMPTED

    def test_that_has_succeeded_explains_nothing(self) -> None:
        assert self.judged(-60, started=True) == PREEMPTED


class TestInTheCluster:
    def test_deadline_counts_against_max_failures(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            world.pods.behaviour.steps = 200
            await world.apply(numSamples=1, failurePolicy={"maxFailures": 1}, template={"spec": DEADLINE})
            for attempt in (1, 2):
                await until(lambda n=attempt: any(key[1] == n for key in world.pods.begun), what="it runs")  # type: ignore[misc]
                await asyncio.sleep(60)
                world.pods.reach_deadline(world.pods.live()[0])
                if attempt == 1:
                    await until(lambda: world.trials()[0]["status"].get("failures") == 1, what="it counts")
                    await world.replace_operator()  # reads from the journal what was decided
            status = await world.until_over()
            (trial,) = world.trials()
            assert (trial["status"]["state"], trial["status"]["attempt"]) == ("ERROR", 2)
            assert (status["failures"], status["disruptions"]) == (2, 0)
            assert "activeDeadlineSeconds of 60 s; raise it" in trial["status"]["message"]
            assert world.pods.told_ends[next(iter(world.pods.begun))] == "preempted"
            assert trial["status"]["iteration"] > 60, "the second attempt continued from the first one's checkpoint"
            world.check_results()

        play(scenario)

    def test_of_the_pod_of_a_job(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            FakeJobs(world.api)
            world.pods.behaviour.steps = 200
            await world.apply(numSamples=1, **job(**DEADLINE))
            await world.until_running(1)
            await asyncio.sleep(60)
            world.pods.reach_deadline(world.pods.live()[0])
            status = await world.until_over()
            assert (status["failures"], status["disruptions"]) == (1, 0)
            assert "activeDeadlineSeconds of 60 s" in world.trials()[0]["status"]["message"]

        play(scenario)

    def test_limit_of_the_disk_counts_against_max_failures(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            world.pods.behaviour.steps, world.pods.behaviour.step_s = 200, 0.1
            await world.apply(numSamples=1)
            await world.until_running(1)
            world.pods.exceed_disk(world.pods.live()[0])
            status = await world.until_over()
            assert (status["failures"], status["disruptions"]) == (1, 0)
            assert "ephemeral-storage" in world.trials()[0]["status"]["message"]

        play(scenario)

    def test_sigterm_without_a_reason_is_a_disruption(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            world.pods.behaviour.steps = 20
            await world.apply(numSamples=1)
            await world.until_running(1)
            (pod,) = world.pods.live()
            world.pods._terminated[pod["metadata"]["uid"]].set()
            status = await world.until_over()
            assert (status["failures"], status["disruptions"]) == (0, 1)
            assert world.states() == ["TERMINATED"]
            world.check_results()

        play(scenario)
