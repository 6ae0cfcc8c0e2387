"""One open experiment: its engine with its journal, its replica, and what waits until an event is durable.

The process shell and the cluster shell run an experiment as one of these, and say where an event is durable:

* **On this disk** (`in_storage=False`): as soon as the journal has it. Actions follow at once. The replica, where
  there is one, follows within about a second; `commit` waits for it.
* **In the storage** (`in_storage=True`): the operator's disk goes away with its pod. Actions and answers wait until
  the journal's replica has the event, so everything that was visible outside is in the storage. What is lost with the
  operator was never visible, and attempts send it again. Results that no attempt waits for are committed about once a
  second; a result at a horizon, a start or an end at once.

Invariants: everything here belongs to the event loop, except the constructor and `open`, which may run in a thread
before `start`. When the journal cannot be written, or another process writes it, the experiment is broken: it applies
nothing more, and the shell is informed once. Once it is closed, the shell gets no action, commit or failure from it,
whatever the replica completes later.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from trialpod.errors import StorageError, TrialpodError
from trialpod.protocol.messages import Assignment, Horizon, ReportAnswer
from trialpod.protocol.values import number
from trialpod.storage.base import Storage
from trialpod_operator.engine.actions import Action, ResultsApplied, StartAttempt, TrialEnded
from trialpod_operator.engine.choices import Choices
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.events import AnyEvent, CheckpointsChanged, ResultsReceived, TimerFired
from trialpod_operator.engine.trial import Trial
from trialpod_operator.experiment.decisions.messages import DecisionAnswer, DecisionRequest
from trialpod_operator.experiment.decisions.queue import DecisionQueue
from trialpod_operator.experiment.journaled_engine import JournaledEngine
from trialpod_operator.experiment.plan import ExperimentPlan
from trialpod_operator.experiment.replica.replica import Replica, ReplicaStatus
from trialpod_operator.experiment.stored import read_stored, write_stored
from trialpod_operator.experiment.trial_files import TrialFiles

HEARTBEAT_INTERVAL_S = 10.0
FLUSH_INTERVAL_S = 1.0
TICK_INTERVAL_S = 60.0
"""Maximum time between two events while trials run, so that a crash loses little of the account."""

PRESENCE_INTERVAL_S = 20.0
"""Interval of the check that the storage still holds the experiment."""

SILENCE_S = 6.0
"""Time without a confirmed record after which the storage counts as away. Its own timeouts are longer, and they apply
to a server that vanished in the middle of a request."""

OUTAGE_TIMEOUT_S = 0.5
"""Maximum time to wait for a storage that is known not to answer: its outage is to show soon."""

MAX_OBJECTS = 400
MAX_OBJECTS_PER_RUNNING = 2
"""Objects of the journal after which a snapshot replaces them, at least, and for each trial that runs: a restart
reads them all, and a snapshot waits for the files of each of these trials."""

FILES_DELAY_S = 0.01
MAX_FILES_DELAY_S = 10.0
"""The trials' files are copied that much later for each attempt that runs at the start: all of these call first, and
comparing and copying files takes as much CPU as their calls."""

MakePlan = Callable[[Mapping[str, Any] | None], ExperimentPlan]


class NotReadyError(TrialpodError):
    """The request cannot be answered at the moment (503): the caller should retry."""


class Shell:
    """What a shell does for its experiment. All of it is called in the event loop."""

    def step(self, event: AnyEvent) -> contextlib.AbstractContextManager[None]:
        """Return what is entered around the application of an event; an error in it breaks the experiment."""
        return contextlib.nullcontext()

    def perform(self, action: Action) -> None:
        """Carry out an action; its event is durable."""

    def applied(self, event: AnyEvent, position: int, *, blocks: bool) -> None:
        """An event is in the journal, which ends at `position`; `blocks`: its sender waits for a decision."""

    def committed(self, position: int) -> None:
        """The storage has the journal up to `position`."""

    def replica_changed(self, status: ReplicaStatus) -> None:
        """The storage stopped or resumed accepting the replica."""

    def replica_failed(self, times: int) -> None:
        """The storage failed that many times since the last call."""

    def broken(self, error: BaseException) -> None:
        """The experiment cannot continue as it is open now; called once."""


class DurableExperiment:
    """One open experiment. Call `start` in the event loop before anything is applied.

    Args:
        plan: what to run.
        directory: the experiment's directory.
        clock: seconds since the epoch.
        replica: replicates the directory to a storage; it is up to date.
        in_storage: an event is durable once the storage has it, not when this disk has it.
        heartbeat_s: how often attempts must call when they have nothing to report.

    Attributes:
        journaled: the engine with its journal.
        resumed: it had started before it was opened.
        storage_problem: why the storage cannot be written at the moment.
        last_contact: when each trial's attempt last called, by the clock given.
        decisions: the events that wait for the decider; None where the engine decides.

    Raises:
        TrialpodError: the journal is damaged, or the plan cannot work.
    """

    def __init__(
        self,
        plan: ExperimentPlan,
        directory: Path,
        clock: Callable[[], float],
        *,
        replica: Replica | None = None,
        in_storage: bool = False,
        heartbeat_s: float = HEARTBEAT_INTERVAL_S,
    ) -> None:
        self.plan = plan
        self._outage: str | None = None  # as the replica says
        self._silence: str | None = None  # as its lack of any answer says
        self._confirmed_at: float | None = None  # when the storage last had all, or confirmed something
        self._confirmed = 0  # what it had then
        self.last_contact: dict[str, float] = {}
        self._clock = clock
        self._replica = replica
        self._in_storage = in_storage
        self._shell = Shell()
        self._loop: asyncio.AbstractEventLoop
        self._broken: BaseException | None = None
        self._closed = False
        self._held: deque[tuple[int, Action]] = deque()  # until the storage has the record of that number
        self._acts = False  # the event that is being applied has an action that something waits for
        self._last_result: Mapping[str, Any] = {}  # of the report that is being applied
        self._released: dict[str, dict[str, int]] = {}  # trial -> checkpoint -> position when it was released
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()  # for the storage to have a position
        self._replica_errors = 0  # that the shell knows of
        self._timer: asyncio.TimerHandle | None = None
        self._housekeeping: asyncio.Task[None] | None = None
        fetch = replica.fetch if replica is not None and in_storage else None
        self.journaled = JournaledEngine(
            plan, directory, clock, self._take_action, heartbeat_s=heartbeat_s, deliver=self._deliver, fetch=fetch
        )
        self.decisions: DecisionQueue | None = None
        if plan.decided is not None:
            self.decisions = DecisionQueue(self.journaled, plan.decided, self._apply, clock)
        self.resumed = self.position > 0
        self._replicated = self.position if in_storage else 0  # the storage has the journal up to here
        if replica is not None and replica.sealed:
            self.journaled.begin_segment()

    @classmethod
    def open(
        cls, make_plan: MakePlan, directory: Path, storage: Storage, clock: Callable[[], float]
    ) -> DurableExperiment:
        """Fetch what a storage holds of an experiment, and open it there. Blocks; for a thread.

        Args:
            make_plan: makes the plan, given what was stored at an earlier start.
            directory: of this process, for this experiment only.
            storage: the experiment's location.
            clock: seconds since the epoch.

        Raises:
            FencedError: the directory is not of the history in the storage; remove it and open again.
            TrialpodError: the storage cannot be read, the journal is damaged, or the plan cannot work.
        """
        directory.mkdir(parents=True, exist_ok=True)
        replica = Replica(directory, storage, presence_s=PRESENCE_INTERVAL_S)
        replica.pull(journal_only=True)
        plan = make_plan(read_stored(directory))
        write_stored(directory, plan.document)
        if not replica.claim_location():
            plan = make_plan(read_stored(directory))
            write_stored(directory, plan.document)
        return cls(plan, directory, clock, replica=replica, in_storage=True)

    def start(self, shell: Shell) -> None:
        """Begin: from now on events may be applied."""
        self._shell = shell
        self._loop = asyncio.get_running_loop()
        if self._replica is not None:
            self._start_replica(self._replica)
        self._housekeeping = asyncio.ensure_future(self._housekeeping_loop())

    def _start_replica(self, replica: Replica) -> None:
        # The storage may lack files that follow from records which it has: those of trials that ended, or paused,
        # right before a crash. Of those that ended before a stored snapshot it has all. That is known before the
        # first snapshot is sent, which takes their files along.
        trials = self.engine.state.trials.values()
        for trial in trials:
            if not trial.ended and trial.attempt:
                replica.trial_started(self.dirname(trial))
        # Where files of theirs are not here yet, they are compared when these have arrived.
        behind = self.journaled.ended_lately if replica.snapshot_stored else trials
        absent = self.files.absent()
        replica.compare_soon(self.dirname(trial) for trial in behind if trial.ended and trial.trial_id not in absent)
        for trial in trials:
            if trial.ended and trial.current.released:
                replica.remove_soon(self.dirname(trial), trial.current.released)
        replica.name_policy_files(self.journaled.policy_files)
        replica.fetch_soon(absent, lambda trial_ids: self._in_loop(self._continue_arrived, trial_ids))
        replica.start(
            lambda status: self._in_loop(self._record_replica, status),
            lambda error: self._in_loop(self.fail, error),
            lambda position: self._in_loop(self._release, position),
            files_after_s=min(MAX_FILES_DELAY_S, FILES_DELAY_S * len(self.engine.state.running)),
        )
        if self._replicated < self.position:
            replica.request(self.position, urgent=True)

    # -- what is --

    @property
    def engine(self) -> Engine:
        """What decides. Only to be read: events go through `apply`."""
        return self.journaled.engine

    @property
    def files(self) -> TrialFiles:
        """The files of the trials."""
        return self.journaled.files

    @property
    def position(self) -> int:
        """Number of the journal's latest record."""
        return self.journaled.position

    @property
    def broken(self) -> BaseException | None:
        """Why nothing can be applied any more."""
        return self._broken

    @property
    def storage_problem(self) -> str | None:
        """Why the storage cannot be written at the moment."""
        return self._outage or self._silence

    def dirname(self, trial: Trial) -> str:
        """Return the name of the trial's directory."""
        return self.files.path(trial).name

    def checkpoint_uri(self, trial: Trial) -> str:
        """Return where the trial's checkpoints are, when that is not its directory on this machine; else ""."""
        return self.journaled.checkpoint_uri(trial)

    def assignment(self, trial: Trial) -> Assignment:
        """Return the assignment of the trial's current attempt, with paths of this machine in it."""
        assignment = self.journaled.assignment(trial)
        assignment.place_marked = self._in_storage
        return assignment

    # -- events and answers --

    @property
    def suspend_wanted(self) -> bool:
        """Whether the experiment is suspended, or will be once a decider has decided about all that came."""
        return self.decisions.suspend_wanted if self.decisions is not None else self.engine.state.flags.suspended

    def apply(self, event: AnyEvent) -> None:
        """Apply and journal an event. What follows from it is carried out when it is durable.

        Where a decider decides, it is applied when that has answered; see `undecided`.

        Raises:
            NotReadyError: the experiment is broken.
            msgspec.MsgspecError: the event is the sender's mistake; nothing was changed.
            Exception: it broke the experiment.
        """
        self._refuse_when_broken()
        if self.decisions is not None:
            self.decisions.submit(event)
        else:
            self._apply(event)

    def undecided(self) -> Awaitable[None] | None:
        """Return None when all events were applied, else what to await until the decider has decided about them."""
        return None if self.decisions is None else self.decisions.undecided()

    def decide(self, request: DecisionRequest) -> DecisionAnswer | Awaitable[DecisionAnswer]:
        """Answer a call of the experiment's decider.

        Raises:
            NotReadyError: the experiment is broken, or has no decider.
            StaleSessionError: the call is of an earlier session.
        """
        self._refuse_when_broken()
        if self.decisions is None:
            raise NotReadyError("this experiment has no decider")
        return self.decisions.handle(request)

    def _apply(self, event: AnyEvent, now: float | None = None, choices: Choices | None = None) -> None:
        self._refuse_when_broken()
        horizons = self._horizons(event) if self._in_storage else None
        self._acts, self._last_result = False, {}
        try:
            with self._shell.step(event):
                self.journaled.apply(event, now, choices)
        except msgspec.MsgspecError:
            raise
        except Exception as error:
            self.fail(error)
            raise
        blocks = bool(horizons) and any(_meets(horizon, self._last_result) for horizon in horizons or ())
        if self._replica is not None:
            quiet = isinstance(event, ResultsReceived | CheckpointsChanged | TimerFired)
            urgent = self._in_storage and (blocks or self._acts or not quiet)
            self._replica.request(self.position, urgent=urgent)
        self._shell.applied(event, self.position, blocks=blocks)
        self._set_timer()

    def received(self, trial_id: str, attempt: int) -> int | None:
        """Return how many results of the attempt are known; None when another one has replaced it."""
        self.last_contact[trial_id] = self._clock()
        known = self.engine.received(trial_id, attempt)
        if known is None or self.decisions is None:
            return known
        return self.decisions.received(trial_id, attempt, known)

    def answer(self, trial_id: str, attempt: int) -> ReportAnswer:
        """Return what the attempt is to know; to be sent when what it rests on is `committed`."""
        answer = self.engine.answer(trial_id, attempt)
        if answer.deletable and self._replica is not None and not self._in_storage:
            answer.deletable = self._known_as_released(trial_id, answer.deletable)
        return answer

    def _known_as_released(self, trial_id: str, names: list[str]) -> list[str]:
        """Return which of these checkpoints the storage knows to be released: a resuming attempt does not need them.

        The attempt asks for the others again after its next checkpoint.
        """
        known = self._released.setdefault(trial_id, {})
        for name in names:
            known.setdefault(name, self.position)
        return [name for name in names if known[name] <= self._replicated]

    def fail(self, error: BaseException) -> None:
        """Break the experiment: nothing is applied any more, and waiters for a commit get the error."""
        if self._broken is None and not self._closed:
            self._broken = error
            self._fail_waiting(self._broken_error())
            if self.decisions is not None:
                self.decisions.close(self._broken_error())
            self._shell.broken(error)

    # -- commits --

    def committed(self) -> Awaitable[None] | None:
        """Return None when everything applied so far is durable, else an awaitable of that moment.

        It, and its awaitable, raise NotReadyError when the experiment breaks before, or was closed.
        """
        self._refuse_when_broken()
        if self._closed:
            raise NotReadyError("the experiment was closed")
        if self.decisions is not None and self.decisions.deferred:
            return self._applied_and_committed()
        return None if self.is_committed else self._wait_for_replica()

    async def _applied_and_committed(self) -> None:
        assert self.decisions is not None
        await self.decisions.wait_applied()
        self._refuse_when_broken()
        if not self.is_committed:
            await self._wait_for_replica()

    @property
    def is_committed(self) -> bool:
        """Whether everything applied so far is durable."""
        return not self._in_storage or self.position <= self._replicated

    def require_fencing_check(self) -> None:
        """Have the next `committed` wait for a write that fails when another process has taken the journal over.

        Answers that end a process rest on it: what is not known here, such a process may have begun. A write that
        is in progress does not count as the check: it may have been made before this process was stopped for a while.
        """
        if self._in_storage and self._replica is not None:
            self._refuse_when_broken()
            if self.decisions is not None:
                self.decisions.check()
            else:
                self._apply(TimerFired())
            self._replica.request(self.position, urgent=True)

    async def commit(self) -> None:
        """Return when the replica has everything applied so far, and its actions were given out."""
        self._refuse_when_broken()
        if self.decisions is not None:
            await self.decisions.wait_applied()
        if self._replica is not None and self.position > self._replicated:
            self._replica.request(self.position, urgent=True)
            await self._wait_for_replica()

    async def wait_committed(self, within_s: float) -> bool:
        """Wait until everything applied so far is committed, for so many seconds at most; return whether it is.

        A reconcile pass waits like this: while the storage is away it has other things to do, deleting the experiment
        among them.
        """
        deferred = self.decisions is not None and self.decisions.deferred
        if self._broken is not None or (self.is_committed and not deferred):
            return self._broken is None
        if self.storage_problem is not None:
            within_s = min(within_s, OUTAGE_TIMEOUT_S)
        try:
            async with asyncio.timeout(within_s):
                await self.commit()
        except (TimeoutError, NotReadyError):
            return False
        return True

    def _wait_for_replica(self) -> asyncio.Future[None]:
        waiting: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((self.position, waiting))
        return waiting

    # -- files in the storage --

    @property
    def keys_refused(self) -> bool:
        """Whether the storage cannot be written because it refuses the keys."""
        return self._replica is not None and self._replica.refused

    @property
    def files_stored(self) -> bool:
        """Whether the storage has the files of all trials that have ended, and all logs that were kept."""
        return self._replica is None or not (
            self._replica.files_due() or self.files.waiting() or self.files.incomplete
        )

    def keep_log(self, trial: Trial, text: str, *, once: bool = False) -> None:
        """Add what one of the trial's pods printed to the trial's log.

        Args:
            trial: whose.
            text: all that the pod printed.
            once: an earlier operator may have done so already.
        """
        assert self._replica is not None
        text = text if text.endswith("\n") else f"{text}\n"
        self._replica.add_log(self.dirname(trial), text, once=once)

    def log_stored(self, trial: Trial) -> bool:
        """Return whether the storage has what `keep_log` was given of this trial."""
        return self._replica is None or not self._replica.files_due(self.dirname(trial))

    # -- the end --

    async def finish(self, timeout_s: float) -> str | None:
        """Write a last snapshot and replicate what is left; return what the storage does not have, and why.

        Nothing is lost without it: the snapshot saves the next start time. `close` comes after it.
        """
        self._stop_timers()
        if self.files.waiting():
            with contextlib.suppress(StorageError, TimeoutError):  # then the journal has what the files lack
                await self._bring_what_waits(timeout_s)
        self.journaled.flush()
        self._copy_completed()
        self.journaled.write_snapshot()
        if self._replica is None:
            return None
        done = asyncio.Event()
        self._replica.finish(lambda: self._in_loop(done.set))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), timeout_s)
        return self.replication_problem

    async def _bring_what_waits(self, timeout_s: float) -> None:
        assert self._replica is not None
        absent, waiting = self.files.absent(), self.files.waiting()
        keys = [key for trial_id in waiting for key in absent[trial_id]]
        await asyncio.wait_for(asyncio.to_thread(self._replica.fetch, keys), timeout_s)
        self._continue_arrived(sorted(waiting))

    @property
    def replication_problem(self) -> str | None:
        """What the storage does not have although it should, and why."""
        return self._replica.problem() if self._replica is not None else None

    def close(self) -> None:
        """Release everything at once; what is not replicated yet is replicated by the next start."""
        self._closed = True
        self._stop_timers()
        if self.decisions is not None:
            self.decisions.close(NotReadyError("the experiment was closed"))
        if self._replica is not None:
            self._replica.abandon()
        try:
            self.journaled.close()
        finally:
            self._fail_waiting(NotReadyError("the experiment was closed"))

    def _stop_timers(self) -> None:
        for timer in (self._housekeeping, self._timer):
            if timer is not None:
                timer.cancel()

    # -- from the engine --

    def _take_action(self, action: Action) -> None:
        if isinstance(action, ResultsApplied):
            self._last_result = action.results[-1] if action.results else {}
        else:
            self._acts = True
        if self._in_storage:
            self._held.append((self.position, action))
        else:
            self._perform(action)

    def _perform(self, action: Action) -> None:
        self._shell.perform(action)
        if self._replica is not None:
            match action:
                case StartAttempt(trial=trial):
                    self._replica.trial_started(self.dirname(trial))
                case TrialEnded(trial=trial):
                    self.last_contact.pop(trial.trial_id, None)
                    self._released.pop(trial.trial_id, None)
                    self._replica.trial_ended(self.dirname(trial), trial.current.released)

    def _horizons(self, event: AnyEvent) -> list[Horizon]:
        trial = self.engine.state.trials.get(event.trial_id) if isinstance(event, ResultsReceived) else None
        return self.engine.horizons(trial) if trial is not None else []

    # -- from other threads --

    def _in_loop(self, function: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: there are no waiters any more
            self._loop.call_soon_threadsafe(function, *arguments)

    def _deliver(self, event: AnyEvent) -> None:
        self._in_loop(self._apply_own, event)

    def _continue_arrived(self, trial_ids: list[str]) -> None:
        assert self._replica is not None
        if not self._closed:
            self._replica.compare_soon(self.dirname(trial) for trial in self.files.arrived(trial_ids))

    def _record_replica(self, status: ReplicaStatus) -> None:
        self._outage = None if status.reachable else status.message
        self._shell.replica_changed(status)

    def _release(self, position: int) -> None:
        if self._broken is not None or self._closed:
            return
        self._replicated = max(self._replicated, position)
        self._record_silence()
        self._shell.committed(self._replicated)
        while self._held and self._held[0][0] <= self._replicated:
            self._perform(self._held.popleft()[1])
        while self._waiting and self._waiting[0][0] <= self._replicated:
            waiting = self._waiting.popleft()[1]
            if not waiting.done():
                waiting.set_result(None)

    def _record_silence(self) -> None:
        """Tell when the storage has long confirmed nothing of what it was sent, and when it does again."""
        assert self._replica is not None
        now, uri = self._loop.time(), self._replica.uri
        if self.is_committed or self._confirmed_at is None or self._replicated != self._confirmed:
            self._confirmed_at, self._confirmed = now, self._replicated
            silent, self._silence = self._silence is not None, None
            if silent and self._outage is None:
                self._shell.replica_changed(ReplicaStatus(reachable=True, message=f"{uri} answers again"))
        elif self._silence is None and now - self._confirmed_at >= SILENCE_S:
            self._silence = f"{uri} has not answered for {SILENCE_S:.0f} s; everything is kept until it does"
            if self._outage is None:
                self._shell.replica_changed(ReplicaStatus(reachable=False, message=self._silence))

    # -- inside --

    def _refuse_when_broken(self) -> None:
        if self._broken is not None:
            raise self._broken_error()

    def _broken_error(self) -> NotReadyError:
        return NotReadyError(f"the experiment is being reopened: {self._broken}")

    def _fail_waiting(self, error: BaseException) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()[1]
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # its waiters get it; without one asyncio would log a warning

    def _apply_own(self, event: AnyEvent) -> None:
        """Apply an event that no caller waits for."""
        if self._broken is not None or self._closed:
            return
        try:
            self.apply(event)
        except Exception as error:  # noqa: BLE001 - it breaks the experiment, and the shell learns it
            self.fail(error)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self.engine.next_wakeup()
        if self.decisions is not None and (wakeup := self.decisions.wakeup) is not None:
            at = wakeup if at is None else min(at, wakeup)
        if at is not None and self._broken is None:
            delay_s = max(0.0, at - self.journaled.now())
            self._timer = self._loop.call_later(delay_s, self._apply_own, TimerFired())

    async def _housekeeping_loop(self) -> None:
        last_tick = self._loop.time()
        while self._broken is None:
            await asyncio.sleep(FLUSH_INTERVAL_S)
            try:
                if self.decisions is not None:
                    self.decisions.look()
                await self._keep_files_current()
                if self._loop.time() - last_tick >= TICK_INTERVAL_S and self.engine.state.running:
                    last_tick = self._loop.time()
                    self.apply(TimerFired())
            except Exception as error:  # noqa: BLE001 - it breaks the experiment, and the shell learns it
                self.fail(error)

    async def _keep_files_current(self) -> None:
        for _ in self.journaled.flush_in_slices():
            await asyncio.sleep(0)  # there may be thousands of files, and calls to answer
            if self._broken is not None:
                return
        self._copy_completed()
        if not self._in_storage:
            self.journaled.sync()
        replica = self._replica
        if replica is None:
            return
        self._record_silence()
        if errors := replica.errors - self._replica_errors:
            self._replica_errors += errors
            self._shell.replica_failed(errors)
        # Another one before that would bring nothing: only the latest is stored.
        due = replica.pieces > self._max_objects and replica.snapshot_stored
        if due and self.journaled.snapshot_possible and replica.catch_up():
            self.journaled.write_snapshot()
            replica.request(self.position, urgent=True)

    def _copy_completed(self) -> None:
        """Have files copied that lacked lines when they were copied at the ends of their trials."""
        for trial in self.files.completed():
            if self._replica is not None:
                self._replica.copy_soon(self.dirname(trial))

    @property
    def _max_objects(self) -> int:
        return max(MAX_OBJECTS, MAX_OBJECTS_PER_RUNNING * len(self.engine.state.running))


def _meets(horizon: Horizon, result: Mapping[str, Any]) -> bool:
    value = number(result.get(horizon.attr))
    return value is not None and not value < horizon.at  # NaN meets every horizon
