"""Pods that run one trial after the other, in a cluster in memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import virtual_time
from cluster_world import World
from fake_api import error
from fake_pods import Caller
from virtual_time import until

from trialpod_operator.cluster import names
from trialpod_operator.cluster.pods.binding import NEXT_ASSIGNMENT_TIMEOUT_S

pytestmark = pytest.mark.once

Run = Callable[[Callable[[World], Awaitable[None]]], None]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs a scenario in a world."""

    def start(scenario: Callable[[World], Awaitable[None]]) -> None:
        async def test() -> None:
            world = World(monkeypatch, tmp_path)
            await scenario(world)
            await world.close()

        virtual_time.run(test)

    return start


async def begin(world: World, **spec: Any) -> None:
    world.start_operator()
    await world.apply(**{"reusePods": True, "numSamples": 12, "maxConcurrentTrials": 3, **spec})


def pods_made(world: World) -> int:
    return world.api.counts["POST pods"]


def check_logs(world: World, steps: int) -> None:
    """Each trial's log.txt is its own, whole, and there once."""
    logs = world.files("log.txt")
    assert len(logs) == len(world.trials())
    for trial_id, text in logs.items():
        lines = text.splitlines()
        assert lines[0] == f"trialpod: trial {trial_id} attempt 1"
        assert [line for line in lines if line.startswith("trialpod:")] == [lines[0]]
        assert len(lines) == 1 + steps, text


def test_trials_follow_one_another_in_a_few_pods(run: Run) -> None:
    async def scenario(world: World) -> None:
        await begin(world)
        await world.until_over()
        assert world.states() == ["TERMINATED"] * 12
        assert pods_made(world) == 3
        assert world.pods.told == []
        world.check_results()
        check_logs(world, 5)
        assert all(count == 1 for count in world.pods.begun.values())

    run(scenario)


