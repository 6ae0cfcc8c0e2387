"""Two operators over one API server and one bucket: each serves its own, and an experiment can move at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import virtual_time
from cluster_world import KEY, Operator, World
from virtual_time import until

from trialpod.protocol.messages import ErrorAnswer
from trialpod_operator.cluster import names
from trialpod_operator.cluster.shards.assignment import SHARDS, Shard, ShardMap, shard_of
from trialpod_operator.cluster.shards.ownership import Ownership

NAMES = ("a", "b")
ADDRESSES = {name: f"{name}:8443" for name in NAMES}


class Shared:
    """Two operators, and the map that both follow. Pods ask the one that does not serve them, and are redirected."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.map = ShardMap(version=1, shards=(Shard(owner="a", epoch=1),) * SHARDS)
        self.ownerships = {name: Ownership(name) for name in NAMES}
        self.operators: dict[str, Operator] = {}
        for name, ownership in self.ownerships.items():
            ownership.several = True
            ownership.take(self.map, ADDRESSES)
            self.operators[name] = world.start_operator(ownership)
        world.pods.service = self  # type: ignore[assignment]
        self.redirects = self.refusals = 0

    def handle(self, path: str, body: bytes, caller: Any = None) -> Any:
        """Answer as the Service does that chooses the wrong operator, to a client that follows its redirect."""
        wrong = next((each for name, each in self.operators.items() if not self.ownerships[name].serving), None)
        answer = (wrong or self.operators["a"]).service.handle(path, body, caller)
        if isinstance(answer, tuple) and answer[0] == 421:
            self.redirects += 1
            address = msgspec.msgpack.decode(answer[1], type=ErrorAnswer).address
            return self.operators[address.partition(":")[0]].service.handle(path, body, caller)
        self.refusals += isinstance(answer, tuple) and answer[0] == 503
        return answer

    async def move(self, source: str, target: str) -> None:
        """Hand all shards over, as the coordinator does."""
        await self._follow(tuple(Shard(owner=source, epoch=each.epoch, heir=target) for each in self.map.shards))
        await self._follow(tuple(Shard(owner=target, epoch=each.epoch + 1) for each in self.map.shards))

    async def _follow(self, shards: tuple[Shard, ...]) -> None:
        self.map = ShardMap(version=self.map.version + 1, shards=shards)
        for name, ownership in self.ownerships.items():
            gained, lost = ownership.take(self.map, ADDRESSES)
            controller = self.operators[name].controller
            if lost:
                await controller.release(lost)
                ownership.released(lost)
            controller.gain(gained)


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, seed: int, scenario: Callable[[World, Shared], Any]) -> None:
    async def test() -> None:
        world = World(monkeypatch, folder, seed)
        await scenario(world, Shared(world))
        await world.close()

    virtual_time.run(test)


class TestHandover:
    def test_at_any_moment_loses_and_repeats_nothing(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for tenths in range(1, 120, 17):

            async def scenario(world: World, shared: Shared, tenths: int = tenths) -> None:
                await world.apply(numSamples=2)
                await asyncio.sleep(tenths / 10)
                await shared.move("a", "b")
                status = await world.until_over()
                assert status["trials"]["terminated"] == 2, tenths
                assert (status["failures"], status["disruptions"]) == (0, 0), tenths
                assert [len(lines) for lines in world.results().values()] == [5, 5], tenths
                assert len(world.pods.begun) == 2, tenths
                world.check_results()

            run(monkeypatch, tmp_path, tenths, scenario)

    def test_back_and_forth(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        async def scenario(world: World, shared: Shared) -> None:
            world.pods.behaviour.steps = 30
            await world.apply()
            for _ in range(3):
                for source, target in (NAMES, NAMES[::-1]):
                    await asyncio.sleep(world.random.uniform(0.5, 4.0))
                    await shared.move(source, target)
                    assert shared.operators[source].controller.open_count == 0
            status = await world.until_over()
            assert status["trials"]["terminated"] == 3
            assert len(world.pods.begun) == 3
            assert shared.redirects > 0
            world.check_results()

        run(monkeypatch, tmp_path, 3, scenario)


class TestOfAnother:
    def test_is_neither_reconciled_nor_kept(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        async def scenario(world: World, shared: Shared) -> None:
            await world.apply()
            status = await world.until_over()
            assert status["trials"]["terminated"] == 3
            own, other = shared.operators["a"], shared.operators["b"]
            assert own.controller.cache.has_trials(KEY)
            assert KEY in other.controller.cache.experiments
            assert not other.controller.cache.has_trials(KEY)
            assert other.reconciles == 0
            assert (len(own.controller.own_experiments()), len(other.controller.own_experiments())) == (1, 0)
            assert len(own.controller.shard_loads()) == SHARDS
            assert other.controller.shard_loads() == {}

        run(monkeypatch, tmp_path, 1, scenario)

    def test_trials_and_pods_say_their_shard(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        async def scenario(world: World, _shared: Shared) -> None:
            await world.apply()
            await until(lambda: bool(world.api.all("pods")))
            (experiment,) = world.api.all("tuneexperiments")
            number = str(shard_of(experiment["metadata"]["uid"]))
            for item in (*world.api.all("pods"), *world.api.all("tunetrials")):
                assert item["metadata"]["labels"][names.SHARD_LABEL] == number
            await world.until_over()

        run(monkeypatch, tmp_path, 1, scenario)

    def test_unknown_experiment_is_not_called_gone(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """The watch of an operator may be later than the pod that another one has made."""

        async def scenario(_world: World, shared: Shared) -> None:
            await asyncio.sleep(200.0)
            status, _ = shared.operators["b"].service.handle("/v1/team/unknown/assignment", b"\x80", None)
            assert status == 503

        run(monkeypatch, tmp_path, 1, scenario)


def test_unserved_experiment_says_so_until_it_is_served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def scenario(world: World, shared: Shared) -> None:
        await world.apply(numSamples=6, maxConcurrentTrials=2)
        await world.until_running(2)
        # Its operator closes it, and nobody gets it.
        lost = shared.ownerships["a"].drop_all()
        await shared.operators["a"].controller.release(lost)
        shared.ownerships["a"].released(lost)
        coordinator = shared.operators["b"].controller
        before = world.condition("Ready")["lastTransitionTime"]
        for _ in range(2):
            await coordinator.report_unserved(dict.fromkeys(range(SHARDS), 12.0))
            await asyncio.sleep(1.0)
        ready = world.condition("Ready")
        assert (ready["status"], ready["reason"]) == ("Unknown", "NoOperator")
        assert ready["lastTransitionTime"] >= before
        assert "for 12 s; its trials continue" in ready["message"]
        version = world.experiment["metadata"]["resourceVersion"]
        await coordinator.report_unserved(dict.fromkeys(range(SHARDS), 30.0))
        assert world.experiment["metadata"]["resourceVersion"] == version, "it is said once"
        await shared.move("b", "a")
        await until(lambda: world.condition("Ready")["status"] == "True")
        await until(world.is_over)
        await coordinator.report_unserved(dict.fromkeys(range(SHARDS), 12.0))
        assert world.condition("Ready")["reason"] == "Succeeded", "of one that is over nothing is said"
        world.check_results()

    run(monkeypatch, tmp_path, 5, scenario)
