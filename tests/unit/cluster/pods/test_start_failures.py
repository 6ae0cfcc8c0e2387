"""What keeps trials from starting, or ends them from outside: its cause is told and kept, and a correction helps."""

from __future__ import annotations

import asyncio
import base64
from itertools import pairwise
from typing import Any, ClassVar

import pytest
from cluster_world import Play, World
from fake_api import Object, error, stamp
from fake_pods import Behaviour
from virtual_time import until

from trialpod.storage.base import StorageCredentialsError
from trialpod_operator.api.api_errors import ApiError
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster.pods.diagnostics import POLL_INTERVAL_S

INIT = {"terminationGracePeriodSeconds": 15, "initContainers": [{"name": "fetch", "image": "fetch:1"}]}


def ended(name: str, code: int, message: str = "", at: float = 0.0) -> Object:
    """The status of a container that has ended."""
    state = {"exitCode": code, "reason": "Error" if code else "Completed", "message": message}
    return {"name": name, "state": {"terminated": {**state, "finishedAt": stamp(at)}}}


class TestInitContainers:
    def test_output_is_in_the_log_and_the_message(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            world.pods.behaviour.starts = False
            await world.apply(numSamples=1, template={"spec": INIT})
            await until(lambda: bool(world.api.all("pods")), what="a pod is there")
            (pod,) = world.api.all("pods")
            assert pod["spec"]["initContainers"][0]["terminationMessagePolicy"] == "FallbackToLogsOnError"
            world.api.logs[f"{pod['metadata']['uid']}/fetch"] = "first\ncannot fetch data set\n"

            def fail(each: Object) -> None:
                message = "first\ncannot fetch data set\n"
                statuses = [ended("fetch", 3, message, world.api.now())]
                each["status"] = {**each["status"], "phase": "Failed", "initContainerStatuses": statuses}

            world.api.edit(pod, fail)
            await until(world.is_over, what="it ends")
            message = world.trials()[0]["status"]["message"]
            assert "init container fetch exited with status 3: first / cannot fetch data set" in message
            await until(lambda: bool(world.files("log.txt")), what="the log is kept")
            (log,) = world.files("log.txt").values()
            assert "container fetch exited with status 3; it printed:\nfirst\ncannot fetch data set\n" in log

        play(scenario)

    def test_sidecar_that_failed_before_is_reported(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            await world.apply(numSamples=1)
            await world.until_running()
            (pod,) = world.pods.live()
            uid = pod["metadata"]["uid"]
            await until(lambda: "step 1" in world.api.logs.get(uid, ""), what="it prints")
            world.api.logs[f"{uid}/proxy"] = "no route\n"

            def fail(each: Object) -> None:
                each["status"]["containerStatuses"].append(ended("proxy", 2, "no route\n", world.api.now()))

            world.pods.kill(world.api.edit(pod, fail), 1, "Error")
            await until(world.is_over, what="it ends")
            message = world.trials()[0]["status"]["message"]
            assert "before that container proxy exited with status 2: no route" in message
            await until(lambda: bool(world.files("log.txt")), what="the log is kept")
            (log,) = world.files("log.txt").values()
            assert "container proxy exited with status 2; it printed:\nno route\n" in log
            assert "step 1" in log

        play(scenario)

    def test_sidecar_that_failed_explains_a_reported_error(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            world.pods.behaviour.fails_at = {("00000", 5): 1}
            await world.apply(numSamples=1, failurePolicy={"maxFailures": 0})
            await world.until_running()
            (pod,) = world.pods.live()

            def fail(each: Object) -> None:
                each["status"]["containerStatuses"].append(ended("proxy", 2, "no route\n", world.api.now()))

            world.api.edit(pod, fail)
            await until(world.is_over, what="it ends")
            message = world.trials()[0]["status"]["message"]
            assert message.startswith("ValueError: no")
            assert message.endswith("; before that container proxy exited with status 2: no route")

        play(scenario)


def waits_for_its_image(each: Object) -> None:
    """The kubelet cannot pull the image."""
    waiting = {"reason": "ImagePullBackOff", "message": "not found"}
    each["spec"]["nodeName"] = "node-1"
    each["status"] = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [{"name": "trial", "state": {"waiting": waiting}}],
    }


def waits_for_a_device(each: Object) -> None:
    """The container runtime has a reason of its own, which is no word that a condition may have."""
    waits_for_its_image(each)
    waiting = {"reason": "device:not-ready", "message": "the plug-in of the devices starts"}
    each["status"]["containerStatuses"][0]["state"]["waiting"] = waiting


def test_waiting_container_is_reported_until_it_runs(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.starts = False
        await world.apply(numSamples=1)
        await until(lambda: len(world.api.all("pods")) == 1, what="a pod is there")
        world.api.edit(world.api.all("pods")[0], waits_for_a_device)
        await until(lambda: world.condition("Ready").get("reason") == "ContainerWaiting", what="it is reported")
        message = world.condition("Ready")["message"]
        assert "container trial waits: device:not-ready: the plug-in of the devices starts" in message
        assert "see `kubectl describe pod`" in message
        world.pods.behaviour.starts = True
        await world.until_over()
        assert world.condition("Succeeded")["status"] == "True"

    play(scenario)


class TestImageCorrected:
    def test_pods_of_the_wrong_image_are_replaced_at_once(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            world.pods.behaviour.starts = False
            await world.apply(numSamples=2, image="train:wrong")
            await until(lambda: len(world.api.all("pods")) == 2, what="pods are there")
            for pod in world.api.all("pods"):
                world.api.edit(pod, waits_for_its_image)
            await until(lambda: world.condition("Ready").get("reason") == "ImagePullFailed", what="it is reported")
            await world.change(image="train:1")
            world.pods.behaviour.starts = True
            await until(
                lambda: [pod["spec"]["containers"][0]["image"] for pod in world.api.all("pods")] == ["train:1"] * 2,
                5.0,
                "they are replaced",
            )
            status = await world.until_over()
            assert status["trials"]["terminated"] == 2
            assert [trial["status"]["attempt"] for trial in world.trials()] == [1, 1]

        play(scenario)

    def test_pods_that_run_stay(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            await world.apply(numSamples=1)
            await world.until_running()
            uids = {pod["metadata"]["uid"] for pod in world.api.all("pods")}
            await world.change(image="train:2", maxConcurrentTrials=2)
            await world.until_over()
            assert set(world.api.logs) == uids

        play(scenario)

    def test_all_pods_of_a_group_are_replaced(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            world.pods.behaviour.starts = False
            await world.apply(numSamples=1, image="train:wrong", workers={"replicas": 1})
            await until(lambda: len(world.api.all("pods")) == 2, what="pods are there")
            for pod in world.api.all("pods"):
                world.api.edit(pod, waits_for_its_image)
            await world.change(image="train:1")
            world.pods.behaviour.starts = True
            status = await world.until_over()
            assert status["trials"]["terminated"] == 1
            assert world.trials()[0]["status"]["failures"] == 0

        play(scenario)


class FirstHangs(Behaviour):
    """The first pod never begins."""

    begun = 0

    @property
    def begin_s(self) -> float:  # type: ignore[override]
        self.begun += 1
        return 1e6 if self.begun == 1 else 2.0

    @begin_s.setter
    def begin_s(self, value: float) -> None:
        """The default is not used."""


class TestRefusedAlone:
    @pytest.mark.parametrize(("status", "plural"), [(403, "pods"), (500, "pods"), (422, "pods"), (422, "tunetrials")])
    def test_others_begin_all_the_same(self, play: Play, status: int, plural: str) -> None:
        async def scenario(world: World) -> None:
            def refuse(method: str, path: str, body: Object) -> ApiError | None:
                if method == "POST" and path.endswith(plural) and "00001" in body["metadata"]["name"]:
                    return error(method, path, status, "Refused", "maximum cpu usage per Container is 8")
                return None

            world.operator.kube.faults.append(refuse)
            await world.apply(numSamples=12, maxConcurrentTrials=3)
            await until(lambda: world.states().count("TERMINATED") == 11, what="all others have ended")
            world.operator.kube.faults.remove(refuse)
            assert (await world.until_over())["trials"]["terminated"] == 12

        play(scenario)


class TestEvents:
    @pytest.mark.parametrize("status", [0, 403, 500])
    def test_that_cannot_be_read_keep_no_trial_from_beginning(
        self, play: Play, monkeypatch: pytest.MonkeyPatch, status: int
    ) -> None:
        async def scenario(world: World) -> None:
            request, asked = world.operator.kube.request, list[float]()

            async def refuse(method: str, path: str, **options: Any) -> Any:
                if not path.endswith("/events"):
                    return await request(method, path, **options)
                asked.append(world.loop.now())
                await asyncio.sleep(30.0 if status == 0 else 0.0)
                raise error(method, path, status, "Refused", "etcdserver: request timed out")

            monkeypatch.setattr(world.operator.kube, "request", refuse)
            world.pods.behaviour = FirstHangs()
            await world.apply(numSamples=12, maxConcurrentTrials=2)
            await until(lambda: world.states().count("TERMINATED") == 11, what="all others have ended")
            assert asked, "the pod that hangs is asked about"
            assert all(later - one > POLL_INTERVAL_S - 1.0 for one, later in pairwise(asked))
            assert world.operator.errors == []

        play(scenario)

    def test_are_read_of_each_pod_in_turn(self, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
        async def scenario(world: World) -> None:
            request, asked = world.operator.kube.request, list[str]()

            async def note(method: str, path: str, **options: Any) -> Any:
                if not path.endswith("/events"):
                    return await request(method, path, **options)
                asked.append(options["query"]["fieldSelector"])
                return {"items": [{"reason": "FailedMount", "message": "timed out", "lastTimestamp": "1"}]}

            monkeypatch.setattr(world.operator.kube, "request", note)
            world.pods.behaviour.begin_s = 1e6
            await world.apply(numSamples=3)
            await until(lambda: len(asked) >= 6, 120.0, "they are asked about")
            assert len(set(asked[:3])) == 3
            assert asked[3:6] == asked[:3]

        play(scenario)


class TestMisspeltTemplate:
    def test_the_field_is_named_and_its_correction_helps(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            await world.apply(numSamples=1, template={"spec": {"nodeSelectr": {"disk": "ssd"}}})
            await until(lambda: world.condition("Ready").get("reason") == "InvalidTemplate", 10.0, "it is reported")
            assert "no field spec.nodeSelectr" in world.condition("Ready")["message"]
            assert "did you mean nodeSelector?" in world.condition("Ready")["message"]
            assert not world.api.all("pods")
            await world.change(template={"spec": {"nodeSelectr": None, "nodeSelector": {"disk": "ssd"}}})
            await world.until_over()
            assert world.states() == ["TERMINATED"]

        play(scenario)


class TestKeysRefused:
    def test_the_secret_is_named_and_new_keys_help(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            keys = {"AWS_ACCESS_KEY_ID": "YQ==", "AWS_SECRET_ACCESS_KEY": "Yg=="}
            secret = {"metadata": {"name": "wrongkeys", "namespace": "team"}, "data": keys}
            await world.client.create(paths.secrets("team"), secret)

            def refuse(_name: str, _key: str) -> None:
                raise StorageCredentialsError("the store refuses the credentials from the Secret wrongkeys")

            world.storage.before = refuse
            await world.apply(storage={"uri": "s3://bucket/runs", "credentialsSecret": "wrongkeys"})
            await until(lambda: bool(world.condition("Stalled")), what="it is reported")
            assert world.condition("Stalled")["reason"] == "Refused"
            events = [event["message"] for event in world.api.all("events") if event["reason"] == "Stalled"]
            assert any("the Secret wrongkeys" in message for message in events)
            world.storage.before = lambda _name, _key: None
            await world.until_over()
            assert not world.condition("Stalled")

        play(scenario)

    def test_of_an_experiment_that_runs(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            world.pods.behaviour.steps = 60
            await world.apply()
            await world.until_running(3)

            def refuse(_name: str, _key: str) -> None:
                raise StorageCredentialsError("the store refuses the credentials from the Secret minio")

            world.storage.before = refuse
            await until(lambda: bool(world.condition("Stalled")), 60.0, what="it is reported")
            assert world.condition("Stalled")["reason"] == "Refused"
            assert "the Secret minio" in world.condition("Stalled")["message"]
            world.storage.before = lambda _name, _key: None
            status = await world.until_over()
            assert status["trials"]["terminated"] == 3
            world.check_results()

        play(scenario)


class TestStorageEmptied:
    def test_while_the_operator_is_away(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            await world.apply()
            await world.until_running()
            await until(lambda: bool(world.status.get("startTime")), what="it is reported")
            kept = dict(world.storage.values)
            await world.operator.close()
            world.storage.values.clear()
            await world.replace_operator()
            await until(lambda: bool(world.condition("Stalled")), what="it is reported")
            assert world.condition("Stalled")["reason"] == "StorageEmptied"
            assert "delete te digits" in world.condition("Stalled")["message"]
            await asyncio.sleep(60)
            assert not world.storage.values, "no new beginning"
            world.storage.values.update(kept)
            status = await world.until_over()
            assert status["trials"]["terminated"] == 3

        play(scenario)

    def test_while_trials_run(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            world.pods.behaviour.steps = 200
            await world.apply()
            await world.until_running(3)
            await until(lambda: bool(world.status.get("startTime")), what="it is reported")
            world.storage.values.clear()
            await until(lambda: bool(world.condition("Stalled")), 10.0, what="it is reported")
            # What came after is not read.
            assert world.condition("Stalled")["reason"] == "StorageEmptied"
            await until(
                lambda: any(event["reason"] == "Stalled" for event in world.api.all("events")),
                what="an event",
            )
            await asyncio.sleep(120)
            assert world.condition("Stalled")["reason"] == "StorageEmptied"
            # The remedy that it names.
            world.pods.problems.clear()
            world.pods.safe.clear()
            world.api.delete(world.experiment)
            await until(lambda: not world.api.all("pods"), what="it is gone")
            world.pods.behaviour.steps = 5
            await world.apply()
            status = await world.until_over()
            assert status["trials"]["terminated"] == 3

        play(scenario)

    def test_remedy_of_a_damaged_journal(self, play: Play) -> None:
        storage = {"uri": "s3://bucket/runs", "deletionPolicy": "Retain"}

        async def scenario(world: World) -> None:
            world.pods.behaviour.steps = 200
            await world.apply(storage=storage)
            await world.until_running(3)
            await until(lambda: bool(world.status.get("startTime")), what="it is reported")
            values = world.storage.values
            await until(lambda: sum("/00000001.log/" in key for key in values) > 1, what="the journal has grown")
            (first,) = (key for key in values if key.endswith("/00000001.log/000000000000"))
            del values[first]
            values[f"{first.rpartition('/')[0]}.removed"] = b""  # its writer opens it again
            await until(lambda: bool(world.condition("Stalled")), 10.0, what="it is reported")
            assert world.condition("Stalled")["reason"] == "JournalDamaged"
            await world.change(storage={**storage, "deletionPolicy": "Delete"})
            await until(lambda: bool(world.experiment["metadata"].get("finalizers")), what="it deletes the rest")
            world.pods.problems.clear()
            world.pods.safe.clear()
            world.api.delete(world.experiment)
            await until(lambda: world.api.get("tuneexperiments", "digits") is None, what="it is gone")
            assert not world.storage.values
            world.pods.behaviour.steps = 5
            await world.apply(storage=storage)
            status = await world.until_over()
            assert status["trials"]["terminated"] == 3

        play(scenario)


class TestCodeInAConfigMap:
    REFERENCE: ClassVar[Object] = {"name": "code", "key": "my.py", "entrypoint": "pkg.train:train"}

    async def put(self, world: World, data: Object) -> None:
        if (found := world.api.get("configmaps", "code")) is not None:
            world.api.remove(found)
        body = {"metadata": {"name": "code", "namespace": "team"}, **data}
        await world.client.create(paths.config_maps("team"), body)

    def test_all_trials_run_that_of_the_start(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            world.pods.behaviour.step_s = 40.0
            await self.put(world, {"data": {"my.py": "version = 1"}})
            await world.apply(trainable={"configMapRef": self.REFERENCE}, maxConcurrentTrials=1)
            await world.until_running()
            await self.put(world, {"data": {"my.py": "version = 2"}})
            await until(
                lambda: "CodeChanged" in {each["reason"] for each in world.api.all("events")}, 30.0, "the event"
            )
            await until(lambda: len(world.pods.modules) == 2, what="another trial runs")
            await world.replace_operator()
            await world.until_over()
            assert world.pods.modules == [{"pkg/train.py": "version = 1"}] * 3
            told = [event["message"] for event in world.api.all("events") if event["reason"] == "CodeChanged"]
            assert told
            assert all("my.py in the ConfigMap code was changed" in message for message in told)

        play(scenario)

    def test_that_is_not_there(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            await world.apply(trainable={"configMapRef": self.REFERENCE}, numSamples=1)
            await until(lambda: bool(world.condition("Stalled")), what="it is reported")
            assert world.condition("Stalled")["reason"] == "ConfigMapNotFound"
            assert not world.api.all("pods")
            await self.put(world, {"data": {"other.py": ""}})
            await until(lambda: world.condition("Stalled")["reason"] == "ConfigMapKeyNotFound", what="its key")
            assert "no Python file my.py (its keys: other.py)" in world.condition("Stalled")["message"]
            await self.put(world, {"binaryData": {"my.py": base64.b64encode(b"version = 3").decode()}})
            await world.until_over()
            assert world.pods.modules == [{"pkg/train.py": "version = 3"}]

        play(scenario)

    def test_without_the_right_to_read_it(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            def refuse(method: str, path: str, _body: Object) -> ApiError | None:
                forbidden = method == "GET" and path.endswith("/configmaps/code")
                return error(method, path, 403, "Forbidden") if forbidden else None

            world.operator.kube.faults.append(refuse)
            await world.apply(trainable={"configMapRef": self.REFERENCE}, numSamples=1)
            await world.until_over()
            assert world.pods.modules == [{}]  # the pod mounts it

        play(scenario)
