"""Trials with worker pods in a whole operator: they start together, and end as one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from cluster_world import Play, World
from memory_storage import unavailable
from virtual_time import until

from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster import names
from trialpod_operator.cluster.pods.group import pause_s

pytestmark = pytest.mark.once

WORKERS: dict[str, Any] = {"workers": {"replicas": 2}}


def pods_of(world: World, rank: int) -> list[Any]:
    return [pod for pod in world.api.all("pods") if pod["metadata"]["labels"]["trialpod.dev/rank"] == str(rank)]


def test_the_pods_of_a_trial_run_it_together(play: Play) -> None:
    async def scenario(world: World) -> None:
        await world.apply(numSamples=2, **WORKERS)
        await world.until_running(1)
        assert {len(ranks) for ranks in world.pods.workers.values()} == {2}
        assert world.pods.told == []
        await world.until_over()
        assert world.states() == ["TERMINATED"] * 2
        assert [trial["status"]["attempt"] for trial in world.trials()] == [1, 1]
        world.check_results()

    play(scenario)


def test_nothing_runs_before_all_pods_of_a_trial_do(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.held.add("-w2")
        await world.apply(numSamples=1, **WORKERS)
        await asyncio.sleep(60.0)
        assert not world.pods.begun
        (trial,) = world.trials()
        assert trial["status"]["waiting"]["reason"] == "NotScheduled"
        world.pods.held.clear()
        await world.until_over()
        assert world.pods.begun.total() == 1

    play(scenario)


def test_pods_that_do_not_run_together_are_all_retried(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.held.add("-1-w1")
        await world.apply(numSamples=1, workers={"replicas": 2, "startTimeout": "2m"})
        await until(lambda: len(world.api.all("pods")) == 3)
        first = {pod["metadata"]["uid"] for pod in world.api.all("pods")}
        await until(lambda: not first & {pod["metadata"]["uid"] for pod in world.api.all("pods")}, 300.0)
        status = await world.until_over()
        assert (status["failures"], status["disruptions"]) == (0, 1)
        assert world.states() == ["TERMINATED"]
        assert [key for key, count in world.pods.begun.items()] == [(world.trials()[0]["spec"]["trialId"], 2)]

    play(scenario)


def test_timeout_of_a_group_counts_once(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.held.add("-w1")
        await world.apply(numSamples=1, workers={"replicas": 1, "startTimeout": "20s"})
        await until(lambda: bool(pods_of(world, 0)))
        trial_id = world.trials()[0]["spec"]["trialId"]
        loop = asyncio.get_running_loop()
        for attempt in (2, 3):
            await until(lambda n=attempt: world.trials()[0].get("status", {}).get("attempt") == n, 300.0)  # type: ignore[misc]
            ended, head = loop.time(), names.pod_name("digits", trial_id, attempt)
            await until(lambda name=head: world.api.get("pods", name) is not None, 600.0)  # type: ignore[misc]
            assert loop.time() - ended == pytest.approx(pause_s(trial_id, attempt - 1), abs=2.0)

    play(scenario)


@pytest.mark.parametrize("end", ["-1", "-1-w1"])
def test_pod_never_started_by_node_restarts_the_group(play: Play, end: str) -> None:
    async def scenario(world: World) -> None:
        world.pods.held.add(end)
        await world.apply(numSamples=1, workers={"replicas": 2, "startTimeout": "1h"})
        await until(lambda: len(world.api.all("pods")) == 3)
        world.pods.lose_sandbox(next(pod for pod in world.api.all("pods") if pod["metadata"]["name"].endswith(end)))
        status = await world.until_over(300.0)
        assert (status["failures"], status["disruptions"]) == (0, 1)
        assert world.states() == ["TERMINATED"]

    play(scenario)


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("hangs", [0.0, 1.0])
@pytest.mark.parametrize("how", ["delete", "vanish", "preempt"])
def test_evicted_pod_restarts_group_without_a_failure(play: Play, rank: int, hangs: float, how: str) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps, world.pods.behaviour.hangs = 20, hangs
        await world.apply(numSamples=1, **WORKERS)
        await world.until_running()
        await asyncio.sleep(4.0)
        (pod,) = pods_of(world, rank)
        if how == "delete":
            await world.client.delete(paths.pods("team"), pod["metadata"]["name"])
        else:
            getattr(world.pods, how)(pod)
        status = await world.until_over()
        assert (status["failures"], status["disruptions"]) == (0, 1)
        assert world.states() == ["TERMINATED"]
        assert world.pods.begun.total() == 2
        world.check_results()

    play(scenario)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("hangs", [0.0, 1.0])
def test_a_worker_out_of_memory_is_the_trials_failure_once(play: Play, rank: int, hangs: float) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps, world.pods.behaviour.hangs = 20, hangs
        await world.apply(numSamples=1, failurePolicy={"maxFailures": 1}, **WORKERS)
        await world.until_running()
        await asyncio.sleep(4.0)
        world.pods.kill(pods_of(world, rank)[0])
        status = await world.until_over()
        assert (status["failures"], status["disruptions"]) == (1, 0)
        assert world.states() == ["TERMINATED"]
        world.check_results()

    play(scenario)


class TestKillOfAWorkerThatTheKubeletExplains:
    """A kubelet that evicts a pod reports the end of its container before the eviction."""

    @staticmethod
    async def evict(world: World, name: str) -> None:
        killed = next(pod for pod in world.api.all("pods") if pod["metadata"]["name"].endswith(name))
        world.pods.kill(killed, 137, "Error")
        await asyncio.sleep(1.0)
        target = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
        if (pod := world.pods.current(killed)) is not None:
            world.api.edit(pod, lambda each: each["status"].update(reason="Evicted", conditions=[target]))

    @pytest.mark.parametrize("alone", [False, True], ids=["head-fails", "head-completes"])
    def test_restarts_a_group_that_runs(self, play: Play, alone: bool) -> None:
        async def scenario(world: World) -> None:
            world.pods.behaviour.steps, world.pods.behaviour.alone, world.pods.behaviour.obeys = 8, alone, not alone
            await world.apply(numSamples=1, failurePolicy={"maxFailures": 0}, **WORKERS)
            await world.until_running()
            await asyncio.sleep(2.0)
            await self.evict(world, "-1-w1")
            status = await world.until_over()
            assert (status["failures"], status["disruptions"]) == (0, 1)
            assert world.states() == ["TERMINATED"]
            world.check_results()

        play(scenario)

    def test_restarts_a_group_that_has_not_begun(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            world.pods.held.add("-1-w2")
            await world.apply(numSamples=1, failurePolicy={"maxFailures": 0}, **WORKERS)
            await until(lambda: len(world.api.all("pods")) == 3)
            await asyncio.sleep(2.0)
            await self.evict(world, "-1-w1")
            status = await world.until_over()
            assert (status["failures"], status["disruptions"]) == (0, 1)
            assert world.states() == ["TERMINATED"]

        play(scenario)

    def test_counts_as_a_failure_where_nothing_explains_it(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            world.pods.held.add("-1-w2")
            await world.apply(numSamples=1, failurePolicy={"maxFailures": 0}, **WORKERS)
            await until(lambda: len(world.api.all("pods")) == 3)
            await asyncio.sleep(2.0)
            killed = next(pod for pod in world.api.all("pods") if pod["metadata"]["name"].endswith("-1-w1"))
            world.pods.kill(killed, 137, "Error")
            status = await world.until_over()
            assert (status["failures"], status["disruptions"]) == (1, 0)
            assert world.states() == ["ERROR"]

        play(scenario)


def message_of(world: World) -> str:
    """What the first trial's status says."""
    return str((world.trials()[0].get("status") or {}).get("message"))


