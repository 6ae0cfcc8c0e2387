"""What a decider and the engine that follows it say to each other: MessagePack over the report service.

The decider always calls out. Each of its calls names the journal position up to which it knows the experiment, and
brings what it chose for the events behind the one before. The answer brings records and events that follow.

1. ``session=0`` begins a session: the answer has the code, the latest snapshot and the first records after it.
2. Further records follow until the decider has them all. It replays them: nothing is decided a second time.
3. Then come events. It decides about all of an answer in order, and its next call has the choices. That call is held
   until there is another event.

A large value of a config is in none of these: configs refer to it, and a decider asks for its parts by its name.

Invariants:

* One session at a time. A call of another one is refused (409), and that decider begins again.
* Every call can be repeated: choices that are known already are skipped, and the same events are sent again.
* Nothing that a decider says is acted on before it is in the journal.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from trialpod.protocol.messages import PROTOCOL_VERSION, Horizon, Message
from trialpod.protocol.readable import readable
from trialpod_operator.engine.choices import Choices
from trialpod_operator.engine.events import SuggestionReady
from trialpod_operator.experiment.records import Record

MAX_BATCH_EVENTS = 1000
MAX_BATCH_BYTES = 1024 * 1024
"""Of one answer, at most; one record or event may be larger."""


VALUE_PART_BYTES = 4 * 1024 * 1024
"""Of a stored value, in one answer."""


class View(Message):
    """What the engine that follows cannot know of the algorithms."""

    total: int | None = None  # trials in all
    wakeup: float | None = None  # when a stopper wants to be asked again, in seconds since the epoch
    stops_early: bool = True
    saves_at_horizon: bool = False
    search_ended: bool = False


class DeciderStart(Message):
    """What a decider needs to begin."""

    code: bytes  # a packed file; see trialpod.protocol.packed
    seed: int
    name: str
    position: int  # of the journal, at the snapshot
    snapshot: bytes | None = None  # an engine's
    decision_timeout_s: float = 30.0
    suggestion_timeout_s: float = 600.0
    lessons: bytes = b""  # JSON: of earlier experiments, which a decider cannot read


class Item(msgspec.Struct, array_like=True):
    """A record that is in the journal, or an event that is to be decided about."""

    record: Record
    decided: bool


class DecisionRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A call of a decider. One with `busy`, a `suggestion`, a `value` or a `problem` has nothing else."""

    session: int = 0  # 0 = begins one
    version: int = PROTOCOL_VERSION
    release: str = ""  # of its trialpod
    position: int = 0  # it knows the experiment up to here
    choices: list[Choices] = []  # for the events of the last answer
    horizons: dict[str, list[Horizon]] = {}  # of trials that these were about
    view: View | None = None
    warnings: list[str] = []
    snapshot: bytes | None = None  # of its engine at `position`
    no_snapshot: bool = False  # its engine's state cannot be stored
    busy: bool = False  # it still decides about the events of the last answer
    suggestion: SuggestionReady | None = None
    suggestion_number: int = 0  # counted from 1 within the session
    value: str = ""  # the name of a stored value, which it wants to read
    value_start: int = 0  # from this byte on
    problem: str = ""  # why it cannot continue
    traceback: str = ""


class DecisionAnswer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What follows `DecisionRequest.position`."""

    session: int = 0
    start: DeciderStart | None = None
    items: list[Item] = []
    loading: bool = False  # the items are records, and more may follow
    snapshot_wanted: bool = False
    ended: str = ""  # why the session is over: the decider exits
    restart: bool = False  # and starts again, for another session
    value: bytes = b""  # a part of the value that was asked for
    value_continues: bool = False  # more of it follows
    value_problem: str = ""  # why there is none


_encoder = msgspec.msgpack.Encoder(enc_hook=readable)
_request_decoder = msgspec.msgpack.Decoder(DecisionRequest)
_answer_decoder = msgspec.msgpack.Decoder(DecisionAnswer)


def encode(message: DecisionRequest | DecisionAnswer) -> bytes:
    """Return the MessagePack of a message."""
    return _encoder.encode(message)


def decode_request(data: bytes) -> DecisionRequest:
    """Read a decider's call; raises msgspec.MsgspecError, UnicodeDecodeError or RecursionError."""
    return _request_decoder.decode(data)


def encode_lessons(lessons: list[list[Any]]) -> bytes:
    """Return `DeciderStart.lessons`: the JSON that the stored document has, whose integers may have over 64 bits."""
    return json.dumps(lessons).encode() if lessons else b""


def read_lessons(start: DeciderStart) -> list[list[Any]]:
    """Return what `encode_lessons` was given."""
    found: list[list[Any]] = json.loads(start.lessons) if start.lessons else []
    return found


def decode_answer(data: bytes) -> DecisionAnswer:
    """Read the answer to one; raises as `decode_request`."""
    return _answer_decoder.decode(data)
