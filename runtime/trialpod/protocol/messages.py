"""What an attempt and the report service say to each other: typed MessagePack messages over HTTP/1.1.

The attempt always calls out. It knows these calls, all ``POST`` below ``/v1/{experiment}``:

``assignment``
    The runner's first call. Names the runner; the answer says which attempt of which trial it is to run. With pod
    reuse it is asked again when a trial is over, and the server may hold the answer back until there is work.
``report``
    Results in order, committed checkpoints, and at last how the attempt ended. A call without any of them is a
    heartbeat. The answer says what was received and what is durable, up to where the attempt may continue without
    asking (its horizons), and the decision, if there is one.
``credentials``
    Asks for short-lived keys to the storage, where pods have none of their own: before the first use of the storage,
    and again before they expire.
``decisions``
    Made by a decider, not by attempts: see `trialpod_operator.experiment.decisions.messages`.

Invariants:

* The results of one attempt are numbered 1, 2, 3, ... without gaps (`ReportRequest.first` is the number of the first
  in the batch). The server ignores numbers that it has, and a batch after a gap: `received` in the answer says
  from where to send again. So a batch can be sent again at will.
* The runner keeps a result until its number is `durable`.
* A result that meets a horizon is the last one of its batch; the attempt waits for that batch's answer.
* An attempt that is answered `superseded` exits at once and does not touch storage again.
* An attempt that `asks_to_delete` names the checkpoints that it no longer needs (`unneeded_checkpoints`) and removes
  those that an answer calls `deletable`. The server forgets a checkpoint before it says so, and refuses while another
  trial is to start from it: so nothing that an attempt may still have to read is ever removed.
* Of several servers one serves an experiment. Another answers 421 with that one's address, and an attempt asks there
  until it gets no answer; then it asks at its first address again. 503 with a Retry-After: no replica serves it.
* Unknown fields are ignored; a field that changes the meaning of others comes with a new version.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from trialpod.protocol.command import CommandSpec
from trialpod.protocol.readable import encodable

PROTOCOL_VERSION = 1
"""The version of this protocol. Another one is refused with what to do about it."""

MAX_RESULT_BYTES = 8 * 1024 * 1024
"""The largest single result. Larger data belongs in a checkpoint."""

AUTO_RESULT_KEYS = frozenset(
    {
        "training_iteration",
        "time_this_iter_s",
        "time_total_s",
        "time_since_restore",
        "iterations_since_restore",
        "timestamp",
        "date",
        "done",
        "checkpoint_dir_name",
        "timesteps_this_iter",
        "timesteps_total",
        "timesteps_since_restore",
        "episodes_this_iter",
        "episodes_total",
    }
)
"""Keys of a result that are not the user's metrics."""

EVERY_RESULT = 0.0
"""A horizon `at` which every result meets (when its attribute is ``training_iteration``)."""