class TestHeadCompletesAfterAWorkersFailure:
    """Rank 0 needs nothing of the others, ignores SIGTERM, and completes within its grace period."""

    @staticmethod
    async def fail_worker(world: World, max_failures: int, code: int = 1) -> None:
        behaviour = world.pods.behaviour
        behaviour.steps, behaviour.alone, behaviour.obeys = 8, True, False
        await world.apply(numSamples=1, failurePolicy={"maxFailures": max_failures}, **WORKERS)
        await world.until_running()
        await asyncio.sleep(2.0)
        world.pods.kill(pods_of(world, 1)[0], code, "Error")

    @pytest.mark.parametrize("code", [1, 137])
    def test_attempt_has_failed_once(self, play: Play, code: int) -> None:
        async def scenario(world: World) -> None:
            await self.fail_worker(world, 0, code)
            status = await world.until_over()
            (trial,) = world.trials()
            assert (status["failures"], status["disruptions"]) == (1, 0)
            assert (trial["status"]["state"], trial["status"]["attempt"]) == ("ERROR", 1)
            assert "worker 1" in trial["status"]["message"]
            assert world.condition("Failed")["status"] == "True"
            world.check_results()

        play(scenario)

    def test_trial_is_retried(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            await self.fail_worker(world, 1)
            status = await world.until_over()
            (trial,) = world.trials()
            assert (status["failures"], world.states()) == (1, ["TERMINATED"])
            assert trial["status"]["attempt"] == 2

        play(scenario)

    def test_failure_shows_while_the_head_ends(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            await self.fail_worker(world, 0)
            await until(lambda: "worker 1" in message_of(world), 10.0)
            assert world.states() == ["RUNNING"]
            await world.until_over()

        play(scenario)

    def test_survives_a_new_operator(self, play: Play) -> None:
        """The worker's pod is gone when the next operator looks: only the journal knows."""

        async def scenario(world: World) -> None:
            await self.fail_worker(world, 0)
            failed = pods_of(world, 1)[0]
            await until(lambda: "worker 1" in message_of(world), 10.0)
            world.pods.service = None
            await world.operator.close()
            world.pods.vanish(failed)
            world.start_operator()
            status = await world.until_over()
            assert (status["failures"], status["disruptions"], world.states()) == (1, 0, ["ERROR"])

        play(scenario)

    def test_completion_before_the_failure_counts(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            world.pods.behaviour.alone = True
            await world.apply(numSamples=1, **WORKERS)
            await until(lambda: "completed" in world.pods.told_ends.values())
            world.pods.kill(pods_of(world, 1)[0], 1, "Error")
            status = await world.until_over()
            assert (status["failures"], world.states()) == (0, ["TERMINATED"])

        play(scenario)


@pytest.mark.parametrize("hangs", [0.0, 1.0])
def test_vanished_worker_explains_failure_of_another(play: Play, hangs: float) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps, world.pods.behaviour.hangs = 20, hangs
        await world.apply(numSamples=1, **WORKERS)
        await world.until_running()
        await asyncio.sleep(4.0)
        world.operator.watch.lose = lambda plural, _item: plural == "pods"
        world.pods.vanish(pods_of(world, 2)[0])
        world.operator.watch.lose = lambda _plural, _item: False
        world.pods.kill(pods_of(world, 1)[0], 1, "Error")
        status = await world.until_over()
        assert (status["failures"], status["disruptions"]) == (0, 1)
        assert world.states() == ["TERMINATED"]
        world.check_results()

    play(scenario)


def test_what_a_worker_died_of_is_reported(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 20
        await world.apply(numSamples=1, **WORKERS)
        await world.until_running()
        await asyncio.sleep(4.0)
        world.pods.kill(pods_of(world, 2)[0])
        await world.until_over()
        (trial,) = world.trials()
        assert trial["status"]["state"] == "ERROR"
        assert "worker 2" in trial["status"]["message"]
        assert "memory" in trial["status"]["message"]

    play(scenario)


class TestRemedies:
    def test_failed_worker_is_retried_with_more_memory(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            world.pods.behaviour.steps = 20
            await world.apply(numSamples=1, workers={"replicas": 2, "resources": {"memory": "1Gi"}})
            await world.until_running()
            await asyncio.sleep(4.0)
            world.pods.kill(pods_of(world, 2)[0])
            await world.until_over()
            assert "raise memory in spec.workers.resources" in world.trials()[0]["status"]["message"]
            await world.change(workers={"resources": {"memory": "2Gi"}})
            notes = {"metadata": {"annotations": {"trialpod.dev/retry": "1"}}}
            await world.client.patch(paths.experiments("team"), "digits", notes)
            await until(lambda: len(pods_of(world, 1)) == len(pods_of(world, 2)) == 1, 60.0)
            for rank in (1, 2):
                (container,) = pods_of(world, rank)[0]["spec"]["containers"]
                assert container["resources"]["limits"]["memory"] == "2Gi"
            await until(lambda: world.states() == ["TERMINATED"], 600.0)
            await world.until_over()
            world.check_results()

        play(scenario)

    def test_group_that_finds_room_begins(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            world.pods.held.add("-1-w1")
            await world.apply(numSamples=1, workers={"replicas": 1, "startTimeout": "20s"})
            await until(lambda: (world.status.get("waiting") or {}).get("reason") == "GroupIncomplete", 120.0)
            assert "lower spec.resources, spec.workers.resources" in world.status["waiting"]["message"]
            world.pods.held.clear()
            await world.change(workers={"startTimeout": "1h"})
            status = await world.until_over(600.0)
            assert (status["failures"], world.states()) == (0, ["TERMINATED"])

        play(scenario)


def test_restarted_operator_finds_vanished_workers(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps, world.pods.behaviour.hangs = 20, 1.0
        await world.apply(numSamples=1, **WORKERS)
        await world.until_running()
        await asyncio.sleep(3.0)
        world.pods.service = None
        await world.operator.close()
        world.pods.vanish(pods_of(world, 1)[0])
        await asyncio.sleep(1.0)
        world.start_operator()
        status = await world.until_over()
        assert (status["failures"], status["disruptions"]) == (0, 1)
        assert world.states() == ["TERMINATED"]

    play(scenario)


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("after_s", [1.0, 6.0, None], ids=["before the look", "after it", "never"])
def test_pod_lost_unseen_explains_failure_of_a_worker(play: Play, rank: int, after_s: float | None) -> None:
    """The worker fails at once, and the operator may be replaced before it knows why."""

    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 20
        await world.apply(numSamples=1, failurePolicy={"maxFailures": 0}, **WORKERS)
        await world.until_running()
        await asyncio.sleep(3.0)
        assert len(pods_of(world, 2)) == 1
        world.operator.watch.lose = lambda plural, _item: plural == "pods"
        world.pods.vanish(pods_of(world, rank)[0])
        world.operator.watch.lose = lambda plural, _item: False
        world.pods.kill(pods_of(world, 1)[0], 1, "Error")
        if after_s is not None:
            await asyncio.sleep(after_s)
            await world.replace_operator(1.0)
        status = await world.until_over()
        assert (status["failures"], status["disruptions"], world.states()) == (0, 1, ["TERMINATED"])

    play(scenario)


def test_head_is_ended_when_the_failure_is_durable(play: Play) -> None:
    """The storage is away when a worker fails; the operator continues as soon as it is back."""

    async def scenario(world: World) -> None:
        world.pods.behaviour.steps, world.pods.behaviour.hangs = 20, 1.0
        await world.apply(numSamples=1, failurePolicy={"maxFailures": 0}, **WORKERS)
        await world.until_running()
        await asyncio.sleep(3.0)
        world.storage.before = unavailable
        world.pods.kill(pods_of(world, 1)[0], 1, "Error")
        await asyncio.sleep(20.0)
        (head,) = pods_of(world, 0)
        assert "deletionTimestamp" not in head["metadata"]
        world.storage.before = lambda name, key: None
        await until(lambda: any("deletionTimestamp" in pod["metadata"] for pod in pods_of(world, 0)), 8.0)
        status = await world.until_over()
        assert (status["failures"], status["disruptions"], world.states()) == (1, 0, ["ERROR"])

    play(scenario)


def test_suspending_ends_all_pods_of_a_trial(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 20
        await world.apply(numSamples=1, **WORKERS)
        await world.until_running()
        await world.change(suspend=True)
        await until(lambda: not world.api.all("pods"), 60.0)
        await world.change(suspend=False)
        await world.until_over()
        assert world.states() == ["TERMINATED"]
        world.check_results()

    play(scenario)


def test_two_trials_do_not_hold_half_of_the_room_each(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.room = 4
        world.pods.behaviour.steps = 3
        await world.apply(numSamples=4, maxConcurrentTrials=4, **WORKERS)
        await world.until_over()
        assert world.states() == ["TERMINATED"] * 4
        assert [trial["status"]["attempt"] for trial in world.trials()] == [1] * 4
        assert world.loop.now() - world.began < 300.0

    play(scenario)
