"""What one record of the journal is, what a snapshot adds to the engine's own, and a search for replaying both."""

from __future__ import annotations

from typing import Any

import msgspec

from trialpod.errors import JournalError, format_mismatch
from trialpod.protocol.readable import readable
from trialpod.tune.search.search_algorithm import SearchAlgorithm, Suggestion
from trialpod_operator.engine.choices import Choices
from trialpod_operator.engine.events import AnyEvent

FORMAT_VERSION = 1


class Record(msgspec.Struct, array_like=True):
    """One applied event: when, what happened, and what the engine chose in answer."""

    now: float
    event: AnyEvent
    choices: Choices | None = None
    named: dict[str, tuple[str, str]] = {}  # (name, dirname) of trials that a script names itself


class EngineSnapshot(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The engine's snapshot, and how long the log files of the trials that continue were at that moment, in bytes."""

    version: int = FORMAT_VERSION
    engine: msgspec.Raw
    offsets: dict[str, dict[str, int]] = {}
    names: dict[str, str] = {}  # of trials that a script names itself
    dirnames: dict[str, str] = {}


class _Version(msgspec.Struct):
    version: int = FORMAT_VERSION


# A script's own plug-ins decide by values as they were reported, which may be NumPy's.
_encoder = msgspec.msgpack.Encoder(enc_hook=readable)
_record_decoder = msgspec.msgpack.Decoder(Record)
_snapshot_decoder = msgspec.msgpack.Decoder(EngineSnapshot)
_version_decoder = msgspec.msgpack.Decoder(_Version)


def encode(message: Record | EngineSnapshot) -> bytes:
    """Return the stored form."""
    return _encoder.encode(message)


def decode_record(data: bytes) -> Record:
    """Read a record; raise JournalError when it is not one of this version's."""
    try:
        return _record_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise JournalError(
            f"the journal holds a record that this version of trialpod cannot read ({error}); "
            "it was probably written by a newer one: upgrade trialpod"
        ) from error


def decode_snapshot(data: bytes) -> EngineSnapshot:
    """Read a snapshot; raise JournalError when it cannot be read here."""
    try:
        version = _version_decoder.decode(data).version
        mismatch = format_mismatch("the snapshot", version, FORMAT_VERSION)
        if mismatch is not None:
            raise JournalError(mismatch)
        return _snapshot_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise JournalError(
            f"the snapshot cannot be read ({error}); it was probably written by a newer trialpod: upgrade trialpod"
        ) from error


class RecordedSearch(SearchAlgorithm):
    """Suggests nothing.

    Args:
        total: how many trials there will be, where that is known.

    Attributes:
        left: how many trials the records still bring; a replay may update it.
    """

    transparent = True

    def __init__(self, total: int | None) -> None:
        self._total = total
        self.left = 0

    @property
    def total(self) -> int | None:
        """What was given."""
        return self._total

    @property
    def finished(self) -> bool:
        """Whether the records bring no further trial."""
        return self.left == 0

    def set_num_samples(self, num_samples: int) -> None:
        """Change nothing."""

    def next_suggestion(self) -> Suggestion | None:
        """Return None."""
        return None

    def get_state(self) -> dict[str, Any]:
        """Return nothing: there is no state."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Ignore it."""
