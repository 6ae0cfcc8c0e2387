"""Machines on which `trialpod run` runs an experiment, and a bucket that outlives them.

What is real: `run_experiment` with its lock, its claim and its replica, the shell, the keeper of the processes, the
host with its journal and files on a disk, and in the trials' processes the runner. Made up are the processes
themselves, the socket between them, the bucket and the clock.

A run that dies at an instruction dies in the middle of what it appends to the journal, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from fake_pods import Caller
from sim_kernel import PROCESS, Kernel, Process, SimLoop, SimThread, kernel, sim_threading, sim_time
from sim_local_plan import LocalPlan
from sim_pods import HOP_S, Network, SimPreemption
from sim_storage import StoreWeather
from sim_witness import Track, Witness
from sim_world import Journals, Outcome, Surroundings, Violation, patched, run_to_its_end

from trialpod.errors import ExperimentLockedError, TrialpodError
from trialpod.runner import main as runner_main
from trialpod.runner.fork_server.protocol import Preloaded
from trialpod.storage import trial_log
from trialpod.storage.base import storage_error
from trialpod.storage.checkpoints import local, open_checkpoints
from trialpod.storage.checkpoints.local import LocalCheckpointStore
from trialpod.storage.checkpoints.remote import RemoteCheckpointStore
from trialpod.storage.checkpoints.store import CheckpointStore
from trialpod.storage.journal.journal import Journal
from trialpod.storage.registry import open_storage
from trialpod_operator.api.loader import load_manifests
from trialpod_operator.experiment import journaled_engine as host_module
from trialpod_operator.experiment import writer
from trialpod_operator.experiment.plan import ExperimentPlan, plan_from_manifest
from trialpod_operator.experiment.replica.replica import FencedError
from trialpod_operator.local import experiment_run, processes
from trialpod_operator.local import shell as shell_module
from trialpod_operator.local.experiment_run import RunOptions, run_experiment
from trialpod_operator.local.machine_resources import Machine
from trialpod_operator.local.processes import ExitInfo
from trialpod_operator.local.shell import LocalShell, RunOutcome

NAME = "digits"
URI = "s3://bucket/runs"
WITHIN_S = 3_000.0
"""Maximum time from the last fault to the experiment's end."""
MOST_RUNS = 300
AGAIN_S = (0.05, 3.0)
"""Somebody starts the run again after a time between these."""
TORN = 0.4
"""Share of the deaths right after an append that leave only a part of the record."""
SIGTERM, SIGKILL = -15, -9


class Killed(BaseException):
    """A run is dead, and what its event loop was doing ends here."""


def die_at(where: str) -> None:
    """A process may be killed just here."""
    process = PROCESS.get()
    if process is not None:
        process.point(where)
        if not process.alive:
            raise Killed


class Box:
    """A machine.

    Attributes:
        offset_s: how wrong its clock is.
        full: its disk takes nothing.
        gone_s: when it was lost, or another one took over.
        archive: all of the journal that snapshots have replaced.
    """

    def __init__(self, world: LocalWorld, number: int) -> None:
        self.name = f"machine-{number}"
        self.folder = world.folder / self.name
        self.archive = self.folder / "archive"
        self.archive.mkdir(parents=True)
        self.directory = self.folder / NAME
        self.track = Track(self.name)
        self.offset_s = 0.0
        self.full = False
        self.gone_s: float | None = None
        self.holder: SimRun | None = None

    def refuse_when_full(self, what: str) -> None:
        if self.full:
            raise storage_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), what, self.directory)


