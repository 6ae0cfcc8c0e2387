"""What somebody asks of an experiment by an annotation, and what operator and pods tell of their versions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from cluster_world import Play, World
from virtual_time import until

from trialpod import __version__
from trialpod.protocol.messages import AssignmentRequest
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster import names
from trialpod_operator.cluster.annotations import stop_is_asked
from trialpod_operator.reports import service


async def ask_to_stop(world: World, value: str) -> None:
    body = {"metadata": {"annotations": {names.STOP_ANNOTATION: value}}}
    await world.client.patch(paths.experiments("team"), "digits", body)


def test_stopped_experiment_keeps_results_and_extends(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 20
        await world.apply(numSamples=5, maxConcurrentTrials=2)
        await world.until_running(2)
        await asyncio.sleep(3.0)
        await ask_to_stop(world, str(world.experiment["metadata"]["generation"]))
        status = await world.until_over()
        assert world.condition("Succeeded")["reason"] == "Stopped"
        assert status["trials"]["terminated"] == 2
        assert all(0 < len(lines) < 20 for lines in world.results().values())
        await asyncio.sleep(30.0)
        assert not world.api.all("pods")
        # More samples are another generation: the experiment continues, whatever the annotation says of the old one.
        await world.change(numSamples=6)
        await until(lambda: world.status["trials"]["running"] > 0)
        status = await world.until_over()
        assert status["trials"]["terminated"] == 6
        world.check_results()

    play(scenario)


def test_a_suspended_experiment_can_be_stopped(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 20
        await world.apply()
        await world.until_running(3)
        await world.change(suspend=True)
        await until(lambda: not world.api.all("pods"))
        await ask_to_stop(world, "true")
        await world.until_over()
        assert world.condition("Succeeded")["reason"] == "Stopped"

    play(scenario)


@pytest.mark.parametrize(
    ("value", "generation", "asked"),
    [
        ("3", 3, True),
        ("3", 4, False),
        ("4", 3, True),
        ("true", 9, True),
        ("", 1, False),
        ("no", 1, False),
        pytest.param("9" * 5_000, 1, False, id="long"),
    ],
)
def test_a_request_to_stop_is_about_one_generation(value: str, generation: int, asked: bool) -> None:
    metadata = {"generation": generation, "annotations": {names.STOP_ANNOTATION: value}}
    assert stop_is_asked(metadata) is asked
    assert not stop_is_asked({"generation": generation})


def test_the_operator_says_what_it_is_beside_the_certificates(play: Play) -> None:
    async def scenario(world: World) -> None:
        await world.apply()
        await world.until_over()
        notes = world.api.get("configmaps", names.CA_CONFIG_MAP)["metadata"]["annotations"]
        assert notes[names.VERSION_ANNOTATION] == __version__
        assert notes[names.PROTOCOL_ANNOTATION] == "1"

    play(scenario)


def test_image_with_other_protocol_fails_trials_with_remedy(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    def protocol_mismatch(request: AssignmentRequest, **_: Any) -> str:
        return f'too old; pip install "trialpod=={__version__}"' if request.hostname else ""

    monkeypatch.setattr(service, "protocol_mismatch", protocol_mismatch)

    async def scenario(world: World) -> None:
        await world.apply(failurePolicy={"maxFailures": 3})
        await world.until_over()
        assert set(world.states()) == {"ERROR"}
        found = world.trials()[0]["status"]
        assert found["message"] == f'too old; pip install "trialpod=={__version__}"'
        assert found["attempt"] == 1
        events = [each["message"] for each in world.api.all("events") if each["reason"] == "TrialFailed"]
        assert any("too old; pip install" in message for message in events)

    play(scenario)


class TestNotice:
    def test_space_without_variables_is_an_event(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            await world.apply(searchSpace={"lr": 0.1}, numSamples=3)
            await world.until_over()
            (event,) = [each for each in world.api.all("events") if each["reason"] == "Notice"]
            assert event["message"] == "the search space: nothing varies in it: 3 trials get the same parameters"
            assert event["type"] == "Warning"

        play(scenario)
