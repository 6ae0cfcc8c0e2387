"""A cluster with its operators, pods, network and bucket, in which a seed's plan happens.

The operator's half is `trialpod_operator.cluster` from its Lease inwards, with its own replica and search
threads; the pods' half is `trialpod.runner`. Only the API server, the bucket, the wires and the clock are made up.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import io
import itertools
import json
import logging
import os
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

import fake_api
import sim_pods
from cluster_world import manifest
from fake_api import FakeApi, FakeKube, Object, Watch
from sim_deciders import KEY, code_of, spec_of
from sim_kernel import (
    PROCESS,
    Kernel,
    Process,
    SimLoop,
    WorldOver,
    install_kernel,
    kernel,
    run_in_turn,
    sim_threading,
    sim_time,
)
from sim_plan import END_S, NAMESPACE, OTHER_NAMESPACE, Experiment, Fault, Plan
from sim_pods import Network, SimPods, SimPreemption, Track, leave, make_client, worlds
from sim_shards import ShardWatch
from sim_storage import SimStorage, StoreWeather
from sim_trainables import load_sim_trainable

from trialpod.protocol import attempt_link, backoff
from trialpod.protocol import client as client_module
from trialpod.runner import attempt as attempt_module
from trialpod.runner import main as runner_main
from trialpod.runner import preemption
from trialpod.storage import parallel
from trialpod.storage.checkpoints import commit_queue, remote, snapshots, upload
from trialpod.storage.checkpoints import store as checkpoints
from trialpod.storage.checkpoints.local import LocalCheckpointStore
from trialpod.storage.checkpoints.remote import RemoteCheckpointStore
from trialpod.storage.journal.journal import Journal
from trialpod.storage.layout import EXPERIMENT_KEY
from trialpod.tune import session as session_module
from trialpod.tune.trainable import trainable as trainable_module
from trialpod_operator.api.api_errors import ApiError
from trialpod_operator.api.reasons import Reason
from trialpod_operator.cluster import deletion, experiment_controller, experiment_storage, names, work_queue
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster.controller import Controller
from trialpod_operator.cluster.decider import keeper
from trialpod_operator.cluster.experiment_controller import RETRY_S
from trialpod_operator.cluster.operator import HAND_OVER_TIMEOUT_S
from trialpod_operator.cluster.options import OperatorOptions
from trialpod_operator.cluster.pods import attention
from trialpod_operator.cluster.shards.membership import Membership
from trialpod_operator.cluster.shards.ownership import Ownership
from trialpod_operator.experiment import background_search, durable
from trialpod_operator.experiment import journaled_engine as host_module
from trialpod_operator.experiment.durable import NotReadyError
from trialpod_operator.experiment.replica import files, journal_layout, replica, shared_files, upload_queue
from trialpod_operator.experiment.replica import journal as journal_copy
from trialpod_operator.reports.service import ReportService

WITHIN_S = 3_000.0
"""Maximum time from the last fault to the experiment's end."""
REST_S, SHORT_REST_S, REST_EVERY = 600.0, 60.0, 8
"""How long a world that is over is watched. Several operators write their Leases all that time, which costs more than
the rest of the run: of their plans only every eighth is watched for the longer time."""
BROUGHT_BACK_S = (0.5, 12.0)
"""A dead operator comes back after a time between these."""


class Violation(AssertionError):  # noqa: N818 - what a run finds
    """Something that must hold does not."""