class SimRun:
    """One `trialpod run`: its process, and those of its trials."""

    def __init__(self, world: LocalWorld, box: Box, number: int) -> None:
        self.world, self.box = world, box
        self.process = Process(world.kernel, f"run-{number}")
        self.process.offset_s = box.offset_s
        self.process.run = self  # type: ignore[attr-defined]
        self.process.on_kill = lambda: world.run_gone(self)
        self.process.on_exit = lambda _status: world.run_gone(self)
        self.service = SimpleNamespace(handle=self._handle)
        self.shell: LocalShell | None = None
        self.serves: Callable[..., Any] | None = None
        self.pool: SimPool | None = None
        self.outcome: RunOutcome | None = None
        self.error: BaseException | None = None
        self.released = True
        self.ended_s = 0.0
        self.listens = False  # a signal to end is not the end at once
        self.process.spawn(self._main, "main")

    def _main(self) -> None:
        world = self.world
        options = RunOptions(cpus=float(world.plan.cpus), gpus=0, wait=partial(world.kernel.log, "waits"))
        try:
            self.outcome = run_experiment(world.make_plan, self.box.directory, _Silent(self, world.folder), options)
        except (TrialpodError, OSError) as error:
            self.error = error
            text = str(error).replace(str(world.folder), "").partition("(")[0]
            world.kernel.log("refused", f"{self.process.name} {type(error).__name__} {text}")
        except Exception as error:  # noqa: BLE001 - no user is to see it
            world.kernel.record_error(f"{self.process.name} failed", error)
        self.process.exit(0)

    @property
    def holds(self) -> bool:
        """Whether it, or a process that it started, has the experiment's lock."""
        mine = self.process.alive and not self.released
        return mine or (self.pool is not None and bool(self.pool.alive))

    def _handle(self, path: str, body: bytes, caller: LocalCaller) -> Any:
        assert self.serves is not None
        try:
            return self.serves(path, body, None)
        except Exception:  # noqa: BLE001 - as the server answers it
            return 500, b""


class LocalCaller(Caller):
    """A trial's process, as the run knows it."""

    def __init__(self, run: SimRun, process: Process) -> None:
        super().__init__("", process.name, process.name)
        self.run, self.process = run, process


class LocalNetwork(Network):
    """Sockets on one machine: they lose nothing while both ends live."""

    def receiver(self, caller: Caller, target: str) -> Any:
        assert isinstance(caller, LocalCaller)
        run = caller.run
        return run if run.process.alive and run.serves is not None else None


class LocalWitness(Witness):
    """What the trials of each machine did."""

    def __init__(self, world: LocalWorld) -> None:
        self.problems = []
        self.steps = {}
        self._random = random.Random(f"trials {world.plan.seed}")

    def track_of(self, process: Process) -> Track:
        track: Track = process.box.track  # type: ignore[attr-defined]
        return track

    def given(self, process: Process, trial_id: str, attempt: int) -> None:
        """Nothing else here says which attempt a process has."""


