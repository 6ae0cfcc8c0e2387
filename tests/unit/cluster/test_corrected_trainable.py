"""A Trainable that never reported anything can be corrected in the same experiment; with results nothing changes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from api_server import experiment_object, trial_object
from cluster_world import Play, World
from virtual_time import until

from trialpod_operator.api import cel
from trialpod_operator.api.models import TuneExperiment
from trialpod_operator.cluster import kube as paths
from trialpod_operator.commands.why import findings, next_steps

pytestmark = pytest.mark.once

WRONG, RIGHT = {"entrypoint": "train:trian"}, {"entrypoint": "train:train"}


async def fail(world: World, iteration: int = 1, **spec: Any) -> None:
    """Run an experiment all of whose trials fail at that iteration."""
    world.pods.behaviour.fails_at = {(f"{index:05d}", iteration): 1 for index in range(2)}
    await world.apply(numSamples=2, trainable=WRONG, **spec)
    await world.until_over()
    assert world.states() == ["ERROR", "ERROR"]


def stored(world: World) -> dict[str, Any]:
    (text,) = (data for key, data in world.storage.values.items() if key.endswith(".trialpod/experiment.json"))
    return dict(json.loads(text))


def entrypoints(world: World) -> set[str | None]:
    return {each.entrypoint for each in world.pods.trainables}


class TestCorrectedTrainable:
    @pytest.mark.parametrize("killed", [False, True])
    def test_failed_trials_run_it_at_once(self, play: Play, killed: bool) -> None:
        async def scenario(world: World) -> None:
            await fail(world)
            assert world.status["trainableFixed"] is False
            world.pods.trainables.clear()
            await world.change(trainable=RIGHT)
            if killed:
                await world.replace_operator(1.0)
            await world.until_over()
            assert (world.states(), entrypoints(world)) == (["TERMINATED"] * 2, {"train:train"})
            assert world.condition("Succeeded")["status"] == "True"
            assert world.status["trainableFixed"] is True
            assert stored(world)["manifest"]["spec"]["trainable"] == RIGHT
            world.check_results()

        play(scenario)

    @pytest.mark.parametrize("after_s", [0.0, 0.1, 0.25, 0.4, 0.8, 2.0, 4.0])
    def test_killed_operator_keeps_it(self, play: Play, after_s: float) -> None:
        async def scenario(world: World) -> None:
            await fail(world)
            world.pods.trainables.clear()
            await world.change(trainable=RIGHT)
            await asyncio.sleep(after_s)
            await world.replace_operator(1.0)
            await world.until_over()
            if "ERROR" in world.states():  # killed between the document and the request: it can be retried
                body = {"metadata": {"annotations": {"trialpod.dev/retry": "1"}}}
                await world.client.patch(paths.experiments("team"), "digits", body)
                await until(lambda: world.status.get("retried") == "1", 60.0)
                await world.until_over()
            assert (world.states(), entrypoints(world)) == (["TERMINATED"] * 2, {"train:train"})
            world.check_results()

        play(scenario)

    def test_source_takes_the_place_of_an_entry_point(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            await fail(world)
            world.pods.trainables.clear()
            await world.change(trainable={"entrypoint": None, "source": "def f(config): ..."})
            await world.until_over()
            assert world.states() == ["TERMINATED"] * 2
            assert {each.source for each in world.pods.trainables} == {"def f(config): ..."}
            assert {name.split("_")[0] for name in world.files("params.json")} == {
                trial["spec"]["trialId"].split("_")[0] for trial in world.trials()
            }

        play(scenario)

    def test_with_results_nothing_changes(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            await fail(world, iteration=2)
            assert world.status["trainableFixed"] is True
            before = stored(world)
            await world.change(trainable=RIGHT)
            await until(lambda: world.condition("Stalled").get("reason") == "Refused", 60.0)
            message = world.condition("Stalled")["message"]
            assert message.startswith(
                "spec.trainable.entrypoint: 'train:trian' -> 'train:train': trials have reported"
            )
            assert "metadata.name" in message
            assert (stored(world), world.states()) == (before, ["ERROR"] * 2)
            assert world.status["trainableFixed"] is False  # so that it can be changed back
            await world.change(trainable=WRONG)
            await world.until_over()
            assert world.condition("Failed")["status"] == "True"
            assert world.status["trainableFixed"] is True

        play(scenario)

    def test_results_of_a_deleted_object_are_not_continued(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            await world.apply(numSamples=2, trainable=WRONG)
            await world.until_running()
            await world.client.delete(paths.experiments("team"), "digits")
            await until(lambda: not world.api.all("pods") and not world.experiment, 200.0)
            world.pods.trainables.clear()
            await world.apply(numSamples=2, trainable=RIGHT)
            await until(lambda: world.condition("Stalled").get("reason") == "Refused", 60.0)
            await asyncio.sleep(60.0)
            assert "earlier experiment of this name whose spec.trainable is" in world.condition("Stalled")["message"]
            assert (world.api.all("pods"), world.pods.trainables) == ([], [])

        play(scenario)

    @pytest.mark.parametrize(("killed", "more"), [(False, {}), (True, {}), (False, {"image": "corrected:1"})])
    def test_pods_that_wait_run_it_when_they_start(self, play: Play, killed: bool, more: dict[str, Any]) -> None:
        async def scenario(world: World) -> None:
            world.pods.behaviour.starts = False
            await world.apply(numSamples=2, trainable=WRONG)
            await until(lambda: len(world.api.all("pods")) == 2, 60.0)
            await world.change(trainable=RIGHT, **more)
            if killed:
                await world.replace_operator(0.1)
            await until(lambda: stored(world)["manifest"]["spec"]["trainable"] == RIGHT, 60.0)
            world.pods.behaviour.starts = True
            await world.until_over()
            assert (world.states(), entrypoints(world)) == (["TERMINATED"] * 2, {"train:train"})
            world.check_results()

        play(scenario)

    def test_results_without_the_metric_do_not_keep_it(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            world.pods.behaviour.metric, world.pods.behaviour.saves = "scoer", False
            await world.apply(numSamples=2, trainable=WRONG)
            await world.until_over()
            assert (world.states(), world.status["trainableFixed"]) == (["ERROR"] * 2, False)
            world.pods.behaviour.metric = "score"
            await world.change(trainable=RIGHT)
            await until(lambda: world.condition("Succeeded").get("status") == "True", 120.0)
            assert (world.states(), world.status["trainableFixed"]) == (["TERMINATED"] * 2, True)
            assert entrypoints(world) == {"train:trian", "train:train"}

        play(scenario)

    def test_waits_for_attempts_that_run(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            world.pods.behaviour.fails_at = {("00000", 1): 1}
            await world.apply(numSamples=1, trainable=WRONG)
            await until(lambda: bool(world.pods.trainables), 60.0)
            await world.change(trainable=RIGHT)
            await until(lambda: world.condition("Ready").get("reason") == "ChangePending", 60.0)
            assert not world.condition("Stalled")
            await world.until_over()
            assert [each.entrypoint for each in world.pods.trainables] == ["train:trian", "train:train"]
            assert world.states() == ["TERMINATED"]

        play(scenario)

    def test_is_refused_when_results_come_first(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            await world.apply(numSamples=1, trainable=WRONG)
            await until(lambda: bool(world.pods.trainables), 60.0)
            await world.change(trainable=RIGHT)
            await until(lambda: world.states() == ["TERMINATED"], 600.0)
            await until(lambda: world.condition("Stalled").get("reason") == "Refused", 60.0)
            await world.change(trainable=WRONG)
            await world.until_over()
            assert entrypoints(world) == {"train:trian"}
            world.check_results()

        play(scenario)

    def test_other_changes_with_it_are_refused(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            await fail(world)
            await world.change(trainable=RIGHT, metric="other")
            await until(lambda: world.condition("Stalled").get("reason") == "Refused", 60.0)
            assert "spec.metric" in world.condition("Stalled")["message"]
            assert world.states() == ["ERROR"] * 2
            await world.change(metric="score")
            await world.until_over()
            assert (world.states(), stored(world)["manifest"]["spec"]["trainable"]) == (["TERMINATED"] * 2, RIGHT)

        play(scenario)


def test_only_the_operator_opens_the_rule() -> None:
    (rule,) = (each.rule for each in cel.RULES[TuneExperiment] if each.field_path == ".spec.trainable")
    assert "has(oldSelf.status.trainableFixed) && !oldSelf.status.trainableFixed" in rule


@pytest.mark.parametrize("fixed", [False, True, None])
def test_why_says_what_can_be_corrected(fixed: bool | None) -> None:
    item = experiment_object("climb", {})
    item["status"] = {"observedGeneration": 1, "trainableFixed": fixed}
    found = findings(item, [trial_object("climb", 0, "ERROR", message="no module named trian")], [])
    (step,) = (each for each in next_steps(found) if "trialpod retry" in each)
    assert ("spec.template and spec.trainable can be changed" in step) == (fixed is False)
    assert ("another trainable" in step) == (fixed is not False)
    assert "needs another name: trialpod submit FILE --name climb-2 -n team" in step
