"""What the engine chose in answer to one event, and why: plain data, written to the journal beside the event.

A replay takes these choices from the record and only repeats the bookkeeping, so it reaches the recorded state even
after an upgrade that would choose differently.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from trialpod.protocol.messages import CheckpointInfo, DecisionKind


class Start(msgspec.Struct, array_like=True, frozen=True):
    """A checkpoint of another trial that a trial starts from."""

    trial_id: str  # the trial whose directory holds it
    checkpoint: CheckpointInfo

    @property
    def key(self) -> tuple[str, str]:
        """What identifies the checkpoint."""
        return self.trial_id, self.checkpoint.name


class Change(msgspec.Struct, array_like=True, frozen=True):
    """A new config for a trial; of an exploit it takes effect when the current attempt has ended."""

    source: str  # the trial that is followed, possibly itself
    params: bytes  # MessagePack of the config
    tag: str  # "" keeps the old one
    start: Start | None = None  # None: the trial's own latest checkpoint


class ActiveExploit(msgspec.Struct, array_like=True, frozen=True):
    """An exploit in effect, until the trial has committed a checkpoint of its own."""

    source: str
    start: Start
    params_before: bytes
    tag_before: str


class Verdict(msgspec.Struct, array_like=True):
    """A decision of stopper or scheduler on one result of a trial."""

    trial_id: str
    number: int  # of the result, within its attempt
    decision: DecisionKind | Literal["continue"]  # "continue": the requested exploit is not possible
    reason: dict[str, Any]
    change: Change | None = None  # of an exploit


class Command(msgspec.Struct, array_like=True):
    """A scheduler's decision about another trial than the one that reported."""

    step: int  # the step of this call of `Engine.apply` that carried it out
    kind: Literal["stop", "exploit", "resources", "config"]
    trial_id: str
    reason: dict[str, Any]
    change: Change | None = None  # of an exploit or a config
    resources: dict[str, float] = {}


class Created(msgspec.Struct, array_like=True):
    """A suggestion that became a trial."""

    trial_id: str
    tag: str
    params: bytes
    search: int = 0  # number of the search for a new trial, within this call, that found it; 0 = the next one


class Repeat(msgspec.Struct, array_like=True):
    """A trial that runs another one's config again."""

    trial_id: str
    params: bytes
    source: str
    number: int  # from 1


class Choices(msgspec.Struct, omit_defaults=True):
    """All choices made in one call of `Engine.apply`, in order."""

    verdicts: list[Verdict] = []
    created: list[Created] = []
    commands: list[Command] = []
    requested: int = 0  # number of the search for a new trial that sent a request, answered by `SuggestionReady`
    started: list[str] = []  # trial ids, in the order in which the scheduler chose them
    passes: list[tuple[int, int]] = []  # trials created and started before each paused one that was then given up
    stop_all: dict[str, Any] | None = None  # a stopper ended the experiment, with this reason
    stop_all_at: int = 0  # at this result of the attempt
    reopened: bool = False  # an edit reopened an ended experiment: the search has more to suggest
    failure: dict[str, Any] | None = None  # an algorithm raised an error, which ended the experiment
    repeats: list[Repeat] = []
    held: int = 0  # from this search for a new trial on, the budget allowed no new one; 0 = it allowed all
    closing: dict[str, Any] | None = None  # why no trial starts any more, from this event on

    @property
    def empty(self) -> bool:
        """True when nothing was chosen."""
        trials = self.verdicts or self.created or self.commands or self.started
        others = (
            self.requested
            or self.stop_all
            or self.reopened
            or self.failure
            or self.held
            or self.closing
            or self.repeats
        )
        return not (trials or others)


# -- the log of decisions that is kept with each trial ------------------------------------------------------------

MAX_DECISIONS = 32
"""Decisions that are kept of a trial: the first one and the latest."""

DecisionName = Literal[
    "stop", "pause", "exploit", "continue", "retry", "disruption", "failure", "undo", "resources", "config"
]
"""Beside the decisions that an attempt receives: "continue" (an exploit that was not possible), "retry" (after a
failure, or by the user), "disruption", "failure" (for good), "undo" (of an exploit whose checkpoint turned out
damaged), "resources", "config" (another one before the first attempt)."""


class Decision(msgspec.Struct, array_like=True, frozen=True):
    """One decision about a trial, with its evidence."""

    time: float  # seconds since the epoch
    kind: DecisionName
    attempt: int  # the trial's latest attempt at that time
    iteration: int  # and its iteration
    reason: dict[str, Any]  # {"source": "scheduler", ...}


_encoder = msgspec.msgpack.Encoder(enc_hook=str)
_decoder = msgspec.msgpack.Decoder(Decision)


def append_decision(log: tuple[bytes, ...], decision: Decision) -> tuple[bytes, ...]:
    """Return the log with one more entry, which is kept encoded (100 to 400 bytes): most are never read."""
    entry = _encoder.encode(decision)
    return (*log, entry) if len(log) < MAX_DECISIONS else (log[0], *log[2:], entry)


def decode_decisions(log: tuple[bytes, ...]) -> list[Decision]:
    """Return the decisions of a log, oldest first."""
    return [_decoder.decode(entry) for entry in log]


def is_early_stop(reason: dict[str, Any]) -> bool:
    """Return whether a stop for this reason ended a trial before its intended end.

    A stopper's rule is such an end, and so is the scheduler's own limit of time.
    """
    return reason.get("source") not in ("stopper", "repeats") and reason.get("rule") != "max_t"