class SimKube(FakeKube):
    """An operator's access to the API server; it may die before and after each request has its effect.

    Attributes:
        cut: this operator alone cannot reach the server.
        road: what changes something for an experiment waits while it is not set, before it is sent.
        held_up: how many do.
    """

    def __init__(self, world: SimWorld, process: Process) -> None:
        super().__init__(world.api, world.api_random)
        self.world, self.process = world, process
        self.cut = False
        self.road = asyncio.Event()
        self.road.set()
        self.held_up = 0

    async def request(self, method: str, path: str, **options: Any) -> Any:  # type: ignore[override]
        world = self.world
        self.requests += 1
        await asyncio.sleep(world.api_random.random() * self._latency_s)
        if self.cut:
            raise fake_api.error(method, path, 0, "Unreachable", "connection refused")
        self.process.point(f"before {method} {path}")
        if not self.process.alive:
            await asyncio.get_running_loop().create_future()
        if method != "GET" and options.get("serves") is not None and not self.road.is_set():
            self.held_up += 1
            try:
                await self.road.wait()
            finally:
                self.held_up -= 1
        self._check_allowed(method, path, options.get("serves"))
        refusal = world.api_fault(method, path, options.get("body"))
        if refusal is not None:
            raise refusal
        query, body, text = options.get("query") or {}, options.get("body"), options.get("text", False)
        if world.shard_watch is not None and method != "GET":
            world.shard_watch.record_write(self.process, _object_path(path, options.get("body")))
        context = world.context.copy()
        answer = context.run(lambda: world.api.handle(method, path, query, body, text=text))
        if method != "GET" and "/leases" not in path:
            world.kernel.log("API", f"{self.process.name} {method} {path.rpartition('/namespaces/')[2]}")
            world.writes += 1
        self.process.point(f"after {method} {path}")
        if not self.process.alive:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(world.api_random.random() * self._latency_s)
        if world.lost_answers and world.api_random.random() < world.lost_answers:
            world.kernel.counts["API answers lost"] += 1
            raise fake_api.error(method, path, 0, "Unreachable", "the connection broke")
        return fake_api.in_form(answer, options.get("accept", ""))


def _object_path(path: str, body: Any) -> str:
    """Return the path of what a request is about, also when it creates it."""
    name = ((body or {}).get("metadata") or {}).get("name") if isinstance(body, dict) else None
    return f"{path}/{name}" if name and not path.endswith((name, "/status")) else path


class SimWatch(Watch):
    """An operator's watches: what they show waits while it is stopped, or cut off."""

    def __init__(self, world: SimWorld, process: Process, kube: SimKube, take: Any) -> None:
        self.process, self._kube = process, kube
        self._held_up: list[tuple[str, Object, bool]] = []
        super().__init__(world.api, take, world.api_random, world.plan.watch_delay_s)

    def _deliver(self, plural: str, item: Object, deleted: bool) -> None:
        if self._kube.cut:
            self._held_up.append((plural, item, deleted))
        elif not self.closed and self.process.alive:
            self.process.call(super()._deliver, plural, item, deleted)

    def reconnect(self) -> None:
        """Show what happened while the server could not be reached."""
        held_up, self._held_up = self._held_up, []
        for plural, item, deleted in held_up:
            self._deliver(plural, item, deleted)


