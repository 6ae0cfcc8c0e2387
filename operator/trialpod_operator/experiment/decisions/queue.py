"""The events of one experiment that wait for its decider, and the decider's session.

The engine in the operator only follows: an event is applied and journaled together with what the decider chose. So
whatever reads the journal (restarts, views, fsck) sees no difference, and a new decider learns from the records what
was decided; nothing is decided twice.

Events are decided about in the order of their arrival. Some need no decision and are applied at once, without
choices: requests to stop or suspend, an attempt that starts, anything once all trials are being stopped, and timers
while there is no decider. While events are with the decider, these wait for its answer too. It comes within the time
limit, or the session ends.

Invariants:

* The journal grows only by what the decider has chosen or will be sent as a record, so its position says exactly what
  it knows.
* What a session left undecided is decided by the next one.
* A decider of an earlier session changes nothing. Everything here belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from trialpod.errors import TrialpodError
from trialpod_operator.engine.choices import Choices
from trialpod_operator.engine.events import (
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    CapacityObserved,
    FailureObserved,
    ResultsReceived,
    ResumeRequested,
    RetryRequested,
    SettingsObserved,
    StopRequested,
    SuggestionReady,
    SuspendRequested,
    TimerFired,
)
from trialpod_operator.experiment.decisions.messages import (
    MAX_BATCH_BYTES,
    MAX_BATCH_EVENTS,
    DeciderStart,
    DecisionAnswer,
    DecisionRequest,
    Item,
    encode_lessons,
)
from trialpod_operator.experiment.decisions.stand_ins import FollowedScheduler, FollowedSearch
from trialpod_operator.experiment.decisions.values import read_part
from trialpod_operator.experiment.journaled_engine import JournaledEngine
from trialpod_operator.experiment.plan import DecidedElsewhere
from trialpod_operator.experiment.records import Record

POLL_S = 20.0
"""Maximum time until a call of the decider is answered: it is a long poll."""

SILENCE_S = 30.0
"""Maximum time without a call of the decider. While its code takes long it says that it is busy, and it keeps the
time limit of a decision itself: it knows where its code hangs."""


class StaleSessionError(TrialpodError):
    """The caller's session has ended: it has to start another one."""


@dataclass(frozen=True)
class DeciderProblem:
    """Why a decider gave up, as it reported."""

    message: str
    traceback: str = ""
    at: float = 0.0  # seconds since the epoch


