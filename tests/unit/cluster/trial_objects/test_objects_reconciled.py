"""Trials that are Jobs, in a whole operator: named, owned, ended, interrupted, retried and deleted as pods are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from cluster_world import Play, World
from fake_api import error
from fake_jobs import FakeJobs
from virtual_time import until

pytestmark = pytest.mark.once

POD = {"spec": {"terminationGracePeriodSeconds": 15, "containers": [{"name": "trial", "image": "any:1"}]}}


def job(**spec: Any) -> dict[str, Any]:
    """Return the part of a manifest that makes trials Jobs."""
    template = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": POD, **spec}}
    return {"template": {}, "trialResource": {"template": template}}


def jobs(world: World) -> list[Any]:
    return world.api.all("jobs")


class TestJobs:
    def test_each_attempt_is_a_job_that_is_deleted_when_it_is_over(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            made = FakeJobs(world.api)
            await world.apply(**job())
            await world.until_over()
            assert world.states() == ["TERMINATED"] * 3
            world.check_results()
            names = [each["metadata"]["name"] for each in made.made]
            trials = [trial["metadata"]["name"] for trial in world.trials()]
            assert sorted(names) == sorted(f"{name}-1" for name in trials)
            for each in made.made:
                (owner,) = each["metadata"]["ownerReferences"]
                assert (owner["kind"], owner["controller"]) == ("TuneTrial", True)
                assert each["spec"]["backoffLimit"] == 0
            await until(lambda: not jobs(world) and not world.api.all("pods"), 120.0)
            status = world.trials()[0]["status"]
            assert status["podName"].startswith(f"{trials[0]}-1-x")

        play(scenario)

    def test_a_pod_that_is_preempted_costs_no_retry(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            FakeJobs(world.api)
            world.pods.behaviour.steps = 20
            await world.apply(numSamples=1, **job())
            await world.until_running(1)
            world.pods.preempt(world.pods.live()[0], "EvictionByEvictionAPI")
            status = await world.until_over()
            (trial,) = world.trials()
            assert trial["status"]["state"] == "TERMINATED", status
            assert (trial["status"]["attempt"], trial["status"]["failures"]) == (2, 0)
            world.check_results()

        play(scenario)

    def test_a_pod_that_vanishes_costs_no_retry(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            FakeJobs(world.api).retries = 3
            world.pods.behaviour.steps = 20
            await world.apply(numSamples=1, **job(backoffLimit=3))
            await world.until_running(1)
            world.pods.vanish(world.pods.live()[0])
            await world.until_over()
            (trial,) = world.trials()
            assert (trial["status"]["state"], trial["status"]["attempt"]) == ("TERMINATED", 2)
            assert (trial["status"]["failures"], trial["status"]["disruptions"]) == (0, 1)
            assert max(world.pods.begun.values()) == 1  # the controller's own second pod gets no work
            world.check_results()

        play(scenario)

    def test_a_process_that_fails_is_retried_by_the_failure_policy(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            FakeJobs(world.api)
            world.pods.behaviour.steps = 20
            await world.apply(numSamples=1, failurePolicy={"maxFailures": 1}, **job())
            await world.until_running(1)
            world.pods.kill(world.pods.live()[0])
            await world.until_over()
            (trial,) = world.trials()
            assert (trial["status"]["state"], trial["status"]["failures"]) == ("TERMINATED", 1)
            world.check_results()

        play(scenario)

    def test_the_deadline_of_a_job_is_a_failure(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            made = FakeJobs(world.api)
            world.pods.behaviour.steps = 200
            await world.apply(numSamples=1, **job(activeDeadlineSeconds=60))
            await world.until_running(1)
            made.deadline(jobs(world)[0])
            await world.until_over()
            (trial,) = world.trials()
            assert trial["status"]["state"] == "ERROR"
            assert "the Job failed: DeadlineExceeded" in trial["status"]["message"]

        play(scenario)

    def test_a_suspension_ends_the_jobs_and_a_resume_makes_new_ones(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            FakeJobs(world.api)
            world.pods.behaviour.steps = 30
            await world.apply(numSamples=2, **job())
            await world.until_running(2)
            await world.change(suspend=True)
            await until(lambda: not jobs(world), 120.0)
            await world.change(suspend=False)
            await world.until_over()
            assert world.states() == ["TERMINATED"] * 2
            assert {trial["status"]["attempt"] for trial in world.trials()} == {2}
            world.check_results()

        play(scenario)

    def test_a_pod_waits_when_its_job_is_not_known_yet(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            made = FakeJobs(world.api)
            # The answers about the Job are lost until its pod has been asking for a while.
            request = world.operator.kube.request
            until_known = world.loop.time() + 15.0

            async def lossy(method: str, path: str, **more: Any) -> Any:
                answer = await request(method, path, **more)
                of_one = "/jobs/" in path or (method == "POST" and path.endswith("/jobs"))
                if of_one and world.loop.time() < until_known:
                    raise error(method, path, 0, "Unreachable", "the connection broke")
                return answer

            world.operator.kube.request = lossy  # type: ignore[method-assign]
            await world.apply(numSamples=1, failurePolicy={"maxFailures": 0}, **job())
            await world.until_running(1)
            assert world.loop.time() >= until_known, "it had its work before"
            await world.until_over()
            (trial,) = world.trials()
            assert (trial["status"]["state"], trial["status"]["attempt"]) == ("TERMINATED", 1)
            assert len(made.made) == 1
            world.check_results()

        play(scenario)

    def test_a_job_that_somebody_deletes_is_made_again(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            FakeJobs(world.api)
            world.pods.behaviour.steps = 30
            await world.apply(numSamples=1, **job())
            await world.until_running(1)
            world.api.delete(jobs(world)[0])
            await world.until_over()
            (trial,) = world.trials()
            assert (trial["status"]["state"], trial["status"]["failures"]) == ("TERMINATED", 0)
            world.check_results()

        play(scenario)


class TestChanges:
    @pytest.mark.parametrize("kind", [None, "Machine"])
    @pytest.mark.parametrize("by_another", [False, True])
    def test_the_kind_stays_once_trials_run(self, play: Play, kind: str | None, by_another: bool) -> None:
        async def scenario(world: World) -> None:
            FakeJobs(world.api)
            world.pods.behaviour.steps = 20
            first = job()
            await world.apply(numSamples=2, maxConcurrentTrials=1, **first)
            await world.until_running(1)
            resource: Any = None
            if kind is not None:
                template = {"apiVersion": "example.com/v1", "kind": kind, "spec": {"pod": POD}}
                conditions = {
                    "successCondition": "status.phase == Done",
                    "failureCondition": "status.phase == Broken",
                }
                resource = {"template": template, "podTemplatePath": "spec.pod", **conditions}
            if by_another:
                world.pods.service = None
                await world.operator.close()
            await world.change(trialResource=resource)
            if by_another:
                world.start_operator()
            await until(lambda: world.condition("Stalled").get("status") == "True", 60.0)
            assert "spec.trialResource" in world.condition("Stalled")["message"]
            assert len(jobs(world)) == 1
            changed = first["trialResource"] | dict.fromkeys(resource or {}) | first["trialResource"]
            await world.change(trialResource=changed)
            await world.until_over()
            assert world.states() == ["TERMINATED"] * 2
            assert {trial["status"]["attempt"] for trial in world.trials()} == {1}
            world.check_results()

        play(scenario)

    def test_the_template_may_change(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            made = FakeJobs(world.api)
            await world.apply(numSamples=2, maxConcurrentTrials=1, **job())
            await world.until_running(1)
            await world.change(trialResource=job(activeDeadlineSeconds=900)["trialResource"])
            await world.until_over()
            assert [each["spec"].get("activeDeadlineSeconds") for each in made.made] == [None, 900]

        play(scenario)


class TestOperators:
    def test_one_that_is_replaced_finds_the_jobs(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            made = FakeJobs(world.api)
            world.pods.behaviour.steps = 40
            await world.apply(numSamples=2, **job())
            await world.until_running(2)
            await world.replace_operator(3.0)
            await world.until_over()
            assert {trial["status"]["attempt"] for trial in world.trials()} == {1}
            assert len(made.made) == 2
            world.check_results()

        play(scenario)

    def test_a_pod_that_went_while_no_operator_was_there_is_missed(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            FakeJobs(world.api).retries = 3
            world.pods.behaviour.steps = 40
            await world.apply(numSamples=1, **job(backoffLimit=3))
            await world.until_running(1)
            world.pods.service = None
            await world.operator.close()
            world.pods.vanish(world.pods.live()[0])
            await asyncio.sleep(30.0)
            world.start_operator()
            await world.until_over()
            (trial,) = world.trials()
            assert (trial["status"]["state"], trial["status"]["attempt"]) == ("TERMINATED", 2)
            assert max(world.pods.begun.values()) == 1
            world.check_results()

        play(scenario)

    @pytest.mark.parametrize("has_pod", [True, False])
    @pytest.mark.parametrize("is_stored", [True, False])
    def test_one_that_comes_after_the_end_deletes_jobs_left(self, play: Play, has_pod: bool, is_stored: bool) -> None:
        async def scenario(world: World) -> None:
            FakeJobs(world.api)
            await world.apply(numSamples=1, **job())
            await until(lambda: bool(world.status.get("completionTime")), 120.0)
            assert jobs(world), "the operator was too fast for this test"
            await world.operator.close()
            if not has_pod:
                world.pods.vanish(world.api.all("pods")[0])
            if not is_stored:
                world.storage.values.clear()
            await asyncio.sleep(10.0)
            world.start_operator()
            await until(lambda: not jobs(world) and not world.api.all("pods"), 120.0)
            await until(lambda: world.operator.controller.open_count == 0, 60.0)
            requests = world.operator.kube.requests
            await asyncio.sleep(300.0)
            assert world.operator.kube.requests == requests

        play(scenario)

    def test_a_few_requests_are_enough_for_a_trial(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            FakeJobs(world.api)
            await world.apply(numSamples=10, maxConcurrentTrials=10, **job())
            await world.until_over()
            await until(lambda: not jobs(world), 120.0)
            counts = world.api.counts
            assert counts["POST jobs"] == counts["DELETE jobs"] == 10
            assert counts["GET jobs"] <= 40, counts

        play(scenario)


class TestWhatKeepsTrialsFromBeginning:
    @staticmethod
    def waiting(world: World) -> dict[str, Any]:
        (trial,) = world.trials()
        return dict((trial.get("status") or {}).get("waiting") or {})

    def test_a_kind_that_nobody_looks_after(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            FakeJobs(world.api).works = False
            await world.apply(numSamples=1, **job())
            await until(lambda: world.trials() and self.waiting(world), 120.0)
            assert self.waiting(world)["reason"] == "TrialResourceWithoutStatus"
            assert "no controller handles it; install the controller" in self.waiting(world)["message"]

        play(scenario)

    def test_a_kind_that_the_operator_may_not_make(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            template = {
                "apiVersion": "jobset.x-k8s.io/v1alpha2",
                "kind": "JobSet",
                "spec": {"replicatedJobs": [{"name": "leader", "template": {"spec": {"template": POD}}}]},
            }
            await world.apply(numSamples=1, template={}, trialResource={"template": template})
            await until(lambda: world.trials() and self.waiting(world), 120.0)
            message = self.waiting(world)["message"]
            assert "adds {apiVersion: jobset.x-k8s.io/v1alpha2, kind: JobSet, resource: jobsets}" in message

        play(scenario)

    def test_trial_without_a_parameter_fails_alone(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            FakeJobs(world.api)
            note = {"annotations": {"momentum": "${trialParameters.optimizer.momentum}"}}
            pod = {**POD, "metadata": note}
            choice = [{"name": "sgd", "momentum": 0.9}, {"name": "adam"}]
            await world.apply(
                numSamples=8,
                maxConcurrentTrials=4,
                searchSpace={"optimizer": {"choice": choice}},
                failurePolicy={"maxFailures": 3},
                **job(template=pod),
            )
            await until(lambda: "ERROR" in world.states(), what="one has failed")
            await world.replace_operator()
            await world.until_over()
            ended = [(each["spec"]["params"]["optimizer"]["name"], each["status"]) for each in world.trials()]
            assert {(name, status["state"]) for name, status in ended} == {("sgd", "TERMINATED"), ("adam", "ERROR")}
            for name, status in ended:
                assert name == "sgd" or "the trial has no parameter 'optimizer.momentum'" in status["message"]
                assert int(status.get("attempts", 1)) == 1

        play(scenario)

    def test_a_job_that_kueue_has_not_admitted(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            FakeJobs(world.api).works = False
            spec = job(suspend=True)
            spec["trialResource"]["template"]["metadata"] = {"labels": {"kueue.x-k8s.io/queue-name": "research"}}
            await world.apply(numSamples=1, **spec)
            await until(lambda: world.trials() and self.waiting(world), 120.0)
            assert self.waiting(world)["reason"] == "Queued"
            assert "Kueue has not admitted it from the queue research" in self.waiting(world)["message"]

        play(scenario)


class TestAnyKind:
    def test_an_object_that_fails_without_a_pod_is_a_failure(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            def fail(kind: str, item: Any) -> None:
                if kind == "ADDED":
                    status = {"phase": "Broken", "message": "no such flavor"}
                    asyncio.get_running_loop().call_later(
                        2.0, lambda: world.api.edit(item, lambda each: each.update(status=status))
                    )

            world.api.on_other = fail
            template = {"apiVersion": "example.com/v1", "kind": "Machine", "spec": {"pod": POD}}
            resource = {
                "template": template,
                "podTemplatePath": "spec.pod",
                "successCondition": "status.phase == Done",
                "failureCondition": "status.phase == Broken",
            }
            await world.apply(numSamples=1, template={}, trialResource=resource)
            await world.until_over()
            (trial,) = world.trials()
            assert trial["status"]["state"] == "ERROR"
            assert "the Machine failed: Broken: no such flavor" in trial["status"]["message"] or (
                "the Machine failed: no such flavor" in trial["status"]["message"]
            )

        play(scenario)
