"""Experiments under random faults: whatever happens, each ends as its history explains, and nothing is left over."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import fake_api
import pytest
import virtual_time
from cluster_world import Play, World
from memory_storage import unavailable

from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster.pods.reading import seconds

pytestmark = pytest.mark.once

SEEDS = 120
PARTS = (0, *(pytest.param(part, marks=pytest.mark.slow) for part in (1, 2, 3)))
"""The simulation takes many more seeds of the same faults, so that a quarter is enough for the fast tests."""
STEPS = 6
MAX_FAILURES = 2

SCHEDULERS: list[dict[str, Any] | None] = [
    None,
    None,
    {"name": "asha", "parameters": {"max_t": STEPS, "grace_period": 2, "reduction_factor": 2}},
    {
        "name": "pbt",
        "parameters": {
            "time_attr": "training_iteration",
            "perturbation_interval": 2,
            "hyperparam_mutations": {"x": {"uniform": [0.5, 1.5]}},
        },
    },
]


class Story:
    """One experiment, what is done to it, and what that explains."""

    def __init__(self, world: World, seed: int, **more: Any) -> None:
        self.more = more  # of the experiment's spec
        self.world = world
        self.random = random.Random(seed)
        self.harmed: Counter[str] = Counter()  # by the trial's id: how often it failed by its own fault
        self.stopped: set[str] = set()
        self.removed: dict[str, float] = {}  # TuneTrials: when they were deleted, endless when no watch told
        self.told: list[str] = []

    async def run(self) -> None:
        world = self.world
        world.pods.behaviour.steps = STEPS
        scheduler = self.random.choice(SCHEDULERS)
        spec = {"scheduler": scheduler} if scheduler else {}
        limit = self.random.choice([None, 1, 2])
        world.start_operator()
        common = {
            "numSamples": self.random.choice([1, 2, 3]),
            "failurePolicy": {"maxFailures": MAX_FAILURES},
            **({"maxConcurrentTrials": limit} if limit else {}),
        }
        await world.apply(**common | spec | self.more)
        faults = [getattr(self, name) for name in dir(self) if name.startswith("fault_")]
        for _ in range(self.random.randint(2, 9)):
            await asyncio.sleep(self.random.choice([0.05, 0.5, 2.0, 5.0]) * self.random.random())
            fault: Callable[[], Awaitable[None]] = self.random.choice(faults)
            self.told.append(f"{world.loop.time():.2f} {fault.__name__}")
            await fault()
        await self.heal()
        await world.until_over()
        self.check()
        await self.check_rest()

    async def heal(self) -> None:
        """From now on nothing is broken; what was lost stays lost."""
        world = self.world
        behaviour = world.pods.behaviour
        behaviour.starts = behaviour.comes_back = behaviour.obeys = True
        world.storage.before = lambda name, key: None
        for operator in world.operators:
            operator.kube.faults.clear()
            operator.kube.lost_answers = lambda: False
            operator.watch.lose = lambda plural, item: False
        for operator in world.operators[:-1]:
            await operator.close()
        world.pods.service = world.operator.service
        await world.change(suspend=False)

    # -- faults --

    def a_pod(self) -> fake_api.Object | None:
        pods = self.world.pods.live()
        return self.random.choice(pods) if pods else None

    async def fault_operator_replaced(self) -> None:
        for operator in self.world.operators[:-1]:
            await operator.close()
        await self.world.replace_operator(self.random.choice([0.0, 0.1, 3.0, 60.0]))

    async def fault_two_operators(self) -> None:
        self.world.start_operator()
        for _ in range(5):
            self.world.pods.service = self.random.choice(self.world.operators[-2:]).service
            await asyncio.sleep(self.random.random())
        self.world.pods.service = self.world.operator.service

    async def fault_pod_vanishes(self) -> None:
        if pod := self.a_pod():
            self.world.pods.vanish(pod)

    async def fault_pod_vanishes_unseen(self) -> None:
        self.world.operator.watch.lose = lambda plural, _item: plural == "pods"
        await self.fault_pod_vanishes()
        self.world.operator.watch.lose = lambda plural, _item: False

    async def fault_pod_killed(self) -> None:
        if pod := self.a_pod():
            self.harmed[pod["metadata"]["labels"]["trialpod.dev/trial-id"]] += 1
            self.world.pods.kill(pod)

    async def fault_pod_preempted(self) -> None:
        if pod := self.a_pod():
            self.world.pods.preempt(pod)

    async def fault_pod_deleted(self) -> None:
        if pods := self.world.api.all("pods"):
            self.world.api.delete(self.random.choice(pods))

    async def fault_trial_deleted(self) -> None:
        if trials := self.world.trials():
            trial = self.random.choice(trials)
            self.removed[trial["metadata"]["name"]] = self.world.loop.now()
            self.world.api.delete(trial)

    async def fault_trial_deleted_unseen(self) -> None:
        self.world.operator.watch.lose = lambda plural, _item: plural == "tunetrials"
        await self.fault_trial_deleted()
        self.removed = dict.fromkeys(self.removed, float("inf"))
        self.world.operator.watch.lose = lambda plural, _item: False

    async def fault_trial_fails(self) -> None:
        if trials := self.world.trials():
            trial_id = self.random.choice(trials)["spec"]["trialId"]
            times = self.random.randint(1, 3)
            self.harmed[trial_id] += times
            self.world.pods.behaviour.fails_at[trial_id.rpartition("_")[2], self.random.randint(1, STEPS)] = times

    async def fault_trial_stopped(self) -> None:
        if trials := self.world.trials():
            trial = self.random.choice(trials)
            self.stopped.add(trial["spec"]["trialId"])
            await self.world.client.patch(paths.trials("team"), trial["metadata"]["name"], {"spec": {"stop": True}})

    async def fault_suspended(self) -> None:
        await self.world.change(suspend=True)
        await asyncio.sleep(self.random.choice([0.1, 3.0, 40.0]))
        await self.world.change(suspend=False)

    async def fault_server(self) -> None:
        kube = self.world.operator.kube
        fault = self.random.choice([fake_api.outage, fake_api.quota, fake_api.flaky(self.random, 0.3)])
        kube.faults.append(fault)
        await asyncio.sleep(self.random.choice([1.0, 20.0]))
        kube.faults.clear()

    async def fault_answers_lost(self) -> None:
        kube = self.world.operator.kube
        kube.lost_answers = lambda: self.random.random() < 0.3
        await asyncio.sleep(10.0)
        kube.lost_answers = lambda: False

    async def fault_storage(self) -> None:
        self.world.storage.before = unavailable
        await asyncio.sleep(self.random.choice([0.5, 8.0, 60.0]))
        self.world.storage.before = lambda name, key: None

    async def fault_no_room(self) -> None:
        self.world.pods.behaviour.starts = False
        await asyncio.sleep(self.random.choice([1.0, 30.0]))
        self.world.pods.behaviour.starts = True

    async def fault_nobody_comes_back(self) -> None:
        self.world.pods.behaviour.comes_back = False

    async def fault_nobody_obeys(self) -> None:
        self.world.pods.behaviour.obeys = False

    # -- afterwards --

    def check(self) -> None:
        world = self.world
        status = world.status
        by_state = Counter(world.states())
        counted = status["trials"]
        assert counted["terminated"] + counted["error"] == counted["total"]
        assert by_state["TERMINATED"] + by_state["ERROR"] == len(world.trials())
        # A TuneTrial that is deleted when all is over, or unseen, does not come back.
        completed = seconds(status["completionTime"]) or 0.0
        missing = {name for name, at in self.removed.items() if at > completed - 2 * world.watch_delay_s - 2.0}
        assert counted["terminated"] - by_state["TERMINATED"] in range(len(missing) + 1)
        assert counted["error"] - by_state["ERROR"] in range(len(missing) + 1)
        results = world.results()
        for trial in world.trials():
            trial_id, told = trial["spec"]["trialId"], trial["status"]
            assert told["failures"] <= self.harmed[trial_id], trial_id
            if told["state"] == "ERROR":
                assert told["failures"] == MAX_FAILURES + 1
            elif trial_id not in self.stopped and "lastDecision" not in told:
                assert results[trial_id][-1]["training_iteration"] == STEPS, trial_id
        world.check_results()
        attempts = sum(int(trial["status"]["attempt"]) for trial in world.trials())
        requests = world.operator.kube.requests
        assert requests < 200 + 40 * attempts + world.loop.time(), (requests, attempts, world.loop.time())

    async def check_rest(self) -> None:
        world = self.world
        await asyncio.sleep(10.0)
        reconciles, requests = world.operator.reconciles, world.operator.kube.requests
        await asyncio.sleep(300.0)
        assert world.operator.kube.requests == requests
        assert world.operator.reconciles - reconciles < 10


@pytest.mark.parametrize("part", PARTS)
def test_an_experiment_ends_as_its_history_explains(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: int
) -> None:
    for seed in range(part, SEEDS, 4):

        async def test(seed: int = seed) -> None:
            delay_s = random.Random(seed).choice([0.01, 0.2, 3.0])
            world = World(monkeypatch, tmp_path, seed, delay_s)
            story = Story(world, seed)
            try:
                await story.run()
                await world.close()
            except BaseException as error:
                error.add_note(f"seed {seed}: {', '.join(story.told)}")
                raise

        virtual_time.run(test)


@pytest.mark.parametrize("part", PARTS)
def test_trials_of_several_pods_end_as_their_history_explains(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: int
) -> None:
    for seed in range(part, SEEDS // 2, 4):

        async def test(seed: int = seed) -> None:
            chance = random.Random(seed + 1000)
            world = World(monkeypatch, tmp_path, seed, chance.choice([0.01, 0.2, 3.0]))
            world.pods.behaviour.hangs = chance.choice([0.0, 0.5, 1.0])
            world.pods.behaviour.room = chance.choice([3, 5, 1000])
            workers = {"replicas": chance.choice([1, 2]), "startTimeout": chance.choice(["30s", "10m"])}
            story = Story(world, seed, workers=workers)
            try:
                await story.run()
                await world.close()
            except BaseException as error:
                error.add_note(f"seed {seed}: {', '.join(story.told)}")
                raise

        virtual_time.run(test)


def test_a_kill_waits_for_the_kubelet_to_say_why(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 30
        await world.apply(numSamples=1, failurePolicy={"maxFailures": 0})
        await world.until_running()
        await asyncio.sleep(1.0)
        pod = world.pods.live()[0]
        world.pods.kill(pod, 137, "Error")
        await asyncio.sleep(1.0)
        killed = world.pods.current(pod)
        assert killed is not None, "nobody judged it yet"
        target = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
        world.api.edit(killed, lambda each: each["status"].update(reason="Evicted", conditions=[target]))
        status = await world.until_over()
        assert (status["failures"], status["disruptions"]) == (0, 1)
        world.check_results()

    play(scenario)
