"""One trial as the engine keeps it: plain data and its transitions, small once it has ended.

Config and last result are kept as the MessagePack bytes in which they arrived: a finished trial stays below 2 kB, and
most are never read again. Fields are assigned only here and in `State`, by methods that keep what belongs together.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import msgspec

from trialpod.protocol.messages import AttemptEnd, CheckpointInfo, DecisionKind, EndCause
from trialpod.protocol.nested import MAX_NAME, MAX_NAMES
from trialpod.protocol.values import opaque_decoder, open_leniently, results_decoder
from trialpod_operator.engine.choices import (
    ActiveExploit,
    Change,
    Decision,
    DecisionName,
    append_decision,
    decode_decisions,
)

PENDING = "PENDING"
RUNNING = "RUNNING"
PAUSED = "PAUSED"
TERMINATED = "TERMINATED"
ERROR = "ERROR"

FAILURES = frozenset({"metric", "algorithm", "broken", "fail_fast"})
"""Sources of a stop that make the experiment fail."""

STATUSES = (PENDING, RUNNING, PAUSED, TERMINATED, ERROR)

BACKOFF_BASE_S = 1.0
MAX_BACKOFF_S = 60.0

FREE_RETRIES = 1
"""Failures and disruptions without progress that are retried at once; then the back-off doubles."""

MAX_STORED_TRACEBACK = 20_000
"""Maximum length of a stored traceback in characters; the end is kept."""

MAX_PAST_ATTEMPTS = 32
"""Attempts before the latest one whose times are kept of a trial."""

_NOTHING: dict[str, Any] = {}
"""Shared by ended trials, so never changed: they keep little."""


class PastAttempt(msgspec.Struct, array_like=True, frozen=True):
    """When an attempt before the latest one ran; times in seconds since the epoch."""

    number: int
    requested: float
    started: float | None  # its process began to work; None: it never did
    ended: float
    cause: EndCause


class AttemptState(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """The latest attempt of a trial. Each start makes a new one, so nothing of the one before it remains."""

    started_at: float = 0.0
    received: int = 0  # results
    lost: bool = False  # given up: if its process turns up again, it must not continue
    pid: int = 0
    hostname: str = ""
    node_ip: str = ""
    reused_pod: str = ""  # its pod, when that was made for another attempt
    pod_uid: str = ""  # of the pod, while the attempt works

    began_at: float | None = None  # its process began to work
    ended_at: float | None = None
    cause: EndCause | None = None  # how it ended
    working_since: float | None = None  # until it ends; see `accounting`
    last_saved_at: float = 0.0  # when it last committed a checkpoint, or began
    resources: dict[str, float] = {}  # what it was given

    last_progress_at: float = 0.0  # when it began, or last reported a result or a checkpoint
    silence_warned: bool = False  # nothing reported for half of the progress deadline
    deadline_missed: bool = False  # for all of it: whatever the attempt reports as its end, it has failed
    failing: AttemptEnd | None = None  # how one of its processes failed, until the attempt has ended
    failure_confirmed: bool = False  # no disruption explains that

    decision: DecisionKind | None = None
    decision_reason: dict[str, Any] = {}
    released: tuple[str, ...] = ()  # checkpoints that it may delete, and has not reported as deleted

    @property
    def fails_if_lost(self) -> bool:
        """Whether it has failed although it is lost now."""
        return self.failing is not None and (self.failure_confirmed or self.deadline_missed)


class Trial(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One point of the search space and what has become of it. Only the engine changes it."""

    trial_id: str
    index: int  # order of creation, from 0
    tag: str  # "2_lr=0.0132"; an exploit changes it
    params: bytes  # MessagePack of the config
    created_at: float
    repeat_of: str = ""  # the trial whose config it runs again, see `repeats`
    repeat: int = 0  # its number among them, from 1
    ends_at: int = 0  # the iteration at which it ends at the latest; 0 = wherever it ends by itself
    first_tag: str = ""  # the tag it was created with, which names its directory, if that is not `tag`

    status: str = PENDING  # changed by `State.move`
    attempt: int = 0  # number of the latest attempt; 0 = none yet
    running: bool = False  # that attempt has not ended
    current: AttemptState = msgspec.field(default_factory=AttemptState)
    resources: dict[str, float] | None = None  # of the next attempt, when a scheduler changed them

    results: int = 0  # over all attempts
    iteration: int = 0  # training_iteration of the last result
    result: bytes = b""  # the last result
    nested: tuple[str, ...] = ()  # flat names of the dicts in its results, see trialpod.protocol.nested
    max_iteration: int = 0  # the highest training_iteration so far: what counts as progress
    value: float | None = None  # of the experiment's metric: the latest finite one, or NaN if none was finite
    value_iteration: int | None = None  # training_iteration of the result that had it
    point: list[float] = []  # values of all objectives in the latest result that has them; only with several
    measured: bool = False  # the metric was a number (NaN is one) at least once

    checkpoints: list[CheckpointInfo] = []  # committed and not deleted, oldest first
    next_checkpoint_index: int = 0
    pending_exploit: Change | None = None  # decided, takes effect when the current attempt has ended
    active_exploit: ActiveExploit | None = None  # in effect until the trial has committed a checkpoint since

    failures: int = 0
    disruptions: int = 0
    attempts_without_progress: int = 0  # that failed or were disrupted
    retry_at: float = 0.0  # not before
    error: str = ""
    traceback: str = ""

    run_time_s: float = 0.0  # of ended attempts
    kept: dict[str, float] = {}  # resource-seconds whose outcome is decided when the trial ends
    ended_at: float = 0.0
    stopped: bool = False  # it ended before its own end
    decision_log: tuple[bytes, ...] = ()
    past_attempts: tuple[PastAttempt, ...] = ()  # the latest of them, without the latest attempt
    decision_count: int = 0  # also of those that are not in the log any more
    completion_reported: bool = False  # scheduler and searcher know that it completed
    search_paused: bool = False  # the searcher knows that a scheduler paused it

    def __hash__(self) -> int:
        """Let schedulers keep what they know by trial."""
        return hash(self.trial_id)

    # -- what algorithms, files and people see ------------------------------------------------------------------

    @property
    def experiment_tag(self) -> str:
        """Its tag, by the name that Ray gives it."""
        return self.tag

    def is_finished(self) -> bool:
        """Return True when the trial will not run again by itself."""
        return self.ended

    @property
    def config(self) -> dict[str, Any]:
        """The parameters as algorithms see them; here, objects of the user's are `OpaqueValue`."""
        config: dict[str, Any] = opaque_decoder.decode(self.params)
        return config

    @property
    def shown_config(self) -> dict[str, Any]:
        """The parameters as files and people see them: no object of the user's is opened."""
        config: dict[str, Any] = results_decoder.decode(self.params)
        return config

    @property
    def attempt_fields(self) -> dict[str, Any]:
        """What results have beside the config that is the same in all of an attempt, and is sent only once."""
        current = self.current
        return {
            "trial_id": self.trial_id,
            "pid": current.pid,
            "hostname": current.hostname,
            "node_ip": current.node_ip,
        }

    @property
    def last_result(self) -> dict[str, Any]:
        """The latest result as algorithms see it, flattened; empty before the first."""
        return self.shown_result

    @property
    def shown_result(self) -> dict[str, Any]:
        """The latest result as files and people see it; empty before the first."""
        result: dict[str, Any] = results_decoder.decode(self.result) if self.result else {}
        return result

    @property
    def decisions(self) -> list[Decision]:
        """The decisions that are kept, oldest first."""
        return decode_decisions(self.decision_log)

    @property
    def stop_reason(self) -> dict[str, Any]:
        """Why it ended before its own end; empty if it did not."""
        if not self.stopped:
            return {}
        return next((decision.reason for decision in reversed(self.decisions) if decision.kind == "stop"), {})

    @property
    def may_be_retried(self) -> bool:
        """True when it failed, or was stopped only because the experiment failed."""
        if self.status == TERMINATED and self.stopped:
            return self.stop_reason.get("source") in FAILURES
        return self.status == ERROR

    @property
    def ended(self) -> bool:
        """True when the trial will not run again by itself."""
        return self.status in (TERMINATED, ERROR)

    @property
    def suspending(self) -> bool:
        """True when the running attempt ends only because the experiment is suspended."""
        current = self.current
        return current.decision == "pause" and current.decision_reason.get("source") == "suspend"

    @property
    def judged(self) -> bool:
        """True when no further result of the current attempt leads to a decision."""
        return self.completion_reported or (self.current.decision is not None and not self.suspending)

    @property
    def pauses(self) -> bool:
        """True when it is paused, or will be when its attempt has ended."""
        return self.status == PAUSED or (self.running and self.current.decision == "pause")

    @property
    def checkpoint(self) -> CheckpointInfo | None:
        """The checkpoint that its next attempt starts from: its latest one, or another trial's after an exploit."""
        return self.own_checkpoint if self.active_exploit is None else self.active_exploit.start.checkpoint

    @property
    def own_checkpoint(self) -> CheckpointInfo | None:
        """The latest committed checkpoint in its own directory."""
        return self.checkpoints[-1] if self.checkpoints else None

    # -- transitions: attempts ----------------------------------------------------------------------------------

    def start_attempt(self, now: float) -> None:
        """Begin the next attempt."""
        last = self.current
        if last.ended_at is not None and last.cause is not None:
            past = PastAttempt(self.attempt, last.started_at, last.began_at, last.ended_at, last.cause)
            self.past_attempts = (*self.past_attempts[1 - MAX_PAST_ATTEMPTS :], past)
        self.attempt += 1
        self.running = True
        self.search_paused = False
        self.retry_at = 0.0
        self.current = AttemptState(started_at=now)

    def locate_attempt(self, pid: int, hostname: str, node_ip: str, reused_pod: str, pod_uid: str) -> None:
        """Store where the attempt runs."""
        current = self.current
        current.pid, current.hostname, current.node_ip = pid, hostname, node_ip
        current.reused_pod, current.pod_uid = reused_pod, pod_uid

    def start_work(self, now: float, resources: dict[str, float]) -> None:
        """Start counting the attempt's resources."""
        current = self.current
        current.began_at = current.working_since = current.last_saved_at = now
        current.resources = resources

    def end_work(self, kept: dict[str, float]) -> None:
        """Stop counting; `kept` are the resource-seconds of which the trial's end decides."""
        current = self.current
        self.kept = kept
        current.working_since, current.last_saved_at, current.resources = None, 0.0, _NOTHING
        current.pod_uid = ""  # there may be thousands

    def record_progress(self, now: float) -> None:
        """The attempt has begun, or has come further."""
        self.current.last_progress_at, self.current.silence_warned = now, False

    def warn_silence(self) -> None:
        """The user was warned that the attempt reports nothing."""
        self.current.silence_warned = True

    def fail_later(self, end: AttemptEnd) -> None:
        """One of the attempt's processes has failed: the attempt cannot complete any more."""
        self.current.failing = end

    def confirm_failure(self) -> None:
        """No other process of the attempt was lost, which could explain the failure: it counts however it ends."""
        self.current.failure_confirmed = self.current.failing is not None

    def miss_deadline(self, end: AttemptEnd) -> None:
        """The attempt reported nothing until its progress deadline, so it has failed whatever it reports."""
        self.current.deadline_missed = True
        self.current.failing = end

    def decide(
        self, now: float, decision: DecisionKind, reason: dict[str, Any], iteration: int | None = None
    ) -> None:
        """Hold a decision for the running attempt."""
        self.current.decision, self.current.decision_reason = decision, reason
        self.log_decision(now, decision, reason, iteration)

    def log_decision(
        self, now: float, kind: DecisionName, reason: dict[str, Any], iteration: int | None = None
    ) -> None:
        """Add to the log of decisions; `iteration` is the trial's by default."""
        at = self.iteration if iteration is None else iteration
        self.decision_log = append_decision(self.decision_log, Decision(now, kind, self.attempt, at, reason))
        self.decision_count += 1

    def end_attempt(self, now: float, end: AttemptEnd) -> AttemptEnd:
        """End the attempt, and return how it ended: an earlier failure counts more than what it reported."""
        current = self.current
        self.running = False
        self.run_time_s += max(0.0, now - current.started_at)
        current.lost = end.cause == "lost"
        current.ended_at, current.cause = now, end.cause
        counts = end.cause in ("preempted", "lost") and current.fails_if_lost
        overridden = end.cause in ("completed", "stopped", "paused") or counts or current.deadline_missed
        failing, current.failing = current.failing, None
        return failing if failing is not None and overridden else end

    # -- transitions: results and checkpoints -------------------------------------------------------------------

    def count_result(self) -> None:
        """One more result of the current attempt."""
        self.current.received += 1
        self.results += 1

    def record_nested(self, names: Collection[str]) -> None:
        """These are names of dicts in its results."""
        new = [name for name in names if name not in self.nested and len(name) <= MAX_NAME]
        if new:
            self.nested = (*self.nested, *new[: MAX_NAMES - len(self.nested)])

    def record_value(self, number: float, iteration: int | None) -> None:
        """Store a value of the metric; NaN does not replace a number."""
        if self.value is None or math.isfinite(number) or not math.isfinite(self.value):
            self.value = number
            self.value_iteration = iteration
        self.measured = True

    def set_last_result(self, result: bytes, iteration: int | None = None) -> None:
        """Store the latest result, and its iteration if it has one."""
        self.result = result
        if iteration is not None:
            self.iteration = iteration
            self.advance(iteration)

    def advance(self, iteration: int) -> None:
        """The trial came this far."""
        if iteration > self.max_iteration:
            self.max_iteration = iteration
            self.attempts_without_progress = 0

    def add_checkpoints(self, committed: list[CheckpointInfo], now: float) -> bool:
        """Add checkpoints that the attempt committed; return whether any is new."""
        # An index below the latest is known, or was and is deleted: a report that arrived late.
        fresh = [checkpoint for checkpoint in committed if checkpoint.index >= self.next_checkpoint_index]
        if not fresh:
            return False
        self.checkpoints = sorted([*self.checkpoints, *fresh], key=lambda checkpoint: checkpoint.index)
        for checkpoint in fresh:
            self.next_checkpoint_index = max(self.next_checkpoint_index, checkpoint.index + 1)
            self.advance(checkpoint.iteration)
        self.current.last_saved_at = now
        return True

    def remove_checkpoints(self, names: Collection[str]) -> None:
        """Forget checkpoints that are deleted, or may be."""
        if names:
            self.checkpoints = [checkpoint for checkpoint in self.checkpoints if checkpoint.name not in names]

    def release_checkpoints(self, released: list[str], deleted: list[str]) -> None:
        """Let the attempt delete some checkpoints, and forget those that it has deleted."""
        every = dict.fromkeys((*self.current.released, *released))
        self.current.released = tuple(name for name in every if name not in deleted)
        self.remove_checkpoints({*deleted, *released})

    # -- transitions: between attempts --------------------------------------------------------------------------

    def set_config(self, params: bytes, tag: str) -> None:
        """Replace the config, and the tag unless the new one is empty."""
        self.params = params
        if tag:
            self.first_tag = self.first_tag or self.tag
            self.tag = tag

    def set_resources(self, resources: dict[str, float]) -> None:
        """Replace what the next attempt is given."""
        self.resources = resources

    def take_completion_report(self) -> bool:
        """Return True once: when scheduler and searcher are still to learn that the trial completed."""
        first, self.completion_reported = not self.completion_reported, True
        return first

    def pause_in_search(self) -> None:
        """The searcher learns that a scheduler paused the trial."""
        self.search_paused = True

    def fail(self, end: AttemptEnd) -> None:
        """Count a failed attempt."""
        self.failures += 1
        self.set_error(end.error or "failed without a message", end.traceback)

    def set_error(self, error: str, traceback: str = "") -> None:
        """Store why the latest attempt failed; "" = it did not."""
        self.error, self.traceback = error, traceback[-MAX_STORED_TRACEBACK:]

    def disrupt(self, now: float) -> None:
        """Count a disrupted attempt."""
        self.disruptions += 1
        self.back_off(now)

    def back_off(self, now: float) -> None:
        """Delay the next attempt while the trial makes no progress."""
        self.attempts_without_progress += 1
        doublings = self.attempts_without_progress - FREE_RETRIES - 1
        if doublings >= 0:
            self.retry_at = now + min(BACKOFF_BASE_S * 2.0 ** min(doublings, 32), MAX_BACKOFF_S)

    # -- transitions: the end -----------------------------------------------------------------------------------

    def stop(self) -> None:
        """The trial ends before its own end."""
        self.stopped = True

    def end(self, now: float) -> None:
        """The trial ends, and keeps little."""
        self.ended_at = now
        self.kept = _NOTHING
        self.current.decision_reason = _NOTHING

    def reopen(self, *, from_scratch: bool) -> None:
        """Let the user retry an ended trial."""
        self.failures = self.attempts_without_progress = 0
        self.error = self.traceback = ""
        self.stopped = self.completion_reported = False
        self.ended_at = 0.0
        if from_scratch:
            self.checkpoints = []
            self.max_iteration = 0


class OpenTrial(Trial, omit_defaults=True):
    """A trial in its user's own process: algorithms see the user's objects themselves."""

    @property
    def config(self) -> dict[str, Any]:
        """The parameters; what cannot be unpickled here is an `OpaqueValue`."""
        config: dict[str, Any] = open_leniently(self.params)
        return config

    @property
    def last_result(self) -> dict[str, Any]:
        """The latest result, flattened; empty before the first."""
        result: dict[str, Any] = open_leniently(self.result) if self.result else {}
        return result

    @classmethod
    def of(cls, trial: Trial) -> OpenTrial:
        """Return the same trial as one of this kind."""
        return cls(**{name: getattr(trial, name) for name in trial.__struct_fields__})
