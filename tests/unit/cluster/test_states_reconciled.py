"""The states and counts of an experiment's trials say what is so: RUNNING means that a process runs."""

from __future__ import annotations

import asyncio
from typing import Any

import fake_api
import pytest
from cluster_world import Play, World
from virtual_time import until

from trialpod.storage.base import StorageUnavailableError
from trialpod_operator.cluster import kube as paths


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


def forbidden(part: str, message: str) -> fake_api.Fault:
    """Return a fault that refuses requests to paths with `part`."""

    def fault(method: str, path: str, _body: Any) -> Any:
        if part in path and method in ("GET", "POST"):
            return fake_api.error(method, path, 403, "Forbidden", f"{part} is forbidden: {message}")
        return None

    return fault


class TestForbidden:
    @pytest.mark.parametrize(
        ("message", "reason", "stalled", "says"),
        [
            (
                "exceeded quota: small, requested: configmaps=1, used: configmaps=3, limited: configmaps=3",
                "QuotaExceeded",
                False,
                "configmaps=3 of configmaps=3 (POST /api/v1/namespaces/team/configmaps); raise the quota",
            ),
            (
                'admission webhook "policy.example.com" denied the request: no ConfigMaps here',
                "PolicyDenied",
                True,
                "policy.example.com does not allow the request: configmaps is forbidden: admission webhook",
            ),
        ],
        ids=["quota", "policy"],
    )
    def test_opening_says_why(self, play: Play, message: str, reason: str, stalled: bool, says: str) -> None:
        async def scenario(world: World) -> None:
            world.operator.kube.faults.append(forbidden("configmaps", message))
            await world.apply()
            await until(lambda: bool(world.condition("Ready")), 30.0, "the status says why")
            assert world.condition("Ready")["status"] == "False"
            assert world.condition("Ready")["reason"] == reason
            assert says in world.condition("Ready")["message"]
            assert bool(world.condition("Stalled")) is stalled
            world.operator.kube.faults.clear()
            await world.until_over()
            assert world.condition("Succeeded")["status"] == "True"

        play(scenario)

    def test_secret_while_trials_run_says_why_and_holds_up_nothing(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            data = {"AWS_ACCESS_KEY_ID": "a2V5", "AWS_SECRET_ACCESS_KEY": "c2VjcmV0"}
            await world.client.create(paths.secrets("team"), {"metadata": {"name": "keys"}, "data": data})
            world.pods.behaviour.steps = 200
            storage = {"uri": "s3://bucket/runs", "credentialsSecret": "keys"}
            await world.apply(numSamples=2, maxConcurrentTrials=1, storage=storage)
            await world.until_running()
            fault = forbidden("secrets", 'User "operator" cannot get resource "secrets" in API group ""')
            reads = []

            def refuse(method: str, path: str, body: Any) -> Any:
                if (refusal := fault(method, path, body)) is not None:
                    reads.append(path)
                return refusal

            world.operator.kube.faults.append(refuse)
            await until(lambda: world.condition("Ready")["status"] == "False", what="the status says why")
            assert world.condition("Ready")["reason"] == "OperatorForbidden"
            assert "(operator) may not get secrets in this namespace" in world.condition("Ready")["message"]
            before = len(reads)
            await asyncio.sleep(60.0)
            assert 3 <= len(reads) - before <= 6
            (pod,) = world.pods.live()
            world.pods.kill(pod, 1, "Error")
            await until(lambda: pod["metadata"]["name"] not in names_of(world.pods.live()), what="it is handled")
            await until(lambda: bool(world.pods.live()), what="the next trial starts")
            world.operator.kube.faults.clear()
            await until(lambda: world.condition("Ready")["status"] == "True", what="that is over")

        play(scenario)

    def test_deleted_secret_while_trials_run_holds_up_nothing(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            data = {"AWS_ACCESS_KEY_ID": "a2V5", "AWS_SECRET_ACCESS_KEY": "c2VjcmV0"}
            secret = {"metadata": {"name": "keys"}, "data": data}
            await world.client.create(paths.secrets("team"), secret)
            world.pods.behaviour.steps = 200
            storage = {"uri": "s3://bucket/runs", "credentialsSecret": "keys"}
            await world.apply(numSamples=2, maxConcurrentTrials=1, storage=storage)
            await world.until_running()
            await world.client.delete(paths.secrets("team"), "keys")
            await until(lambda: world.condition("Ready")["status"] == "False", what="the status says why")
            assert world.condition("Ready")["reason"] == "SecretNotFound"
            (pod,) = world.pods.live()
            world.pods.kill(pod, 1, "Error")
            await until(lambda: pod["metadata"]["name"] not in names_of(world.pods.live()), what="it is handled")
            await until(lambda: bool(world.pods.live()), what="the next trial starts")
            await world.client.create(paths.secrets("team"), secret)
            await until(lambda: world.condition("Ready")["status"] == "True", what="that is over")

        play(scenario)


def names_of(pods: list[fake_api.Object]) -> list[str]:
    return [str(pod["metadata"]["name"]) for pod in pods]


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
