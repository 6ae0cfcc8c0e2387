"""Two operators over one API server and one bucket: each serves its own, and an experiment can move at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import virtual_time
from cluster_world import KEY, Operator, World
from fake_jobs import FakeJobs
from memory_storage import unavailable
from virtual_time import until

from trialpod.protocol.messages import ErrorAnswer
from trialpod_operator.cluster import experiment_controller, names
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster.shards.assignment import SHARDS, Shard, ShardMap, shard_of
from trialpod_operator.cluster.shards.ownership import Ownership
from trialpod_operator.experiment.durable import DurableExperiment
from trialpod_operator.experiment.stored import replace_stored

pytestmark = pytest.mark.once

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
        self._releases: list[asyncio.Future[None]] = []

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

    def take_over(self, source: str, target: str) -> None:
        """Give all shards to another at once, as the coordinator does when nobody has released them in time."""
        shards = tuple(Shard(owner=target, epoch=each.epoch + 1) for each in self.map.shards)
        self.map = ShardMap(version=self.map.version + 1, shards=shards)
        _, lost = self.ownerships[source].take(self.map, ADDRESSES)
        self._releases.append(asyncio.ensure_future(self._release(source, lost)))
        gained, _ = self.ownerships[target].take(self.map, ADDRESSES)
        self.operators[target].controller.gain(gained)

    async def _release(self, name: str, lost: frozenset[int]) -> None:
        await self.operators[name].controller.release(lost)
        self.ownerships[name].released(lost)

    async def _follow(self, shards: tuple[Shard, ...]) -> None:
        self.map = ShardMap(version=self.map.version + 1, shards=shards)
        for name, ownership in self.ownerships.items():
            gained, lost = ownership.take(self.map, ADDRESSES)
            controller = self.operators[name].controller
            if lost:
                await self._release(name, lost)
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

    def test_waits_for_a_status_that_is_being_written(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """The next operator's is not followed by one of this operator."""

        async def scenario(world: World, shared: Shared) -> None:
            controller, kube = shared.operators["a"].controller, shared.operators["a"].kube
            request, sent, answered = kube.request, asyncio.Event(), asyncio.Event()

            async def answered_late(method: str, path: str, **more: Any) -> Any:
                answer = await request(method, path, **more)
                if method == "PATCH" and path.endswith("/status"):
                    sent.set()
                    await answered.wait()
                return answer

            kube.request = answered_late  # type: ignore[method-assign]
            await world.apply()
            await sent.wait()
            moving = asyncio.ensure_future(shared.move("a", "b"))
            await asyncio.sleep(5.0)
            assert (moving.done(), controller.open_count) == (False, 1)
            answered.set()
            await moving
            assert controller.open_count == 0
            status = await world.until_over()
            assert status["trials"]["terminated"] == 3
            world.check_results()

        run(monkeypatch, tmp_path, 4, scenario)


def kind_of(method: str, path: str) -> str:
    """Return what kind of request it is: "PATCH tunetrials/status"."""
    _, plural, *rest = path.partition("/namespaces/")[2].split("/")
    return "/".join([f"{method} {plural}", *rest[1:]])


class Changes:
    """What one operator changes at the API server; it may lose everything right before one of these changes.

    Args:
        shared: the two operators; the first is watched.
        lose_at: kind of the change, and which of that kind; None = never.
    """

    HELD_UP_S = 8.0

    def __init__(self, shared: Shared, lose_at: tuple[str, int] | None = None) -> None:
        self.made: list[str] = []
        self.late: list[str] = []
        """Those that were made when the other operator had been given everything."""
        self.lost = False
        self._shared, self._lose_at, self._asked = shared, lose_at, 0
        kube = shared.operators["a"].kube
        self._request, self._api = kube.request, kube._api
        kube.request = self.request  # type: ignore[method-assign]
        kube._api = self  # type: ignore[assignment]

    async def request(self, method: str, path: str, **more: Any) -> Any:
        """Send one, after a while when everything was lost right before."""
        if self._lose_at is not None and kind_of(method, path) == self._lose_at[0]:
            self._asked += 1
            if self._asked == self._lose_at[1]:
                self.lost = True
                self._shared.take_over("a", "b")
                await asyncio.sleep(self.HELD_UP_S)
        return await self._request(method, path, **more)

    def handle(self, method: str, path: str, query: Mapping[str, str], body: Any, *, text: bool) -> Any:
        """Have the server do it."""
        if method != "GET":
            (self.late if self.lost else self.made).append(kind_of(method, path))
        return self._api.handle(method, path, query, body, text=text)


JOB = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": {"containers": [{"name": "trial"}]}}}}
SPECS: dict[str, dict[str, Any]] = {
    "pods": {"storage": {"uri": "s3://bucket/runs", "deletionPolicy": "Delete"}, "numSamples": 6},
    "kept": {"finishedPods": "Keep", "numSamples": 2},
    "reused": {"reusePods": True, "numSamples": 3, "maxConcurrentTrials": 1},
    "jobs": {"template": {}, "trialResource": {"template": JOB}, "numSamples": 2},
}
KINDS = {
    "pods": {
        "PATCH tuneexperiments", "POST configmaps", "POST tunetrials", "POST pods", "PATCH tunetrials/status",
        "PATCH tuneexperiments/status", "POST events", "DELETE pods",
    },
    "kept": {"PATCH pods"},
    "reused": {"PATCH pods"},
    "jobs": {"POST jobs", "DELETE jobs"},
}  # fmt: skip
"""What has to be changed for each of these, and for none before it."""


