"""The states and counts of an experiment's trials say what is so: RUNNING means that a process runs."""

from __future__ import annotations

import asyncio
from typing import Any

import fake_api
import pytest
from cluster_world import Play, World
from virtual_time import until

from trialpod.storage.base import StorageUnavailableError


class TestRunning:
    def test_pod_that_does_not_run_is_pending(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            world.pods.behaviour.starts = False
            world.pods.behaviour.steps = 20
            await world.apply(numSamples=2)
            await asyncio.sleep(20.0)
            assert world.states() == ["PENDING", "PENDING"]
            counts = world.status["trials"]
            assert (counts["running"], counts.get("starting", 0), counts["pending"]) == (0, 2, 2)
            assert world.condition("Ready")["status"] == "False"
            assert not any("startTime" in trial["status"] for trial in world.trials())
            world.pods.behaviour.starts = True
            await world.until_running(2)
            await until(lambda: world.states() == ["RUNNING", "RUNNING"], 6.0, "they are RUNNING within seconds")
            counts = world.status["trials"]
            assert (counts["running"], counts.get("starting", 0), counts["pending"]) == (2, 0, 0)
            await world.until_over()

        play(scenario)

    def test_mix_of_both(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            world.pods.behaviour.steps, world.pods.behaviour.room = 20, 1
            await world.apply(numSamples=2)
            await world.until_running(1)
            await asyncio.sleep(12.0)
            assert sorted(world.states()) == ["PENDING", "RUNNING"]
            counts = world.status["trials"]
            assert (counts["running"], counts.get("starting", 0)) == (1, 1)
            (running,) = [each for each in world.trials() if each["status"]["state"] == "RUNNING"]
            assert world.pods.running[running["spec"]["trialId"], 1]
            await world.until_over()

        play(scenario)


class TestRefusedStatus:
    def test_of_one_trial_holds_up_no_other_status(self, play: Play, caplog: pytest.LogCaptureFixture) -> None:
        async def scenario(world: World) -> None:
            def refuse(method: str, path: str, body: Any) -> Any:
                if method == "PATCH" and path.endswith("00001/status"):
                    return fake_api.error(method, path, 422, "Invalid", "status.iteration: must be 0 or more")
                return None

            world.operator.kube.faults.append(refuse)
            await world.apply()
            await world.until_over()
            assert world.condition("Succeeded")["status"] == "True"
            assert world.states() == ["TERMINATED", "None", "TERMINATED"]
            said = [each for each in caplog.messages if "the status of a TuneTrial stays as it is" in each]
            assert len(said) == 1

        play(scenario)


class TestStorageOutage:
    def test_shows_and_leaves_events(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            world.pods.behaviour.steps = 60
            await world.apply(numSamples=1)
            await world.until_running(1)
            await asyncio.sleep(2.0)

            def away(_name: str, _key: str) -> None:
                raise StorageUnavailableError("the store is away")

            before, world.storage.before = world.storage.before, away
            await until(lambda: world.condition("Ready")["reason"] == "StorageUnavailable", 8.0)
            world.storage.before = before
            await until(lambda: world.condition("Ready")["reason"] == "Running", 60.0)
            reasons = [event["reason"] for event in world.api.all("events")]
            assert [each for each in reasons if each.startswith("Storage")] == [
                "StorageUnavailable",
                "StorageAvailable",
            ]
            await world.until_over()

        play(scenario)


class TestApiServerOutage:
    def test_leaves_an_event_when_it_is_over(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            world.pods.behaviour.steps = 60
            await world.apply(numSamples=1)
            await world.until_running(1)
            world.operator.controller.record_outage(38.2)

            def events() -> list[str]:
                found = world.api.all("events")
                return [each["message"] for each in found if each["reason"] == "ApiServerUnavailable"]

            await until(lambda: len(events()) == 1, 10.0, "the event")
            assert "did not answer the operator for 38 s; running trials continued" in events()[0]
            await world.until_over()

        play(scenario)


class TestProgressDeadline:
    def test_hanging_trial_fails(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            world.pods.behaviour.steps, world.pods.behaviour.obeys = 1000, False
            world.pods.behaviour.step_s = 1e5
            await world.apply(numSamples=1, progressDeadline="2m")
            await until(lambda: world.states() == ["RUNNING"])
            reported = world.trials()[0]["status"]["lastReportTime"]
            (pod,) = world.pods.live()
            world.api.logs[pod["metadata"]["uid"]] = "it loads\n"
            world.pods.behaviour.leaves_s = 2.0
            await until(lambda: "deletionTimestamp" in (world.pods.current(pod) or pod)["metadata"], 200.0)
            await asyncio.sleep(5.0)
            world.api.logs[pod["metadata"]["uid"]] += "it hangs here\n"
            await world.until_over()
            (trial,) = world.trials()
            assert (trial["status"]["state"], trial["status"]["failures"]) == ("ERROR", 1)
            assert "reported nothing for 120 s (spec.progressDeadline)" in trial["status"]["message"]
            (log,) = world.files("log.txt").values()
            assert (log.count("it loads\n"), log.count("it hangs here\n")) == (1, 1)
            assert reported
            assert "lastReportTime" not in trial["status"]
            assert "NoProgress" in [event["reason"] for event in world.api.all("events")]
            assert world.loop.now() - world.began < 200.0

        play(scenario)
