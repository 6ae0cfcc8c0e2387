"""What the engine chose in answer to one event: written to the journal beside the event.

Replaying the journal must give the state that was lived, also after an upgrade that would choose differently. So a
replay takes these choices from the record, and only the bookkeeping is done again.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from trialpod.protocol.messages import DecisionKind
from trialpod_operator.engine.changes import Change


class Verdict(msgspec.Struct, array_like=True):
    """A decision of stopper or scheduler on one result of a trial; `number` is that result's within its attempt."""

    trial_id: str
    number: int
    decision: DecisionKind | Literal["continue"]  # "continue": an exploit that was asked for is not possible
    reason: dict[str, Any]
    change: Change | None = None  # of an exploit


class Command(msgspec.Struct, array_like=True):
    """What a scheduler decided about another trial than the one that reported."""

    at: int  # after so many steps of this call of `Engine.apply`
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
    look: int = 0  # it came of the so many-th look for a new trial; 0 = of the next one


class Outputs(msgspec.Struct, omit_defaults=True):
    """All choices made in one call of `Engine.apply`, in order."""

    verdicts: list[Verdict] = []
    created: list[Created] = []
    commands: list[Command] = []
    asked: int = 0  # the so many-th look for a new trial became a request, which an event of its own answers
    started: list[str] = []  # ids of trials, in the order in which the scheduler chose them
    passes: list[tuple[int, int]] = []  # trials created and started before each paused one that was then given up
    stop_all: dict[str, Any] | None = None  # a stopper ended the experiment, with this reason
    stop_all_at: int = 0  # at this result of the attempt
    reopened: bool = False  # an edit reopened the experiment, which had ended: the search has more to suggest
    breakdown: dict[str, Any] | None = None  # an algorithm raised an error, which ended the experiment

    @property
    def empty(self) -> bool:
        """True when nothing was chosen."""
        trials = self.verdicts or self.created or self.commands or self.started
        return not (trials or self.asked or self.stop_all or self.reopened or self.breakdown)
