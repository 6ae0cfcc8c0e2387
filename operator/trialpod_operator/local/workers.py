"""The trial processes of one experiment: which attempt each one has, what waits for resources, how each one ends.

Invariants:

* An attempt that was started either gets a process or is reported as ended; none is forgotten.
* An attempt goes only to a process that is alive then: the death of a process before counts for no trial.
* A process holds its resources until it and its descendants are gone.
* A process whose trial continues with another config keeps its place, and gets the trial's next attempt when it asks
  for it; unless others wait for resources first.
* Everything here belongs to the event loop of the shell.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import Assignment, AssignmentAnswer, AssignmentRequest, AttemptEnd
from trialpod_operator.engine.events import AnyEvent, AttemptEnded, AttemptStarted
from trialpod_operator.engine.trial import Trial
from trialpod_operator.experiment.plan import ExperimentPlan
from trialpod_operator.local.machine_resources import MachineResources
from trialpod_operator.local.processes import ExitInfo, ProcessPool, describe_exit

BUDGET_DELAY_S = 1.0
"""How long an attempt may take to report once a budget of the experiment is used up, before it gets SIGTERM."""
CLEANUP_GRACES = 2
"""Grace periods for which a trial may continue after its last result before it is asked to end."""
RETURN_S = 0.5
"""Maximum time that work waits for a process that has ended its attempt; then another one is started for it."""
IDLE_WORKER_S = 5.0
"""Maximum time that a reused process waits for work."""

_NO_WORK = AssignmentAnswer(reason="there is no more work")


class Shell(Protocol):
    """What the processes' keeper needs of the shell."""

    def apply(self, event: AnyEvent) -> None:
        """Apply an event; raises when it cannot be journaled."""
        ...

    def soon(self, call: Callable[[], None]) -> None:
        """Call in the loop's next round; an exception ends the run."""
        ...

    def guarded(self, call: Callable[[], None]) -> None:
        """Call now; an exception ends the run."""
        ...

    def assignment(self, trial: Trial) -> Assignment:
        """Return the assignment of the trial's current attempt."""
        ...

    def log_path(self, trial: Trial) -> str:
        """Return the file for what the trial prints."""
        ...

    def process_ended(self) -> None:
        """A process is gone."""
        ...

    @property
    def finished(self) -> bool:
        """True when the experiment has no more work."""
        ...

    @property
    def failing(self) -> bool:
        """True when nothing can be recorded any more."""
        ...


@dataclass
class _Worker:
    """One trial process, and the attempt that it has."""

    key: str
    trial: Trial
    attempt: int
    waiting: asyncio.Future[tuple[Trial, int] | None] | None = None
    resources: dict[str, float] = field(default_factory=dict)
    given: bool = False  # it has fetched the assignment of this attempt
    stays: bool = False  # it has said that it asks for its trial's next attempt
    dropped: tuple[Trial, int] | None = None  # what it was to get, and was stopped just then
    free_since: float | None = None  # when its attempt was first seen to have ended, by the loop's clock
    signals: set[int] = field(default_factory=set)  # sent to it

    @property
    def busy(self) -> bool:
        """True while its attempt has not ended."""
        return self.trial.running and self.trial.attempt == self.attempt

    @property
    def idle(self) -> bool:
        """True while it waits for another attempt."""
        return self.waiting is not None and not self.waiting.done()


