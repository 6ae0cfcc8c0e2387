"""What can happen to an experiment. Events are journaled, so they are plain data and old ones stay readable."""

from __future__ import annotations

import msgspec

from trialpod.protocol.messages import AttemptEnd, CheckpointInfo
from trialpod_operator.engine.choices import Created
from trialpod_operator.engine.settings import Settings


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="type", omit_defaults=True):
    """Base of all events."""


class SettingsObserved(Event, frozen=True):
    """The spec was seen for the first time, or its budget fields changed."""

    settings: Settings


class CapacityObserved(Event, frozen=True):
    """At most so many attempts fit at once, whatever the spec allows. None = the cluster decides.

    `resources` are what all trials together may use, as far as that is known.
    """

    slots: int | None
    resources: dict[str, float] = {}


class AttemptStarted(Event, frozen=True):
    """A runner fetched its assignment; `resources` are what its process or pod was given, for the account."""

    trial_id: str
    attempt: int
    pid: int = 0
    hostname: str = ""
    node_ip: str = ""
    resources: dict[str, float] = {}
    reused_pod: str = ""  # its pod, when that was made for another attempt
    pod_uid: str = ""  # of the pod; one of the same name that is created later is not the attempt's


class ResultsReceived(Event, frozen=True):
    """A batch of results; `first` is the number of ``results[0]`` within the attempt, counted from 1."""

    trial_id: str
    attempt: int
    first: int
    results: list[msgspec.Raw]
    committed: list[CheckpointInfo] = []  # checkpoints that came with them
    nested: list[str] = []  # flat names of dicts in the results, see trialpod.protocol.nested


class CheckpointsChanged(Event, frozen=True):
    """Checkpoints that an attempt committed, those that it removed, and those that it no longer needs.

    Of the latter, all that no other trial is to start from are forgotten, and then it may remove them.
    """

    trial_id: str
    attempt: int
    committed: list[CheckpointInfo] = []
    deleted: list[str] = []
    unneeded: list[str] = []


class CheckpointDamaged(Event, frozen=True):
    """A checkpoint was found missing or damaged when it was to be restored."""

    trial_id: str
    name: str


class AttemptEnded(Event, frozen=True):
    """An attempt is over: by its own word, or because its process is gone. The first word counts."""

    trial_id: str
    attempt: int
    end: AttemptEnd


class FailureObserved(Event, frozen=True):
    """One of the processes of an attempt has failed while another one, which speaks for the attempt, still runs.

    From then on that attempt cannot complete: it fails when it ends, unless a disruption explains the failure. The
    second event about it, with `confirmed`, says that none does: all other processes were checked.
    """

    trial_id: str
    attempt: int
    end: AttemptEnd
    confirmed: bool = False


class TimerFired(Event, frozen=True):
    """The time that `Engine.next_wakeup` named has come."""


class SuggestionReady(Event, frozen=True):
    """A search algorithm that takes its time has answered, or broke down at any call."""

    created: Created | None = None  # None: it has nothing to suggest
    finished: bool = False  # and never will have
    error: str = ""


class StopRequested(Event, frozen=True):
    """The user stops one trial, or all when `trial_id` is None."""

    trial_id: str | None = None


class SuspendRequested(Event, frozen=True):
    """Pause all trials and start none."""


class ResumeRequested(Event, frozen=True):
    """Continue after `SuspendRequested`."""


class RetryRequested(Event, frozen=True):
    """Queue the trials that ended in ERROR again, with a fresh count of failures.

    `cut_short` adds those that were stopped because the experiment failed. `trial_ids` are those selected, when
    it is not all. A request with a `token` counts once: the engine keeps the latest.
    """

    from_scratch: bool = False
    cut_short: bool = False
    trial_ids: list[str] = []
    token: str = ""


class Recovered(Event, frozen=True):
    """The shell restarted; `live` are the (trial_id, attempt) whose processes are still there.

    `writer` names the process. This is the first record of each that continues an experiment: two that do so at the
    same time, with clocks behind the journal's, would otherwise write the same bytes, and each take them for its own.
    """

    live: list[tuple[str, int]] = []
    writer: str = ""


AnyEvent = (
    SettingsObserved
    | CapacityObserved
    | AttemptStarted
    | ResultsReceived
    | CheckpointsChanged
    | CheckpointDamaged
    | AttemptEnded
    | FailureObserved
    | TimerFired
    | SuggestionReady
    | StopRequested
    | SuspendRequested
    | ResumeRequested
    | RetryRequested
    | Recovered
)
