"""A cluster in memory with its operators: what scenario tests act on and look at."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fake_api import FakeApi, FakeKube, Object, Watch
from fake_pods import FakePods
from virtual_time import VirtualLoop, until

from trialpod.errors import StorageError
from trialpod_operator.cluster import controller as controller_module
from trialpod_operator.cluster import deletion, experiment_controller
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster.controller import Controller
from trialpod_operator.cluster.options import OperatorOptions
from trialpod_operator.cluster.shards.ownership import Ownership
from trialpod_operator.experiment import durable
from trialpod_operator.experiment.replica.replica import MAX_COMMIT_BACKOFF_S, FencedError, Replica
from trialpod_operator.reports.service import ReportService

KEY = "team/digits"


class InlineReplica(Replica):
    """The replica without threads: it copies in the loop, a moment after it was asked to."""

    def start(
        self, report: Any, fenced: Any, committed: Any = lambda _position: None, *, files_after_s: float = 0.0
    ) -> None:
        self._report, self._fenced, self._committed = report, fenced, committed
        self._loop = asyncio.get_running_loop()
        self._monotonic = self._loop.time
        self._timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._arm(0.01)
        assert 0.0 <= files_after_s <= 10.0

    def request(self, position: int, *, urgent: bool) -> None:
        super().request(position, urgent=urgent)
        self._arm(0.02 if urgent else 1.0)

    def copy_soon(self, dirname: str) -> None:
        super().copy_soon(dirname)
        self._arm(0.05)

    def compare_soon(self, dirnames: Any) -> None:
        super().compare_soon(dirnames)
        if hasattr(self, "_loop"):
            self._arm(0.05)

    def _arm(self, seconds: float) -> None:
        at = self._loop.time() + seconds
        if self._failures and self._timer is not None:
            return
        if self._timer is None or self._timer.when() > at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(at, self._turn)

    def _turn(self) -> None:
        self._timer = None
        if self._given_up or self._broken is not None:
            return
        try:
            self._commit(everything=False)
            self._copy_files(everything=self._closing)
        except FencedError as error:
            self._broken = error
            self._fenced(error)
        except (StorageError, OSError) as error:
            self._failures += 1
            self._failed(error, "loop")
            self._arm(min(0.25 * 2.0**self._failures, MAX_COMMIT_BACKOFF_S))
            return
        else:
            if self._failures:
                self._failures = 0
                self._recovered("loop")
            if not self._closing:
                return
        self._ended_copying = True
        self._tell_end()

    def finish(self, ended: Any) -> None:
        super().finish(ended)
        if self._broken is not None:
            self._ended_copying = True
            ended()
        else:
            self._arm(0.02)


class Operator:
    """One operator's process."""

    def __init__(self, world: World, name: str, ownership: Ownership | None = None) -> None:
        self.kube = FakeKube(world.api, world.random)
        work_dir = world.folder / name
        options = OperatorOptions(
            work_dir=str(work_dir),
            default_image="trialpod/trial:1",
            identity=name,
            trial_kinds={"batch/v1/Job": "jobs", "example.com/v1/Machine": "machines"},
            **world.options,
        )
        self.controller = Controller(self.kube, options, world.loop.now, lambda: "-- the authority --", ownership)
        self.service = ReportService(self.controller)
        self.controller.start()
        self.watch = Watch(world.api, self._take, world.random, world.watch_delay_s)
        self.controller.begin_lists([self.watch.listed["pods"]], [self.watch.listed["tunetrials"]])
        self.errors: list[BaseException] = []
        log_failure = self.controller.queue.on_failure

        def on_failure(key: str, error: BaseException) -> None:
            self.errors.append(error)
            log_failure(key, error)

        for queue in (self.controller.queue, self.controller.statuses):
            queue.jitter = lambda: world.jitter.uniform(0.75, 1.25)
            queue.on_failure = on_failure

    @property
    def reconciles(self) -> int:
        """How many reconcile passes have begun."""
        return self.controller.queue.passes

    def _take(self, kind: str, item: Object, deleted: bool) -> None:
        getattr(self.controller, f"on_{kind}")(item, deleted=deleted)

    async def close(self) -> None:
        self.watch.close()
        await self.controller.close()


