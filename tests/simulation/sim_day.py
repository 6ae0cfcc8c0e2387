"""A day of a cluster: a fleet of experiments comes and goes, with faults all day, and is looked at all the time.

The world is that of the simulation. What a test that lasts a minute may keep until its end, this one forgets when the
real thing would: processes that are dead, experiments that are gone, events after an hour. So what grows is the
operator's.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import fake_api
import sim_shards
from sim_day_samples import Sample, take_sample
from sim_day_server import DayApi, DayStorage, DayValues
from sim_faults import Faults
from sim_kernel import PROCESS, Process, SimLoop
from sim_oracles import _ends, _history, _lines, _results
from sim_plan import BUCKET, MAX_FAILURES, STEPS, Experiment, Fault, Plan
from sim_world import Hosted, InTurn, Outcome, SimWorld, Violation, patched, run_to_its_end

from trialpod.storage import parallel
from trialpod_operator.cluster import kube as paths
from trialpod_operator.experiment.durable import DurableExperiment

LANES = 20
"""So many experiments run at once."""
WAVES = 4
"""Each has so many trials for each that it runs at once."""
STEP_S = 300.0
"""A trial takes six such steps, half an hour: in a quarter of that, a day would have four times the trials."""
TTL_S = 3600
"""A finished experiment is deleted after this long."""
JUDGE_DELAY_S = 40.0
"""Delay from the end of an experiment until what it has written is judged."""
OVER_WITHIN_S = 4 * 3600.0
SAMPLE_S = 600.0
COLLECT_S = 60.0
HEARTBEAT_S = 60.0
"""Attempts that report nothing call this often, instead of every 10 s: that would be four million calls in a day."""
SHARD_LOOK_S = 5.0
LARGE_PAGE = 500

PER_HOUR = {
    "pod vanishes": 2.0, "pod vanishes unseen": 1.0, "pod preempted": 4.0, "attempt dies": 3.0,
    "user code fails": 3.0, "node comes back": 1.0, "node lost": 0.5, "partition": 1.0,
    "pod paused": 0.5, "requests lost": 0.5,
    "answers lost": 0.5, "messages duplicated": 0.5, "messages delayed": 0.5, "operator dies": 0.4,
    "operator replaced": 0.4, "operator paused": 0.2, "operator without API": 0.2, "operator without store": 0.2,
    "store slow": 0.3, "store failing": 0.3, "store answers lost": 0.3, "store writes repeated": 0.3,
    "store away": 0.4, "API flaky": 0.3, "API answers lost": 0.3, "API away": 0.3, "no room": 0.2,
    "trial stopped by its user": 1.0, "suspended": 0.2, "experiment deleted": 0.5,
}  # fmt: skip
LONGEST_S = {"store away": 300.0, "API away": 240.0, "no room": 300.0, "partition": 180.0, "suspended": 300.0}
"""How long a fault lasts at most; the others 60 s."""


@dataclass(frozen=True)
class Day:
    """What is to happen.

    Attributes:
        hours: how long.
        running: so many trials run at once.
        operators: how many share the work.
        seed: decides the rest.
        step_s: seconds for each result of a trial.
        ttl_s: until a finished experiment is deleted.
        fault_rate: 1 = as in `PER_HOUR`.
        lanes: so many experiments run at once.
        sample_s: seconds between two samples.
        judge_every: of so many experiments one is replayed from its journal; the results of all are judged.
        on_sample: called with each sample.
    """

    hours: float = 24.0
    running: int = 500
    operators: int = 2
    seed: int = 1
    step_s: float = STEP_S
    ttl_s: int = TTL_S
    fault_rate: float = 1.0
    judge_every: int = 4
    lanes: int = LANES
    sample_s: float = SAMPLE_S
    on_sample: Callable[[DayWorld, Sample], None] = lambda world, sample: None


def plan_of_day(day: Day) -> Plan:
    """Return the plan: faults all day, and experiments that are made as others end."""
    choose = random.Random(f"day {day.seed}")
    faults = []
    for kind, rate in PER_HOUR.items():
        at = choose.expovariate(rate * day.fault_rate / 3600.0) if day.fault_rate else day.hours * 3600.0
        while at < day.hours * 3600.0 - 600.0:
            lasts = LONGEST_S.get(kind, 60.0) * choose.uniform(0.1, 1.0)
            faults.append(Fault(kind, round(at, 3), round(lasts, 3), round(choose.random(), 4)))
            at += choose.expovariate(rate * day.fault_rate / 3600.0)
    faults.sort(key=lambda fault: fault.at)
    return Plan(day.seed, (), tuple(faults), watch_delay_s=0.2, step_s=day.step_s, operators=day.operators)


class DayFaults(Faults):
    """The faults of every simulation, some of them on more at once."""

    world: DayWorld

    async def _node_lost(self, fault: Fault) -> None:
        """A node has a twentieth of the pods; all are gone at once."""
        pods = self.world.pods.alive()
        self._count("node lost")
        for pod, _ in random.Random(fault.x).sample(pods, len(pods) // 20):
            self.world.pods.vanish(pod)

    def _an_experiment(self, fault: Fault) -> Hosted:
        there = [each for each in self.world.experiments if each.created and not each.is_over()]
        return there[min(int(fault.x * len(there)), len(there) - 1)]

    async def happen(self, fault: Fault) -> None:
        about_one = fault.kind in ("suspended", "trial stopped by its user", "experiment deleted")
        if about_one and not any(each.created and not each.is_over() for each in self.world.experiments):
            return
        await super().happen(fault)

    async def _experiment_deleted(self, fault: Fault) -> None:
        experiment = self._an_experiment(fault)
        self._count("experiment deleted")
        experiment.deleted = True
        await self.world.client.delete(paths.experiments(experiment.plan.namespace), experiment.name)

    def _connect(self, operator: Any) -> None:
        if operator.process.alive:
            super()._connect(operator)


class Owned(list[Any]):
    """Things, each with the process that made it."""

    def __init__(self) -> None:
        super().__init__()
        self.owners: dict[int, Process | None] = {}

    def append(self, item: Any) -> None:
        super().append(item)
        self.owners[id(item)] = PROCESS.get()

    def take_dead(self) -> list[Any]:
        """Forget those of dead processes; return them."""
        found = [each for each in self if (owner := self.owners[id(each)]) is not None and not owner.alive]
        gone = {id(each) for each in found}
        self[:] = [each for each in self if id(each) not in gone]
        for each in gone:
            del self.owners[each]
        return found


class DayWorld(SimWorld):
    """A cluster, for a day."""

    def __init__(self, day: Day, loop: SimLoop, folder: Path) -> None:
        self.day = day
        with mock.patch("sim_world.FakeApi", DayApi):
            super().__init__(plan_of_day(day), loop, folder, keep=False)
        self.api: DayApi
        self.values = DayValues()
        self.stores, self.journals = Owned(), Owned()
        self.samples: list[Sample] = []
        self.trials_ended = self.results = self.judged = 0
        self._by_key: dict[str, Hosted] = {}
        self.day_end = day.hours * 3600.0
        self._made = 0
        self._choose = random.Random(f"fleet {day.seed}")

    def open_storage(self, uri: str, _options: Any = None) -> DayStorage:
        storage = DayStorage(self.weather, self.values)  # type: ignore[arg-type]
        return storage.sub(uri.partition("://")[2])

    def hosted(self, name: str) -> Hosted:
        return self._by_key[name]

    # -- the fleet --

    def _next(self) -> Hosted:
        self._made += 1
        choose, at_once = self._choose, max(1, self.day.running // self.day.lanes)
        time_attr = {"time_attr": "training_iteration"}
        scheduler, same_end = choose.choice(
            [
                (None, True),
                (None, True),
                ({"name": "asha", "parameters": {"max_t": STEPS, "grace_period": 2, "reduction_factor": 2}}, False),
                ({"name": "medianstopping", "parameters": {**time_attr, "grace_period": 3}}, False),
            ]
        )
        spec: dict[str, Any] = {
            "numSamples": at_once * WAVES,
            "maxConcurrentTrials": at_once,
            "seed": self._made,
            "searchSpace": {"x": {"uniform": [0.5, 1.5]}},
            "failurePolicy": {"maxFailures": MAX_FAILURES},
            "stop": {"training_iteration": STEPS},
            "checkpoint": choose.choice([{"frequency": 2, "numToKeep": 1}, {"frequency": 3, "atEnd": True}]),
            "ttlSecondsAfterFinished": self.day.ttl_s,
        }
        if scheduler is not None:
            spec["scheduler"] = scheduler
        if choose.random() < 0.3:
            spec["reusePods"] = True
        keeps = choose.random() < 0.3
        plan = Experiment(
            f"fleet-{self._made}", spec, same_end, restarts="reusePods" in spec, storage=BUCKET, deletes=not keeps
        )
        experiment = Hosted(self, plan)
        self.experiments.append(experiment)
        self._by_key[experiment.key] = experiment
        return experiment

    async def _lane(self, number: int) -> None:
        """One experiment after the other, until the day is over."""
        # Not all in step.
        await asyncio.sleep(number / self.day.lanes * WAVES * STEPS * self.day.step_s * 0.5)
        while True:
            experiment = self._next()
            with contextlib.suppress(Exception):
                await experiment.create()
            began = self.loop.time()
            while not experiment.is_over():
                await asyncio.sleep(5.0)
                if self.loop.time() - began > OVER_WITHIN_S:
                    raise Violation(f"liveness: not over after {OVER_WITHIN_S:.0f} s: {experiment.why()}")
            self._tasks.add(asyncio.ensure_future(self._retire(experiment)))

    async def _retire(self, experiment: Hosted) -> None:
        """Judge an experiment that is over, wait until it is gone, and remove what its deletion has kept."""
        await asyncio.sleep(JUDGE_DELAY_S)
        # Its time to live counts from its end, which may be seen late.
        if not experiment.deleted and experiment.resource:
            self.judge(experiment)
        began = self.loop.time()
        while experiment.resource or experiment.trials():
            await asyncio.sleep(30.0)
            if self.loop.time() - began > self.day.ttl_s + 1800.0:
                raise Violation(f"{experiment.key} was to be gone long ago: {experiment.why()}")
        await asyncio.sleep(120.0)
        left = self.values.below(experiment.prefix)
        if experiment.plan.deletes:
            left = [key for key in left if self.weather.writers[key][0].killed_at is None]
            if left:
                self.kernel.errors.append(f"deleted: {experiment.key} has left {left[:5]}")
        for key in self.values.below(experiment.prefix):  # `mc rm --recursive`, or the bucket's own rule
            del self.values[key]
        self._forget(experiment)

    def judge(self, experiment: Hosted) -> None:
        """Note what is wrong with an experiment that has ended."""
        self.judged += 1
        lines_world = _View(self, experiment)
        notes: list[str] = []
        experiment.world, world = lines_world, experiment.world  # type: ignore[assignment]
        try:
            lines = _lines(experiment)
            self.trials_ended += len(experiment.trials())
            self.results += sum(map(len, lines.values()))
            found = [*_results(experiment, lines), *_ends(experiment, lines)]
            if self.judged % self.day.judge_every == 0:
                with mock.patch.object(parallel, "threading", SimpleNamespace(Thread=InTurn)):
                    found += _history(experiment, notes)
        finally:
            experiment.world = world
        self.kernel.errors += [f"{experiment.key}: {each}" for each in found]

    def _forget(self, experiment: Hosted) -> None:
        self.experiments.remove(experiment)
        del self._by_key[experiment.key]
        self.weather.forget(experiment.prefix)
        for key in [key for key in self.weather.writers if key.startswith(experiment.prefix)]:
            del self.weather.writers[key]
        uids = {uid for numbers in experiment.track.sent.values() for uid in numbers.values()}
        trials = {trial for trial, _ in experiment.track.sent}
        steps = self.pods.steps
        for uid in [uid for uid, made in steps.items() if uid in uids or made[0] in trials]:
            del steps[uid]

    # -- the day --

    async def run(self) -> None:
        """Let the day pass, then see that everything ends."""
        for _ in range(self.plan.operators):
            self.start_operator()
        if self.plan.operators > 1:
            self.shard_watch = sim_shards.ShardWatch(self)
            self.after(0.0, self.shard_watch.look)
        self.after(COLLECT_S, self._tidy)
        self.after(self.day.sample_s, self._sample)
        lanes = [asyncio.ensure_future(self._lane(number)) for number in range(self.day.lanes)]
        faults = DayFaults(self)
        self._tasks.add(asyncio.ensure_future(self._let_happen(faults)))
        while self.loop.time() < self.day_end:
            await asyncio.sleep(min(10.0, self.day_end - self.loop.time()))
            self._check(lanes)
        for lane in lanes:
            lane.cancel()
        self.ended = True

    def _check(self, lanes: list[asyncio.Task[None]]) -> None:
        problems = [*self.kernel.errors, *self.pods.problems, *self.leaks]
        if problems:
            raise Violation(f"at {self.loop.time():.0f} s: {problems[0]}")
        for task in [*lanes, *self._tasks]:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
        self._tasks = {task for task in self._tasks if not task.done()}

    async def _let_happen(self, faults: DayFaults) -> None:
        for fault in self.plan.faults:
            await asyncio.sleep(max(0.0, fault.at - self.loop.time()))
            self._tasks.add(asyncio.ensure_future(faults.happen(fault)))

    # -- what a day forgets --

    def _tidy(self) -> None:
        if self.kernel.over or self.ended:
            return
        self.api.expire_events()
        operators = {each.process: each for each in self.operators if not each.process.alive}
        for process in self.kernel.reap():
            if (operator := operators.get(process)) is not None:
                shutil.rmtree(operator.controller.services.options.work_dir, ignore_errors=True)
        self.operators = [each for each in self.operators if each.process.alive]
        for store in self.stores.take_dead():  # type: ignore[attr-defined]
            with contextlib.suppress(OSError):
                if (scratch := store._snapshots._scratch) is not None:
                    scratch.remove()
        for journal in self.journals.take_dead():  # type: ignore[attr-defined]
            journal.close()
        self._forget_pods()
        gc.collect(1)
        self.after(COLLECT_S, self._tidy)

    def _forget_pods(self) -> None:
        pods = self.pods
        for uid, pod in list(pods.pods.items()):
            process = pods.processes.get(uid)
            if (process is None or not process.alive) and pods.current(pod) is None and uid not in pods._tasks:
                del pods.pods[uid]
                pods.processes.pop(uid, None)
                pods.orphans.discard(uid)
                pods._terminated.pop(uid, None)
                pods._reasons.pop(uid, None)
                pods._placed.discard(uid)
                self.network.cut.discard(uid)
        for uid in pods._terminated.keys() - pods._tasks.keys() - pods.pods.keys():
            del pods._terminated[uid]  # it never had a place
        for key in [key for key, uids in pods.running.items() if not uids]:
            del pods.running[key]

    def _sample(self) -> None:
        if self.kernel.over or self.ended:
            return
        self.samples.append(take_sample(self))
        self.day.on_sample(self, self.samples[-1])
        self.after(self.day.sample_s, self._sample)


class _View:
    """A world in which there is one experiment."""

    def __init__(self, world: DayWorld, experiment: Hosted) -> None:
        self._world = world
        self.values = {key: world.values[key] for key in world.values.below(experiment.prefix)}
        archive = world.weather.archive
        self.archive = {key: data for key, data in archive.items() if key.startswith(experiment.prefix)}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)


@contextlib.contextmanager
def _day_patched(world_of: Callable[[], SimWorld]) -> Iterator[None]:
    with (
        patched(world_of),
        mock.patch.dict(DurableExperiment.__init__.__kwdefaults__, heartbeat_s=HEARTBEAT_S),
        mock.patch.object(fake_api, "PAGE", LARGE_PAGE),
        mock.patch.object(sim_shards, "EVERY_S", SHARD_LOOK_S),
    ):
        yield


def simulate_day(day: Day) -> tuple[Outcome, DayWorld]:
    """Let a day pass; what is wrong stands in the outcome."""
    made: list[DayWorld] = []

    def make(loop: SimLoop, folder: Path) -> DayWorld:
        made.append(DayWorld(day, loop, folder))
        return made[0]

    outcome = run_to_its_end(day.seed, make, _day_patched, lambda world, notes: [])
    return outcome, made[0]