class SimOperator:
    """One operator's process: it waits for its Lease, then works until it has to end."""

    def __init__(self, world: SimWorld, name: str, lease: str = "trialpod-operator") -> None:
        self.world = world
        self.process = process = Process(world.kernel, name)
        self.serving = self._closed = False
        self.lease_name = lease
        self.kube = SimKube(world, process)
        self.watch: SimWatch | None = None
        options = OperatorOptions(
            work_dir=tempfile.mkdtemp(prefix=f"{name}-", dir=world.folder),
            default_image="trialpod/trial:1",
            identity=name,
        )
        ownership = Ownership(name)
        self.controller = Controller(self.kube, options, world.kernel.wall, lambda: "-- the authority --", ownership)
        self.service = ReportService(self.controller, timer=sim_time.monotonic, uniform=world.network.random.random)
        self.membership = Membership(
            self.kube,
            NAMESPACE,
            lease,
            name,
            ownership,
            self.controller.release,
            self.controller.gain,
            address=f"{name}:8443",
            monotonic=sim_time.monotonic,
            alone=world.plan.operators == 1,
            on_outage=self.controller.record_outage,
        )
        self.kube.lease_valid = self.membership.lease_valid
        self.controller.queue.on_failure = self.controller.statuses.on_failure = self._on_failure
        process.on_kill = lambda: world.operator_gone(self)
        process.on_exit = lambda status: world.operator_gone(self)
        process.call(self._begin)

    @property
    def reconciles(self) -> int:
        return self.controller.queue.passes

    def _on_failure(self, key: str, error: BaseException) -> None:
        if not isinstance(error, ApiError | NotReadyError):
            self.world.kernel.record_error(f"{self.process.name} could not reconcile {key}", error)

    def _begin(self) -> None:
        self._main = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        await self.membership.join()
        self.world.kernel.log("active", self.process.name)
        self.serving = True
        self.controller.start()
        self.watch = SimWatch(self.world, self.process, self.kube, self._take)
        self.controller.begin_lists([self.watch.listed["pods"]], [self.watch.listed["tunetrials"]])
        await self.membership.keep()
        await self.close()

    def _take(self, kind: str, item: Object, deleted: bool) -> None:
        getattr(self.controller, f"on_{kind}")(item, deleted=deleted)

    async def close(self) -> None:
        """SIGTERM, or the Lease is lost."""
        if self._closed:
            return
        self._closed = True
        await self.membership.hand_over(HAND_OVER_TIMEOUT_S)
        if self._main is not asyncio.current_task():
            self._main.cancel()
        await self.membership.leave()
        self.serving = False
        if self.watch is not None:
            self.watch.close()
        await self.controller.close()
        self.world.kernel.log("closed", self.process.name)
        for _ in range(120):  # what its threads have begun ends by itself
            await asyncio.sleep(1.0)
            if not any(thread.begun for thread in self.process.threads):
                break
        left = [task for task in self.process.tasks if task is not asyncio.current_task()]
        if left or any(thread.begun for thread in self.process.threads):
            names = [str(task.get_coro()) for task in left] + [each.name for each in self.process.threads]
            self.world.leaks.append(f"{self.process.name} has left: {names}")
        self.process.exit(0)


@dataclass
class Outcome:
    """What came of a run."""

    seed: int
    violations: list[str]
    events: int
    virtual_s: float
    digest: str
    fired: dict[str, int]
    timeline: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Hosted:
    """One of the plan's experiments, as it is in the world.

    Attributes:
        track: what its pods did and were told.
        samples: how many trials its user asks for already.
        stopped: trials that its user has stopped.
        created, deleted: by its user.
    """

    def __init__(self, world: SimWorld, plan: Experiment) -> None:
        self.world, self.plan = world, plan
        self.name = plan.name
        self.key = f"{plan.namespace}/{plan.name}"
        self.prefix = f"{plan.storage.removeprefix('s3://')}/{plan.name}/"
        self.track = Track(self.key)
        self.samples = int(plan.spec["numSamples"])
        self.evaluations = 1  # the best configs may be repeated again after each edit of the budget
        self.stopped: set[str] = set()
        self.created = self.deleted = False

    async def create(self) -> None:
        await asyncio.sleep(max(0.0, self.plan.at - self.world.loop.time()))
        made = manifest(**self.plan.spec)
        made["metadata"] |= {"name": self.name, "namespace": self.plan.namespace}
        made["spec"]["storage"] = {"uri": self.plan.storage}
        if self.plan.own_code:
            self._store_code()
            uri = f"{self.plan.storage}/{self.name}/{KEY}"
            made["spec"]["decider"] = spec_of(self.plan.own_code, int(self.plan.spec["numSamples"]), uri)
        if self.plan.deletes:
            made["spec"]["storage"]["deletionPolicy"] = "Delete"
        await self.world.client.create(paths.experiments(self.plan.namespace), made)
        self.created = True

    def _store_code(self) -> None:
        self.world.values[f"{self.prefix}{KEY}"] = code_of(self.plan.own_code, int(self.plan.spec["numSamples"]))

    def run_again_as_told(self) -> None:
        """Run the script again, which stores the deciding code: another's deletion took it with the shared place."""
        sharing = [each for each in self.world.experiments if each is not self and each.prefix == self.prefix]
        taken = any(each.deleted and each.plan.deletes for each in sharing)
        told = any(each.get("reason") == Reason.DECIDER_FAILED for each in self.status.get("conditions") or [])
        if taken and told and f"{self.prefix}{KEY}" not in self.world.values:
            self._store_code()

    @property
    def resource(self) -> Object:
        return self.world.api.get("tuneexperiments", self.name, self.plan.namespace) or {}

    @property
    def status(self) -> dict[str, Any]:
        return dict(self.resource.get("status") or {})

    def trials(self) -> list[Object]:
        mine = [
            item
            for item in self.world.api.all("tunetrials", self.plan.namespace)
            if item["metadata"]["labels"][names.EXPERIMENT_LABEL] == self.name
        ]
        return sorted(mine, key=lambda item: int(item["spec"]["index"]))

    @property
    def owner(self) -> str:
        """The namespace whose experiment is kept in this one's place: its own before anybody's."""
        stored = self.world.values.get(f"{self.prefix}{EXPERIMENT_KEY}")
        return str(json.loads(stored)["namespace"]) if stored else self.plan.namespace

    def is_over(self) -> bool:
        if self.deleted:
            return not self.resource and not self.trials()
        if not self.resource:
            return False
        if self.owner != self.plan.namespace:
            return any(each["reason"] == "Refused" for each in self.status.get("conditions") or [])
        observed = self.status.get("observedGeneration") == self.resource["metadata"]["generation"]
        return bool(self.status.get("completionTime")) and observed

    def why(self) -> str:
        states = [(each.get("status") or {}).get("state") for each in self.trials()]
        conditions = [
            f"{each['type']}={each['status']} {each.get('reason')}: {each.get('message')}"
            for each in self.status.get("conditions") or []
        ]
        return f"{self.key}{' deleted' if self.deleted else ''}: {states} {conditions}"


