"""The link of one attempt: numbered results out, horizons and decisions in.

A sender thread collects results for a few milliseconds and sends them as one batch; at a horizon the calling thread
sends by itself, which saves two thread switches.

Invariants:

* Results are numbered 1, 2, 3, ... and sent in that order; each is kept until the server has called it durable.
* Sending continues after the last result that the server says it has received, even if that goes backwards.
* A checkpoint is never announced before the result that it belongs to, and is announced again if the server forgot
  that result.
* A result that is held is not sent before its own checkpoint is announced, or a caller waits for the answer to it.
* The queue is bounded: while the server answers, by what it receives in a second; always, by `max_queued_bytes` of
  results that are not durable. Publishing waits when there is more, so that a decision, or the end of a preempted
  process, never waits behind a long queue.
* After `superseded`, or a refusal, every further call raises; nothing more is sent. An answer that this process is
  not the trial's (403) is `superseded`.
* The end is the last that is sent: what is published or announced after `finish` has begun is dropped. The server
  receives nothing after an end, and a caller that waited for it would wait forever.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable

import msgspec

from trialpod.protocol.client import RefusedError, ReportClient
from trialpod.protocol.http import TransportError
from trialpod.protocol.messages import (
    AttemptEnd,
    CheckpointInfo,
    DecisionKind,
    Horizon,
    ReportAnswer,
    ReportRequest,
)
from trialpod.protocol.nested import NestedNames

log = logging.getLogger(__name__)

LINGER_S = 0.005
MAX_BATCH_RESULTS = 2048
MAX_BATCH_BYTES = 4 * 1024 * 1024
MAX_QUEUED_BYTES = 8 * 1024 * 1024
MAX_QUEUED_S = 1.0
_MEASURED_RESULTS = 256  # a smaller batch says nothing about what the server can receive
_GAP = 409
_NOT_THE_TRIALS = 403


class Superseded(BaseException):
    """Another attempt of the trial has taken over; this process exits without touching storage."""


class _Announcement:
    """A committed checkpoint, the number of its result, and whether the server has it."""

    __slots__ = ("info", "number", "received")

    def __init__(self, number: int, info: CheckpointInfo) -> None:
        self.number = number
        self.info = info
        self.received = False


class AttemptLink:
    """Sends the results, checkpoints and end of one attempt, and receives horizons and decisions.

    Args:
        client: the process's client; supplies clock and sleep.
        trial_id: the trial.
        attempt: the number of the attempt.
        horizons: from the assignment.
        heartbeat_s: seconds without a call after which an empty one is made.
        linger_s: seconds that the first result of a batch waits for others.
        max_queued_bytes: bound on the results held in memory.
        on_superseded: called in the sender thread when it learns that another attempt has taken over while the
            trial's own thread is busy.
    """

    def __init__(
        self,
        client: ReportClient,
        trial_id: str,
        attempt: int,
        *,
        horizons: list[Horizon] | None = None,
        heartbeat_s: float = 10.0,
        linger_s: float = LINGER_S,
        max_queued_bytes: int = MAX_QUEUED_BYTES,
        on_superseded: Callable[[], None] | None = None,
    ) -> None:
        self.horizons: tuple[tuple[str, float], ...] = _pairs(horizons or [])
        """(attribute, value) pairs; a result with ``result[attribute] >= value`` waits for a decision."""
        self.decision: DecisionKind | None = None
        """The last decision that was not "continue"."""
        self.nested = NestedNames()
        """The names of dicts in results: complete for a result before it is published."""
        self._client = client
        self._trial_id = trial_id
        self._attempt = attempt
        self._heartbeat_s = heartbeat_s
        self._linger_s = linger_s
        self._max_bytes = max_queued_bytes
        self._max_unreceived = sys.maxsize  # results that the server receives in MAX_QUEUED_S
        self._on_superseded = on_superseded
        self._decode = msgspec.msgpack.Decoder(ReportAnswer).decode
        self._lock = threading.Lock()  # guards everything below
        self._results: list[bytes] = []  # numbers _first, _first + 1, ...
        self._first = 1
        self._last = 0
        self._next = 1  # to be sent
        self._sent = 0  # the highest that was ever sent
        self._is_new = True  # no result of the call in progress was sent before
        self._named = 0  # names of nested metrics that the server has
        self._received = 0
        self._durable = 0
        self._bytes = 0
        self._announcements: list[_Announcement] = []
        self._deleted: list[str] = []
        self._deleted_due = False  # they are worth a report of their own
        self._unneeded: list[str] = []  # checkpoints that no answer has been given about
        self._on_permission: Callable[[list[str], list[str]], None] | None = None
        self._held: int | None = None  # neither this result nor later ones are sent yet
        self._held_for = -1  # the index of the checkpoint that it waits for
        self._end: AttemptEnd | None = None
        self._end_received = False
        self._broken: BaseException | None = None
        self._warned = False
        self._closed = False
        self._idle = False
        self._wake = threading.Lock()
        self._wake.acquire()
        self._called_at = client.clock()
        self._thread: threading.Thread | None = None

    @property
    def superseded(self) -> bool:
        """Whether another attempt has taken over."""
        return isinstance(self._broken, Superseded)

    @property
    def ended(self) -> bool:
        """Whether `finish` has begun, in any thread: further results are dropped."""
        return self._end is not None

    def check(self) -> None:
        """Raise what every further call would raise: the attempt is superseded or refused."""
        if self._broken is not None:
            raise self._broken

    def start(self) -> None:
        """Start the sender thread."""
        self._thread = threading.Thread(target=self._run, name="trialpod-sender", daemon=True)
        self._thread.start()

    def publish(
        self,
        result: bytes,
        checkpoint: CheckpointInfo | None = None,
        *,
        wake: bool = True,
        hold: int | None = None,
    ) -> int:
        """Queue one encoded result and return its number; waits only when too much is queued already.

        Once the attempt has ended the result is dropped, and the number is that of the last one before.

        Args:
            result: the MessagePack map.
            checkpoint: the checkpoint that belongs to it, committed.
            wake: False when `wait_decision` follows at once and sends it.
            hold: the index of a checkpoint that is announced later; the result is sent with it, or when
                `wait_decision` is called.

        Raises:
            Superseded: another attempt has taken over.
            RefusedError: the server refused an earlier call for good.
        """
        self.check()
        with self._lock:
            if self._end is not None:
                return self._last
            self._results.append(result)
            self._bytes += len(result)
            self._last = number = self._last + 1
            if checkpoint is not None:
                self._announcements.append(_Announcement(number, checkpoint))
            if hold is not None:
                self._held, self._held_for = number, hold
            if self._idle and wake:
                self._rouse()
        if number - self._received > self._max_unreceived:
            self._until(lambda: self._last - self._received <= self._max_unreceived // 2)
        if self._bytes > self._max_bytes:
            self._drain()
        return number

    def announce(self, checkpoint: CheckpointInfo) -> None:
        """Queue a checkpoint of a result that was published; drop it once the attempt has ended."""
        with self._lock:
            if self._end is not None:
                return
            if checkpoint.index == self._held_for:
                self._held = None
            newest = self._last if self._held is None else self._held - 1
            self._announcements.append(_Announcement(newest, checkpoint))
            self._rouse()

    def deleted(self, names: list[str]) -> None:
        """Queue the names of checkpoints that were removed."""
        with self._lock:
            self._deleted += names
            self._deleted_due = True
            self._rouse()

    def deleted_as_allowed(self, names: list[str]) -> None:
        """Add to the next report that these checkpoints were removed; the server had forgotten them before."""
        with self._lock:
            self._deleted += names

    def ask_to_delete(self, names: list[str], on_permission: Callable[[list[str], list[str]], None]) -> None:
        """Say that these checkpoints are no longer needed.

        Args:
            names: the checkpoints.
            on_permission: called with the names that were asked about and those of them that may be removed, by
                whichever thread receives the answer; it must not call this link.
        """
        with self._lock:
            self._unneeded += names
            self._on_permission = on_permission
            self._rouse()

    def wait_decision(self) -> DecisionKind | None:
        """Deliver everything up to the newest result and return the server's decision; None is "continue".

        Raises:
            Superseded: another attempt has taken over.
            RefusedError: the server refused for good.
        """
        self._deliver()
        return self.decision

    def finish(self, end: AttemptEnd) -> None:
        """Deliver everything, last how the attempt ended; returns when all of it is durable.

        Raises:
            Superseded: another attempt had taken over before the server knew of the end.
            RefusedError: the server refused for good.
        """
        with self._lock:
            if self._end is None:
                self._end = end
            self._closed = True
            self._held = None
            self._rouse()
        wait_s = 0.002
        known = False
        try:
            while True:
                self._until(lambda: self._end_received and self._received >= self._last)
                known = True
                if self._durable >= self._last:
                    break
                self._client.sleep(wait_s)
                wait_s = min(wait_s * 2, 0.5)
                self._end_received = False
        except Superseded:
            # The server knew the end already: what follows does not concern this attempt.
            if not known:
                raise
        self.close()

    def close(self) -> None:
        """Stop the sender thread; what was not delivered is dropped."""
        with self._lock:
            self._closed = True
            self._rouse()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=1.0)

    def _rouse(self) -> None:
        self._idle = False
        if self._wake.locked():
            self._wake.release()

    def _deliver(self) -> None:
        number = self._last
        self._held = None
        self._until(lambda: self._received >= number)

    def _until(self, satisfied: Callable[[], bool]) -> None:
        """Make calls in this thread until `satisfied`."""
        client = self._client
        while True:
            client.wait_until_allowed()
            with client.lock:
                if self._broken is not None:
                    raise self._broken
                if satisfied():
                    return
                if client.not_before <= client.clock():
                    self._call()

    def _drain(self) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "%d results (%.1f MB) wait to be received and made durable by the report service; "
                "report() waits until it catches up",
                len(self._results),
                self._bytes / 1e6,
            )
        wait_s = 0.002
        while self._bytes > self._max_bytes:
            before = self._bytes
            self._deliver()
            if self._bytes >= before:
                # Received but not durable yet: only an empty call shows when that changes.
                self._client.sleep(wait_s)
                wait_s = min(wait_s * 2, 0.5)
                self._beat()

    def _beat(self) -> None:
        self._client.wait_until_allowed()
        with self._client.lock:
            if self._broken is not None:
                raise self._broken
            self._call()

    def _call(self) -> None:
        """Send the next batch and take in the answer; the caller holds the client's lock. A lost call is ignored."""
        with self._lock:
            request, announced, deleted = self._request()
            on_permission = self._on_permission
            final = request.end is not None
        called_at = self._client.clock()
        try:
            answer = self._client.call("report", self._client.encode(request), self._read)
        except TransportError:
            # The server may have received the batch or not; its next answer, or that of another server, will say.
            self._max_unreceived = sys.maxsize  # a trial continues to train without an answer
            return
        except RefusedError as error:
            with self._lock:
                if error.status == _GAP and self._next > self._first:
                    self._rewind(self._first - 1)
                    return
                if error.status != _NOT_THE_TRIALS:
                    self._broken = error
                    raise
                # This process may no longer speak for the trial: the same as another attempt having taken over.
                self._broken = Superseded(
                    f"attempt {self._attempt} of trial {self._trial_id} may not report any more: {error}"
                )
            raise self._broken from error
        with self._lock:
            self._called_at = self._client.clock()
            if len(request.results) >= _MEASURED_RESULTS:
                rate = len(request.results) / max(1e-6, self._called_at - called_at)
                self._max_unreceived = max(2 * MAX_BATCH_RESULTS, int(rate * MAX_QUEUED_S))
            self._take_in(answer, request, announced, deleted, final)
        asked = request.unneeded_checkpoints
        if asked and on_permission is not None and not answer.superseded:
            allowed = set(answer.deletable)
            on_permission(asked, [name for name in asked if name in allowed])
        if self._broken is not None:
            raise self._broken

    def _read(self, data: bytes) -> ReportAnswer:
        """Return an answer; raise ValidationError when it cannot be one to this attempt."""
        answer = self._decode(data)
        if not answer.superseded and not 0 <= answer.durable <= answer.received <= self._sent:
            raise msgspec.ValidationError(
                f"{answer.received} results received and {answer.durable} durable, of {self._sent} that were sent"
            )
        if any(horizon.at != horizon.at for horizon in answer.horizons):
            raise msgspec.ValidationError("a horizon that is not a number")
        return answer

    def _request(self) -> tuple[ReportRequest, list[_Announcement], int]:
        start = self._next - self._first
        most = MAX_BATCH_RESULTS if self._held is None else min(MAX_BATCH_RESULTS, self._held - self._next)
        batch = self._results[start : start + max(0, most)]
        size = 0
        for count, result in enumerate(batch):
            size += len(result)
            if size > MAX_BATCH_BYTES and count > 0:
                del batch[count:]
                break
        self._is_new = self._next > self._sent
        sent = self._next + len(batch) - 1
        self._sent = max(self._sent, sent)
        announced = [item for item in self._announcements if not item.received and item.number <= sent]
        complete = sent >= self._last and len(announced) == sum(not item.received for item in self._announcements)
        request = ReportRequest(
            trial_id=self._trial_id,
            attempt=self._attempt,
            first=self._next,
            results=[msgspec.Raw(result) for result in batch],
            nested=self.nested.names[self._named :] if batch else [],
            checkpoints=[item.info for item in announced],
            deleted_checkpoints=self._deleted[:],
            unneeded_checkpoints=self._unneeded[:],
            end=self._end if complete else None,
        )
        return request, announced, len(self._deleted)

    def _take_in(
        self,
        answer: ReportAnswer,
        request: ReportRequest,
        announced: list[_Announcement],
        deleted: int,
        final: bool,
    ) -> None:
        if answer.superseded:
            self._broken = Superseded(
                f"attempt {self._attempt} of trial {self._trial_id} has been superseded by a later one"
            )
            return
        if answer.received < request.first + len(request.results) - 1:
            # The server does not have what was sent: it was restarted, or knows less than its predecessor.
            self._rewind(answer.received)
        else:
            for item in announced:
                item.received = True
            del self._deleted[:deleted]
            self._deleted_due = self._deleted_due and bool(self._deleted)
            del self._unneeded[: len(request.unneeded_checkpoints)]
            self._received = min(answer.received, self._last)
            self._next = max(self._next, self._received + 1)
            self._end_received = final
            if self._is_new:  # else the server may have taken the results from an earlier call, without these names
                self._named += len(request.nested)
        drop = min(answer.durable, self._last) - self._first + 1
        if drop > 0:
            self._bytes -= sum(map(len, self._results[:drop]))
            del self._results[:drop]
            self._first += drop
            self._durable = self._first - 1
            self._next = max(self._next, self._first)
            self._announcements = [
                item for item in self._announcements if not item.received or item.number > self._durable
            ]
        self.horizons = _pairs(answer.horizons) if answer.horizons else ()
        if answer.decision is not None:
            self.decision = answer.decision

    def _rewind(self, received: int) -> None:
        if received < self._first - 1:
            self._broken = RefusedError(
                f"the report service has results up to {received} of attempt {self._attempt} of trial "
                f"{self._trial_id}, but had called those up to {self._first - 1} durable; its storage has lost data",
                _GAP,
            )
            return
        self._received = received
        self._named = 0
        self._next = received + 1
        self._end_received = False
        for item in self._announcements:
            if item.number > received:
                item.received = False

    def _run(self) -> None:
        client = self._client
        while True:
            with self._lock:
                pending = self._pending()
                self._idle = not pending and not self._closed
            if self._stopped():
                return
            if not pending:
                due = self._called_at + self._heartbeat_s - client.clock()
                self._wake.acquire(timeout=max(0.0, due))
                self._idle = False
            if self._last - self._next < MAX_BATCH_RESULTS and self._pending():
                self._wake.acquire(timeout=self._linger_s)
            delay = client.not_before - client.clock()
            if delay > 0:
                self._wake.acquire(timeout=delay)
                continue
            with client.lock:
                if self._stopped():
                    return
                if self._pending() or client.clock() >= self._called_at + self._heartbeat_s:
                    try:
                        self._call()
                    except RefusedError as error:
                        log.warning("%s", error)
                        return
                    except Superseded as error:
                        log.warning("%s", error)
                        if self._on_superseded is not None:
                            self._on_superseded()
                        return

    def _stopped(self) -> bool:
        return self._closed or self._broken is not None

    def _pending(self) -> bool:
        return (
            self._next <= (self._last if self._held is None else self._held - 1)
            or (self._deleted_due and bool(self._deleted))
            or bool(self._unneeded)
            or any(not item.received for item in self._announcements)
        )


def _pairs(horizons: list[Horizon]) -> tuple[tuple[str, float], ...]:
    return tuple((horizon.attr, horizon.at) for horizon in horizons)
