"""The account of resources and the budgets of hours, of a whole operator on virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from cluster_world import Play, World
from prometheus_client.parser import text_string_to_metric_families
from virtual_time import until

from trialpod_operator.cluster.metrics.instruments import REGISTRY
from trialpod_operator.cluster.metrics.page import page

GPU = "nvidia.com/gpu"


def scrape(world: World) -> dict[str, Any]:
    controller = world.operator.controller
    text = page(
        controller.cache.experiments,
        active=True,
        queue_depth=0,
        open_count=0,
        connections=0,
        refused=0,
        accounts=controller.accounts(),
    )
    return {family.name: family for family in text_string_to_metric_families(text)}


def seconds(world: World, resource: str = "trial") -> dict[str, float]:
    """What the counter says of a resource, by outcome."""
    samples = scrape(world)["trialpod_resource_seconds"].samples
    return {each.labels["outcome"]: each.value for each in samples if each.labels["resource"] == resource}


def hours(status: dict[str, Any], resource: str = "trial") -> dict[str, float]:
    return {part: float(amount) for part, amount in status["resources"][resource].items()}


def test_useful_hours_are_in_the_status(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps, world.pods.behaviour.step_s = 10, 60.0
        labels = {"kueue.x-k8s.io/queue-name": "research"}
        await world.apply(
            resources={"cpu": "2", "memory": "1Gi", GPU: "1"}, template={"metadata": {"labels": labels}}
        )
        await world.until_running(3)
        first = scrape(world)
        (sample,) = [
            each
            for each in first["trialpod_resource_seconds"].samples
            if each.labels["resource"] == GPU and each.labels["outcome"] == "useful"
        ]
        assert (sample.value, sample.labels["queue"], sample.labels["namespace"]) == (0.0, "research", "team")
        in_use = {each.labels["resource"]: each.value for each in first["trialpod_resources_in_use"].samples}
        assert in_use == {"trial": 3, "cpu": 6, "memory": 3 * 1024.0**3, GPU: 3}
        status = await world.until_over()
        used = hours(status)["used"]
        assert 3 * 10 * 60 / 3600 * 0.5 < used < 3 * 10 * 60 / 3600 * 1.5
        assert hours(status) == {"used": used, "useful": used}
        assert hours(status, "cpu")["useful"] == pytest.approx(2 * used, abs=1e-3)
        assert hours(status, "memory")["useful"] == pytest.approx(used, abs=1e-3)
        assert seconds(world)["useful"] == pytest.approx(used * 3600, abs=0.5)  # still there, for the last scrape
        await asyncio.sleep(1000.0)
        assert "team" not in {each.labels["namespace"] for each in scrape(world)["trialpod_resource_seconds"].samples}

    play(scenario)


def test_what_failures_and_disruptions_cost_is_distinguished(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps, world.pods.behaviour.step_s = 20, 5.0
        world.pods.behaviour.fails_at = {("00001", 7): 1}
        await world.apply(failurePolicy={"maxFailures": 2})
        await world.until_running(3)
        await asyncio.sleep(20.0)
        pods = [pod for pod in world.pods.live() if "00000" in pod["metadata"]["name"]]
        world.pods.vanish(pods[0])
        status = await world.until_over()
        found = hours(status)
        assert found["lost"] > 0
        assert found["failed"] > 0
        assert found["used"] == pytest.approx(found["useful"] + found["lost"] + found["failed"], abs=1e-3)

    play(scenario)


def test_replaced_operators_count_nothing_twice_and_lose_nothing(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps, world.pods.behaviour.step_s = 30, 2.0
        await world.apply()
        await world.until_running(3)
        for _ in range(6):
            await asyncio.sleep(8.0)
            before = seconds(world)
            await world.replace_operator(0.5)
            await until(lambda: world.operator.controller.open_count == 1)
            now = seconds(world)
            assert all(now[outcome] >= before[outcome] for outcome in before)
        status = await world.until_over()
        assert hours(status)["used"] == hours(status)["useful"]
        assert 3 * 30 * 2 * 0.5 < hours(status)["used"] * 3600 < 3 * 30 * 2 * 1.6

    play(scenario)


def test_gpu_hour_budget_ends_and_raising_it_resumes(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps, world.pods.behaviour.step_s = 10, 10.0
        spec = {"numSamples": 9, "maxConcurrentTrials": 2, "resources": {GPU: "2"}}
        await world.apply(**spec, maxGpuHours=0.1)  # 180 s of two GPUs
        status = await world.until_over()
        assert world.condition("Succeeded")["reason"] == "Stopped"
        assert world.condition("Succeeded")["message"].startswith("the budget of 0.1 GPU hours is used up: 0.1")
        assert "raise spec.maxGpuHours" in status["message"]
        assert 0.1 <= hours(status, GPU)["used"] < 0.12
        assert status["trials"]["done"] < 9
        await world.change(maxGpuHours=10)
        status = await world.until_over()
        assert status["trials"]["done"] == 9
        assert world.condition("Succeeded")["reason"] == "Succeeded"

    play(scenario)


def test_waiting_time_and_used_budget_are_shown(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.starts = False
        await world.apply(maxTrialHours=1)
        await asyncio.sleep(100.0)
        (waits,) = scrape(world)["trialpod_pending_seconds"].samples
        assert 90 < waits.value <= 101
        world.pods.behaviour.starts = True
        world.pods.behaviour.steps, world.pods.behaviour.step_s = 3, 600.0
        await until(lambda: world.status["trials"]["running"] == 3)
        await asyncio.sleep(300.0)
        (waits,) = scrape(world)["trialpod_pending_seconds"].samples
        (budget,) = scrape(world)["trialpod_budget_used_ratio"].samples
        assert waits.value == 0
        assert budget.labels == {"namespace": "team", "experiment": "digits", "budget": "maxTrialHours"}
        assert 0.2 < budget.value < 0.3

    play(scenario)


def test_results_are_timed_until_durable(play: Play) -> None:
    async def scenario(world: World) -> None:
        def counts() -> tuple[float, float]:
            names = ("trialpod_result_durable_seconds_count", "trialpod_checkpoints_total")
            durable, checkpoints = (REGISTRY.get_sample_value(name) or 0 for name in names)
            return durable, checkpoints

        durable, checkpoints = counts()
        await world.apply()
        await world.until_over()
        assert counts()[0] - durable >= 3
        assert counts()[1] - checkpoints == 15

    play(scenario)


def test_a_change_of_the_budget_leaves_an_event_once(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 30
        await world.apply()
        await world.until_running(3)
        await world.change(maxGpuHours=2)
        await asyncio.sleep(5.0)
        await world.replace_operator()
        await world.until_over()
        told = [each["message"] for each in world.api.all("events") if each["reason"] == "SpecChanged"]
        assert told == ["spec.maxGpuHours: none -> 2"]

    play(scenario)


def test_all_pods_of_a_trial_count(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 30
        await world.apply(numSamples=1, resources={"cpu": "2"}, workers={"replicas": 3, "resources": {GPU: "1"}})
        await world.until_running(1)
        in_use = {each.labels["resource"]: each.value for each in scrape(world)["trialpod_resources_in_use"].samples}
        assert in_use == {"trial": 1, "cpu": 2, GPU: 3}
        await world.until_over()

    play(scenario)
