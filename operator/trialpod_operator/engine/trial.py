"""One trial as the engine keeps it: plain data, small once it has ended.

Parameters and the last result are kept as the MessagePack bytes they arrived in: a finished trial must stay below
2 kB, and most are never looked at again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from trialpod.protocol.messages import AttemptEnd, CheckpointInfo, DecisionKind
from trialpod.protocol.values import opaque_decoder, open_leniently, results_decoder
from trialpod_operator.engine.changes import Change, Planted
from trialpod_operator.engine.decisions import decisions

PENDING = "PENDING"
RUNNING = "RUNNING"
PAUSED = "PAUSED"
TERMINATED = "TERMINATED"
ERROR = "ERROR"

FAILURES = frozenset({"metric", "algorithm", "broken", "fail_fast"})
"""Sources of a stop that make the experiment fail."""

STATUSES = (PENDING, RUNNING, PAUSED, TERMINATED, ERROR)


class Trial(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One point of the search space and what has become of it. Owned and changed by the engine only."""

    trial_id: str
    index: int  # order of creation, from 0
    tag: str  # "2_lr=0.0132"; an exploit changes it
    params: bytes  # MessagePack of the config
    created_at: float
    first_tag: str = ""  # the tag it was created with, which names its directory, when that is not `tag`

    status: str = PENDING
    attempt: int = 0  # number of the latest attempt; 0 = none yet
    running: bool = False  # that attempt has not ended
    lost: bool = False  # that attempt was given up; should its process turn up again, it must not go on
    received: int = 0  # results of that attempt
    started_at: float = 0.0  # of that attempt
    pid: int = 0
    hostname: str = ""
    node_ip: str = ""
    place: str = ""  # the pod of that attempt, when it was made for another one
    began_at: float | None = None  # when that attempt took up its work, until it ends; see `accounting`
    saved_at: float = 0.0  # when it last committed a checkpoint, or began
    given: dict[str, float] = {}  # the resources that it has
    held: dict[str, float] = {}  # resource-seconds that are kept, until the trial ends
    failing: AttemptEnd | None = None  # how one of that attempt's processes failed, until the attempt has ended
    progress_at: float = 0.0  # when that attempt began, or last reported a result or a checkpoint
    quiet: bool = False  # it has reported nothing for half of the time that it may
    overdue: bool = False  # for all of it: whatever it says of its end, it has failed
    decision: DecisionKind | None = None  # for that attempt
    decision_reason: dict[str, Any] = {}
    change: Change | None = None  # an exploit that was decided, while the attempt before it has not ended
    planted: Planted | None = None  # the exploit in force, as long as the trial has no checkpoint of its own since
    resources: dict[str, float] | None = None  # of its next attempt, when a scheduler changed them

    results: int = 0  # over all attempts
    iteration: int = 0  # training_iteration of the last result
    result: bytes = b""  # the last result
    furthest: int = 0  # the highest training_iteration so far: what counts as progress
    value: float | None = None  # of the experiment's metric: the latest finite one, or NaN if none was finite
    value_iteration: int | None = None  # training_iteration of the result that had it
    measured: bool = False  # the metric was a number (NaN is one) at least once

    checkpoints: list[CheckpointInfo] = []  # committed and still there, oldest first
    next_checkpoint_index: int = 0
    released: tuple[str, ...] = ()  # checkpoints that the latest attempt may remove, and has not said that it has

    failures: int = 0
    disruptions: int = 0
    fruitless: int = 0  # attempts that failed or were disrupted since the trial last came further
    retry_at: float = 0.0  # not before
    run_time_s: float = 0.0  # of ended attempts
    ended_at: float = 0.0
    error: str = ""
    traceback: str = ""
    stopped: bool = False  # it ended before its own end
    unlogged_stop: dict[str, Any] | None = msgspec.field(default=None, name="stop_reason")  # of older snapshots
    decisions: tuple[bytes, ...] = ()  # see `trialpod_operator.engine.decisions`
    decided: int = 0  # how many there were
    completion_told: bool = False  # scheduler and searcher know that it completed
    parked: bool = False  # the searcher knows that a scheduler paused it

    def __hash__(self) -> int:
        """Let schedulers keep what they know by trial."""
        return hash(self.trial_id)

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
    def last_result(self) -> dict[str, Any]:
        """The latest result as algorithms see it, flattened; empty before the first."""
        return self.shown_result

    @property
    def shown_result(self) -> dict[str, Any]:
        """The latest result as files and people see it; empty before the first."""
        result: dict[str, Any] = results_decoder.decode(self.result) if self.result else {}
        return result

    @property
    def stop_reason(self) -> dict[str, Any]:
        """Why it ended before its own end; empty if it did not."""
        if not self.stopped:
            return dict(self.unlogged_stop or {})
        kept = reversed(decisions(self))
        return next((decision.reason for decision in kept if decision.kind == "stop"), {})

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
    def checkpoint(self) -> CheckpointInfo | None:
        """The checkpoint that it goes on from: its newest committed one, or another trial's after an exploit."""
        return self.own_checkpoint if self.planted is None else self.planted.start.checkpoint

    @property
    def own_checkpoint(self) -> CheckpointInfo | None:
        """The newest committed checkpoint in its own directory."""
        return self.checkpoints[-1] if self.checkpoints else None


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