class Surroundings:
    """What every world has around its processes.

    Attributes:
        loop: the event loop of everything.
        context: nobody's.
        weather, values: how the bucket is, and what it holds.
    """

    loop: SimLoop
    context: contextvars.Context
    weather: StoreWeather
    values: dict[str, bytes]

    def env(self, callback: Callable[..., Any], *args: Any) -> None:
        """Have something done by nobody's process."""
        self.loop.call_soon(callback, *args, context=self.context)

    def after(self, seconds: float, callback: Callable[..., Any], *args: Any) -> None:
        self.loop.call_at(self.loop.time() + seconds, callback, *args, context=self.context)

    def open_storage(self, uri: str, _options: Any = None) -> SimStorage:
        return SimStorage(self.weather, self.values).sub(uri.partition("://")[2])


class SimWorld(Surroundings):
    """Everything. Made and used within `simulate`."""

    def __init__(self, plan: Plan, loop: SimLoop, folder: Path, keep: bool) -> None:
        self.plan = plan
        attention.MAX_FEW = 0 if plan.seed % 2 else MAX_FEW  # as for thousands of attempts, or a few
        self.kernel = Kernel(plan.seed, loop, keep)
        self.loop = loop
        self.folder = folder
        self.context = contextvars.copy_context()
        self.random = random.Random(f"world {plan.seed}")
        self.api_random = random.Random(f"API {plan.seed}")
        self.api = FakeApi()
        self.values: dict[str, bytes] = {}
        self.weather = StoreWeather(self.kernel, str(plan.seed))
        self.archive = self.weather.archive
        self.network = Network(self)
        self.pods = SimPods(self)
        self.pods.behaviour.begin_s = 1.0
        self.operators: list[SimOperator] = []
        self.client = FakeKube(self.api, random.Random(f"user {plan.seed}"))
        self.writes = 0
        self.leaks: list[str] = []
        self.shard_watch: ShardWatch | None = None
        self.flaky = self.lost_answers = 0.0
        self.api_away = False
        self.experiments = [Hosted(self, each) for each in plan.experiments]
        self.kernel.counts.update(plan.features)
        self.ended = False
        self.stores: list[RemoteCheckpointStore] = []
        self.journals: list[Journal] = []
        self._operators_made = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    # -- for the parts --

    def open_checkpoints(
        self, _assignment: Any, _folder: str, uri: str, *, marked: bool = False
    ) -> RemoteCheckpointStore:
        storage = self.open_storage(uri)
        experiment = storage.parent() if marked else None
        store = RemoteCheckpointStore(
            storage, experiment=experiment, scratch=self.folder / "scratch", packing=None, wall=self.kernel.wall
        )
        self.stores.append(store)
        return store

    def recovers_alone(self, process: Process) -> bool:
        """Return whether no later attempt can have taken away what a process resumes from, nor rank 0 of its own."""
        if getattr(process, "rank", 0) and self.hosted(process.experiment).plan.apart:  # type: ignore[attr-defined]
            return False
        pods = [pod for uid, pod in self.pods.pods.items() if self.pods.processes.get(uid) is process]
        current = [self.pods.current(pod) for pod in pods]
        return any(pod is not None and not pod["metadata"].get("deletionTimestamp") for pod in current)

    def api_fault(self, method: str, path: str, body: Any) -> ApiError | None:
        if self.api_away:
            self.kernel.counts["API away"] += 1
            return fake_api.outage(method, path, body)
        if self.flaky and self.api_random.random() < self.flaky:
            self.kernel.counts["API flaky"] += 1
            return fake_api.error(method, path, 500, "InternalError", "etcdserver: leader changed")
        return None

    # -- operators --

    def start_operator(self, name: str = "", lease: str = "trialpod-operator") -> SimOperator:
        self._operators_made += 1
        operator = SimOperator(self, name or f"operator-{self._operators_made}", lease)
        self.operators.append(operator)
        self.kernel.log("operator", operator.process.name)
        return operator

    def operator_gone(self, operator: SimOperator) -> None:
        """A Deployment's pod has ended: there will be another."""
        operator.serving = False
        if operator.watch is not None:
            operator.watch.close()
        if self.ended:
            return

        def bring_back() -> None:
            if not self.ended and len(self.alive) < self.plan.operators:
                self.start_operator(operator.process.name if self.random.random() < 0.5 else "")

        self.after(self.random.uniform(*BROUGHT_BACK_S), bring_back)

    @property
    def alive(self) -> list[SimOperator]:
        return [each for each in self.operators if each.process.alive]

    @property
    def operator(self) -> SimOperator | None:
        alive = self.alive
        return next((each for each in alive if each.serving), alive[-1] if alive else None)

    # -- what is --

    def hosted(self, name: str) -> Hosted:
        """Return an experiment by its "namespace/name"."""
        return next(each for each in self.experiments if each.key == name)

    def all_pods(self) -> list[Object]:
        return [pod for namespace in (NAMESPACE, OTHER_NAMESPACE) for pod in self.api.all("pods", namespace)]

    def is_over(self) -> bool:
        return all(each.is_over() for each in self.experiments)

    def at_rest(self) -> bool:
        return (
            self.is_over()
            and not self.all_pods()
            and len(self.alive) >= self.plan.operators
            and all(each.serving and each.controller.open_count == 0 for each in self.alive)
        )

    # -- a run --

    async def run(self) -> None:
        """Let the plan happen, then let everything heal and come to its end."""
        from sim_faults import Faults

        for _ in range(self.plan.operators):
            self.start_operator()
        if self.plan.operators > 1:
            self.shard_watch = ShardWatch(self)
            self.after(0.0, self.shard_watch.look)
        await self.experiments[0].create()
        self._tasks.update(asyncio.ensure_future(each.create()) for each in self.experiments[1:])
        faults = Faults(self)
        for fault in self.plan.faults:
            wait = fault.at - self.loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            self.kernel.log("FAULT", f"{fault.kind} for {fault.for_s} x {fault.x}")
            task = asyncio.ensure_future(faults.happen(fault))
            self._tasks.add(task)
        if self._tasks:
            await asyncio.gather(*self._tasks)
        await faults.heal()
        self.kernel.log("healed")
        began = self.loop.time()
        while not self.at_rest():
            if self.loop.time() - began > WITHIN_S:
                raise Violation(f"liveness: not over {WITHIN_S:.0f} s after the last fault: {self.why()}")
            if self.kernel.errors or self.pods.problems:
                return
            for each in self.experiments:
                each.run_again_as_told()
            await asyncio.sleep(0.5)
        self.kernel.log("over")
        await self.rest()
        self.ended = True
        for operator in self.alive:
            operator.process.call(lambda operator=operator: asyncio.ensure_future(operator.close()))
        end = self.loop.time() + 150.0
        while self.alive:
            if self.loop.time() > end:
                raise Violation("the operator does not end when it is told to")
            await asyncio.sleep(0.2)

    def why(self) -> str:
        operator = self.operator
        serving = [(each.process.name, sorted(each.membership.ownership.serving)) for each in self.alive]
        told = "; ".join(each.why() for each in self.experiments)
        pods = [(pod["metadata"]["name"], (pod.get("status") or {}).get("phase")) for pod in self.all_pods()]
        return f"{operator.process.name if operator else 'no operator'}; {serving}; {told}; pods {pods}"

    async def rest(self) -> None:
        """Nothing is written any more."""
        rest_s = SHORT_REST_S if self.plan.operators > 1 and self.plan.seed % REST_EVERY else REST_S
        await asyncio.sleep(30.0)
        before = self.writes, self.weather.writes
        reconciles = sum(each.reconciles for each in self.operators)
        await asyncio.sleep(rest_s)
        after = self.writes, self.weather.writes
        if before != after:
            raise Violation(f"quiescence: writes to the API server and the storage went from {before} to {after}")
        more = sum(each.reconciles for each in self.operators) - reconciles
        refused = sum(each.owner != each.plan.namespace for each in self.experiments)
        if more > 15 * self.plan.operators * rest_s / REST_S + refused * (rest_s / RETRY_S + 1):
            raise Violation(f"quiescence: {more} reconciles in {rest_s:.0f} s at rest")