class TestPassUnderWay:
    """An operator is held up in the middle of a pass, and another is given the experiment meanwhile."""

    @pytest.mark.parametrize("name", SPECS)
    def test_changes_nothing_more_at_any_kind_of_request(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
    ) -> None:
        counts: dict[str, int] = {}

        async def play(world: World, shared: Shared, lose_at: tuple[str, int] | None = None) -> None:
            FakeJobs(world.api)
            world.pods.behaviour.steps = 3
            changes = Changes(shared, lose_at)
            await world.apply(**SPECS[name])
            await until(world.is_over, 600.0)
            await asyncio.sleep(60.0)
            if lose_at is None:
                counts.update({kind: changes.made.count(kind) for kind in changes.made})
                return
            assert changes.lost, lose_at
            assert changes.late == [], lose_at
            assert shared.operators["a"].controller.open_count == 0, lose_at
            assert shared.operators["a"].errors == [], lose_at
            assert set(world.states()) == {"TERMINATED"}, lose_at
            status = world.status
            assert (status["failures"], status["disruptions"]) == (0, 0), lose_at
            assert max(world.pods.begun.values()) == 1, lose_at
            world.check_results()

        run(monkeypatch, tmp_path, 1, play)
        assert KINDS[name] <= counts.keys()
        points = {(kind, number) for kind in KINDS[name] for number in (1, counts[kind] // 2 + 1, counts[kind])}
        for lose_at in sorted(points):

            async def scenario(world: World, shared: Shared, lose_at: tuple[str, int] = lose_at) -> None:
                await play(world, shared, lose_at)

            run(monkeypatch, tmp_path, 1, scenario)

    def test_begins_nothing_in_the_storage(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """It was opened when another operator was given it: that one's journal is not taken over."""

        async def scenario(world: World, shared: Shared) -> None:
            lost: list[str] = []

            def losing(name: str, _key: str) -> None:
                if not lost:  # the first operation of the first opening
                    lost.append(name)
                    shared.take_over("a", "b")

            world.storage.before = losing
            begun: list[DurableExperiment] = []
            start = DurableExperiment.start

            def started(durable: DurableExperiment, shell: Any) -> None:
                begun.append(durable)
                start(durable, shell)

            monkeypatch.setattr(DurableExperiment, "start", started)
            await world.apply(numSamples=2)
            status = await world.until_over()
            assert status["trials"]["terminated"] == 2
            assert lost
            assert len(begun) == 1, "by the one that serves it"
            world.check_results()

        run(monkeypatch, tmp_path, 1, scenario)

    def test_replaces_no_document(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """A corrected Trainable is put into the storage by the operator that serves the experiment then."""

        async def scenario(world: World, shared: Shared) -> None:
            world.pods.behaviour.fails_at = {("00000", 1): 1}
            await world.apply(numSamples=1, trainable={"entrypoint": "train:trian"})
            await world.until_over()
            operations: list[list[str]] = []

            def losing(name: str, _key: str) -> None:
                operations[-1].append(name)
                if name == "read" and shared.ownerships["a"].serving:
                    shared.take_over("a", "b")

            def replaced(*arguments: Any) -> None:
                operations.append([])
                world.storage.before = losing
                try:
                    replace_stored(*arguments)
                finally:
                    world.storage.before = lambda _name, _key: None

            monkeypatch.setattr(experiment_controller, "replace_stored", replaced)
            await world.change(trainable={"entrypoint": "train:train"})
            await until(lambda: world.states() == ["TERMINATED"], 600.0)
            await world.until_over()
            assert operations == [["read"], ["read", "write_if"]]
            world.check_results()

        run(monkeypatch, tmp_path, 1, scenario)

    def test_deletes_no_data(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """What it has listed may be another experiment's meanwhile."""

        async def scenario(world: World, shared: Shared) -> None:
            await world.apply(**SPECS["pods"])
            await world.until_over()
            operations: list[str] = []

            def losing(name: str, _key: str) -> None:
                operations.append(name)
                if name == "sample_keys" and shared.ownerships["a"].serving:
                    shared.take_over("a", "b")

            world.storage.before = losing
            await world.client.delete(paths.experiments("team"), "digits")
            await until(lambda: not world.experiment, 60.0)
            listed = operations.index("sample_keys")
            assert operations[listed + 1] != "delete"
            assert "delete" in operations[listed + 1 :], "by the one that serves it"
            assert world.storage.values == {}

        run(monkeypatch, tmp_path, 1, scenario)


class TestReports:
    def test_get_no_decision_from_who_does_not_serve_them(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        async def scenario(world: World, shared: Shared) -> None:
            service = shared.operators["a"].service
            handle, statuses = service.handle, []

            def recorded(path: str, body: bytes, caller: Any = None) -> Any:
                answer = handle(path, body, caller)
                if isinstance(answer, tuple):
                    statuses.append(("at once", answer[0]))
                    return answer

                async def later() -> Any:
                    reply = await answer
                    statuses.append(("waited", reply[0]))
                    return reply

                return later()

            service.handle = recorded  # type: ignore[method-assign]
            await world.apply(numSamples=2)
            await world.until_running(2)
            world.storage.before = unavailable
            await until(lambda: world.pods.waiting["report"] == 2)
            statuses.clear()
            shared.take_over("a", "b")
            await until(lambda: world.pods.waiting["report"] == 0)
            await asyncio.sleep(5.0)
            assert set(statuses) == {("waited", 503), ("at once", 421)}
            world.storage.before = lambda _name, _key: None
            status = await world.until_over()
            assert (status["trials"]["terminated"], status["failures"], status["disruptions"]) == (2, 0, 0)
            world.check_results()

        run(monkeypatch, tmp_path, 1, scenario)


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
