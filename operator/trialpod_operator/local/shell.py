"""The local shell: one experiment on this machine, its trials as processes.

It carries out the engine's actions: starts and ends processes within the machine's resources, serves the report
service on a Unix socket, and sends events to a display. One asyncio loop in one thread owns everything here.

No other process runs the experiment: a lock on its directory is held by this process and by every trial process, so
it is free only when all of them are gone.
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
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trialpod.errors import StorageError
from trialpod.protocol.messages import Assignment, AssignmentAnswer, AssignmentRequest, AttemptEnd
from trialpod.runner.fork_server.protocol import Preloaded
from trialpod.storage.layout import LOG_FILE
from trialpod.storage.scratch import RUN_PREFIX, Scratch, remove_left_behind
from trialpod.tune.callback_list import CallbackError
from trialpod_operator.display import events
from trialpod_operator.display.base import Display
from trialpod_operator.display.summary import Remedies
from trialpod_operator.display.view import ExperimentView
from trialpod_operator.engine.actions import (
    Action,
    ExperimentFinished,
    ResultsApplied,
    StartAttempt,
    StopAttempt,
    TrialRequeued,
)
from trialpod_operator.engine.events import (
    AnyEvent,
    CapacityObserved,
    Recovered,
    ResumeRequested,
    RetryRequested,
    SettingsObserved,
    StopRequested,
    SuspendRequested,
)
from trialpod_operator.engine.lifecycle import FAILED
from trialpod_operator.engine.trial import Trial
from trialpod_operator.experiment.durable import DurableExperiment, Shell
from trialpod_operator.experiment.plan import ExperimentPlan
from trialpod_operator.experiment.replica.replica import FencedError, Replica, ReplicaStatus
from trialpod_operator.local.callbacks import Callbacks
from trialpod_operator.local.fork_server import ForkServer
from trialpod_operator.local.machine_resources import MachineResources
from trialpod_operator.local.presenter import RunPresenter
from trialpod_operator.local.processes import ProcessPool
from trialpod_operator.local.trial_output import OutputFollower
from trialpod_operator.local.workers import Workers
from trialpod_operator.reports.server import Peer, ReportServer
from trialpod_operator.reports.service import Caller, Reply, ReportService, Served, refuse

logger = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S = 2.0
_SERVICE_NAME = "experiment"
"""The experiment's name in the URLs of trials: its own name may have characters that a URL cannot have."""
REPLICATION_TIMEOUT_S = 300.0
"""Maximum time that the end of a run waits for the replica in the storage to be complete."""


@dataclass(frozen=True)
class RunOutcome:
    """How a run of the shell ended: finished, or interrupted with everything kept."""

    view: ExperimentView
    interrupted: bool
    uncopied: str = ""
    """What in the directory was not copied to the storage, and what to do."""