W = TypeVar("W", bound=Any)
MAX_FEW = attention.MAX_FEW
BUNDLE_OF = 5
"""Objects of a journal that are stored as one: few enough that it happens in most plans."""
BYTES_OF = 500
"""Bytes of a journal for each of its objects, before a snapshot: about as many as they have."""
_FREEZE_AT = (0, 10, 40)
"""Before these runs of a process, what is there by then is taken out of what `gc` looks at after each run."""
_runs = itertools.count()

_THREADED: tuple[Any, ...] = (
    attempt_link, client_module, commit_queue, replica, journal_copy, background_search, snapshots, parallel, upload,
    checkpoints, upload_queue, shared_files, attempt_module, preemption, runner_main, experiment_storage,
    files,
)  # fmt: skip

_BEGIN_SESSION = session_module.Session.__init__


@contextlib.contextmanager
def patched(world_of: Callable[[], SimWorld]) -> Iterator[None]:
    """Put the simulated threads, clocks, wires and storage in the place of the real ones."""
    undo: list[Callable[[], None]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        before = getattr(owner, name)
        undo.append(lambda: setattr(owner, name, before))
        setattr(owner, name, value)

    def default(function: Any, name: str, value: Any) -> None:
        defaults = function.__kwdefaults__
        before = defaults[name]
        undo.append(lambda: defaults.__setitem__(name, before))
        defaults[name] = value

    for module in _THREADED:
        put(module, "threading", sim_threading)
    for module in (replica, commit_queue, trainable_module, session_module, experiment_storage):
        put(module, "time", sim_time)
    for module in (journal_layout, files):
        put(module, "run_all", run_in_turn)
    put(journal_copy, "BUNDLE_OF", BUNDLE_OF)
    put(replica, "random", _Jitter())
    put(remote.os, "urandom", _urandom)
    for store in (LocalCheckpointStore, RemoteCheckpointStore):
        put(store, "latest_valid", _latest_valid(world_of, store.latest_valid))
    default(attempt_module.Attempt.__init__, "clock", sim_time.monotonic)
    default(attempt_module.Attempt.__init__, "wall", sim_time.time)
    default(attempt_module.Attempt.__init__, "sleep", sim_time.sleep)
    default(commit_queue.CommitQueue.__init__, "clock", sim_time.monotonic)
    default(_BEGIN_SESSION, "clock", sim_time.monotonic)
    default(_BEGIN_SESSION, "wall", sim_time.time)
    default(backoff.Backoff.__init__, "uniform", lambda: world_of().network.random.random())
    put(work_queue, "random", _Jitter())
    put(attention, "MAX_FEW", MAX_FEW)  # each plan sets it
    put(attempt_module, "_open", lambda *args, **given: world_of().open_checkpoints(*args, **given))
    put(experiment_controller, "open_storage", lambda *args: world_of().open_storage(*args))
    put(keeper, "open_storage", lambda *args: world_of().open_storage(*args))
    put(deletion, "open_storage", lambda *args: world_of().open_storage(*args))
    put(runner_main, "ReportClient", make_client)
    put(runner_main, "PreemptionWatch", SimPreemption)
    put(runner_main, "leave", leave)
    put(preemption, "leave", leave)
    put(runner_main._Process, "_enter", lambda _self, _trial_dir: None)
    put(runner_main, "load_trainable", load_sim_trainable)
    put(runner_main, "rank_of", lambda _environment: getattr(PROCESS.get(), "rank", 0))
    put(runner_main, "set_environment", lambda _assignment, _environment: None)
    put(runner_main, "socket", _Hosts())
    put(host_module, "Journal", Journals(world_of))
    put(runner_main, "sys", _Quiet())
    put(runner_main, "write_stderr", lambda _text: None)
    logging.disable(logging.CRITICAL)
    undo.append(lambda: logging.disable(logging.NOTSET))
    try:
        yield
    finally:
        for each in reversed(undo):
            each()


def _latest_valid(world_of: Callable[[], Any], real: Callable[..., Any]) -> Callable[..., Any]:
    """An attempt finds what it resumes from: nothing here damages a checkpoint."""

    def latest_valid(store: Any, infos: Any) -> Any:
        found, warnings = real(store, infos)
        world, process = world_of(), PROCESS.get()
        if warnings and process is not None and world.recovers_alone(process):
            world.pods.problems.append(f"{process.name} misses what it resumes from: {warnings}")
        return found, warnings

    return latest_valid


class _Jitter:
    def uniform(self, low: float, high: float) -> float:
        return worlds[-1].api_random.uniform(low, high)


class _Hosts:
    def gethostname(self) -> str:
        process = PROCESS.get()
        return process.hostname if process is not None else "host"


class Journals:
    """Journals of which those of dead processes can be closed."""

    def __init__(self, world_of: Callable[[], Any], kind: type[Journal] = Journal) -> None:
        self._world_of = world_of
        self._kind = kind

    def open(self, directory: Path, *, keep_replaced: bool) -> Journal:
        journal = self._kind.open(directory, keep_replaced=keep_replaced)
        self._world_of().journals.append(journal)
        return journal


class _Quiet:
    """sys of a pod: nobody reads what it prints."""

    def __init__(self) -> None:
        self.stdout = self.stderr = io.StringIO()
        self.path: list[str] = []


def _urandom(count: int) -> bytes:
    return kernel().random.randbytes(count)


def simulate(plan: Plan, *, keep: bool = False) -> Outcome:
    """Let a plan happen and judge what came of it.

    Args:
        plan: what is to happen.
        keep: keep the timeline.
    """
    from sim_oracles import judge

    per_running = min(durable.MAX_OBJECTS_PER_RUNNING, plan.objects // 8)
    size = host_module.SNAPSHOT_MIN_BYTES if plan.objects == durable.MAX_OBJECTS else plan.objects * BYTES_OF
    with (
        mock.patch.object(host_module, "SNAPSHOT_MIN_BYTES", size),
        mock.patch.object(durable, "MAX_OBJECTS", plan.objects),
        mock.patch.object(durable, "MAX_OBJECTS_PER_RUNNING", per_running),
    ):
        return run_to_its_end(plan.seed, lambda loop, folder: SimWorld(plan, loop, folder, keep), patched, judge)


def shows(outcome: Outcome) -> bool:
    """Return whether a defect shows; raise when it is none, because the code that it replaces has changed."""
    broken = [each for each in outcome.violations if "TypeError" in each or "AttributeError" in each]
    assert not broken, broken
    return bool(outcome.violations)


class InTurn:
    """A thread that is over once it is started: for what looks at a world that has ended."""

    def __init__(self, *, target: Callable[[], None], **_: Any) -> None:
        self.start = target

    def is_alive(self) -> bool:
        """Return that it is not."""
        return False

    def join(self, _timeout: float | None = None) -> None:
        """Return at once."""


def run_to_its_end(
    seed: int,
    make: Callable[[SimLoop, Path], W],
    put_in_place: Callable[[Callable[[], W]], contextlib.AbstractContextManager[None]],
    judge: Callable[[W, list[str]], list[str]],
    death: type[BaseException] = WorldOver,
) -> Outcome:
    """Make a world, let its plan happen in it, and judge what came of it.

    Args:
        seed: what the plan follows from.
        make: makes the world, given its loop and a folder that is its own.
        put_in_place: puts the simulated parts in the place of the real ones.
        judge: returns what is wrong, and adds what is worth knowing to its second argument.
        death: what ends a callback whose process has been killed in it.
    """
    if next(_runs) in _FREEZE_AT:
        gc.collect()
        gc.freeze()
    place = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = Path(tempfile.mkdtemp(prefix="trialpod-simulation-", dir=place))
    (folder / "scratch").mkdir()
    loop = SimLoop()
    world = make(loop, folder)
    violations: list[str] = []
    notes: list[str] = []

    def unhandled(_loop: Any, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), death):
            world.kernel.record_error(str(context.get("message")), context.get("exception"))

    loop.set_exception_handler(unhandled)
    install_kernel(world.kernel)
    worlds.append(world)
    enabled = gc.isenabled()
    gc.disable()
    temporary, tempfile.tempdir = (
        tempfile.tempdir,
        str(folder),
    )  # in memory: to delete it on a disk takes milliseconds
    try:
        with put_in_place(lambda: world), warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # nobody closes what a dead process had open
            try:
                asyncio.set_event_loop(None)
                loop.run_until_complete(loop.create_task(world.run(), context=world.context))
            except Exception as error:  # noqa: BLE001 - of the world too: nothing is known of such a run
                violations.append(f"{type(error).__name__}: {error}")
            finally:
                virtual_s = loop.time()
                world.kernel.close()
                for task in asyncio.all_tasks(loop):
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                # An exception that nobody looked at is told of when its task goes. All that this run made is young.
                gc.collect(1)
                loop.set_exception_handler(lambda *_: None)
                for store in world.stores:
                    with contextlib.suppress(OSError):
                        if (scratch := store._snapshots._scratch) is not None:
                            scratch.remove()
                for journal in world.journals:
                    journal.close()
                loop.close()
        violations += world.kernel.errors + world.pods.problems + world.leaks
        if not violations:
            with mock.patch.object(parallel, "threading", SimpleNamespace(Thread=InTurn)):
                violations += judge(world, notes)
    finally:
        worlds.remove(world)
        install_kernel(None)
        tempfile.tempdir = temporary
        shutil.rmtree(folder, ignore_errors=True)
        if enabled:
            gc.enable()
    return Outcome(
        seed,
        violations,
        world.kernel.events,
        virtual_s,
        world.kernel.digest(),
        dict(world.kernel.counts),
        world.kernel.kept or [],
        notes,
    )


__all__ = ["END_S", "Fault", "Outcome", "sim_pods", "simulate"]
