"""The local shell: one experiment on this machine, its trials as processes.

It carries out what the engine wants: starts and ends processes within the machine's resources, serves the report
service on a Unix socket, and tells a display what happened. One asyncio loop in one thread owns everything here.

Nobody else runs the experiment: a lock on its directory is held by this process and by every trial process, so it is
free only when all of them are gone.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import AssignmentAnswer, AssignmentRequest, AttemptEnd, ReportAnswer
from trialpod.storage.layout import LOG_FILE
from trialpod_operator.engine.actions import (
    Action,
    ExperimentFinished,
    ResultsApplied,
    StartAttempt,
    StopAttempt,
    TrialEnded,
    TrialRequeued,
)
from trialpod_operator.engine.events import (
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    CapacityObserved,
    Recovered,
    ResumeRequested,
    RetryRequested,
    SettingsObserved,
    StopRequested,
    SuspendRequested,
    TimerFired,
)
from trialpod_operator.engine.trial import Trial
from trialpod_operator.experiment.host import ExperimentHost
from trialpod_operator.experiment.mirror import FencedError, Mirror
from trialpod_operator.experiment.plan import ExperimentPlan
from trialpod_operator.local.announce import announce
from trialpod_operator.local.display import events
from trialpod_operator.local.display.base import Display
from trialpod_operator.local.display.words import plural
from trialpod_operator.local.exits import describe_exit
from trialpod_operator.local.fork_server import ForkServer
from trialpod_operator.local.processes import ExitInfo, ProcessPool
from trialpod_operator.local.slots import Slots
from trialpod_operator.local.view import ExperimentView, TrialRow
from trialpod_operator.local.views import build_row, build_view
from trialpod_operator.reports.http import Peer, ReportServer
from trialpod_operator.reports.service import Reply, ReportService, refuse

logger = logging.getLogger(__name__)

HEARTBEAT_S = 2.0
FLUSH_S = 1.0
TICK_S = 60.0
"""While trials run, the engine hears of the time at least this often, so that a crash loses little of the account."""
CLEANUP_GRACES = 2
"""A trial that has reported its last result may go on for so many grace periods before it is asked to end."""
_SERVICE_NAME = "experiment"
"""What the trials' calls are addressed to: the experiment's own name may have characters that no URL has."""
MIRROR_TIMEOUT_S = 300.0
"""How long the end of a run waits for the copy in the storage to be complete."""
IDLE_WORKER_S = 5.0
"""A reused process without work is let go after this time."""


@dataclass
class _Worker:
    """One trial process, and the attempt that it has."""

    key: str
    trial: Trial
    attempt: int
    waiting: asyncio.Future[tuple[Trial, int] | None] | None = None
    given: bool = False  # it has fetched the assignment of this attempt
    signals: set[int] = field(default_factory=set)  # sent to it


@dataclass(frozen=True)
class RunOutcome:
    """How a run of the shell ended: finished, or interrupted with everything kept."""

    view: ExperimentView
    interrupted: bool


class LocalShell:
    """Runs one experiment to its end, or until it is interrupted.

    Args:
        plan: what to run.
        directory: the experiment's directory; its lock is already held.
        lock_fd: the lock's file descriptor, which trial processes inherit.
        slots: the machine's resources.
        display: shows what happens.
        clock: seconds since the epoch.
        retry_errors: queue failed trials of an earlier run again; "scratch" = without their checkpoints.
        drop_unfinished: stop the trials that an earlier run left unfinished instead of going on with them.
        mirror: copies the directory to its storage; brought up to date already.
    """

    def __init__(
        self,
        plan: ExperimentPlan,
        directory: Path,
        lock_fd: int,
        slots: Slots,
        display: Display,
        clock: Callable[[], float] = time.time,
        retry_errors: str = "",
        drop_unfinished: bool = False,
        mirror: Mirror | None = None,
        fork_server: ForkServer | None = None,
    ) -> None:
        self._plan = plan
        self._directory = directory
        self._lock_fd = lock_fd
        self._slots = slots
        self._display = display
        self._clock = clock
        self._retry_errors = retry_errors
        self._drop_unfinished = drop_unfinished
        self._mirror = mirror
        self._fork_server = fork_server
        self._service = ReportService(self)
        self._workers: dict[str, _Worker] = {}
        self._queue: deque[tuple[Trial, int]] = deque()  # attempts that wait for resources
        self._serial = 0
        self._address = ""
        self._interrupts = 0
        self._failure: BaseException | None = None
        self._killing = False  # from now on processes end because they are killed from here
        self._recovering: list[Trial] | None = None  # whose attempts ended with an earlier run of the shell
        self._host: ExperimentHost
        self._pool: ProcessPool
        self._changed: asyncio.Event
        self._wakeup: asyncio.TimerHandle | None = None

    def run(self) -> RunOutcome:
        """Run the experiment; returns when it has finished or was interrupted.

        Raises:
            TrialpodError: the experiment cannot go on (its journal cannot be written or read, ...). What was
                journaled is safe.
        """
        if _in_a_running_loop():
            return _in_a_thread(lambda: asyncio.run(self._run()))
        return asyncio.run(self._run())

    # -- for the report service --

    def find(self, name: str) -> LocalShell | None:
        """Return this experiment: there is only one here."""
        return self if name == _SERVICE_NAME else None

    def apply(self, event: AnyEvent) -> None:
        """Apply an event of an attempt."""
        if self._failure is not None:
            raise self._failure
        try:
            self._host.apply(event)
        except Exception as error:
            self._fail(error)
            raise
        self._after_event()

    def answer(self, trial_id: str, attempt: int) -> ReportAnswer:
        """Return what an attempt is to know."""
        return self._host.answer(trial_id, attempt)

    def assign(self, request: AssignmentRequest) -> AssignmentAnswer | Awaitable[AssignmentAnswer]:
        """Give a process its attempt; one that has done its own gets another, when there is one."""
        worker = self._workers.get(request.runner)
        if worker is None:
            return AssignmentAnswer(reason=f"no process '{request.runner}' was started here")
        current = worker.trial.running and worker.trial.attempt == worker.attempt
        if current:
            return self._give(worker, request)
        if not self._plan.settings.reuse or self._host.engine.finished:
            return AssignmentAnswer(reason="there is no more work")
        return self._give_next(worker, request)

    # -- the run --

    async def _run(self) -> RunOutcome:
        self._changed = asyncio.Event()
        env = {**os.environ, **self._slots.thread_env(self._plan.resources)}
        self._pool = ProcessPool(env=env, keep_fd=self._lock_fd, server=self._fork_server)
        with tempfile.TemporaryDirectory(prefix="trialpod-") as folder:
            server = ReportServer(self._handle)
            socket_path = str(Path(folder, "reports.sock"))
            self._address = f"unix:{socket_path}"
            await server.start_unix(socket_path)
            try:
                await self._pool.start()
                preload = asyncio.ensure_future(self._pool.preload(self._plan.trainable))
                preload.add_done_callback(_log_preload)
                self._host = ExperimentHost(
                    self._plan, self._directory, self._clock, self._perform, heartbeat_s=HEARTBEAT_S
                )
                self._start_mirror()
                with self._signals():
                    return await self._drive()
            finally:
                await self._pool.close()
                await server.close()
                if hasattr(self, "_host"):
                    self._host.close()
                self._display.close()

    async def _drive(self) -> RunOutcome:
        self._display.start(self._view())
        self._give_hints()
        try:
            self._begin()
            last_flush = last_tick = last_shown = time.monotonic()
            while not self._over():
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), min(self._display.interval_s, FLUSH_S))
                now = time.monotonic()
                if now - last_flush >= FLUSH_S:
                    last_flush = now
                    self._host.flush()
                    self._host.sync()
                if now - last_tick >= TICK_S and self._workers:
                    last_tick = now
                    self.apply(TimerFired())
                if now - last_shown >= self._display.interval_s:
                    last_shown = now
                    self._display.update(self._view(self._display.rows))
        except Exception as error:  # noqa: BLE001 - raised again below, once no process is left
            self._fail(error)
        if self._failure is not None:
            await self._kill_all()
            raise self._failure
        self._host.flush()
        await self._wait_for_exits()
        if self._interrupts < 2:
            self._host.write_snapshot()
            await self._finish_mirror()
        stopped_early = not self._host.engine.finished
        view = self._view(rows=None)
        self._display.finish(view)
        return RunOutcome(view, interrupted=stopped_early and self._interrupts > 0)

    def _start_mirror(self) -> None:
        if self._mirror is None:
            return
        loop = asyncio.get_running_loop()

        def report(message: str) -> None:
            loop.call_soon_threadsafe(self._display.event, events.warning(message))

        def fenced(error: FencedError) -> None:
            loop.call_soon_threadsafe(self._fail, error)

        self._mirror.start(report, fenced)

    async def _finish_mirror(self) -> None:
        """Copy the rest to the storage; a second Ctrl-C ends the wait."""
        if self._mirror is None:
            return
        copying = asyncio.ensure_future(asyncio.to_thread(self._mirror.close, MIRROR_TIMEOUT_S))
        while not copying.done() and self._interrupts < 2:
            await asyncio.wait([copying], timeout=0.2)
        if copying.done() and (problem := copying.result()):
            self._display.event(events.warning(problem))

    def _begin(self) -> None:
        if self._host.engine.state.settings is not None:
            self._recover()
            if self._drop_unfinished:
                left = [trial.trial_id for trial in self._host.engine.state.get_trials() if not trial.ended]
                for trial_id in left:
                    self.apply(StopRequested(trial_id=trial_id))
        self.apply(CapacityObserved(slots=self._capacity()))
        if self._plan.suspend:
            self.apply(SuspendRequested())
        self.apply(SettingsObserved(settings=self._plan.settings))
        if self._retry_errors:
            self.apply(RetryRequested(from_scratch=self._retry_errors == "scratch"))
        if not self._plan.suspend and self._host.engine.state.flags.suspended:
            self.apply(ResumeRequested())

    def _recover(self) -> None:
        """Take up what an earlier run left, and say it in one line for all trials."""
        self._recovering = []
        self.apply(Recovered())
        trials, self._recovering = self._recovering, None
        if trials:
            kept = sum(trial.checkpoint is not None for trial in trials)
            starts = [f"{kept:,} from the latest checkpoint"] if kept else []
            starts += [f"{len(trials) - kept:,} from the beginning"] if kept < len(trials) else []
            were = f"{plural(len(trials), 'trial')} {'were' if len(trials) > 1 else 'was'} running"
            message = f"going on after an interruption: {were} and will start again, {', '.join(starts)}"
            data = {"trials": [trial.trial_id for trial in trials], "with_checkpoint": kept}
            self._display.event(events.Event("recovered", message=message, data=data))

    def _give_hints(self) -> None:
        if self._plan.resources_of is None and (hint := self._slots.hint(self._plan.resources)):
            fact, _, remedy = hint.partition("; ")
            if "manifest" not in self._plan.document:
                remedy = "to use a GPU in each trial: tune.with_resources(trainable, {'gpu': 1}), or a part of one"
            self._display.event(events.warning(fact, remedy))

    def _capacity(self) -> int:
        if self._plan.resources_of is not None:
            return max(1, int(self._slots.machine.cpus))
        return self._slots.concurrency(self._plan.resources)

    def _over(self) -> bool:
        engine = self._host.engine
        if self._failure is not None or engine.finished or self._interrupts > 1:
            return True
        return engine.state.flags.suspended and not engine.state.running

    async def _wait_for_exits(self) -> None:
        for worker in list(self._workers.values()):
            if worker.waiting is not None and not worker.waiting.done():
                worker.waiting.set_result(None)
        deadline = time.monotonic() + self._plan.grace_s
        while self._workers and time.monotonic() < deadline and self._interrupts < 2:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 0.2)
        if self._workers:
            await self._kill_all()

    async def _kill_all(self) -> None:
        self._killing = True
        await self._pool.kill_all()
        await asyncio.sleep(0)  # the loop tells of the last exits in its next round

    # -- carrying out actions --

    def _perform(self, action: Action) -> None:
        match action:
            case StartAttempt(trial=trial, attempt=attempt):
                self._queue.append((trial, attempt))
                self._soon(self._pump)
                if self._mirror is not None:
                    self._mirror.trial_started(self._host.files.path(trial).name)
            case TrialEnded(trial=trial) if self._mirror is not None:
                self._mirror.trial_ended(self._host.files.path(trial).name)
            case StopAttempt(trial=trial, attempt=attempt):
                self._stop(trial, attempt)
            case ResultsApplied(trial=trial, attempt=attempt) if trial.completion_told and trial.decision is None:
                # That was its last result. The code has time to clean up, but not for ever.
                worker = self._worker_of(trial, attempt)
                if worker is not None:
                    self._force(worker, CLEANUP_GRACES * self._plan.grace_s)
            case ExperimentFinished():
                self._changed.set()
        if self._recovering is not None and isinstance(action, TrialRequeued):
            self._recovering.append(action.trial)
            return
        announcement = announce(action, self._row, self._plan.settings.metric)
        if announcement is not None:
            self._display.event(announcement)

    def _pump(self) -> None:
        """Start what waits, as far as the resources go."""
        while self._queue:
            trial, attempt = self._queue[0]
            if not trial.running or trial.attempt != attempt:
                self._queue.popleft()
                continue
            idle = next((w for w in self._workers.values() if w.waiting and not w.waiting.done()), None)
            if idle is not None and idle.waiting is not None:
                self._queue.popleft()
                idle.waiting.set_result((trial, attempt))
                continue
            try:
                if not self._spawn(trial, attempt):
                    return
            except InvalidInputError as error:  # the resources of this one trial, computed from its config
                end = AttemptEnd(cause="failed", error=str(error), retry=False)
                self.apply(AttemptEnded(trial_id=trial.trial_id, attempt=attempt, end=end))
            self._queue.popleft()

    def _spawn(self, trial: Trial, attempt: int) -> bool:
        resources = self._plan.resources_for(trial.config)
        if not self._slots.fits(resources):
            return False
        self._serial += 1
        key = f"{trial.trial_id}.{attempt}.{self._serial}"
        allocation = self._slots.acquire(key, resources)
        path = self._host.files.path(trial)
        self._workers[key] = _Worker(key, trial, attempt)
        self._pool.spawn(
            key,
            runner=key,
            address=self._address,
            experiment=_SERVICE_NAME,
            log_path=str(path / LOG_FILE) if self._plan.log_output else os.devnull,
            env=allocation.env,
            python_path=self._plan.trainable.path,
            on_exit=self._exited,
        )
        return True

    def _give(self, worker: _Worker, request: AssignmentRequest) -> AssignmentAnswer:
        trial = worker.trial
        if not worker.given:
            worker.given = True
            self.apply(
                AttemptStarted(
                    trial_id=trial.trial_id,
                    attempt=worker.attempt,
                    pid=request.pid,
                    hostname=request.hostname,
                    node_ip=request.node_ip,
                )
            )
        return AssignmentAnswer(assignment=self._host.assignment(trial))

    async def _give_next(self, worker: _Worker, request: AssignmentRequest) -> AssignmentAnswer:
        worker.waiting = asyncio.get_running_loop().create_future()
        self._pump()
        try:
            work = await asyncio.wait_for(worker.waiting, IDLE_WORKER_S)
        except TimeoutError:
            work = None
        finally:
            worker.waiting = None
        if work is None:
            return AssignmentAnswer(reason="there is no more work")
        worker.trial, worker.attempt = work
        worker.given = False
        return self._give(worker, request)

    def _stop(self, trial: Trial, attempt: int) -> None:
        """See to it that the attempt ends: it is told with its next answer, later by SIGTERM, at last by SIGKILL."""
        worker = self._worker_of(trial, attempt)
        if worker is None:
            end = AttemptEnd(cause="paused" if trial.decision == "pause" else "stopped")
            self._soon(lambda: self.apply(AttemptEnded(trial_id=trial.trial_id, attempt=attempt, end=end)))
            return

        self._force(worker, self._plan.grace_s)

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
        self._slots.release(exit_info.key)
        if worker is not None:
            if worker.waiting is not None and not worker.waiting.done():
                worker.waiting.cancel()
            trial = worker.trial
            if trial.running and trial.attempt == worker.attempt:
                self._ended_silently(worker, exit_info)
        if not self._killing:
            self._soon(self._pump)
        self._changed.set()

    def _ended_silently(self, worker: _Worker, exit_info: ExitInfo) -> None:
        if self._failure is not None:
            return  # nothing can be recorded any more; the next start finds the attempt lost
        end = describe_exit(exit_info)
        if self._killing:
            end = AttemptEnd(cause="lost", error="trialpod was told to end at once")
        elif -exit_info.status in worker.signals or (worker.signals and exit_info.status == 0):
            end = AttemptEnd(cause="preempted", error="it was ended before it could save its state")
        event = AttemptEnded(trial_id=worker.trial.trial_id, attempt=worker.attempt, end=end)
        self._guarded(lambda: self.apply(event))

    # -- small parts --

    def _handle(self, path: str, body: bytes, _peer: Peer) -> Reply | Awaitable[Reply]:
        try:
            return self._service.handle(path, body)
        except Exception:
            if self._failure is None:
                raise
            return refuse(503, "the experiment is being ended by an error")  # which `run` raises

    def _worker_of(self, trial: Trial, attempt: int) -> _Worker | None:
        for worker in self._workers.values():
            if worker.trial is trial and worker.attempt == attempt:
                return worker
        return None

    def _after_event(self) -> None:
        if self._over():
            self._changed.set()
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None
        at = self._host.engine.next_wakeup()
        if at is not None:
            delay = max(0.0, at - self._clock())
            self._wakeup = asyncio.get_running_loop().call_later(
                delay, self._guarded, lambda: self.apply(TimerFired())
            )

    def _soon(self, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(self._guarded, call)

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - `_drive` raises it
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        self._changed.set()

    def _row(self, trial: Trial) -> TrialRow:
        host = self._host
        return build_row(
            trial,
            path=str(host.files.path(trial)),
            name=host.trial_name(trial),
            now=self._clock(),
            checkpoints=host.checkpoint_uri(trial),
        )

    def _view(self, rows: int | None = 0) -> ExperimentView:
        engine = self._host.engine
        settings = engine.state.settings or self._plan.settings
        return build_view(engine, settings, path=str(self._directory), now=self._clock(), rows=rows, row=self._row)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """First Ctrl-C (or SIGTERM): pause all trials and keep everything. Second: end at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        signums = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for signum in signums:
            loop.add_signal_handler(signum, self.interrupt)
        try:
            yield
        finally:
            for signum in signums:
                loop.remove_signal_handler(signum)

    def interrupt(self) -> None:
        """Stop gracefully; when called again, at once. Either way nothing that was received is lost."""
        self._interrupts += 1
        self._changed.set()
        if self._interrupts == 1:
            what = "stopping: running trials finish their step and checkpoint"
            self._display.event(events.interrupted(what, "press Ctrl-C again to end at once"))
            self._soon(self._suspend)

    def _suspend(self) -> None:
        self.apply(SuspendRequested())
        for worker in self._workers.values():
            self._signal(worker, signal.SIGTERM)

    def _signal(self, worker: _Worker, signum: int) -> None:
        worker.signals.add(signum)
        self._pool.terminate(worker.key, signum)


def _log_preload(preload: asyncio.Future[str]) -> None:
    if not preload.cancelled() and preload.exception() is None:
        logger.info("loading the Trainable once for all trials: %s", preload.result() or "done")


def _in_a_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_a_thread(call: Callable[[], RunOutcome]) -> RunOutcome:
    """Run in a thread of its own: a notebook's thread has a loop of its own already."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="trialpod-shell") as executor:
        return executor.submit(call).result()