class SimPool:
    """The fork server and its trials."""

    def __init__(self, **_: Any) -> None:
        process = PROCESS.get()
        assert process is not None
        self.run: SimRun = process.run  # type: ignore[attr-defined]
        self.run.pool = self
        self.world = self.run.world
        self.alive: dict[str, Process] = {}
        self._handles: dict[str, processes.Process] = {}
        self._ready_at = 0.0
        self._random = random.Random(f"pool {self.world.plan.seed} {process.name}")

    async def start(self) -> None:
        await asyncio.sleep(self._random.random() * 0.2)

    async def preload(self, _ref: Any, _storage_uri: str = "") -> Preloaded:
        return Preloaded()

    def spawn(
        self,
        key: str,
        *,
        runner: str,
        address: str,
        experiment: str,
        on_exit: Callable[[ExitInfo], None] | None = None,
        **_: Any,
    ) -> None:
        run, world = self.run, self.world
        self._handles[key] = processes.Process(key, asyncio.get_running_loop().create_future(), on_exit)
        child = Process(world.kernel, key)
        self.alive[key] = child
        child.run, child.box, child.rank = run, run.box, 0  # type: ignore[attr-defined]
        child.experiment = NAME  # type: ignore[attr-defined]
        child.caller = LocalCaller(run, child)  # type: ignore[attr-defined]
        child.offset_s = run.box.offset_s
        child.hostname = run.box.name
        child.on_exit = lambda status: self._gone(key, status)
        child.on_kill = lambda: self._gone(key, SIGKILL)
        child.on_death = lambda: world.harm(child)

        def main() -> None:
            child.exit(runner_main.run(runner=runner, address=address, experiment=experiment))

        wait = max(0.0, self._ready_at - world.kernel.now) + 0.005 + self._random.random() * 0.05
        child.call(lambda: child.spawn(main, "main"), after_s=wait)

    def terminate(self, key: str, sig: int = -SIGTERM) -> None:
        child = self.alive.get(key)
        if child is not None:
            self.world.after(self._random.random() * HOP_S, self.world.signal, child, -int(sig))

    def is_alive(self, key: str) -> bool:
        return key in self.alive

    def kill(self, key: str) -> None:
        self.terminate(key, -SIGKILL)

    async def kill_all(self) -> None:
        exits = [handle.exited for handle in self._handles.values()]
        for key in list(self.alive):
            self.kill(key)
        if exits:
            await asyncio.wait(exits)

    async def close(self) -> None:
        await self.kill_all()

    def die(self, restart_s: float) -> None:
        """The fork server is killed, and so are its trials; a new one takes its place."""
        self._ready_at = self.world.kernel.now + restart_s
        for key, child in list(self.alive.items()):
            child.on_kill = lambda: None
            child.kill()
            self._gone(key, SIGKILL, lost=True)

    def orphaned(self) -> None:
        """The run is gone: the fork server sees it, and ends its trials."""
        for child in list(self.alive.values()):
            self.world.after(self._random.random() * 0.2, child.kill)

    def _gone(self, key: str, status: int, *, lost: bool = False) -> None:
        self.alive.pop(key)
        problem = "the fork server died, and its trials with it" if lost else ""
        info = ExitInfo(key=key, pid=1, status=status, problem=problem, lost=lost)
        self.world.kernel.log("trial gone", f"{key} {status}{' lost' if lost else ''}")
        self.run.process.call(self._report, info, after_s=self._random.random() * HOP_S)

    def _report(self, info: ExitInfo) -> None:
        self._handles.pop(info.key).finish(info)


class _Preemption(SimPreemption):
    """One that dies of the signal while it has no attempt."""

    def sigterm(self, process: Process) -> None:
        if self._attempt is None:
            process.exit(SIGTERM)
        else:
            super().sigterm(process)


class _Server:
    """The report service's socket."""

    def __init__(self, handler: Callable[..., Any]) -> None:
        self._handler = handler

    async def start_unix(self, _path: str) -> None:
        _run().serves = self._handler

    async def close(self) -> None:
        _run().serves = None


class _Lock:
    """The lock on the directory: free when no process has it open any more."""

    def __init__(self, _directory: Path) -> None:
        self._mine = _run()

    def acquire(self, timeout_s: float = 0.0, on_wait: Any = None, *, for_orphans_only: bool = False) -> _Lock:
        box, end = self._mine.box, kernel().now + timeout_s
        while box.holder is not None and box.holder.holds:
            held = box.holder.process.alive and not box.holder.released
            if (for_orphans_only and held) or kernel().now >= end:
                raise ExperimentLockedError(f"{box.holder.process.name} runs it")
            kernel().sleep(0.05)
        box.holder, self._mine.released = self._mine, False
        box.directory.mkdir(exist_ok=True)
        return self

    def fileno(self) -> int:
        return -1

    def release(self) -> None:
        self._mine.released = True


class _Claim(writer.WriterClaim):
    """The claim of a simulated process."""

    def __init__(self, storage: Any) -> None:
        world, run = _run().world, _run()
        number = world.kernel.processes.index(run.process)
        me = writer.Writer(f"{number:016x}", run.box.name, number, run.box.name, "1")
        super().__init__(storage, me, sim_time.monotonic, sim_time.sleep)


