"""What was decided about a trial, kept with the trial so that it outlives the journal.

Each entry is kept packed, in some 100 to 400 bytes: most are never looked at. Of a trial about which more is decided
than `MAX_DECISIONS` the first entry and the latest are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from trialpod_operator.engine.trial import Trial

MAX_DECISIONS = 32

DecisionName = Literal[
    "stop", "pause", "exploit", "continue", "retry", "disruption", "failure", "undo", "resources", "config"
]
"""Beside what a trial is told: "continue" (an exploit that was not possible), "retry" (after a failure, or by the
user), "disruption", "failure" (for good), "undo" (of an exploit whose checkpoint turned out damaged), "resources",
"config" (another one before its first attempt)."""


class Decision(msgspec.Struct, array_like=True, frozen=True):
    """One decision, with its evidence."""

    time: float  # seconds since the epoch
    kind: DecisionName
    attempt: int  # the trial's latest attempt at that time
    iteration: int  # and its iteration
    reason: dict[str, Any]  # {"source": "scheduler", ...}


_encoder = msgspec.msgpack.Encoder(enc_hook=str)
_decoder = msgspec.msgpack.Decoder(Decision)


def note(trial: Trial, now: float, kind: DecisionName, reason: dict[str, Any], iteration: int | None = None) -> None:
    """Add a decision to those of the trial; `iteration` is the trial's by default."""
    at = trial.iteration if iteration is None else iteration
    entry = _encoder.encode(Decision(now, kind, trial.attempt, at, reason))
    kept = trial.decisions
    trial.decisions = (*kept, entry) if len(kept) < MAX_DECISIONS else (kept[0], *kept[2:], entry)
    trial.decided += 1


def cut_short(reason: dict[str, Any]) -> bool:
    """Return whether a trial that was stopped for this reason has not come to the end that it was meant to have.

    A stopper's rule is such an end, and so is the scheduler's own limit of time.
    """
    return reason.get("source") != "stopper" and reason.get("rule") != "max_t"


def decisions(trial: Trial) -> list[Decision]:
    """Return the decisions about a trial that are kept, oldest first."""
    return [_decoder.decode(entry) for entry in trial.decisions]