def test_pod_is_kept_while_the_next_trial_is_committed(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps, world.pods.behaviour.step_s = 1, 0.02
        await begin(world, numSamples=100, maxConcurrentTrials=6)
        world.operator.kube._latency_s = 0.2
        await world.until_over()
        assert world.states() == ["TERMINATED"] * 100
        assert pods_made(world) == 6

    run(scenario)


def test_the_operator_may_be_replaced_at_any_time(run: Run) -> None:
    async def scenario(world: World) -> None:
        await begin(world)
        for _ in range(6):
            await asyncio.sleep(3.1)
            await world.replace_operator(1.0)
        await world.until_over()
        assert world.states() == ["TERMINATED"] * 12
        assert pods_made(world) == 3
        assert world.pods.told == []
        world.check_results()
        check_logs(world, 5)

    run(scenario)


def test_output_without_operator_is_kept_exactly_once(run: Run) -> None:
    async def scenario(world: World) -> None:
        await begin(world, numSamples=30)
        printed = 0
        for _ in range(3):
            await asyncio.sleep(2.0)
            relabels = asyncio.Event()
            request = world.operator.kube.request

            async def hang(
                method: str, path: str, request: Any = request, relabels: Any = relabels, **more: Any
            ) -> Any:
                if method == "PATCH" and "/pods/" in path:  # its trial's log has been kept
                    relabels.set()
                    await asyncio.sleep(1000.0)
                return await request(method, path, **more)

            world.operator.kube.request = hang  # type: ignore[method-assign]
            await relabels.wait()
            await asyncio.sleep(2.0)  # the log is stored
            world.pods.service = None
            await world.operator.close()
            for pod in world.api.all("pods"):
                uid = pod["metadata"]["uid"]
                world.api.logs[uid] = world.api.logs.get(uid, "") + f"late {printed}\n"
                printed += 1
            world.start_operator()
        await world.until_over()
        texts = world.files("log.txt")
        lines = [line for text in texts.values() for line in text.splitlines()]
        assert sorted(line for line in lines if line.startswith("late")) == sorted(
            f"late {n}" for n in range(printed)
        )
        for trial_id, text in texts.items():
            assert text.count("trialpod:") == 1, trial_id
            assert text.count("step") == 5, text

    run(scenario)


def test_a_pod_that_dies_ends_its_attempt_only(run: Run) -> None:
    async def scenario(world: World) -> None:
        await begin(world, numSamples=4, maxConcurrentTrials=1)
        await until(lambda: len(world.pods.begun) == 3, what="the third trial runs")
        await world.until_running()
        world.pods.kill(world.pods.live()[0])
        await world.until_over()
        assert Counter(world.states()) == {"TERMINATED": 3, "ERROR": 1}
        assert [trial["status"]["attempt"] for trial in world.trials()] == [1, 1, 1, 1]
        assert pods_made(world) == 2

    run(scenario)


def test_a_failed_attempt_ends_its_pod(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.fails_at["00001", 3] = 1
        await begin(world, numSamples=4, maxConcurrentTrials=1, failurePolicy={"maxFailures": 1})
        await world.until_over()
        assert world.states() == ["TERMINATED"] * 4
        assert pods_made(world) == 2
        world.check_results()

    run(scenario)


def test_idle_pods_end_without_work_or_with_lower_limit(run: Run) -> None:
    async def scenario(world: World) -> None:
        await begin(world, numSamples=9)
        await world.until_running(3)
        await world.change(maxConcurrentTrials=1)
        await until(lambda: len(world.pods.live()) == 1, 30.0, "two pods end")
        await world.change(suspend=True)
        await until(lambda: not world.api.all("pods"), 30.0, "all pods end")
        await world.change(suspend=False)
        await world.until_over()
        assert world.states() == ["TERMINATED"] * 9
        world.check_results()

    run(scenario)


def test_only_an_equal_pod_takes_over(run: Run) -> None:
    async def scenario(world: World) -> None:
        await begin(world, numSamples=4, maxConcurrentTrials=1, resources={"cpu": 1})
        await world.until_running()
        await world.change(resources={"cpu": 2})
        await world.until_over()
        assert world.states() == ["TERMINATED"] * 4
        assert pods_made(world) == 2

    run(scenario)


def test_a_pod_speaks_for_the_trial_that_it_has_now(run: Run) -> None:
    async def scenario(world: World) -> None:
        await begin(world, numSamples=3, maxConcurrentTrials=2)
        await until(lambda: len(world.pods.begun) == 3, what="the third trial begins")
        await world.until_running()
        pod = next(
            pod
            for pod in world.pods.live()
            if not pod["metadata"]["annotations"][names.MADE_FOR_ANNOTATION].startswith(
                world.api.get("pods", pod["metadata"]["name"])["metadata"]["labels"][names.TRIAL_ID_LABEL]  # type: ignore[index]
            )
        )
        caller = Caller("team", pod["metadata"]["name"], pod["metadata"]["uid"])
        served = world.operator.controller.find("team/digits")
        assert served is not None
        experiment: Any = served.runners
        made_for = pod["metadata"]["annotations"][names.MADE_FOR_ANNOTATION].partition("/")[0]
        now = world.trials()[2]["spec"]["trialId"]
        other = next(t["spec"]["trialId"] for t in world.trials()[:2] if t["spec"]["trialId"] != made_for)
        assert experiment.permits(caller, now) is None
        assert "does not belong" in experiment.permits(caller, made_for)
        assert experiment.admits(caller, made_for, 1) is None
        assert "was made for" in experiment.admits(caller, made_for, 2)
        assert "was made for" in experiment.admits(caller, other, 1)
        assert "was made for" in experiment.admits(caller, now, 1)
        await world.until_over()

    run(scenario)


@pytest.mark.parametrize("status", [403, 429, 500])
def test_where_pods_cannot_be_labelled_each_attempt_gets_its_own(run: Run, status: int) -> None:
    async def scenario(world: World) -> None:
        world.start_operator()
        forbidden = error("PATCH", "pods", status, "Refused", "a policy says no")
        world.operator.kube.faults.append(
            lambda method, path, body: forbidden if (method, path.split("/")[-2]) == ("PATCH", "pods") else None
        )
        await world.apply(reusePods=True, numSamples=3, maxConcurrentTrials=1)
        await world.until_over()
        assert world.states() == ["TERMINATED"] * 3
        assert pods_made(world) == 3
        check_logs(world, 5)

    run(scenario)


def test_pod_that_cannot_be_labelled_delays_no_other(run: Run) -> None:
    async def scenario(world: World) -> None:
        refused, at = set[str](), list[float]()

        def refuse(method: str, path: str, body: Any) -> Exception | None:
            if method != "PATCH" or path.split("/")[-2] != "pods" or "labels" not in body["metadata"]:
                return None
            refused.add(path) if not refused else None
            if path not in refused:
                return None
            at.append(world.loop.now())
            return error(method, path, 500, "InternalError", "failed calling webhook")

        world.start_operator()
        world.operator.kube.faults.append(refuse)
        await world.apply(reusePods=True, numSamples=12, maxConcurrentTrials=3)
        await until(lambda: world.states().count("TERMINATED") >= 7, what="others end")
        assert len(at) < 40
        assert world.loop.now() - at[0] < NEXT_ASSIGNMENT_TIMEOUT_S, "meanwhile it is labelled again"
        await world.until_over()
        assert world.states() == ["TERMINATED"] * 12
        assert pods_made(world) == 4
        assert world.operator.errors == []

    run(scenario)


def test_groups_and_other_experiments_get_a_pod_for_each_attempt(run: Run) -> None:
    async def scenario(world: World) -> None:
        await begin(world, numSamples=2, maxConcurrentTrials=1, workers={"replicas": 1})
        await world.until_over()
        assert pods_made(world) == 4

    run(scenario)


@pytest.mark.parametrize("slow", [{"all"}, {"all", "latest"}])
def test_log_of_previous_operators_pod_is_read_when_slow(run: Run, slow: set[str]) -> None:
    """Its latest part is asked for, and then all of it: neither may make the other begin again forever."""

    async def scenario(world: World) -> None:
        await begin(world)
        await asyncio.sleep(12.0)
        operator = await world.replace_operator(1.0)
        request = operator.kube.request

        async def late(method: str, path: str, **more: Any) -> Any:
            if path.endswith("/log") and ("latest" if "sinceTime" in more["query"] else "all") in slow:
                await asyncio.sleep(3.0)
            return await request(method, path, **more)

        operator.kube.request = late  # type: ignore[method-assign]
        await world.until_over()
        check_logs(world, 5)

    run(scenario)
