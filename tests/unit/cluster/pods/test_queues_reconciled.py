"""Experiments whose pods wait, in a queue or for room, in a whole operator: only a few wait, and none is given up."""

from __future__ import annotations

import asyncio
from typing import Any

import fake_api
import pytest
from cluster_world import Play, World
from virtual_time import until

from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster.pods.queues import AHEAD, IN_QUEUE

pytestmark = pytest.mark.once

LABEL = "kueue.x-k8s.io/queue-name"
TEMPLATE = {"metadata": {"labels": {LABEL: "research"}}, "spec": {"terminationGracePeriodSeconds": 15}}
SHORT = "insufficient unused quota for cpu in flavor default, 1 more needed"


def workload(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the Workload that Kueue makes of a pod for which there is no quota."""
    reserved = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": SHORT}
    labels = {"kueue.x-k8s.io/job-uid": pod["metadata"]["uid"]}
    name = f"pod-{pod['metadata']['name']}"
    return {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": {"conditions": [reserved]}}


def test_queued_trials_wait_a_few_at_a_time_and_all_finish(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.room = 3
        await world.apply(numSamples=30, maxConcurrentTrials=30, template=TEMPLATE)
        most = 0
        while not world.is_over():
            await asyncio.sleep(1.0)
            waiting = [pod for pod in world.api.all("pods") if pod["spec"].get("schedulingGates")]
            most = max(most, len(waiting))
        assert IN_QUEUE <= most <= 2 * IN_QUEUE
        status = await world.until_over()
        assert status["trials"]["terminated"] == 30
        assert (status["failures"], status["disruptions"]) == (0, 0)
        world.check_results()

    play(scenario)


def test_what_kueue_says_of_the_first_in_line_is_reported_of_all(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.room = 1
        world.pods.behaviour.steps = 60
        await world.apply(numSamples=3, template=TEMPLATE)
        await until(lambda: len([p for p in world.api.all("pods") if p["spec"].get("schedulingGates")]) == 2)
        held = [pod for pod in world.api.all("pods") if pod["spec"].get("schedulingGates")]
        for pod in held:
            made = workload(pod)
            status = made.pop("status")
            await world.client.create(paths.workloads("team", "v1beta2"), made)
            item = world.api.get("workloads", made["metadata"]["name"])
            assert item is not None
            world.api.edit(item, lambda each, status=status: each.update(status=status))  # type: ignore[misc]
        await until(lambda: SHORT in str(world.status.get("waiting")), 40.0)
        assert world.status["waiting"]["reason"] == "Queued"
        assert world.status["waiting"]["count"] == 2
        await until(lambda: sum(SHORT in str(trial["status"].get("waiting")) for trial in world.trials()) == 2, 40.0)
        world.pods.behaviour.room = 3
        assert (await world.until_over())["disruptions"] == 0

    play(scenario)


@pytest.mark.parametrize("status", [403, 404])
def test_without_permissions_or_kueue_queue_is_named_once(play: Play, status: int) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.room = 0
        asked = []

        def refuse(method: str, path: str, _body: object) -> object:
            if "/workloads" not in path:
                return None
            asked.append(path)
            return fake_api.error(method, path, status, "Forbidden" if status == 403 else "NotFound")

        world.operator.kube.faults.append(refuse)  # type: ignore[arg-type]
        await world.apply(numSamples=2, template=TEMPLATE)
        await asyncio.sleep(3600.0)
        assert "the queue research" in world.status["waiting"]["message"]
        assert len(asked) <= 2 * 3600 / 300 + 2
        assert len(world.api.all("pods")) == 2
        assert {pod["metadata"]["name"].rpartition("-")[2] for pod in world.api.all("pods")} == {"1"}  # none again
        assert world.operator.kube.requests < 700
        world.pods.behaviour.room = 2
        over = await world.until_over()
        assert (over["failures"], over["disruptions"]) == (0, 0)

    play(scenario)


@pytest.mark.parametrize("limit", [None, 500])
def test_pods_without_room_are_created_a_few_at_a_time(play: Play, limit: int | None) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.starts = False
        await world.apply(numSamples=300, **({"maxConcurrentTrials": limit} if limit else {}))
        await asyncio.sleep(60.0)
        assert len(world.api.all("pods")) == AHEAD
        assert len(world.trials()) <= AHEAD + 1

    play(scenario)


@pytest.mark.parametrize(
    "scheduler",
    [
        {"name": "async_hyperband", "parameters": {"max_t": 6, "grace_period": 1, "reduction_factor": 2}},
        {"name": "hyperband", "parameters": {"max_t": 6, "reduction_factor": 2}},
        {"name": "pbt", "parameters": {"perturbation_interval": 2, "synch": True}},
    ],
)
def test_comparing_schedulers_continue_with_admitted_trials(play: Play, scheduler: dict[str, Any]) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.room = 2
        world.pods.behaviour.steps = 6
        if scheduler["name"] == "pbt":
            scheduler["parameters"]["hyperparam_mutations"] = {"x": [0.5, 1.0]}
        await world.apply(numSamples=8, maxConcurrentTrials=8, scheduler=scheduler, template=TEMPLATE)
        status = await world.until_over()
        assert status["trials"]["terminated"] == 8
        assert (status["failures"], status["disruptions"]) == (0, 0)
        world.check_results()

    play(scenario)