class _Shell(LocalShell):
    """The shell of a simulated process, whose loop is that of all."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, clock=kernel().wall, **options)

    def run(self) -> RunOutcome:
        run, thread = _run(), kernel().current
        assert thread is not None
        run.shell = self
        ended: list[tuple[RunOutcome | None, Exception | None]] = []

        async def whole(thread: SimThread) -> None:
            try:
                ended.append((await self._run(), None))
            except Exception as error:  # noqa: BLE001 - raised in the thread
                ended.append((None, error))
            kernel().unpark(thread)

        run.process.call(lambda: asyncio.ensure_future(whole(thread)))
        kernel().park(None)
        outcome, error = ended[0]
        if error is not None:
            raise error
        assert outcome is not None
        return outcome

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        run = _run()
        run.listens = True
        yield
        run.listens = False


class _Silent:
    """A display; what it is told is in the timeline."""

    detail = 0
    rows = 0
    interval_s = 1.0

    def __init__(self, run: SimRun, folder: Path) -> None:
        self._run, self._folder = run, folder

    def start(self, view: Any) -> None: ...

    def update(self, view: Any) -> None: ...

    def event(self, event: Any) -> None:
        text = str(event.message or event).replace(str(self._folder), "").partition("(")[0]
        self._run.world.kernel.log("said", text[:200].partition("\n")[0])

    def output(self, output: Any) -> None: ...

    def finish(self, view: Any) -> None: ...

    def close(self) -> None: ...


class SimJournal(Journal):
    """A journal whose writer may die around each write, and in the middle of one."""

    def append(self, record: bytes) -> int:
        box = _run().box
        die_at("before an append")
        box.refuse_when_full("cannot append to the journal in")
        position = super().append(record)
        process = PROCESS.get()
        assert process is not None
        if process.countdown == 0 and kernel().random.random() < TORN:
            assert self._current is not None
            whole = self._end - 1 - kernel().random.randrange(len(record))
            os.truncate(self._path(self._current.number, "log"), whole)
        die_at("after an append")
        return position

    def write_snapshot(self, data: bytes) -> None:
        die_at("before a snapshot")
        for path in Path(self._directory).glob("*.log"):
            shutil.copy(path, _run().box.archive / path.name)
        super().write_snapshot(data)
        die_at("after a snapshot")


def _run() -> SimRun:
    process = PROCESS.get()
    assert process is not None
    run: SimRun = process.run  # type: ignore[attr-defined]
    return run


def _box() -> Box | None:
    process = PROCESS.get()
    run = getattr(process, "run", None)
    return run.box if run is not None else None


class LocalWorld(Surroundings):
    """Everything. Made and used within `simulate_local`."""

    def __init__(self, plan: LocalPlan, loop: SimLoop, folder: Path, keep: bool) -> None:
        self.plan = plan
        self.kernel = Kernel(plan.seed, loop, keep)
        self.loop = loop
        self.folder = folder
        self.context = contextvars.copy_context()
        self.random = random.Random(f"world {plan.seed}")
        self.api_random = random.Random(f"jitter {plan.seed}")
        self.values: dict[str, bytes] = {}
        self.weather = StoreWeather(self.kernel, str(plan.seed))
        self.network: Any = LocalNetwork(self)  # type: ignore[arg-type]
        self.pods = LocalWitness(self)
        self.boxes: list[Box] = []
        self.runs: list[SimRun] = []
        self.box = self.new_box()
        self.stores: list[RemoteCheckpointStore] = []
        self.journals: list[Journal] = []
        self.leaks: list[str] = []
        self.finished: RunOutcome | None = None
        self.finished_by: SimRun | None = None
        self.again: RunOutcome | None = None
        self.excused = False
        """Failures may have been counted that were nobody's fault: the disk was full."""
        self._tasks: set[asyncio.Task[Any]] = set()
        document = {
            "apiVersion": "trialpod.dev/v1alpha1",
            "kind": "TuneExperiment",
            "metadata": {"name": NAME},
            "spec": {"metric": "score", "mode": "max", **plan.spec},
        }
        (self._experiment,) = load_manifests(json.dumps(document), "the plan")

    # -- for the parts --

    def hosted(self, _name: str) -> Any:
        """Return the experiment, as trials see it."""
        return SimpleNamespace(plan=self.plan)

    def make_plan(self, stored: Mapping[str, Any] | None) -> ExperimentPlan:
        return plan_from_manifest(self._experiment, self.folder, stored, URI if self.plan.bucket else "")

    def open_checkpoints(self, _assignment: Any, folder: str, uri: str, *, marked: bool = False) -> CheckpointStore:
        assert not marked
        if not uri:
            return open_checkpoints(open_storage(folder))
        store = RemoteCheckpointStore(
            self.open_storage(uri), scratch=self.folder / "scratch", packing=None, wall=self.kernel.wall
        )
        self.stores.append(store)
        return store

    def recovers_alone(self, process: Process) -> bool:
        """Return whether no other machine can have taken away what a process resumes from."""
        return process.run.box is self.box  # type: ignore[attr-defined]

    def harm(self, child: Process) -> None:
        """A process dies by what counts as its own fault: that of the trial that it has, or is just given."""
        attempt = getattr(child, "attempt", None)
        trials = {attempt[0] if attempt is not None else child.name.partition(".")[0]}
        shell = child.run.shell  # type: ignore[attr-defined]
        if shell is not None and (worker := shell._workers._workers.get(child.name)) is not None:
            trials.add(worker.trial.trial_id)
        for trial_id in trials:
            child.box.track.harmed[trial_id] += 1  # type: ignore[attr-defined]

    def signal(self, child: Process, number: int) -> None:
        """Have a signal reach a trial's process."""
        if not child.alive:
            return
        watch = getattr(child, "watch", None)
        if number == SIGKILL:
            child.kill()
        elif watch is None:
            child.on_kill = lambda: None
            child.kill()
            child.on_exit(SIGTERM)
        else:
            self.kernel.log("SIGTERM", child.name)
            child.call(watch.sigterm, child)

    # -- machines and runs --

    def new_box(self) -> Box:
        """Return another machine."""
        box = Box(self, len(self.boxes) + 1)
        self.boxes.append(box)
        return box

    @property
    def run_now(self) -> SimRun | None:
        """The run that is alive, the newest of several."""
        alive = [run for run in self.runs if run.process.alive]
        return alive[-1] if alive else None

    def start_run(self, box: Box | None = None) -> SimRun:
        run = SimRun(self, box or self.box, len(self.runs) + 1)
        self.runs.append(run)
        self.kernel.log("run", f"{run.process.name} on {run.box.name}")
        return run

    def run_gone(self, run: SimRun) -> None:
        """It has ended, or was killed."""
        run.serves, run.ended_s = None, self.loop.time()
        if run.pool is not None:
            run.pool.orphaned()
        if run.outcome is not None and not run.outcome.interrupted and not run.outcome.uncopied:
            if self.finished is None:
                self.finished, self.finished_by = run.outcome, run
            else:
                self.again = run.outcome
            return
        if isinstance(run.error, FencedError) and "different histories" in str(run.error):
            shutil.rmtree(run.box.directory)  # its user moves it away, as the message says
        self.after(self.random.uniform(*AGAIN_S), self._start_again)

    def _start_again(self) -> None:
        if self.run_now is None and self.again is None:
            self.start_run()

    # -- a run --

    async def run(self) -> None:
        """Let the plan happen, then let everything heal and come to its end."""
        from sim_local_faults import LocalFaults

        self.start_run()
        faults = LocalFaults(self)
        for fault in self.plan.faults:
            wait = fault.at - self.loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            if self.finished is not None:
                break
            self.kernel.log("FAULT", f"{fault.kind} for {fault.for_s} x {fault.x}")
            self._tasks.add(asyncio.ensure_future(faults.happen(fault)))
        if self._tasks:
            await asyncio.gather(*self._tasks)
        faults.heal()
        self.kernel.log("healed")
        await self._until(lambda: self.finished is not None and self.run_now is None, "over")
        if self._is_wrong:
            return
        results = sum(map(len, (numbers for box in self.boxes for numbers in box.track.sent.values())))
        attempts = len([process for process in self.kernel.processes if hasattr(process, "caller")])
        self.start_run()
        await self._until(lambda: self.again is not None and self.run_now is None, "over a second time")
        if self._is_wrong:
            return
        more = sum(map(len, (numbers for box in self.boxes for numbers in box.track.sent.values()))) - results
        more_attempts = len([each for each in self.kernel.processes if hasattr(each, "caller")]) - attempts
        if more or more_attempts:
            raise Violation(f"a further run of what was over made {more_attempts} attempts and {more} results")
        left = [each.name for each in self.kernel.processes if each.alive]
        if left:
            raise Violation(f"processes are left: {left}")

    @property
    def _is_wrong(self) -> bool:
        return bool(self.kernel.errors or self.pods.problems)

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        began, runs = self.loop.time(), len(self.runs)
        while not holds():
            if self._is_wrong:
                return
            if self.loop.time() - began > WITHIN_S or len(self.runs) - runs > MOST_RUNS:
                run = self.runs[-1]
                seconds = self.loop.time() - began
                raise Violation(f"liveness: not {what} after {seconds:.0f} s: {run.process.name}, {run.error}")
            await asyncio.sleep(0.5)


