"""One experiment in the operator: its engine and journal, and what may be done only once the storage has both.

The operator's disk goes away with its pod. So here an event counts when the journal's copy in the experiment's
storage holds it, not before: answers wait for that (`committed`), and so do the engine's actions (`on_action`).
Whatever anyone outside has seen is in the storage; what is lost with the operator nobody has seen, and attempts send
it again.

Results that nobody waits for are committed about once a second. A result at a horizon, a start, an end: at once.

Invariants: everything here belongs to the operator's event loop, except `open`, which runs in a thread before that.
When the journal cannot be written or another process writes it, the experiment is broken: it applies nothing more,
and `on_broken` is told, who opens it anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from trialpod.protocol.messages import Assignment, Horizon, ReportAnswer
from trialpod.protocol.values import number, results_decoder
from trialpod.storage.base import Storage
from trialpod_operator.cluster.metrics.instruments import STORAGE_ERRORS, ExperimentMeter
from trialpod_operator.engine.actions import Action, ResultsApplied
from trialpod_operator.engine.events import (
    AnyEvent,
    CheckpointsChanged,
    ResultsReceived,
    SuggestionReady,
    TimerFired,
)
from trialpod_operator.engine.trial import Trial
from trialpod_operator.experiment.journaled_engine import JournaledEngine
from trialpod_operator.experiment.plan import ExperimentPlan
from trialpod_operator.experiment.replica.replica import FencedError, Replica
from trialpod_operator.experiment.stored import read_stored, write_stored
from trialpod_operator.reports.service import NotReadyError

logger = logging.getLogger(__name__)

HEARTBEAT_S = 10.0
FLUSH_S = 1.0
TICK_S = 60.0
"""While trials run, the engine hears of the time at least this often, so that a crash loses little of the account."""

PRESENCE_S = 20.0
"""How often it is checked that the storage still holds the experiment."""

CLOSE_WITHIN_S = 10.0
"""How long a settled experiment is held open for its last snapshot, while its storage takes nothing."""

TROUBLED_S = 0.5
"""Maximum time to wait for a storage that is known not to answer: its outage is to show soon."""

MOST_PIECES = 400
PIECES_FOR_EACH_RUNNING = 2
"""Objects of the journal after which a snapshot replaces them, at least, and for each trial that runs: a restart
reads them all, as it reads two files of each of these trials."""

MakePlan = Callable[[Mapping[str, Any] | None], ExperimentPlan]


class HostedExperiment:
    """One open experiment. Make one with `open`, then call `start` in the loop.

    Attributes:
        trouble: why the storage takes nothing at the moment, or "".
        last_contact: when each trial's attempt last called, by the clock given.
        meter: counts and times what happens to it.

    Args:
        host: the engine with its journal; from now on owned by the loop.
        replica: copies the host's directory; brought up to date already.
        clock: seconds since the epoch.
        held: actions that wait for their commit, with the number of their record.
    """

    def __init__(
        self,
        host: JournaledEngine,
        replica: Replica,
        held: deque[tuple[int, Action]],
        clock: Callable[[], float],
    ) -> None:
        self.host = host
        self.plan = host.plan
        self.trouble = ""
        self.last_contact: dict[str, float] = {}
        self.meter = ExperimentMeter()
        self._replica = replica
        self._errors = 0  # of the replica, as they were counted
        self._held = held
        self._clock = clock
        self._committed = host.position
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._broken: BaseException | None = None
        self._closed = False
        self._on_action: Callable[[Action], None] = lambda _action: None
        self._on_broken: Callable[[BaseException], None] = lambda _error: None
        self._on_change: Callable[[], None] = lambda: None
        self._wakeup: asyncio.TimerHandle | None = None
        self._housekeeper: asyncio.Task[None] | None = None

    @classmethod
    def open(
        cls, make_plan: MakePlan, directory: Path, storage: Storage, clock: Callable[[], float]
    ) -> HostedExperiment:
        """Fetch what the storage holds of the experiment and make it ready to go on. Blocks; for a thread.

        Args:
            make_plan: makes the plan, given what was stored at an earlier start.
            directory: of this operator, for this experiment only.
            storage: the experiment's place.
            clock: seconds since the epoch.

        Raises:
            FencedError: the directory is not of the history in the storage; remove it and open again.
            TrialpodError: the storage cannot be read, the journal is damaged, or the plan cannot work.
        """
        directory.mkdir(parents=True, exist_ok=True)
        opened: list[HostedExperiment] = []  # who is told by the threads, once it is there
        replica = Replica(directory, storage, presence_s=PRESENCE_S)
        replica.pull(journal_only=True)
        plan = make_plan(read_stored(directory))
        write_stored(directory, plan.document)
        if not replica.claim_location():
            plan = make_plan(read_stored(directory))
            write_stored(directory, plan.document)
        held: deque[tuple[int, Action]] = deque()
        host: JournaledEngine | None = None

        def hold(action: Action) -> None:
            assert host is not None
            held.append((host.position, action))

        def deliver(event: SuggestionReady) -> None:
            opened[0].tell_suggestion(event)

        host = JournaledEngine(
            plan, directory, clock, hold, heartbeat_s=HEARTBEAT_S, deliver=deliver, fetch=replica.fetch
        )
        if replica.sealed:
            host.write_snapshot()  # the one that the seal was for never came
        opened.append(cls(host, replica, held, clock))
        return opened[0]

    def start(
        self,
        on_action: Callable[[Action], None],
        on_broken: Callable[[BaseException], None],
        on_change: Callable[[], None],
    ) -> None:
        """Begin: from now on events may be applied. All three are called in the loop.

        Args:
            on_action: carries out actions; called once they are committed.
            on_broken: told once when the experiment cannot go on as it is open now.
            on_change: told when something changed that a status shows.
        """
        self._on_action, self._on_broken, self._on_change = on_action, on_broken, on_change
        self._loop = asyncio.get_running_loop()
        trials = self.host.engine.state.trials.values()
        for trial in trials:
            if not trial.ended and trial.attempt:
                self.trial_started(trial)
        # The storage has the journal up to here, and perhaps not yet the files that follow from it. Of those that
        # ended before a stored snapshot it has all.
        behind = self.host.ended_lately if self._replica.snapshot_stored else trials
        self._replica.compare_soon(self.host.files.path(trial).name for trial in behind if trial.ended)
        for trial in trials:
            if trial.ended and trial.released:
                self._replica.remove_soon(self.host.files.path(trial).name, trial.released)
        self._replica.start(self._tell_trouble, self._tell_fenced, self.tell_committed)
        self._housekeeper = asyncio.ensure_future(self._keep_house())

    # -- for the report service --

    @property
    def broken(self) -> BaseException | None:
        """Why nothing can be applied any more."""
        return self._broken

    def apply(self, event: AnyEvent) -> None:
        """Apply and journal an event. What follows from it happens when it is committed."""
        if self._broken is not None:
            raise NotReadyError(f"the experiment is being opened anew: {self._broken}")
        blocked = isinstance(event, ResultsReceived) and self._meets_horizon(event)
        before = len(self._held)
        try:
            self.host.apply(event)
        except msgspec.MsgspecError:
            raise  # the sender's mistake, which it is told; nothing was changed
        except Exception as error:
            self._break(error)
            raise
        self.meter.applied(event, self.host.position, waits=blocked)
        acts = any(not isinstance(self._held[i][1], ResultsApplied) for i in range(before, len(self._held)))
        quiet = isinstance(event, ResultsReceived | CheckpointsChanged | TimerFired)
        self._replica.request(self.host.position, urgent=blocked or acts or not quiet)
        self._on_change()
        self._set_timer()

    def answer(self, trial_id: str, attempt: int) -> ReportAnswer:
        """Return what the attempt is to know; to be sent when what it rests on is `committed`."""
        self.last_contact[trial_id] = self._clock()
        return self.host.answer(trial_id, attempt)

    def committed(self) -> Awaitable[None] | None:
        """Return None when the storage holds everything applied so far, else an awaitable of that moment.

        It, and its awaitable, raise NotReadyError when the experiment breaks before.
        """
        if self._broken is not None:
            raise NotReadyError(f"the experiment is being opened anew: {self._broken}")
        if self.committed_now:
            return None
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self.host.position, waiting))
        return waiting

    @property
    def keys_refused(self) -> bool:
        """Whether the storage takes nothing because it refuses the keys."""
        return self._replica.refused

    @property
    def files_stored(self) -> bool:
        """Whether the storage has the files of all trials that have ended, and all logs that were kept."""
        return not self._replica.files_due()

    def require_fencing_check(self) -> None:
        """Have the next `committed` wait for a write that fails when another operator has gone on from here.

        Answers that end a process rest on it: what is not known here, such an operator may have begun. A write that
        is under way proves nothing: it may have been made before this process was stopped for a while.
        """
        self.apply(TimerFired())
        self._replica.request(self.host.position, urgent=True)

    async def settle(self) -> None:
        """Return when everything applied so far is committed and its actions were given out."""
        waiting = self.committed()
        if waiting is not None:
            self._replica.request(self.host.position, urgent=True)
            await waiting

    async def wait_committed(self, within_s: float) -> bool:
        """Wait for that moment for so many seconds at most; return whether it has come.

        A reconcile waits like this: while the storage is away it has other things to do, deleting the experiment
        among them.
        """
        if self._broken is not None or self.committed_now:
            return self._broken is None
        if self.trouble:
            within_s = min(within_s, TROUBLED_S)
        try:
            async with asyncio.timeout(within_s):
                await self.settle()
        except (TimeoutError, NotReadyError):
            return False
        return True

    @property
    def committed_now(self) -> bool:
        """Whether the storage holds everything applied so far."""
        return self.host.position <= self._committed

    def assignment(self, trial: Trial) -> Assignment:
        """Return the assignment of the trial's current attempt, with paths of this machine in it."""
        assignment = self.host.assignment(trial)
        assignment.place_marked = True
        return assignment

    # -- the end --

    async def close(self, *, complete: bool) -> str:
        """Let go of everything.

        Args:
            complete: copy what is left to the storage first, within `CLOSE_WITHIN_S`; else stop at once. Of an
                experiment that is settled only the last snapshot is left, which saves time and nothing else.

        Returns:
            What could not be copied and why, or "".
        """
        self._closed = True
        if self._housekeeper is not None:
            self._housekeeper.cancel()
        if self._wakeup is not None:
            self._wakeup.cancel()
        problem = ""
        if complete and self._broken is None:
            self.host.flush()
            self.host.write_snapshot()
            done = asyncio.Event()

            def copied() -> None:
                self._in_loop(done.set)

            self._replica.finish(copied)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), CLOSE_WITHIN_S)
            problem = self._replica.problem()
            if problem:
                self._replica.abandon()
        else:
            self._replica.abandon()
        self.host.close()
        self._fail_waiting(NotReadyError("the experiment was closed"))
        return problem

    # -- inside --

    def _meets_horizon(self, event: ResultsReceived) -> bool:
        trial = self.host.engine.state.trials.get(event.trial_id)
        if trial is None or not event.results:
            return False
        horizons = self.host.engine.horizons(trial)
        if not horizons:
            return False
        try:
            last = results_decoder.decode(event.results[-1])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        return any(_meets(horizon, last) for horizon in horizons)

    def _in_loop(self, function: Callable[..., object], *given: object) -> None:
        """Call it in the operator's loop; for the replica's and the search algorithm's threads."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(function, *given)

    def tell_committed(self, position: int) -> None:
        """The storage holds the journal up to there; called by the replica's thread."""
        self._in_loop(self._release, position)

    def tell_suggestion(self, event: SuggestionReady) -> None:
        """The search algorithm has a suggestion; called by its thread."""
        self._in_loop(self._take, event)

    def _take(self, event: SuggestionReady) -> None:
        if self._broken is None and not self._closed:
            self.apply(event)

    def _release(self, position: int) -> None:
        if self._broken is not None:
            return
        self._committed = max(self._committed, position)
        self.meter.committed(self._committed)
        while self._held and self._held[0][0] <= self._committed:
            self._on_action(self._held.popleft()[1])
        while self._waiting and self._waiting[0][0] <= self._committed:
            waiting = self._waiting.popleft()[1]
            if not waiting.done():
                waiting.set_result(None)

    def _tell_trouble(self, message: str) -> None:
        self._in_loop(self._note_trouble, message)

    def _note_trouble(self, message: str) -> None:
        self.trouble = "" if message.endswith("up to date again") else message
        logger.warning("%s", message)
        self._on_change()

    def _tell_fenced(self, error: FencedError) -> None:
        self._in_loop(self._break, error)

    def _break(self, error: BaseException) -> None:
        if self._broken is None:
            self._broken = error
            self._fail_waiting(NotReadyError(f"the experiment is being opened anew: {error}"))
            self._on_broken(error)

    def _fail_waiting(self, error: BaseException) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()[1]
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # whoever waits gets it; nobody waiting is no reason for a warning

    def _set_timer(self) -> None:
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None
        at = self.host.engine.next_wakeup()
        if at is not None and self._broken is None:
            self._wakeup = self._loop.call_later(max(0.0, at - self.host.now()), self._fire)

    def _fire(self) -> None:
        if self._broken is None:
            self.apply(TimerFired())

    async def _keep_house(self) -> None:
        last_tick = self._clock()
        while self._broken is None:
            await asyncio.sleep(FLUSH_S)
            self._count_errors()
            try:
                self.host.flush()
                if self._replica.pieces > self._most_pieces and self._replica.catch_up():
                    self.host.write_snapshot()
                    self._replica.request(self.host.position, urgent=True)
                if self._clock() - last_tick >= TICK_S and self.host.engine.state.running:
                    last_tick = self._clock()
                    self.apply(TimerFired())
            except Exception as error:  # noqa: BLE001 - it breaks the experiment, which is then opened anew
                self._break(error)

    @property
    def _most_pieces(self) -> int:
        return max(MOST_PIECES, PIECES_FOR_EACH_RUNNING * len(self.host.engine.state.running))

    def _count_errors(self) -> None:
        errors = self._replica.errors
        STORAGE_ERRORS.inc(errors - self._errors)
        self._errors = errors

    # -- what the trial files are called --

    def trial_started(self, trial: Trial) -> None:
        """Keep the copy of the trial's files up to date from now on."""
        self._replica.trial_started(self.host.files.path(trial).name)

    def keep_log(self, trial: Trial, text: str, *, once: bool = False) -> None:
        """Add what one of the trial's pods printed to the trial's log.

        Args:
            trial: whose.
            text: all that the pod printed.
            once: an earlier operator may have done so already.
        """
        text = text if text.endswith("\n") else f"{text}\n"
        self._replica.add_log(self.host.files.path(trial).name, text, once=once)

    def log_stored(self, trial: Trial) -> bool:
        """Return whether the storage has what `keep_log` was given of this trial."""
        return not self._replica.files_due(self.host.files.path(trial).name)

    def trial_ended(self, trial: Trial) -> None:
        """The trial's files are complete."""
        self.last_contact.pop(trial.trial_id, None)
        self._replica.trial_ended(self.host.files.path(trial).name, trial.released)


def _meets(horizon: Horizon, result: dict[str, Any]) -> bool:
    value = number(result.get(horizon.attr))
    return value is not None and value >= horizon.at
