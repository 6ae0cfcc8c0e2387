"""What a look at an experiment costs, and in which order it does things: there may be thousands of attempts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from cluster_world import KEY, Play, World
from virtual_time import run, until

from trialpod_operator.cluster import controller
from trialpod_operator.cluster.cache import ObjectCache
from trialpod_operator.cluster.pods import diagnostics, pending
from trialpod_operator.cluster.pods.assignments import Assignments
from trialpod_operator.cluster.pods.binding import PodBinding
from trialpod_operator.cluster.pods.experiment_pods import ExperimentPods
from trialpod_operator.cluster.pods.logs import MAX_DELETED_PODS, PodLogs


def test_a_pod_that_asks_for_its_work_is_looked_at_alone(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    answering = False
    all_pods, assign = ObjectCache.pods, Assignments.assign

    def pods(self: ObjectCache, key: str) -> Any:
        assert not answering
        return all_pods(self, key)

    def noted(self: Assignments, request: Any) -> Any:
        nonlocal answering
        answering = True
        try:
            return assign(self, request)
        finally:
            answering = False

    monkeypatch.setattr(ObjectCache, "pods", pods)
    monkeypatch.setattr(Assignments, "assign", noted)

    async def scenario(world: World) -> None:
        await world.apply(numSamples=6)
        assert (await world.until_over())["trials"]["terminated"] == 6

    play(scenario)


def test_of_pods_that_have_begun_no_reason_to_wait_is_looked_for(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    pending_reason = pending.pending_reason

    def counted(pod: Any, now: float, *, event: str = "") -> Any:
        looked.append(pod["metadata"]["name"])
        return pending_reason(pod, now, event=event)

    monkeypatch.setattr(diagnostics, "pending_reason", counted)

    async def scenario(world: World) -> None:
        world.pods.behaviour.steps, world.pods.behaviour.step_s = 20, 3.0
        await world.apply()
        await world.until_running(3)
        looked.clear()
        reconciles = world.operator.reconciles
        await until(lambda: world.operator.reconciles > reconciles + 5)
        assert looked == []

    play(scenario)


def test_large_experiment_rests_between_passes(play: Play) -> None:
    async def scenario(world: World) -> None:
        rest = world.operator.controller.rest_s
        assert rest(KEY) == 0.0
        await world.apply(numSamples=40, maxConcurrentTrials=30)
        await until(lambda: rest(KEY) == pytest.approx(30 * controller.REST_PER_ATTEMPT_S))
        assert (await world.until_over())["trials"]["terminated"] == 40

    play(scenario)


def test_pod_name_of_an_attempt_follows_its_pod() -> None:
    pods = SimpleNamespace(name="digits")
    binding = PodBinding(SimpleNamespace(trial_id="d75de_00001"), 3, 2)  # type: ignore[arg-type]

    def name() -> str:
        return ExperimentPods.pod_name(pods, binding)  # type: ignore[arg-type]

    assert name() == name() == "digits-d75de-00001-2"
    binding.pod_trial, binding.pod_attempt = "d75de_00000", 1
    assert name() == "digits-d75de-00000-1"
    binding.reset_pod(0.0)
    assert name() == "digits-d75de-00001-3"


def test_the_output_of_deleted_pods_is_forgotten() -> None:
    async def test() -> None:
        cache, kept = ObjectCache(), [0]
        trials: Any = SimpleNamespace(get=lambda _trial_id: object())

        class Files:
            def keep_log(self, _trial: Any, _text: str, *, once: bool = False) -> None:
                kept[0] += 1

            def log_stored(self, _trial: Any) -> bool:
                return True

        async def pod_log(*_: Any) -> str:
            return "printed"

        kube: Any = SimpleNamespace(pod_log=pod_log)
        logs = PodLogs("team", "team/digits", kube, cache, lambda: 0.0, Files())

        def pod(number: int) -> dict[str, Any]:
            labels = {"trialpod.dev/experiment": "digits", "trialpod.dev/trial-id": "d75de_00000"}
            metadata = {"name": f"p{number}", "namespace": "team", "uid": f"uid-{number}", "labels": labels}
            return {"metadata": metadata, "spec": {}, "status": {"phase": "Succeeded"}}

        made = 10 * MAX_DELETED_PODS
        for number in range(made):
            cache.update_pod(pod(number), deleted=False)
            assert await logs.keep(pod(number), trials)
            if number >= 3:
                cache.update_pod(pod(number - 3), deleted=True)
            logs.forget_deleted()
            assert logs.remembered <= MAX_DELETED_PODS + 7
            for there in range(max(0, number - 2), number + 1):  # nothing is kept twice
                assert await logs.keep(pod(there), trials)
        assert kept == [made]

    run(test)


class TestPasses:
    """How many there are: at a hundred running trials a pass takes about a millisecond of CPU."""

    def test_results_are_left_to_a_pass_in_a_while(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            world.pods.behaviour.steps, world.pods.behaviour.step_s = 200, 0.2
            await world.apply()
            await world.until_running(3)
            before, began = world.operator.reconciles, world.loop.now()
            await asyncio.sleep(20.0)
            passes = world.operator.reconciles - before
            # One each half a second, and the interval may have one at both of its ends.
            assert passes <= 2 * (world.loop.now() - began) + 1, "300 results came"

        play(scenario)

    def test_changes_of_a_pod_that_starts_take_one_together(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            world.pods.behaviour.steps, world.pods.behaviour.step_s = 3, 100.0
            world.watch_delay_s = 0.0
            await world.apply(numSamples=1)
            await world.until_running(1)
            await asyncio.sleep(30.0)
            (pod,) = world.api.all("pods")
            watched = world.operator.controller
            before = world.operator.reconciles
            for number in range(5):
                pod["metadata"]["resourceVersion"] = str(10_000 + number)
                watched.on_pod(pod, deleted=False)
                await asyncio.sleep(0.03)
            await asyncio.sleep(0.5)
            assert world.operator.reconciles - before <= 2
            before = world.operator.reconciles
            watched.on_pod({**pod, "status": {**pod["status"], "phase": "Succeeded"}}, deleted=False)
            await asyncio.sleep(0.05)
            assert world.operator.reconciles > before, "an end waits for nothing"

        play(scenario)