class LocalShell(Shell):
    """Runs one experiment to its end, or until it is interrupted.

    Args:
        plan: what to run.
        directory: the experiment's directory; its lock is already held.
        lock_fd: the lock's file descriptor, which trial processes inherit.
        machine_resources: the machine's resources.
        display: shows what happens.
        clock: seconds since the epoch.
        retry_errors: queue failed trials of an earlier run again; "scratch" = without their checkpoints.
        retry_trials: their ids; empty = all that have failed.
        drop_unfinished: stop the trials that an earlier run left unfinished instead of continuing them.
        retry_failed: queue the failed trials again if the experiment failed as a whole.
        ways: what the user can do about results that exist already.
        replica: copies the directory to its storage; it is up to date.
        fork_server: starts the processes; None starts one.
        callbacks: the script's, which receive all events.
        output: follows what trials print; None leaves it in their files.
    """

    def __init__(
        self,
        plan: ExperimentPlan,
        directory: Path,
        lock_fd: int,
        machine_resources: MachineResources,
        display: Display,
        clock: Callable[[], float] = time.time,
        retry_errors: str = "",
        retry_trials: Sequence[str] = (),
        drop_unfinished: bool = False,
        retry_failed: bool = False,
        ways: Remedies | None = None,
        replica: Replica | None = None,
        fork_server: ForkServer | None = None,
        callbacks: Callbacks | None = None,
        output: OutputFollower | None = None,
    ) -> None:
        self._plan = plan
        self._directory = directory
        self._lock_fd = lock_fd
        self._machine_resources = machine_resources
        self._display = display
        self._clock = clock
        self._retry_errors = retry_errors
        self._retry_trials = list(retry_trials)
        self._drop_unfinished = drop_unfinished
        self._retry_failed = retry_failed
        self._ways = ways or Remedies()
        self._replica = replica
        self._fork_server = fork_server
        self._callbacks = callbacks
        self._presenter = RunPresenter(plan, directory, display, output, self._ways)
        self._service = ReportService(self)
        self._interrupts = 0
        self._early_interrupts = 0
        self._loop: asyncio.AbstractEventLoop | None = None  # where `interrupt` may be called from other threads
        self._recovering: list[Trial] | None = None  # whose attempts ended with an earlier run of the shell
        self._experiment: DurableExperiment  # from its opening on
        self._workers: Workers
        self._changed: asyncio.Event

    def run(self) -> RunOutcome:
        """Run the experiment; returns when it has finished or was interrupted.

        Raises:
            TrialpodError: the experiment cannot continue (its journal cannot be written or read, ...). What was
                journaled is safe.
        """
        if _in_a_running_loop():
            return self._run_in_a_thread()
        return asyncio.run(self._run())

    def _run_in_a_thread(self) -> RunOutcome:
        """Run in a thread of its own, as the loop of a notebook's kernel needs the thread that it is in.

        An interrupt of the kernel means what Ctrl-C means in a terminal; the thread has ended when this returns.
        """

        def run() -> None:
            try:
                outcome.set_result(asyncio.run(self._run()))
            except BaseException as error:  # noqa: BLE001 - raised again where the outcome is waited for
                outcome.set_exception(error)

        outcome: concurrent.futures.Future[RunOutcome] = concurrent.futures.Future()
        with self._interrupts_from_outside():
            thread = threading.Thread(target=run, name="trialpod-shell")
            thread.start()
            thread.join()
        return outcome.result()

    @contextlib.contextmanager
    def _interrupts_from_outside(self) -> Iterator[None]:
        """Pass SIGINT on to the loop of another thread; it does not raise KeyboardInterrupt meanwhile."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(_signum: int, _frame: object) -> None:
            if self._loop is None:
                self._early_interrupts += 1
            else:
                _tell(self._loop, self.interrupt)

        before = signal.signal(signal.SIGINT, handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    # -- for the report service --

    def find(self, name: str) -> Served | None:
        """Return this experiment: there is only one here."""
        return Served(self._experiment, self) if name == _SERVICE_NAME else None

    def assign(self, request: AssignmentRequest) -> AssignmentAnswer | Awaitable[AssignmentAnswer]:
        """Give a process its attempt; one that has done its own gets another, when there is one."""
        reply = self._workers.assign(request)
        return reply if self._replica is None else self._once_stored(reply)

    async def _once_stored(self, reply: AssignmentAnswer | Awaitable[AssignmentAnswer]) -> AssignmentAnswer:
        """Answer with an attempt that resumes an earlier one only once its start is committed.

        It removes checkpoints that this journal does not know. If another machine has taken over while this one was
        suspended, these are the other's; the commit finds that out.
        """
        answer = reply if isinstance(reply, AssignmentAnswer) else await reply
        work = answer.assignment
        if work is not None and (work.attempt > 1 or work.checkpoint is not None):
            await self._experiment.commit()
        return answer

    def attempt_ended(self, trial_id: str, attempt: int, end: AttemptEnd) -> AttemptEnd:
        """Keep a process that asks for its trial's next attempt."""
        if end.asks:
            self._workers.stays(trial_id, attempt)
        return end

    def permits(self, caller: Caller, trial_id: str) -> str | None:
        """Permit every caller: only this user can open the socket."""
        return None

    # -- for the experiment --

    def step(self, event: AnyEvent) -> contextlib.AbstractContextManager[None]:
        """Call the script's callbacks for an event."""
        return self._callbacks.step(event) if self._callbacks is not None else contextlib.nullcontext()

    def applied(self, event: AnyEvent, position: int, *, blocks: bool) -> None:
        """Show an event, and check whether it was the last."""
        self._presenter.applied(event)
        if self._over():
            self._changed.set()

    def replica_changed(self, status: ReplicaStatus) -> None:
        """Show it."""
        self._display.event(events.warning(status.message))

    def broken(self, error: BaseException) -> None:
        """End the run: `_drive` raises the error."""
        self._changed.set()

    def apply(self, event: AnyEvent) -> None:
        """Apply an event of this shell."""
        self._experiment.apply(event)

    # -- for `Workers` --

    @property
    def finished(self) -> bool:
        """True when the experiment has no more work."""
        return self._experiment.engine.finished

    @property
    def failing(self) -> bool:
        """True when nothing can be recorded any more."""
        return self._experiment.broken is not None

    def soon(self, call: Callable[[], None]) -> None:
        """Call in the loop's next round; an exception ends the run."""
        asyncio.get_running_loop().call_soon(self.guarded, call)

    def assignment(self, trial: Trial) -> Assignment:
        """Return the assignment of the trial's current attempt."""
        return self._experiment.assignment(trial)

    def log_path(self, trial: Trial) -> str:
        """Return the file for what the trial prints."""
        return str(self._experiment.files.path(trial) / LOG_FILE)

    def process_ended(self) -> None:
        """A process is gone."""
        self._changed.set()

    # -- the run --

    async def _run(self) -> RunOutcome:
        self._changed = asyncio.Event()
        env = {**os.environ, **self._machine_resources.thread_env(self._plan.resources), **self._plan.environment}
        pool = ProcessPool(env=env, keep_fd=self._lock_fd, server=self._fork_server)
        folder = Scratch(None, RUN_PREFIX)
        with contextlib.ExitStack() as stack:
            stack.callback(folder.remove)
            server = ReportServer(self._handle)
            socket_path = str(Path(folder.path, "reports.sock"))
            address = f"unix:{socket_path}"
            self._workers = Workers(
                self._plan, self._machine_resources, pool, self, address=address, service=_SERVICE_NAME
            )
            await server.start_unix(socket_path)
            try:
                await pool.start()
                remote = self._plan.remote
                preload = asyncio.ensure_future(pool.preload(self._plan.trainable, remote.uri if remote else ""))
                preload.add_done_callback(_log_preload)
                following = asyncio.ensure_future(self._presenter.follow_import(preload))
                stack.callback(following.cancel)
                self._experiment = DurableExperiment(
                    self._plan, self._directory, self._clock, replica=self._replica, heartbeat_s=HEARTBEAT_INTERVAL_S
                )
                self._presenter.experiment = self._experiment
                self._experiment.start(self)
                if self._callbacks is not None:
                    self._callbacks.begin(self._experiment.journaled)
                with self._signals():
                    try:
                        self._loop = asyncio.get_running_loop()
                        for _ in range(self._early_interrupts):
                            self.interrupt()
                        return await self._drive()
                    finally:
                        self._end_callbacks()
            finally:
                await pool.close()
                remove_left_behind(tempfile.gettempdir())  # of trials that were killed
                await server.close()
                try:
                    if hasattr(self, "_experiment"):
                        self._experiment.close()  # before the lock is released
                finally:
                    self._display.close()

    async def _drive(self) -> RunOutcome:
        self._display.start(self._presenter.view())
        self._presenter.give_hints(self._machine_resources)
        try:
            self._begin()
            last_shown = last_poll = time.monotonic()
            poll_s = self._presenter.poll_interval_s
            while not self._over():
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), min(self._display.interval_s, poll_s))
                now = time.monotonic()
                if now - last_poll >= poll_s:
                    last_poll = now
                    self._presenter.poll()
                if now - last_shown >= self._display.interval_s:
                    last_shown = now
                    self._display.update(self._presenter.view(self._display.rows))
        except Exception as error:  # noqa: BLE001 - raised again below, once no process is left
            self._fail(error)
        if self._failure is not None:
            await self._workers.kill_all()
            self._presenter.poll(last=True)
            raise self._failure
        self._experiment.journaled.flush()
        await self._wait_for_exits()
        self._presenter.poll(last=True)
        self._end_callbacks()  # before the rest is replicated, with what they want to remember
        if self._interrupts < 2:
            await self._finish()
        uncopied = self._experiment.replication_problem or ""
        if uncopied:
            self._display.event(events.warning(uncopied))
        cut_short = bool(uncopied) or not self._experiment.engine.finished
        view = self._presenter.view(rows=None)
        self._display.finish(view)
        return RunOutcome(view, cut_short and self._interrupts > 0, uncopied)

    async def _finish(self) -> None:
        """Wait for the last copies to the storage; a second Ctrl-C ends the wait."""
        finishing = asyncio.ensure_future(self._experiment.finish(REPLICATION_TIMEOUT_S))
        finishing.add_done_callback(lambda _: self._changed.set())
        while not finishing.done() and self._interrupts < 2:
            self._changed.clear()
            await self._changed.wait()
        finishing.cancel()
        await asyncio.wait([finishing])
        if not finishing.cancelled():
            finishing.result()
        if isinstance(self._failure, FencedError):
            raise self._failure  # the results that were shown are not those in the storage

    def _end_callbacks(self) -> None:
        if self._callbacks is None:
            return
        try:
            self._callbacks.end()
        except (CallbackError, StorageError) as error:
            if self._failure is None:
                raise
            logger.error("%s", error)  # beside the one that ended the run

    def _begin(self) -> None:
        before, flags = self._experiment.engine.state.settings, self._experiment.engine.state.flags
        had_failed = before is not None and flags.finished and flags.state == FAILED
        if before is not None:
            self._recover()
            if self._drop_unfinished:
                left = [trial.trial_id for trial in self._experiment.engine.state.get_trials() if not trial.ended]
                for trial_id in left:
                    self.apply(StopRequested(trial_id=trial_id))
        machine = self._machine_resources.machine
        total = {"cpu": machine.cpus, "memory": float(machine.memory), "gpu": float(len(machine.gpus))}
        self.apply(CapacityObserved(slots=self._capacity(), resources={**total, **machine.custom}))
        if self._plan.suspend:
            self.apply(SuspendRequested())
        self.apply(SettingsObserved(settings=self._plan.settings))
        if self._retry_errors:
            scratch, chosen = self._retry_errors == "scratch", self._retry_trials
            self.apply(RetryRequested(from_scratch=scratch, cut_short=not chosen, trial_ids=chosen))
        elif had_failed and self._retry_failed:
            self._display.event(events.Event("retried", message="the run before failed: its failed trials run again"))
            unmeasured = before is not None and before.metric is not None and not flags.measured
            self.apply(RetryRequested(from_scratch=unmeasured, cut_short=True))
        if not self._plan.suspend and self._experiment.engine.state.flags.suspended:
            self.apply(ResumeRequested())
        if before is not None:
            self._presenter.compare_budget(before.num_samples)

    def _recover(self) -> None:
        """Continue what an earlier run left; one line reports it for all trials."""
        self._recovering = []
        self.apply(Recovered())
        trials, self._recovering = self._recovering, None
        self._presenter.recovered(trials)

    def _capacity(self) -> int:
        if self._plan.resources_of is not None:
            return max(1, int(self._machine_resources.machine.cpus))
        return self._machine_resources.concurrency(self._plan.resources)

    def _over(self) -> bool:
        engine = self._experiment.engine
        if self._failure is not None or engine.finished or self._interrupts > 1:
            return True
        return engine.state.flags.suspended and not engine.state.running

    async def _wait_for_exits(self) -> None:
        self._workers.release_idle()
        deadline = time.monotonic() + self._plan.grace_s
        while self._workers.any and time.monotonic() < deadline and self._interrupts < 2:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 0.2)
        if self._workers.any:
            await self._workers.kill_all()

    # -- carrying out actions --

    def perform(self, action: Action) -> None:
        """Carry out an action, and call the callbacks."""
        self._carry_out(action)
        if self._callbacks is not None:
            self._callbacks.action(action)

    def _carry_out(self, action: Action) -> None:
        match action:
            case StartAttempt(trial=trial, attempt=attempt):
                self._presenter.attempt_starts(trial)
                self._workers.start(trial, attempt)
            case StopAttempt(trial=trial, attempt=attempt):
                self._workers.stop(trial, attempt)
            case ResultsApplied(trial=trial, attempt=attempt) if (
                trial.completion_reported and trial.current.decision is None
            ):
                self._workers.expect_end(trial, attempt)
            case ExperimentFinished():
                self._changed.set()
        if self._recovering is not None and isinstance(action, TrialRequeued):
            self._recovering.append(action.trial)
        else:
            self._presenter.action(action)

    # -- small parts --

    def _handle(self, path: str, body: bytes, _peer: Peer) -> Reply | Awaitable[Reply]:
        try:
            return self._service.handle(path, body)
        except Exception:
            if self._failure is None:
                raise
            return refuse(503, "the experiment is being ended by an error")  # which `run` raises

    def guarded(self, call: Callable[[], None]) -> None:
        """Call now; an exception ends the run."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - `_drive` raises it
            self._fail(error)

    @property
    def _failure(self) -> BaseException | None:
        """What ends the run, once no process is left."""
        return self._experiment.broken

    def _fail(self, error: BaseException) -> None:
        self._experiment.fail(error)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """First Ctrl-C (or SIGTERM): pause all trials and keep everything. Second: end at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        handlers = {signal.SIGINT: self.interrupt, signal.SIGTERM: self.interrupt}
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as below nohup
            handlers[signal.SIGHUP] = self._hang_up
        for signum, handler in handlers.items():
            loop.add_signal_handler(signum, handler)
        try:
            yield
        finally:
            for signum in handlers:
                loop.remove_signal_handler(signum)

    def interrupt(self) -> None:
        """Stop gracefully; when called again, at once. Either way nothing that was received is lost."""
        self._interrupts += 1
        self._changed.set()
        if self._interrupts == 1:
            if self._replica is not None and self._experiment.engine.finished:
                what = f"all trials have ended; their last files are being copied to {self._replica.uri}"
            else:
                what = "stopping: running trials finish their step and checkpoint"
            here = threading.current_thread() is threading.main_thread()
            again = f"{'press Ctrl-C' if here else 'interrupt'} again to end at once"
            self.soon(self._suspend)
            self._display.event(events.interrupted(what, again))

    def _hang_up(self) -> None:
        """Stop gracefully, however often it comes: a closed terminal's shell and the kernel each send SIGHUP."""
        if not self._interrupts:
            self.interrupt()

    def _suspend(self) -> None:
        self.apply(SuspendRequested())
        self._workers.terminate_all()


def _tell(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object) -> None:
    """Call in the loop, from another thread."""
    with contextlib.suppress(RuntimeError):  # the loop is closed: the run is over
        loop.call_soon_threadsafe(call, *arguments)


def _log_preload(preload: asyncio.Future[Preloaded]) -> None:
    if not preload.cancelled() and preload.exception() is None:
        logger.info("loading the Trainable once for all trials: %s", preload.result().problem or "done")


def _in_a_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
