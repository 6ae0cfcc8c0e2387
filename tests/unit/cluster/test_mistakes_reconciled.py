"""Mistakes are named before the first pod, or at the first trials; what is not asked for costs nothing."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from types import FrameType
from typing import Any

import pytest
from cluster_world import Play, World, manifest
from fake_pods import Caller
from virtual_time import until

from trialpod.errors import TrainableError
from trialpod_operator.api.validation import Checked
from trialpod_operator.cluster import experiment_controller, names
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster.pods import pod_work
from trialpod_operator.cluster.stored_manifest import check_stored
from trialpod_operator.decider.code import load_plan
from trialpod_operator.experiment.decisions.messages import DecisionAnswer, DecisionRequest, decode_answer, encode

DECIDING = ("/decisions/queue.py", "/cluster/decider/")
"""What works for code of the user's that decides."""


class TestCommand:
    @pytest.mark.parametrize(
        ("argument", "words"),
        [
            ("--x={xx}", "spec.trainable.command[1]: {xx} is not a parameter of the search space, which has x"),
            ("--fast", "spec.trainable.command: nothing gives x to the program; add --x={x} to the command"),
        ],
    )
    def test_is_refused_before_anything_is_made(self, play: Play, argument: str, words: str) -> None:
        async def scenario(world: World) -> None:
            await world.apply(trainable={"command": ["./train", argument]}, numSamples=100)
            await until(lambda: world.condition("Stalled"), 10.0, "it is refused")
            assert world.condition("Stalled")["reason"] == "InvalidSpec"
            assert words in world.condition("Stalled")["message"]
            assert not world.api.all("pods") + world.api.all("tunetrials")

        play(scenario)