class Message(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Base of all messages: keyword-only fields; what has its default value is not sent."""


class Horizon(msgspec.Struct, frozen=True):
    """The first result at which an attempt must wait for a decision: the first with ``result[attr] >= at``.

    A result without `attr` (or whose value is not a number) does not meet it; one whose value is NaN does.
    """

    attr: str = "training_iteration"
    at: float = EVERY_RESULT


class StopRule(msgspec.Struct, frozen=True):
    """One entry of the ``stop`` dict, judged in the attempt: the trial is done when ``result[key] >= value``.

    `key` is the flattened name ("a/b" for nested metrics).
    """

    key: str
    value: float


class CheckpointRules(Message):
    """When the runner checkpoints by itself, and which checkpoints of the trial it keeps."""

    frequency: int = 0  # every n iterations, class Trainables only; 0 = never
    at_end: bool = False  # class Trainables only
    num_to_keep: int | None = None
    score_attribute: str | None = None
    score_order: Literal["max", "min"] = "max"
    artifacts: bool = False  # keep what else a trial writes into its directory, where checkpoints go elsewhere


class CheckpointInfo(Message):
    """A committed checkpoint."""

    name: str  # "checkpoint_000003": the directory below the trial's
    index: int
    iteration: int  # training_iteration of the result that it belongs to
    metrics: dict[str, Any]  # that result's metrics, flattened scalars only
    attempt: int
    size: int = 0  # bytes
    time: float = 0.0  # seconds since the epoch


class TrainableRef(Message):
    """Where the user's code is. Exactly one of `entrypoint`, `source`, `pickle` and `command` is set."""

    entrypoint: str | None = None  # "module:attribute"
    source: str | None = None  # inline Python
    attribute: str | None = None  # with `source`: which name to run; None = the only Trainable defined there
    pickle: str | None = None  # path or URI of a cloudpickle file
    sha256: str | None = None  # of that file
    command: CommandSpec | None = None  # a program of any kind
    path: list[str] = []  # folders put first on sys.path
    modules: dict[str, str] = {}  # Python files by their path ("train.py"), put before those folders


class Assignment(Message):
    """One attempt of one trial: everything a runner needs to run it."""

    trial_id: str
    attempt: int
    trial_name: str  # "train_digits_3f2a1_00002"
    experiment: str
    experiment_tag: str  # "2_lr=0.0132"
    trial_dir: str  # path of the trial's directory on this machine: working directory, log
    params: msgspec.Raw  # MessagePack of the config; see protocol.values
    trainable: TrainableRef
    checkpoint_uri: str = ""  # where its checkpoints go, when that is not `trial_dir`
    storage_options: dict[str, Any] = {}  # a trialpod.storage.options.StorageOptions, for `checkpoint_uri`
    place_marked: bool = False  # the folder above `checkpoint_uri` has the experiment's file until all is deleted
    resources: dict[str, float] = {}
    checkpoint: CheckpointInfo | None = None  # start from this one
    source_dir: str = ""  # `checkpoint` is another trial's, in this directory; no other one will do
    source_uri: str = ""  # or at this URI
    checkpoints: list[CheckpointInfo] = []  # every committed one still there, oldest first
    next_checkpoint_index: int = 0
    checkpoint_rules: CheckpointRules = msgspec.field(default_factory=CheckpointRules)
    stop_rules: list[StopRule] = []
    horizons: list[Horizon] = []
    metric: str | None = None
    heartbeat_s: float = 10.0
    grace_s: float = 10.0  # from SIGTERM to SIGKILL
    reuse: bool = False  # ask for another assignment when this one is over
    saves_at_horizon: bool = False  # class Trainables: a checkpoint with each result that meets a horizon
    pinned: list[str] = []  # checkpoints of the trial that others start from: they stay, known or not
    asks_to_delete: bool = False  # checkpoints are removed only when an answer allows it
    repeat: int = 0  # its number among the repeats of its config; 0 = it is not a repeat
    rank: int = 0  # of this process among those that run the attempt together; only 0 reports
    world_size: int = 1  # how many they are
    master_addr: str = ""  # where rank 0 can be reached by the others
    keeps_types: bool = False  # results may have extension values; see protocol.values
    created_at: float = 0.0  # when the trial was created, seconds since the epoch; 0 = not known


class AssignmentRequest(Message):
    """Asks for work."""

    runner: str  # identity that its parent gave to the process
    pid: int
    hostname: str
    node_ip: str = "127.0.0.1"
    version: int = PROTOCOL_VERSION
    rank: int = 0  # of this process among those that run the attempt together
    release: str = ""  # of its trialpod
    afresh: bool = False  # a fresh process runs each trial, and a line in the output names it
    again: bool = False  # an attempt has ended in this process, or in one before it with the same identity


class AssignmentAnswer(Message):
    """`assignment` is None when there is no (more) work: the runner exits with status 0."""

    assignment: Assignment | None = None
    reason: str = ""


class CredentialsRequest(Message):
    """Asks for keys to the storage, for the attempt whose `Assignment.storage_options` say that it needs them."""

    trial_id: str
    attempt: int


class CredentialsAnswer(Message):
    """Short-lived keys to what the attempt needs of the storage, and to nothing else.

    They are kept in memory only. No representation shows them.
    """

    access_key: str = ""
    secret_key: str = ""
    token: str = ""
    lifetime_s: float = 0.0  # from now on: the two clocks need not agree
    problem: str = ""  # why there are none now; they are asked for again

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"CredentialsAnswer({shown})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in ("access_key", "lifetime_s", "problem")]


EndCause = Literal[
    "completed",  # the Trainable finished, or a stop rule was met
    "stopped",  # it obeyed a stop decision
    "paused",  # it obeyed a pause decision
    "preempted",  # SIGTERM: the cluster or the user took the process away
    "damaged",  # the other trial's checkpoint that it was to start from cannot be restored
    "failed",  # its own code or limits
    "lost",  # the process vanished without a word; never sent by the attempt itself
]


class AttemptEnd(Message):
    """How an attempt ended."""

    cause: EndCause
    error: str = ""  # one line, "ValueError: learning rate must be positive"
    traceback: str = ""
    retry: bool = True  # False: running it again cannot help (a broken entry point)
    after_completion: bool = False  # it failed although the trial is complete: its model could not be exported
    asks: bool = False  # the same runner asks again: for the trial's next attempt, or with reuse for any other

    def __post_init__(self) -> None:
        # The texts are the user's own.
        self.error = encodable(self.error)
        self.traceback = encodable(self.traceback)


class ReportRequest(Message):
    """News from one attempt, all of it optional: results, committed checkpoints, the end."""

    trial_id: str
    attempt: int
    first: int = 1  # number of results[0] in this attempt
    results: list[msgspec.Raw] = []  # each the MessagePack map of one complete result, flattened; see protocol.values
    nested: list[str] = []  # flat names of dicts in the results up to these, see protocol.nested
    checkpoints: list[CheckpointInfo] = []  # committed since the last answered call
    deleted_checkpoints: list[str] = []  # names removed by the retention rules
    unneeded_checkpoints: list[str] = []  # names that the rules no longer keep; removed when an answer allows it
    end: AttemptEnd | None = None


DecisionKind = Literal["stop", "pause", "exploit"]
"""The decision on a trial. "exploit": end without saving; the next attempt has another config and starting point."""


class ReportAnswer(Message):
    """What the server knows and decides. No `decision` means: continue."""

    received: int = 0  # all results up to this number are applied
    durable: int = 0  # and up to this one will survive the server's death
    horizons: list[Horizon] = []
    decision: DecisionKind | None = None
    deletable: list[str] = []  # checkpoints that may be removed; of those named in an earlier or this call
    superseded: bool = False


class ErrorAnswer(Message):
    """The body of every 4xx and 5xx answer."""

    error: str
    address: str = ""  # with 421: "host:port" of the server that serves the experiment, under the same certificate


Call = Literal["assignment", "report", "credentials", "decisions"]


def path(experiment: str, call: Call) -> str:
    """Return the URL path of a call for an experiment (a DNS label, or "namespace/name" in a cluster)."""
    return f"/v{PROTOCOL_VERSION}/{experiment}/{call}"