class Workers:
    """Starts and ends trial processes within the machine's resources.

    Args:
        plan: what is run.
        machine_resources: the machine's resources.
        pool: starts the processes.
        shell: whom to tell.
        address: of the report service.
        service: the experiment's name there.
    """

    def __init__(
        self,
        plan: ExperimentPlan,
        machine_resources: MachineResources,
        pool: ProcessPool,
        shell: Shell,
        *,
        address: str,
        service: str,
    ) -> None:
        self._plan = plan
        self._machine_resources = machine_resources
        self._pool = pool
        self._shell = shell
        self._address = address
        self._service = service
        self._workers: dict[str, _Worker] = {}
        self._queue: deque[tuple[Trial, int]] = deque()  # attempts that wait for resources
        self._serial = 0
        self._killing = False  # from now on processes end because they are killed from here

    @property
    def any(self) -> bool:
        """True while there is a process."""
        return bool(self._workers)

    def start(self, trial: Trial, attempt: int) -> None:
        """Start a process for the attempt, as soon as there are resources."""
        self._queue.append((trial, attempt))
        self._shell.soon(self._pump)

    def stop(self, trial: Trial, attempt: int) -> None:
        """Ensure that the attempt ends: by its next answer, later by SIGTERM, at last by SIGKILL."""
        worker = self._worker_of(trial, attempt)
        if worker is not None:
            # One that hangs is not reached by an answer: it asks for none.
            self._force(worker, 0.0 if trial.current.deadline_missed else self._stop_delay_s(trial))
            return
        for other in self._workers.values():  # a process may be about to get it
            given = other.waiting
            if given is not None and given.done() and not given.cancelled() and given.result() == (trial, attempt):
                other.dropped = (trial, attempt)
        end = AttemptEnd(cause="stopped" if trial.current.decision == "stop" else "paused")
        event = AttemptEnded(trial_id=trial.trial_id, attempt=attempt, end=end)
        self._shell.soon(lambda: self._shell.apply(event))

    def _stop_delay_s(self, trial: Trial) -> float:
        """Return how long an attempt may take to hear of a decision, before it gets SIGTERM."""
        if trial.current.decision_reason.get("source") in ("time_budget", "budget"):
            return min(BUDGET_DELAY_S, self._plan.grace_s)
        return self._plan.grace_s

    def stays(self, trial_id: str, attempt: int) -> None:
        """The attempt ends, and its process asks for the next one of the same trial."""
        for worker in self._workers.values():
            if worker.trial.trial_id == trial_id and worker.attempt == attempt:
                worker.stays = True
                wait_s = CLEANUP_GRACES * self._plan.grace_s
                asyncio.get_running_loop().call_later(wait_s, self._give_up_waiting, worker, attempt)

    def _give_up_waiting(self, worker: _Worker, attempt: int) -> None:
        """End a process that has not asked for the attempt that waits for it."""
        hangs = worker.stays and worker.attempt == attempt and worker.waiting is None
        if hangs and self._workers.get(worker.key) is worker:
            self._signal(worker, signal.SIGKILL)
            self._shell.soon(self._pump)

    def expect_end(self, trial: Trial, attempt: int) -> None:
        """That was the attempt's last result: its code has time to clean up, but not forever."""
        worker = self._worker_of(trial, attempt)
        if worker is not None:
            self._force(worker, CLEANUP_GRACES * self._plan.grace_s)

    def assign(self, request: AssignmentRequest) -> AssignmentAnswer | Awaitable[AssignmentAnswer]:
        """Give a process its attempt; one that has done its own gets another, when there is one."""
        worker = self._workers.get(request.runner)
        if worker is None:
            return AssignmentAnswer(reason=f"no process '{request.runner}' was started here")
        if worker.busy:
            return self._give(worker, request)
        if not (self._plan.settings.reuse or worker.stays) or self._shell.finished:
            return _NO_WORK
        return self._give_next(worker, request)

    def terminate_all(self) -> None:
        """Ask all processes to end."""
        for worker in self._workers.values():
            self._signal(worker, signal.SIGTERM)

    def release_idle(self) -> None:
        """Let the processes go that wait for more work."""
        for worker in self._workers.values():
            if worker.idle and worker.waiting is not None:
                worker.waiting.set_result(None)

    async def kill_all(self) -> None:
        """Kill all processes; returns when they are gone. Nothing is started any more."""
        self._killing = True
        await self._pool.kill_all()
        await asyncio.sleep(0)  # the loop tells of the last exits in its next round

    def _pump(self) -> None:
        """Start what waits, as far as the resources go."""
        expected: list[tuple[Trial, int]] = []  # a process is about to ask for them
        returning = self._returning() if self._plan.settings.reuse else 0
        while self._queue:
            trial, attempt = self._queue[0]
            if trial.running and trial.attempt == attempt:
                own = next((one for one in self._workers.values() if one.trial is trial and one.stays), None)
                if own is not None and own.waiting is None and not own.signals:
                    expected.append(self._queue.popleft())
                    continue
                if not self._hand_over(trial, attempt, own):
                    if returning > 0:
                        returning -= 1
                        expected.append(self._queue.popleft())
                        continue
                    if not self._spawn(trial, attempt):
                        break
            self._queue.popleft()
        self._queue.extendleft(reversed(expected))

    def _returning(self) -> int:
        """Return how many processes have just ended their attempt and are about to ask for another one."""
        loop = asyncio.get_running_loop()
        now, count = loop.time(), 0
        for worker in self._workers.values():
            if not worker.given or worker.busy or worker.waiting is not None or worker.signals:
                continue
            if worker.free_since is None:
                worker.free_since = now
                loop.call_later(RETURN_S, self._shell.guarded, self._pump)
            count += now - worker.free_since < RETURN_S
        return count

    def _hand_over(self, trial: Trial, attempt: int, own: _Worker | None) -> bool:
        """Give the attempt to a process that waits for work, its trial's own before any other."""
        resources = self._resources(trial)
        for worker in ([own] if own is not None else []) + list(self._workers.values()):
            # A process that waits for its own trial knows no other one.
            fitting = worker.trial is trial or self._plan.settings.reuse
            if worker.idle and worker.waiting is not None and fitting and worker.resources == resources:
                worker.waiting.set_result((trial, attempt))
                return True
        return False

    def _resources(self, trial: Trial) -> dict[str, float] | None:
        """Return what the trial's attempt is given; None when that cannot be computed."""
        if trial.resources:
            return trial.resources
        try:
            return self._plan.resources_for(trial.config)
        except InvalidInputError:
            return None

    def _make_room(self) -> None:
        """Let a process go that waits for work which is not there."""
        for worker in self._workers.values():
            if worker.idle and worker.waiting is not None:
                worker.waiting.set_result(None)
                return

    def _spawn(self, trial: Trial, attempt: int) -> bool:
        """Start a process; return False when there is no room for it yet."""
        try:
            resources = trial.resources or self._plan.resources_for(trial.config)
            if not self._machine_resources.fits(resources):
                self._make_room()
                return False
        except InvalidInputError as error:  # the resources of this one trial, computed from its config
            end = AttemptEnd(cause="failed", error=str(error), retry=False)
            self._shell.apply(AttemptEnded(trial_id=trial.trial_id, attempt=attempt, end=end))
            return True
        self._serial += 1
        key = f"{trial.trial_id}.{attempt}.{self._serial}"
        allocation = self._machine_resources.acquire(key, resources)
        self._workers[key] = _Worker(key, trial, attempt, resources=resources)
        self._pool.spawn(
            key,
            runner=key,
            address=self._address,
            experiment=self._service,
            log_path=self._shell.log_path(trial) if self._plan.log_output else os.devnull,
            env=allocation.env,
            python_path=self._plan.trainable.path,
            on_exit=self._exited,
        )
        return True

    def _give(self, worker: _Worker, request: AssignmentRequest) -> AssignmentAnswer:
        trial = worker.trial
        if not worker.given:
            worker.given = True
            self._shell.apply(
                AttemptStarted(
                    trial_id=trial.trial_id,
                    attempt=worker.attempt,
                    pid=request.pid,
                    hostname=request.hostname,
                    node_ip=request.node_ip,
                    resources=self._machine_resources.effective_request(worker.resources),
                )
            )
        return AssignmentAnswer(assignment=self._shell.assignment(trial))

    async def _give_next(self, worker: _Worker, request: AssignmentRequest) -> AssignmentAnswer:
        waiting: asyncio.Future[tuple[Trial, int] | None] = asyncio.get_running_loop().create_future()
        earlier, worker.waiting = worker.waiting, waiting
        if earlier is not None:
            earlier.cancel()  # its process has given that request up
        self._pump()
        try:
            await asyncio.wait([waiting], timeout=IDLE_WORKER_S)
        except asyncio.CancelledError:
            self._take_back(waiting)
            raise
        finally:
            asks_again = worker.waiting is not waiting
            if not asks_again:
                worker.waiting = None
        # One that died while its request was in progress has run nothing of the trial that waits for it, and one that
        # has asked again would never see this answer.
        if asks_again or self._workers.get(worker.key) is not worker or not self._pool.is_alive(worker.key):
            self._take_back(waiting)
            return _NO_WORK
        work = waiting.result() if waiting.done() and not waiting.cancelled() else None
        if work is None or work == worker.dropped:
            return _NO_WORK
        worker.trial, worker.attempt = work
        worker.given = worker.stays = False
        worker.free_since = None
        return self._give(worker, request)

    def _take_back(self, waiting: asyncio.Future[tuple[Trial, int] | None]) -> None:
        """The process is gone: what it was given in the same moment waits for another one."""
        if waiting.done() and not waiting.cancelled() and (work := waiting.result()) is not None:
            self._queue.appendleft(work)
            self._shell.soon(self._pump)

    def _force(self, worker: _Worker, grace_s: float) -> None:
        """End the worker's attempt by force if it is still there after `grace_s` seconds, and again as long."""
        trial, attempt = worker.trial, worker.attempt

        def send(signum: int) -> None:
            if trial.running and trial.attempt == attempt and self._workers.get(worker.key) is worker:
                self._signal(worker, signum)

        loop = asyncio.get_running_loop()
        loop.call_later(grace_s, send, signal.SIGTERM)
        loop.call_later(grace_s + self._plan.grace_s + 1.0, send, signal.SIGKILL)

    def _exited(self, exit_info: ExitInfo) -> None:
        """A process is gone: free what it had; an attempt of which it said no last word has ended by this."""
        worker = self._workers.pop(exit_info.key, None)
        self._machine_resources.release(exit_info.key)
        if worker is not None and worker.idle and worker.waiting is not None:
            worker.waiting.cancel()
        if worker is not None and worker.busy:
            self._ended_silently(worker, exit_info)
        if not self._killing:
            self._shell.soon(self._pump)
        self._shell.process_ended()

    def _ended_silently(self, worker: _Worker, exit_info: ExitInfo) -> None:
        if self._shell.failing:
            return  # the next start finds the attempt lost
        end = describe_exit(exit_info)
        if self._killing:
            end = AttemptEnd(cause="lost", error="trialpod was asked to exit at once")
        elif -exit_info.status in worker.signals or (worker.signals and exit_info.status == 0):
            end = AttemptEnd(cause="preempted", error="it was ended before it could save its state")
        event = AttemptEnded(trial_id=worker.trial.trial_id, attempt=worker.attempt, end=end)
        self._shell.guarded(lambda: self._shell.apply(event))

    def _worker_of(self, trial: Trial, attempt: int) -> _Worker | None:
        for worker in self._workers.values():
            if worker.trial is trial and worker.attempt == attempt:
                return worker
        return None

    def _signal(self, worker: _Worker, signum: int) -> None:
        worker.signals.add(signum)
        self._pool.terminate(worker.key, signum)