class TestCheck:
    def test_fault_of_the_check_is_stalled_and_retried(self, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
        faults = ["first", "second"]

        def check(item: Any) -> Checked:
            if faults:
                raise AttributeError(f"'list' object has no attribute 'get' ({faults.pop(0)})")
            return check_stored(item)

        async def scenario(world: World) -> None:
            monkeypatch.setattr(experiment_controller, "check_stored", check)
            await world.apply()
            await until(lambda: world.condition("Stalled"), 10.0, "it is named")
            assert world.condition("Stalled")["reason"] == "InvalidSpec"
            assert (
                "the manifest cannot be checked, a fault of trialpod: AttributeError: "
                in world.condition("Stalled")["message"]
            )
            assert (await world.until_over())["trials"]["terminated"] == 3
            assert not world.condition("Stalled")

        play(scenario)

    def test_edit_that_cannot_be_checked_is_not_applied(self, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
        broken = True

        def check(item: Any) -> Checked:
            if broken and item["metadata"]["generation"] == 2:
                raise AttributeError("x")
            return check_stored(item)

        async def scenario(world: World) -> None:
            nonlocal broken
            monkeypatch.setattr(experiment_controller, "check_stored", check)
            await world.apply(maxConcurrentTrials=1)
            await world.until_running()
            await world.change(numSamples=1)
            await until(lambda: world.condition("Stalled"), 60.0, "it is named")
            await until(lambda: len(world.operator.errors) > 1, 60.0, "it is retried")
            assert world.condition("Stalled")["reason"] == "InvalidSpec"
            broken = False
            assert (await world.until_over())["trials"]["terminated"] == 1

        play(scenario)


class TestTemplate:
    @pytest.mark.parametrize(
        ("part", "place"),
        [
            ({"metadata": {"labels": ["a"]}}, "metadata.labels"),
            ({"metadata": {"labels": "a=b"}}, "metadata.labels"),
            ({"metadata": {"annotations": ["a"]}}, "metadata.annotations"),
            ({"spec": {"terminationGracePeriodSeconds": "30s"}}, "spec.terminationGracePeriodSeconds"),
            ({"spec": {"volumes": {"name": "v"}}}, "spec.volumes"),
            ({"spec": {"containers": [{"name": "trial", "env": {"A": "b"}}]}}, "spec.containers[0].env"),
        ],
    )
    @pytest.mark.parametrize("kind", ["Pod", "Job"])
    def test_field_of_another_type_is_refused(self, play: Play, part: Any, place: str, kind: str) -> None:
        spec, path = {"template": part}, f"spec.template.{place}"
        if kind == "Job":
            pod = {**part, "spec": {"containers": [{"name": "trial", "image": "any:1"}], **part.get("spec", {})}}
            job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": pod}}
            spec, path = (
                {"template": {}, "trialResource": {"template": job}},
                f"trialResource.template.spec.template.{place}",
            )

        async def scenario(world: World) -> None:
            await world.apply(**spec)
            await until(lambda: world.condition("Stalled"), 10.0, "it is refused")
            assert world.condition("Stalled")["reason"] == "InvalidSpec"
            assert f"{path}: must be " in world.condition("Stalled")["message"]
            assert world.operator.controller.accounts() == []
            assert world.operator.errors == []

        play(scenario)

    def test_fault_of_building_is_named_and_harms_no_other(self, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
        def build(*_given: Any, **_options: Any) -> Any:
            raise AttributeError("'list' object has no attribute 'get'")

        async def scenario(world: World) -> None:
            monkeypatch.setattr(pod_work, "build_pod", build)
            await world.apply()
            await until(lambda: world.condition("Stalled"), 60.0, "it is named")
            assert world.condition("Stalled")["reason"] == "InvalidTemplate"
            assert "no pod can be made of it: AttributeError: 'list' object" in world.condition("Stalled")["message"]
            assert world.operator.errors == []

        play(scenario)

    def test_one_that_cannot_be_counted_is_left_out(self, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
        def queue_of(experiment: Any) -> str:
            if experiment.name == "digits":
                raise AttributeError("'list' object has no attribute 'get'")
            return ""

        async def scenario(world: World) -> None:
            monkeypatch.setattr(experiment_controller, "queue_of", queue_of)
            other = manifest(numSamples=1)
            other["metadata"]["name"] = "sound"
            await world.client.create(paths.experiments("team"), other)
            await world.apply(numSamples=1)
            controller = world.operator.controller
            await until(lambda: controller.open_count == 2, what="both are open")
            assert [each.key for each in controller.accounts()] == ["team/sound"]
            await controller.close()
            assert controller.open_count == 0

        play(scenario)


class TestImage:
    def test_another_architecture_ends_it_soon(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            await world.apply(numSamples=100, maxConcurrentTrials=2, image="r/train:1")

            def ends() -> bool:
                for pod in world.pods.live():
                    world.pods.kill(pod, 255, "Error", "exec /usr/bin/python: exec format error")
                return world.is_over()

            await until(ends, what="it ends")
            assert "the first 3 trials failed before their first result" in world.condition("Failed")["message"]
            assert "r/train:1 is built for another architecture" in world.condition("Failed")["message"]
            assert len(world.trials()) <= 4

        play(scenario)


class TestOwnCode:
    def test_of_another_python_is_named_before_the_first_trial(self, play: Play) -> None:
        packed = b'{"format":1,"python":"3.9.1","cloudpickle":"3","name":"the deciding code"}\nno pickle'
        with pytest.raises(TrainableError) as caught:
            load_plan(packed, 1, "digits")

        async def scenario(world: World) -> None:
            await world.apply(numSamples=100, decider={"scheduler": {"entrypoint": "mine:Own"}})
            await until(lambda: world.api.all("pods"), 10.0, "the decider's pod is made")
            (pod,) = world.api.all("pods")
            caller = Caller("team", pod["metadata"]["name"], pod["metadata"]["uid"])

            def call(**given: Any) -> DecisionAnswer | None:
                body = encode(DecisionRequest(**given))
                reply = world.operator.service.handle("/v1/team/digits/decisions", body, caller)
                assert isinstance(reply, tuple)
                return decode_answer(reply[1]) if reply[0] == 200 else None

            await until(lambda: call() is not None, 10.0, "a session begins")
            began = call()
            assert began is not None
            call(session=began.session, problem=str(caught.value))
            await until(lambda: world.condition("Ready").get("reason") == "DeciderFailed", 30.0, "it is told")
            message = world.condition("Ready")["message"]
            assert "was packed by Python 3.9.1" in message
            assert "use an image with the same minor version of Python" in message
            assert not world.trials()

        play(scenario)


class TestWithoutOwnCode:
    @staticmethod
    def deciding_calls(play: Play, **spec: Any) -> tuple[Counter[str], list[str]]:
        """Return the calls of the functions of `DECIDING` in an experiment, and the names of its deciders' pods."""
        calls: Counter[str] = Counter()
        deciders: list[str] = []

        def note(frame: FrameType, event: str, _argument: Any) -> None:
            if event == "call" and any(part in frame.f_code.co_filename for part in DECIDING):
                calls[frame.f_code.co_qualname] += 1

        async def scenario(world: World) -> None:
            def made(kind: str, item: dict[str, Any]) -> None:
                if kind == "ADDED" and item["metadata"].get("labels", {}).get(names.ROLE_LABEL) == names.DECIDER_ROLE:
                    deciders.append(item["metadata"]["name"])

            world.api.listeners.append(made)
            threads = set(threading.enumerate())
            sys.setprofile(note)
            try:
                await world.apply(numSamples=6, maxConcurrentTrials=3, **spec)
                await until(lambda: world.is_over() or deciders, 600.0, "it ends, or has a decider")
                if not deciders:
                    await world.until_over()
                    await world.change(maxConcurrentTrials=4)  # a finished experiment is looked at again
                    await world.until_over()
            finally:
                sys.setprofile(None)
            for thread in set(threading.enumerate()) - threads:
                thread.join(60.0)  # the one that removes the files of a closed experiment ends by itself
            assert set(threading.enumerate()) <= threads

        play(scenario)
        return calls, deciders

    def test_no_pod_no_thread_no_work_for_a_decider(self, play: Play) -> None:
        calls, deciders = self.deciding_calls(play)
        assert deciders == []
        assert set(calls) <= {"DeciderKeeper", "DeciderKeeper.__init__"}, calls
        assert calls["DeciderKeeper.__init__"] == 1, "once for the experiment, whatever happens in it"

    def test_own_code_has_them(self, play: Play) -> None:
        calls, deciders = self.deciding_calls(play, decider={"scheduler": {"entrypoint": "mine:Own"}})
        assert deciders == ["digits-decider-1"]
        assert calls["DeciderKeeper.reconcile"] > 0
        assert calls["DecisionQueue.__init__"] == 1