class DecisionQueue:
    """The events of one experiment that wait for its decider.

    Args:
        journaled: the engine that follows.
        decided: the decider's code and limits.
        apply: applies an event as what was chosen says.
        clock: seconds since the epoch.
        changed: called when what `status` says has changed.
    """

    def __init__(
        self,
        journaled: JournaledEngine,
        decided: DecidedElsewhere,
        apply: Callable[[AnyEvent, float | None, Choices], None],
        clock: Callable[[], float],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._journaled = journaled
        self._decided = decided
        self._apply = apply
        self._clock = clock
        self.changed = changed
        self._session = self._latest_session = 0
        self._loading = False
        self._position = 0  # of the journal, as far as the session knows it
        self._records: list[Item] = []  # after that, in the journal
        self._unread: tuple[int, Iterator[Record]] | None = None  # what a loading session lacks, after a position
        self._in_flight: list[Item] = []
        self._last_call = 0.0
        self._suggestions = 0  # that the session has brought
        self._queue: deque[AnyEvent] = deque()
        self._deferred: deque[AnyEvent] = deque()  # to be applied as soon as nothing is in flight
        self._known: dict[Hashable, AnyEvent] = {}  # queued or in flight, those of which one is enough
        self._results: dict[tuple[str, int], int] = {}  # last number queued, by attempt
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._apply_waiters: list[asyncio.Future[None]] = []
        self._submitted = 0  # events ever queued
        self._undone: dict[int, AnyEvent] = {}  # by their numbers among these, those not decided about
        self._poll: asyncio.Future[DecisionAnswer] | None = None
        self._poll_timer: asyncio.TimerHandle | None = None
        self._pumping = False
        self._waits_since = 0.0
        self._ended = ""
        self.opened_at = clock()
        """Since when deciders can call here, in seconds since the epoch."""
        self.problem: DeciderProblem | None = None
        """Why the latest decider gave up; None once another one decides."""
        self.has_decided = False
        """Whether the decider that there is now has decided about an event."""
        self.warnings: deque[str] = deque(maxlen=100)

    # -- state --

    @property
    def deciding(self) -> bool:
        """Whether there is a decider that knows everything in the journal."""
        return bool(self._session) and not self._loading

    @property
    def last_call(self) -> float:
        """When a decider last called, in seconds since the epoch; 0 = never."""
        return self._last_call

    @property
    def waits_since(self) -> float | None:
        """Since when the oldest undecided event waits, in seconds since the epoch; None when there is none."""
        return self._waits_since if self._queue or self._in_flight else None

    @property
    def needed(self) -> bool:
        """Whether a decider is needed: something is to be decided, or will be."""
        state = self._journaled.engine.state
        over = state.flags.finished or state.flags.stopping is not None
        return bool(self._queue or self._in_flight) or not (over or (state.flags.suspended and not state.running))

    @property
    def idle(self) -> bool:
        """Whether all events that came have been applied."""
        return not (self._queue or self._in_flight or self._deferred)

    @property
    def wakeup(self) -> float | None:
        """When a stopper of the decider's wants to be asked again."""
        view = self._search.view
        return view.wakeup if self.deciding else None

    @property
    def deferred(self) -> bool:
        """Whether an event that needs no decision waits for the decider's answer."""
        return bool(self._deferred)

    @property
    def suspend_wanted(self) -> bool:
        """Whether the experiment is suspended, or will be when all that came has been applied."""
        for event in (*reversed(self._deferred), *reversed(self._queue)):
            if isinstance(event, SuspendRequested | ResumeRequested):
                return isinstance(event, SuspendRequested)
        pending = [item.record.event for item in self._in_flight if not item.decided]
        for event in reversed(pending):
            if isinstance(event, SuspendRequested | ResumeRequested):
                return isinstance(event, SuspendRequested)
        return self._journaled.engine.state.flags.suspended

    def received(self, trial_id: str, attempt: int, known: int) -> int:
        """Return how many results of an attempt are known or wait here."""
        return max(known, self._results.get((trial_id, attempt), 0))

    def observe(self, decided: DecidedElsewhere) -> None:
        """Replace the code and the limits that the next decider gets."""
        self._decided = decided

    # -- events --

    def submit(self, event: AnyEvent) -> None:
        """Take an event: apply it at once if it needs no decision, else queue it.

        Raises:
            msgspec.MsgspecError, InvalidInputError: `Engine.apply` would refuse it.
        """
        if isinstance(event, SettingsObserved):  # those that wait are older, and are not to be applied after these
            self._deferred = deque(each for each in self._deferred if not isinstance(each, SettingsObserved))
        if self._passes(event):
            if isinstance(event, SuspendRequested):
                self._withdraw_resume()
                self._known.pop(ResumeRequested.__name__, None)  # one in flight is older than the next one
            if self._in_flight:
                if event not in self._deferred:
                    self._deferred.append(event)
            else:
                self._apply_undecided(event)
                self._after()
            return
        self._journaled.engine.check(event)
        key = _key(event)
        if key is not None:
            known = self._known.get(key)
            if known is not None and (known == event or isinstance(event, AttemptEnded | TimerFired)):
                return
            self._known[key] = event
        if isinstance(event, ResultsReceived):
            attempt = event.trial_id, event.attempt
            last = event.first + len(event.results) - 1
            self._results[attempt] = max(self._results.get(attempt, 0), last)
        if not self._queue and not self._in_flight:
            self._waits_since = self._clock()
        self._queue.append(event)
        self._count(event)
        self._pump_soon()

    def _count(self, event: AnyEvent) -> None:
        self._submitted += 1
        self._undone[self._submitted] = event

    def _withdraw_resume(self) -> None:
        for event in [each for each in self._queue if isinstance(each, ResumeRequested)]:
            self._queue.remove(event)
            self._finish(event)

    def undecided(self) -> Awaitable[None] | None:
        """Return None when all that was submitted is decided, else what to await until that is so."""
        if not self._undone:
            return None
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._submitted, waiting))
        return waiting

    async def wait_applied(self) -> None:
        """Return when nothing is deferred any more."""
        while self._deferred:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._apply_waiters.append(waiting)
            await waiting

    def check(self) -> None:
        """Write a record at once: the next commit shows that no other process has taken the journal over."""
        if self._in_flight:
            self._deferred.append(TimerFired())
        else:
            self._apply_undecided(TimerFired())
            self._after()

    def _passes(self, event: AnyEvent, *, first: bool = False) -> bool:
        """Return whether an event is applied without asking the decider; `first`: nothing is queued before it."""
        state = self._journaled.engine.state
        if state.settings is None:
            return not isinstance(event, SettingsObserved | SuggestionReady)
        over = state.flags.finished or state.flags.stopping is not None
        match event:
            case SettingsObserved(settings=settings):
                return settings == state.settings and (first or "SettingsObserved" not in self._known)
            case RetryRequested():
                return False
            case ResumeRequested():
                return state.flags.finished
            case StopRequested(trial_id=None) | SuspendRequested() | AttemptStarted():
                return True
            case TimerFired():
                return over or not self.deciding
        return over and (first or not self._queue)

    def _apply_undecided(self, event: AnyEvent) -> None:
        now = self._journaled.now()
        self._apply(event, now, Choices())
        if self.deciding:
            self._records.append(Item(Record(now, event, Choices()), decided=True))

    def _after(self) -> None:
        """Apply the events that no longer need a decision."""
        while self._deferred and not self._in_flight:
            event = self._deferred.popleft()
            if isinstance(event, TimerFired) or self._passes(event):
                self._apply_undecided(event)
            else:
                self._queue.append(event)
                self._count(event)
        while self._queue and not self._in_flight and self._passes(self._queue[0], first=True):
            event = self._queue.popleft()
            self._apply_undecided(event)
            self._finish(event)
        self._resolve()
        self._pump_soon()

    def _finish(self, event: AnyEvent) -> None:
        # By identity: events that are withdrawn or queued in front are finished before earlier ones.
        del self._undone[next(number for number, each in self._undone.items() if each is event)]
        key = _key(event)
        if key is not None and self._known.get(key) is event:
            del self._known[key]
        if isinstance(event, ResultsReceived):
            attempt = event.trial_id, event.attempt
            if self._results.get(attempt) == event.first + len(event.results) - 1:
                del self._results[attempt]

    def _resolve(self) -> None:
        oldest = next(iter(self._undone), self._submitted + 1)
        while self._waiting and self._waiting[0][0] < oldest:
            _set(self._waiting.popleft()[1])
        while self._apply_waiters and not self._deferred:
            _set(self._apply_waiters.pop())

    # -- the decider's calls --

    def handle(self, request: DecisionRequest) -> DecisionAnswer | Awaitable[DecisionAnswer]:
        """Answer a call.

        Raises:
            StaleSessionError: it is of an earlier session.
        """
        if self._ended:
            return DecisionAnswer(ended=self._ended)
        if not request.session:
            return self._begin()
        if request.session != self._session:
            raise StaleSessionError("another session has begun since")
        self._last_call = self._clock()
        if request.problem:
            self.give_up(request.problem, request.traceback)
            return DecisionAnswer(ended="the decider has given up")
        if request.value:
            return read_part(self._decided, self._session, request)
        if request.busy:
            return DecisionAnswer(session=self._session)
        if request.suggestion is not None:
            if request.suggestion_number > self._suggestions:
                self._suggestions = request.suggestion_number
                self.submit(request.suggestion)
            return DecisionAnswer(session=self._session)
        return self._load(request) if self._loading else self._continue(request)

    def _begin(self) -> DecisionAnswer:
        code = self._decided.code()
        self.end_session()
        # Another operator's session, or one of an earlier life of this one, has another number.
        self._latest_session = max(self._latest_session + 1, int(self._clock() * 1e6))
        self._session = self._latest_session
        self._loading, self._suggestions = True, 0
        self._last_call = self._clock()
        self._position = self._journaled.snapshot_position
        return DecisionAnswer(
            session=self._session,
            loading=True,
            start=DeciderStart(
                code=code,
                seed=self._decided.seed,
                name=self._journaled.plan.settings.name,
                position=self._position,
                snapshot=self._journaled.engine_snapshot(),
                decision_timeout_s=self._decided.decision_timeout_s,
                suggestion_timeout_s=self._decided.suggestion_timeout_s,
                lessons=encode_lessons(self._decided.lessons),
            ),
        )

    def _load(self, request: DecisionRequest) -> DecisionAnswer | Awaitable[DecisionAnswer]:
        if request.position < self._journaled.position:
            return DecisionAnswer(session=self._session, items=self._read(request.position), loading=True)
        self._loading, self._position, self._unread = False, request.position, None
        self._records, self.problem = [], None
        self._record(request)
        if self._journaled.engine.state.settings is not None:
            self._queue.appendleft(timer := TimerFired())  # more trials may start than without a decider
            self._count(timer)
        self.changed()
        self._after()
        return self._poll_or_answer()

    def _read(self, position: int) -> list[Item]:
        """Return some records after a position; the journal is read from its start only where they do not follow."""
        if self._unread is None or self._unread[0] != position:
            self._unread = position, self._journaled.records_after(position)
        items, size = list[Item](), 0
        for record in self._unread[1]:
            items.append(Item(record, decided=True))
            size += _size(record.event)
            if size > MAX_BATCH_BYTES or len(items) >= MAX_BATCH_EVENTS:
                break
        else:  # what was there when it was begun; there may be more since
            self._unread = None
            return items or self._read(position)
        self._unread = position + len(items), self._unread[1]
        return items

    def _continue(self, request: DecisionRequest) -> DecisionAnswer | Awaitable[DecisionAnswer]:
        sent = self._in_flight
        undecided = [item for item in sent if not item.decided]
        if sent and request.position == self._position + len(sent) and len(request.choices) == len(undecided):
            self._record(request)
            chosen = iter(request.choices)
            for item in undecided:  # in flight until all are applied: what they lead to follows them
                self._apply(item.record.event, item.record.now, next(chosen))
                self._finish(item.record.event)
            self._in_flight, self._position = [], request.position
            self.has_decided = self.has_decided or bool(undecided)
            self._take_snapshot(request)
            if self._queue:
                self._waits_since = self._clock()
            self._after()
        elif request.position != self._position:
            self.end_session()
            raise StaleSessionError(f"it is at record {request.position}, the journal at {self._position}")
        elif sent:
            return self._answer(sent)  # the answer was lost
        else:
            self._take_snapshot(request)
        return self._poll_or_answer()

    def _take_snapshot(self, request: DecisionRequest) -> None:
        if request.snapshot is not None and self._position == self._journaled.position:
            self._journaled.take_snapshot(request.snapshot)
        elif request.no_snapshot:
            self._journaled.skip_snapshot()

    def _record(self, request: DecisionRequest) -> None:
        if request.view is not None:
            self._search.view = self._scheduler.view = request.view
        named = self._scheduler.named
        named.update(request.horizons)
        trials = self._journaled.engine.state.trials
        if len(named) > 2 * len(self._journaled.engine.state.running) + 100:
            open_ = [trial_id for trial_id in named if trial_id in trials and not trials[trial_id].ended]
            self._scheduler.named = {trial_id: named[trial_id] for trial_id in open_}
        self.warnings.extend(request.warnings)

    @property
    def _search(self) -> FollowedSearch:
        search = self._journaled.plan.search
        assert isinstance(search, FollowedSearch)
        return search

    @property
    def _scheduler(self) -> FollowedScheduler:
        scheduler = self._journaled.plan.scheduler
        assert isinstance(scheduler, FollowedScheduler)
        return scheduler

    def _poll_or_answer(self) -> DecisionAnswer | Awaitable[DecisionAnswer]:
        self._release_poll()
        if self._ended:
            return DecisionAnswer(ended=self._ended)
        if self._take_batch():
            return self._answer(self._in_flight)
        loop = asyncio.get_running_loop()
        self._poll = loop.create_future()
        self._poll_timer = loop.call_later(POLL_S, self._release_poll)
        return self._poll

    def _release_poll(self, answer: DecisionAnswer | None = None) -> None:
        poll, self._poll = self._poll, None
        if self._poll_timer is not None:
            self._poll_timer.cancel()
            self._poll_timer = None
        if poll is not None and not poll.done():
            poll.set_result(answer or DecisionAnswer(session=self._session))

    def _answer(self, items: list[Item]) -> DecisionAnswer:
        return DecisionAnswer(session=self._session, items=items, snapshot_wanted=self._journaled.snapshot_wanted)

    def _take_batch(self) -> bool:
        """Move the next batch into flight; return whether there is any."""
        if not self._queue and not self._records:
            return False
        self._in_flight, self._records = self._records, []
        size, now = 0, self._journaled.now()
        while self._queue and size <= MAX_BATCH_BYTES and len(self._in_flight) < MAX_BATCH_EVENTS:
            event = self._queue.popleft()
            size += _size(event)
            self._in_flight.append(Item(Record(now, event), decided=False))
        self._last_call = self._clock()
        return True

    def _pump_soon(self) -> None:
        if self._poll is not None and not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = False
        if self._poll is not None and self._poll.done():  # the caller is gone
            self._release_poll()
        if self._poll is not None and not self._in_flight and self._take_batch():
            self._release_poll(self._answer(self._in_flight))

    # -- the end of a session --

    def end_session(self) -> None:
        """End the session of a decider that is gone or late; what it has not decided waits for the next one."""
        if not self._session:
            return
        self._release_poll(DecisionAnswer(ended="another decider takes over", restart=True))
        self._session, self._loading, self._records, self._unread = 0, False, [], None
        self.has_decided = False
        back = [item.record.event for item in self._in_flight if not item.decided]
        self._in_flight = []
        self._queue.extendleft(reversed(back))
        # Suggestions that were never journaled: the next decider computes them again.
        for event in [each for each in self._queue if isinstance(each, SuggestionReady)]:
            self._queue.remove(event)
            self._finish(event)
        self._deferred = deque(each for each in self._deferred if not isinstance(each, SuggestionReady))
        self._after()
        self.changed()

    def give_up(self, message: str, traceback: str = "") -> None:
        """The decider cannot continue, for this reason."""
        self.problem = DeciderProblem(message, traceback, self._clock())
        self.end_session()
        self.changed()

    def look(self) -> None:
        """End the session of a decider that is late or silent. To be called about once a second."""
        if not self._session:
            return
        waits = self._poll is not None and not self._poll.done()
        if not waits and self._clock() - self._last_call > SILENCE_S:
            self.end_session()

    def close(self, error: Exception) -> None:
        """Take no further events; waiters get the error.

        Once all is over the decider is sent away; else it asks until the experiment is open again.
        """
        if self._journaled.engine.finished:
            self._ended = "the experiment is over"
        self._release_poll(DecisionAnswer(ended=self._ended) if self._ended else None)
        for waiting in (*(each for _, each in self._waiting), *self._apply_waiters):
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # its waiters get it; without one asyncio would log a warning
        self._waiting.clear()
        self._apply_waiters.clear()


def _set(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def _key(event: AnyEvent) -> Hashable | None:
    """Return what an event is about, of which one waiting event is enough; None = every one counts."""
    match event:
        case AttemptEnded(trial_id=trial_id, attempt=attempt):
            return "ended", trial_id, attempt
        case FailureObserved(trial_id=trial_id, attempt=attempt, confirmed=confirmed):
            return "failed", trial_id, attempt, confirmed
        case StopRequested(trial_id=trial_id):
            return "stop", trial_id
        case RetryRequested(token=token) if token:
            return "retry", token
        case TimerFired() | SettingsObserved() | CapacityObserved() | ResumeRequested():
            return type(event).__name__
    return None


def _size(event: Any) -> int:
    if isinstance(event, ResultsReceived):
        return 100 + sum(len(memoryview(result)) for result in event.results)
    return 200 if not isinstance(event, SettingsObserved) else len(msgspec.msgpack.encode(event))
