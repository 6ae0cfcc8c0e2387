"""Histories that the engine's property machine makes are whole, however they are read."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from test_engine_properties import ENDS, Experiment, build

from trialpod.protocol.messages import AttemptEnd
from trialpod_operator.engine import events
from trialpod_operator.experiment.fsck.examine import recording_engine
from trialpod_operator.experiment.fsck.history import History, check_records, first_other_choice
from trialpod_operator.experiment.records import EngineSnapshot, Record, decode_record, decode_snapshot, encode

pytestmark = pytest.mark.once

SNAPSHOT_AT = 25
"""A snapshot is taken after so many records, and again after as many."""


class Journaled(Experiment):
    """Keeps a journal of what happens, of attempts that keep to the protocol as runners do."""

    def apply(self, event: events.AnyEvent) -> None:
        if not hasattr(self, "journal"):
            self.journal: list[bytes] = []
            self.snapshots: list[tuple[int, bytes]] = []
        super().apply(self.honest(event))
        self.journal.append(encode(Record(self.now, self.honest_event, self.engine.choices)))
        if len(self.journal) % SNAPSHOT_AT == 0:
            state = EngineSnapshot(engine=msgspec.Raw(self.engine.snapshot()))
            self.snapshots.append((len(self.journal), encode(state)))

    def honest(self, event: events.AnyEvent) -> events.AnyEvent:
        """What a runner would have said: it obeys only what it was told, and never leaves a gap behind."""
        trial = self.engine.state.trials.get(getattr(event, "trial_id", None) or "")
        current = trial is not None and trial.running and trial.attempt == getattr(event, "attempt", 0)
        if trial is not None and current:
            if isinstance(event, events.AttemptEnded) and event.end.cause in ("stopped", "paused"):
                if ENDS[trial.current.decision] != event.end.cause:
                    event = msgspec.structs.replace(event, end=AttemptEnd(cause="completed"))
            elif isinstance(event, events.ResultsReceived) and event.first > trial.current.received + 1:
                event = events.TimerFired()
        self.honest_event = event
        return event

    def teardown(self) -> None:
        """However the journal is read, it is whole."""
        super().teardown()
        if not hasattr(self, "journal"):
            return
        records = [decode_record(data) for data in self.journal]
        whole = History(records)
        for engine in (build(*self.how), build(*self.how, other=True), recording_engine()):
            checked = check_records(whole, engine)
            assert checked.findings.errors == []
            assert {trial_id: facts.count for trial_id, facts in checked.facts.items()} == dict(
                dict.fromkeys(checked.facts, 0), **self.delivered
            )
        assert first_other_choice(whole, build(*self.how)) is None
        for position, data in self.snapshots:
            since = History(records[position:], decode_snapshot(data), position + 1)
            assert check_records(since, build(*self.how)).findings.errors == []
            assert first_other_choice(since, build(*self.how)) is None


Journaled.TestCase.settings = hypothesis_settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestAHistoryUnderFaults = Journaled.TestCase
