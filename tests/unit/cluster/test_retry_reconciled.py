"""Failed trials of an experiment in a cluster are retried, when somebody asks for it: once for each request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from cluster_world import Play, World
from virtual_time import until

from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster.annotations import next_retry, retry_is_pending, retry_of


async def annotate(world: World, **notes: str | None) -> None:
    """Set annotations of the experiment."""
    body = {"metadata": {"annotations": {f"trialpod.dev/{name}": value for name, value in notes.items()}}}
    assert await world.client.patch(paths.experiments("team"), "digits", body) is not None


async def fail(world: World, trials: int = 2, failing: int = 2) -> None:
    """Run an experiment of which the first trials fail at their second step."""
    world.pods.behaviour.fails_at = {(f"{index:05d}", 2): 1 for index in range(failing)}
    await world.apply(numSamples=trials)
    await world.until_over()


async def until_retried(world: World) -> dict[str, Any]:
    await until(lambda: not retry_is_pending(world.experiment), 60.0, "the request is taken")
    return await world.until_over()


class TestRetryAnnotation:
    def test_failed_experiment_continues(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            await fail(world)
            assert world.condition("Failed")["status"] == "True"
            assert world.states() == ["ERROR", "ERROR"]
            assert world.condition("Failed")["message"] == "all 2 trials failed: ValueError: no"
            await annotate(world, retry="1")
            status = await until_retried(world)
            assert world.states() == ["TERMINATED"] * 2
            assert [trial["status"]["attempt"] for trial in world.trials()] == [2, 2]
            assert world.condition("Succeeded")["status"] == "True"
            assert not world.condition("Failed") or world.condition("Failed")["status"] == "False"
            assert (status["retried"], status["failures"]) == ("1", 0)
            world.check_results()
            await annotate(world, retry="2")
            await until_retried(world)
            told = [each["message"] for each in world.api.all("events") if "retried" in each["message"]]
            assert told == [
                "2 failed trials are retried, as asked for",
                "nothing is retried: no trial has failed",
            ]

        play(scenario)

    def test_each_value_counts_once(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            await fail(world, trials=1, failing=1)
            world.pods.behaviour.fails_at = {("00000", 3): 1}
            await annotate(world, retry="1")
            await until_retried(world)
            assert (world.states(), world.trials()[0]["status"]["attempt"]) == (["ERROR"], 2)
            await world.replace_operator()
            await asyncio.sleep(60.0)
            assert world.trials()[0]["status"]["attempt"] == 2
            await annotate(world, retry="2")
            await until_retried(world)
            assert (world.states(), world.trials()[0]["status"]["attempt"]) == (["TERMINATED"], 3)

        play(scenario)

    @pytest.mark.parametrize("after_s", [0.0, 0.05, 0.3, 1.0, 2.5])
    def test_killed_operator_neither_loses_nor_repeats_it(self, play: Play, after_s: float) -> None:
        async def scenario(world: World) -> None:
            await fail(world, trials=1, failing=1)
            await annotate(world, retry="1")
            await asyncio.sleep(after_s)
            await world.replace_operator(1.0)
            await until_retried(world)
            assert (world.states(), world.trials()[0]["status"]["attempt"]) == (["TERMINATED"], 2)

        play(scenario)

    def test_names_trials(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            await fail(world, trials=3, failing=2)
            second = world.trials()[1]["spec"]["trialId"]
            await annotate(world, retry=f"x from-scratch {second}")
            await until_retried(world)
            assert world.states() == ["ERROR", "TERMINATED", "TERMINATED"]
            assert [line["training_iteration"] for line in world.results()[second]][-5:] == [1, 2, 3, 4, 5]

        play(scenario)

    def test_stopped_experiment_is_not_retried(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            await fail(world, trials=2, failing=1)
            await annotate(world, retry="1", stop="true")
            await asyncio.sleep(30.0)
            assert world.states() == ["ERROR", "TERMINATED"]

        play(scenario)

    def test_runs_with_the_raised_limit(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            await fail(world, trials=1, failing=1)
            await world.change(resources={"memory": "1Gi"})
            await annotate(world, retry="1")
            await until(lambda: bool(world.api.all("pods")), 60.0)
            (container,) = world.api.all("pods")[0]["spec"]["containers"]
            assert container["resources"]["limits"]["memory"] == "1Gi"
            await until_retried(world)

        play(scenario)


class TestNextRetry:
    def test_keeps_what_waits(self) -> None:
        item: dict[str, Any] = {"metadata": {"annotations": {"trialpod.dev/retry": "a t1"}}, "status": {}}
        assert next_retry(item, ["t2"], "b", from_scratch=False) == "b t1 t2"
        assert next_retry(item, [], "b", from_scratch=False) == "b"
        item["status"]["retried"] = "a t1"
        assert next_retry(item, ["t2"], "b", from_scratch=True) == "b from-scratch t2"

    def test_stop_goes_before(self) -> None:
        assert retry_of({"annotations": {"trialpod.dev/retry": "a", "trialpod.dev/stop": "true"}}) is None