class World:
    """The cluster. Use it in `virtual_time.run`.

    Args:
        monkeypatch: puts the storage in memory in the place of S3.
        memory: makes the storage of an experiment, given its URI.
        seed: of everything random here.
        watch_delay_s: how late news may be.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, values: Any, seed: int = 1, watch_delay_s: float = 0.2
    ) -> None:
        from memory_storage import MemoryStorage

        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.random = random.Random(seed)
        self.jitter = random.Random(seed + 1_000_000)
        self.watch_delay_s = watch_delay_s
        self.began = loop.now()
        self.api = FakeApi()
        self.pods = FakePods(self.api, self.random)
        self.storage = MemoryStorage()
        self.folder = Path(values)
        self.operators: list[Operator] = []
        self.options: dict[str, Any] = {}  # more options of operators that begin from now on
        self.client = FakeKube(self.api, self.random)  # the user's

        def open_storage(uri: str, _options: Any = None) -> MemoryStorage:
            opened = self.storage.sub(uri.partition("://")[2])
            opened.before = lambda name, key: self.storage.before(name, key)
            return opened

        monkeypatch.setattr(experiment_controller, "open_storage", open_storage)
        monkeypatch.setattr(deletion, "open_storage", open_storage)
        monkeypatch.setattr(durable, "Replica", InlineReplica)
        assert controller_module

    # -- operators --

    @property
    def operator(self) -> Operator:
        return self.operators[-1]

    def start_operator(self, ownership: Ownership | None = None) -> Operator:
        """A new operator begins, and pods reach it from now on."""
        started = Operator(self, tempfile.mkdtemp(prefix="operator-", dir=self.folder), ownership)
        self.operators.append(started)
        self.pods.service = started.service
        return started

    async def replace_operator(self, away_s: float = 0.0) -> Operator:
        """The operator's pod is killed, and another one begins."""
        self.pods.service = None
        await self.operators[-1].close()
        await asyncio.sleep(away_s)
        return self.start_operator()

    async def close(self) -> None:
        self.pods.close()
        for operator in self.operators:
            await operator.close()
        assert self.pods.problems == []

    # -- what users do --

    async def apply(self, **spec: Any) -> None:
        """Create the experiment."""
        await self.client.create(paths.experiments("team"), manifest(**spec))

    async def change(self, **spec: Any) -> None:
        """Patch its spec."""
        assert await self.client.patch(paths.experiments("team"), "digits", {"spec": spec}) is not None

    # -- what is --

    @property
    def experiment(self) -> Object:
        return self.api.get("tuneexperiments", "digits") or {}

    @property
    def status(self) -> dict[str, Any]:
        return dict(self.experiment.get("status") or {})

    def trials(self) -> list[Object]:
        return sorted(self.api.all("tunetrials"), key=lambda item: int(item["spec"]["index"]))

    def states(self) -> list[str]:
        return [str((trial.get("status") or {}).get("state")) for trial in self.trials()]

    def condition(self, kind: str) -> dict[str, Any]:
        found = [each for each in self.status.get("conditions") or [] if each["type"] == kind]
        return dict(found[0]) if found else {}

    def is_over(self) -> bool:
        observed = self.status.get("observedGeneration") == self.experiment["metadata"]["generation"]
        return bool(self.status.get("completionTime")) and observed

    async def until_over(self, within_s: float = 3600.0) -> dict[str, Any]:
        """Wait until the experiment is over, its pods are gone and its memory is given up."""
        await until(self.is_over, within_s, "the experiment ends")
        await until(lambda: not self.api.all("pods"), 200.0, "its pods are deleted")
        await until(lambda: self.operator.controller.open_count == 0, 60.0, "its memory is given up")
        return self.status

    async def until_running(self, count: int = 1) -> None:
        """Wait until so many attempts run and have each a result."""
        await until(lambda: sum(bool(each) for each in self.pods.running.values()) >= count, what="trials run")

    def files(self, name: str) -> dict[str, str]:
        """The contents of the trials' files of that name in the storage, by the id of the trial."""
        found = {}
        for key, data in self.storage.values.items():
            if key.endswith(f"/{name}") and "/.trialpod/" not in key:
                folder = key.split("/")[-2]
                parts = folder.split("_")
                found["_".join(parts[1:3])] = data.decode()
        return found

    def results(self) -> dict[str, list[dict[str, Any]]]:
        """The lines of result.json, by the id of the trial."""
        return {
            trial_id: [json.loads(line) for line in text.splitlines()]
            for trial_id, text in self.files("result.json").items()
        }

    def check_results(self) -> None:
        """Every result that was told to be safe is stored once, in order, attempt by attempt."""
        assert self.pods.problems == []
        stored: Counter[tuple[str, int]] = Counter()
        for trial_id, lines in self.results().items():
            attempts = [line["attempt"] for line in lines]
            assert attempts == sorted(attempts), trial_id
            for attempt in set(attempts):
                numbers = [line["number"] for line in lines if line["attempt"] == attempt]
                assert numbers == list(range(1, len(numbers) + 1)), (trial_id, attempt)
                stored[trial_id, attempt] = len(numbers)
        for key, count in self.pods.safe.items():
            assert stored[key] >= count, f"{key}: {count} results were called safe, {stored[key]} are stored"


def manifest(**spec: Any) -> Object:
    """The experiment `digits`."""
    return {
        "apiVersion": "trialpod.dev/v1alpha1",
        "kind": "TuneExperiment",
        "metadata": {"name": "digits", "namespace": "team"},
        "spec": {
            "trainable": {"entrypoint": "train:train"},
            "searchSpace": {"x": {"uniform": [0.5, 1.5]}},
            "metric": "score",
            "mode": "max",
            "numSamples": 3,
            "seed": 7,
            "storage": {"uri": "s3://bucket/runs"},
            "template": {"spec": {"terminationGracePeriodSeconds": 15}},
            **spec,
        },
    }


Scenario = Callable[[World], Awaitable[None]]
Play = Callable[..., None]
"""The fixture that runs a scenario, with a seed when that matters."""