@contextlib.contextmanager
def patched_local(world_of: Callable[[], LocalWorld]) -> Iterator[None]:
    """Put a machine's simulated parts in the place of the real ones."""
    undo: list[Callable[[], None]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        before = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
        undo.append(lambda: setattr(owner, name, before))
        setattr(owner, name, value)

    def between(owner: Any, name: str) -> None:
        """A process may die before and after this, and a full disk refuses it."""
        real = getattr(owner, name)

        def wrapped(*args: Any, **options: Any) -> Any:
            die_at(f"before {name}")
            if (box := _box()) is not None:
                box.refuse_when_full("cannot write in")
            made = real(*args, **options)
            die_at(f"after {name}")
            return made

        put(owner, name, wrapped)

    def alive(pid: int) -> str:
        return "1" if world_of().kernel.processes[pid].alive else ""

    with patched(world_of):  # type: ignore[arg-type]
        try:
            put(host_module, "Journal", Journals(world_of, SimJournal))
            put(runner_main, "PreemptionWatch", _Preemption)
            put(writer, "threading", sim_threading)
            put(writer, "_start_of", alive)
            put(experiment_run, "ExperimentLock", _Lock)
            put(experiment_run, "WriterClaim", _Claim)
            put(experiment_run, "ForkServer", lambda **_: SimpleNamespace(end=lambda: None))
            put(experiment_run, "open_storage", lambda *args: world_of().open_storage(*args))
            cpus = float(world_of().plan.cpus)
            put(experiment_run, "Machine", SimpleNamespace(detect=lambda **_: Machine(cpus=cpus, memory=1 << 33)))
            put(shell_module, "LocalShell", _Shell)
            put(shell_module, "ProcessPool", SimPool)
            put(shell_module, "ReportServer", _Server)
            put(shell_module, "Scratch", lambda *_: SimpleNamespace(path="/nowhere", remove=lambda: None))
            put(shell_module, "remove_left_behind", lambda _place: None)
            put(shell_module, "threading", sim_threading)
            put(shell_module, "time", sim_time)
            put(trial_log, "os", _Disk())
            between(local, "sync_tree")
            between(LocalCheckpointStore, "_publish")
            yield
        finally:
            for each in reversed(undo):
                each()


class _Disk:
    """The module os, on a disk that may be full."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, descriptor: int, data: Any) -> int:
        if (box := _box()) is not None and box.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(descriptor, data)


def simulate_local(plan: LocalPlan, *, keep: bool = False) -> Outcome:
    """Let a plan happen and judge what came of it.

    Args:
        plan: what is to happen.
        keep: keep the timeline.
    """
    from sim_local_oracles import judge_local

    with mock.patch.object(host_module, "SNAPSHOT_MIN_BYTES", plan.journal_bytes):
        return run_to_its_end(
            plan.seed, lambda loop, folder: LocalWorld(plan, loop, folder, keep), patched_local, judge_local, Killed
        )
