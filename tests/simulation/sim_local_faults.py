"""What goes wrong on one machine: one method for each kind of fault, and the end of all of them."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

from sim_kernel import Process
from sim_local import SIGKILL, SIGTERM, SimRun
from sim_plan import Fault
from sim_store_faults import StoreFaults

if TYPE_CHECKING:
    from sim_local import LocalWorld

RUN_POINTS = 60
TRIAL_POINTS = 30
"""A process that dies does so within so many points at which that is possible."""
STALL_S = 40.0
"""Minimum time that a run is stopped so that another machine takes it for dead and continues."""


class LocalFaults(StoreFaults):
    """Lets faults happen in a world. A fault counts when it had something to happen to."""

    def __init__(self, world: LocalWorld) -> None:
        self.world = world

    async def happen(self, fault: Fault) -> None:
        """Do it, and undo it where it lasts only for a while."""
        await getattr(self, "_" + fault.kind.replace(" ", "_"))(fault)

    def heal(self) -> None:
        """From now on nothing is broken; what was lost stays lost."""
        world = self.world
        world.weather.clear()
        for box in world.boxes:
            box.full = False
        for process in world.kernel.processes:
            process.countdown = None
            process.resume()

    # -- choices --

    def _count(self, fault: Fault) -> None:
        self.world.kernel.counts[fault.kind] += 1

    def _run(self, fault: Fault) -> SimRun | None:
        run = self.world.run_now
        if run is not None:
            self._count(fault)
        return run

    def _trial(self, fault: Fault) -> Process | None:
        run = self.world.run_now
        trials = list(run.pool.alive.values()) if run is not None and run.pool is not None else []
        if not trials:
            return None
        self._count(fault)
        return trials[min(int(fault.x * len(trials)), len(trials) - 1)]

    # -- the run --

    async def _run_dies(self, fault: Fault) -> None:
        if run := self._run(fault):
            run.process.countdown = int(fault.x * 997) % RUN_POINTS

    async def _run_killed(self, fault: Fault) -> None:
        if run := self._run(fault):
            run.process.kill()

    async def _run_told_to_end(self, fault: Fault) -> None:
        if run := self._run(fault):
            self._signal(run)
            if fault.x < 0.3:
                await asyncio.sleep(fault.for_s)
                self._signal(run)

    def _signal(self, run: SimRun) -> None:
        if run.listens and run.shell is not None:
            run.process.call(run.shell.interrupt)
        else:
            run.process.kill()

    async def _run_paused(self, fault: Fault) -> None:
        if run := self._run(fault):
            run.process.stop()
            await asyncio.sleep(fault.for_s)
            run.process.resume()

    async def _run_clock_jumps(self, fault: Fault) -> None:
        if run := self._run(fault):
            run.box.offset_s += (fault.x - 0.5) * 7200.0
            run.process.offset_s = run.box.offset_s

    async def _second_run(self, fault: Fault) -> None:
        """Somebody starts the experiment again, on the same machine."""
        if run := self._run(fault):
            self.world.start_run(run.box)

    # -- its processes --

    async def _trial_dies(self, fault: Fault) -> None:
        if trial := self._trial(fault):
            trial.countdown = int(fault.x * 997) % TRIAL_POINTS

    async def _trial_killed(self, fault: Fault) -> None:
        if trial := self._trial(fault):
            self.world.harm(trial)
            self.world.signal(trial, SIGKILL)

    async def _trial_told_to_end(self, fault: Fault) -> None:
        if trial := self._trial(fault):
            self.world.signal(trial, SIGTERM)

    async def _trial_paused(self, fault: Fault) -> None:
        if trial := self._trial(fault):
            trial.stop()
            await asyncio.sleep(fault.for_s)
            trial.resume()

    async def _user_code_fails(self, fault: Fault) -> None:
        if trial := self._trial(fault):
            trial.fails = True  # type: ignore[attr-defined]

    async def _fork_server_dies(self, fault: Fault) -> None:
        run = self.world.run_now
        if run is not None and run.pool is not None:
            self._count(fault)
            run.pool.die(min(fault.for_s, 2.0))

    # -- the machine --

    async def _disk_full(self, fault: Fault) -> None:
        box = self.world.box
        self._count(fault)
        self.world.excused = box.full = True
        await asyncio.sleep(fault.for_s)
        box.full = False

    def _gone(self, run: SimRun) -> None:
        world = self.world
        run.box.gone_s = world.loop.time()
        world.box = world.new_box()

    async def _machine_lost(self, fault: Fault) -> None:
        """Everything on it ends at once, and nothing of what it had is seen again."""
        world = self.world
        run = next((run for run in world.runs if run.box is world.box and run.holds), None)
        if run is None:
            return
        self._count(fault)
        self._gone(run)
        for each in world.runs:
            if each.box is run.box:
                for child in list(each.pool.alive.values()) if each.pool is not None else []:
                    child.on_kill = lambda: None
                    child.kill()
                if each.pool is not None:
                    each.pool.alive.clear()
                each.process.kill()
        shutil.rmtree(run.box.directory, ignore_errors=True)

    async def _another_machine_takes_over(self, fault: Fault) -> None:
        """The run is stopped, and is started elsewhere; when it wakes it is not the writer any more."""
        world = self.world
        run = world.run_now
        if run is None or run.box is not world.box:
            return
        self._count(fault)
        run.process.stop()
        if run.pool is not None and fault.x < 0.5:
            for trial in run.pool.alive.values():
                trial.stop()
        self._gone(run)
        world.start_run(world.box)
        await asyncio.sleep(STALL_S + fault.for_s)
        run.process.resume()
        if run.pool is not None:
            for trial in run.pool.alive.values():
                trial.resume()
