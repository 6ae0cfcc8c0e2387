"""Checks the history of an experiment: its journal's records, by themselves, against what must hold of every history.

The records are read twice over. One reading replays them through an engine, with what was chosen then. The other
keeps an account of its own (`_Account`), from the events alone: which attempt is open, which results arrived, what
failed. Whatever the two say differently, and whatever breaks a rule, is a finding.

The rules: attempts of a trial are numbered 1, 2, 3, ... and never overlap; what an attempt says comes between its
start and its end; results count once, in order, without gaps; every verdict is about a result that has just
arrived, and every decision has a verdict; a trial ends for a reason that is in the history, and starts again only
when its user asks for it; counters equal the facts.

Pure: no I/O, no clock. A snapshot stands for the records before it: what happened there is taken from its state,
whose parts are checked against each other, and the rules are checked from there on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from trialpod.protocol.messages import CheckpointInfo
from trialpod_operator.engine import events
from trialpod_operator.engine.actions import Action, DecisionMade, ResultsApplied, TrialEnded
from trialpod_operator.engine.choices import Choices
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.trial import ERROR, PAUSED, PENDING, RUNNING, STATUSES, TERMINATED, Trial
from trialpod_operator.experiment.fsck.findings import Findings
from trialpod_operator.experiment.records import EngineSnapshot, Record, RecordedSearch

_OWN_WORD = ("completed", "stopped", "paused")
"""Ends that an attempt tells itself, after everything that it had to say."""

_OBEYED = {"stopped": ("stop",), "paused": ("pause", "exploit")}
_COPY = "restore the journal from a backup"
_MAX_ALIKE = 20
"""Maximum number of findings of one kind that are listed in full."""


@dataclass
class History:
    """What is stored of an experiment's life.

    Attributes:
        records: after the snapshot, oldest first.
        snapshot: the state before them; None when the records go back to the beginning.
        first: number of the first record.
    """

    records: Sequence[Record]
    snapshot: EngineSnapshot | None = None
    first: int = 1


@dataclass
class Facts:
    """What the records say about one trial, without the engine.

    Attributes:
        results: those that count, since the snapshot.
        before: how many counted up to the snapshot.
        committed: checkpoints that were ever reported, since the snapshot or in it.
    """

    trial_id: str
    attempt: int = 0
    open: bool = False
    received: int = 0
    promised: int = 0  # the highest number of a result that some report was ahead of
    results: list[msgspec.Raw] = field(default_factory=list)
    before: int = 0
    failures: int = 0
    disruptions: int = 0
    decided: set[str] = field(default_factory=set)  # what was decided for the current attempt
    last_cause: str = ""
    completion_reported: bool = False  # scheduler and searcher knew of the completion before the attempt's end
    ended: bool = False
    process: tuple[int, str] | None = None
    committed: dict[str, CheckpointInfo] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """All results that count."""
        return self.before + len(self.results)


@dataclass
class Checked:
    """The outcome of `check_records`: the engine after the last record, and the facts by trial.

    `restored`: the snapshot, if there is one, could be restored; else engine and facts say nothing.
    """

    engine: Engine
    facts: dict[str, Facts]
    findings: Findings
    restored: bool


def check_records(history: History, engine: Engine) -> Checked:
    """Check records and snapshot.

    Args:
        history: what to check.
        engine: a fresh one, of the experiment's plan or of one that chooses nothing by itself; it is used up.
    """
    account = _Account(history, engine)
    account.run()
    return Checked(engine, account.facts, account.findings, account.restored)


def first_other_choice(history: History, engine: Engine) -> int | None:
    """Return the number of the first record that a fresh engine of the same plan answers otherwise, or None."""
    if history.snapshot is not None:
        engine.restore(bytes(history.snapshot.engine), by_record=True)
    for number, record in enumerate(history.records, history.first):
        engine.apply(record.event, record.now)
        if _choices(engine.choices) != _choices(record.choices or Choices()):
            return number
    return None


class _Account:
    def __init__(self, history: History, engine: Engine) -> None:
        self.history = history
        self.engine = engine
        self.facts: dict[str, Facts] = {}
        self.findings = Findings()
        self.restored = True
        self._counts: Counter[str] = Counter()
        self._late: Counter[str] = Counter()
        self._results = 0
        self._at = ""

    def run(self) -> None:
        self.restored = self.history.snapshot is None or self._restore(self.history.snapshot)
        if not self.restored:
            return
        search = self.engine.search
        left = sum(len(record.choices.created) for record in self.history.records if record.choices is not None)
        for number, record in enumerate(self.history.records, self.history.first):
            self._at = f"record {number}"
            if isinstance(search, RecordedSearch):
                # An experiment that ended continues with a larger budget only if there was something left to try.
                search.left = left
            left -= len(record.choices.created) if record.choices is not None else 0
            if not self._record(record):
                return
        self._finish()

    # -- findings --

    def _error(self, check: str, what: str, trial: str = "", remedy: str = _COPY) -> None:
        self._counts[check] += 1
        if self._counts[check] <= _MAX_ALIKE:
            self.findings.error(check, f"{self._at}: {what}" if self._at else what, trial, remedy)

    # -- the snapshot --

    def _restore(self, snapshot: EngineSnapshot) -> bool:
        try:
            self.engine.restore(bytes(snapshot.engine), by_record=True)
        except Exception as error:  # noqa: BLE001 - whatever a damaged state makes algorithms raise is the finding
            self._error("snapshot", f"the snapshot cannot be restored: {type(error).__name__}: {error}")
            return False
        state = self.engine.state
        self._results = state.flags.results
        for trial in state.trials.values():
            self.facts[trial.trial_id] = Facts(
                trial.trial_id,
                attempt=trial.attempt,
                open=trial.running,
                received=trial.current.received,
                before=trial.results,
                failures=trial.failures,
                disruptions=trial.disruptions,
                decided={each.kind for each in trial.decisions if each.attempt == trial.attempt},
                completion_reported=trial.completion_reported,
                last_cause="completed" if trial.status == TERMINATED else "",
                ended=trial.ended,
                committed={info.name: info for info in trial.checkpoints},
            )
            self._check_stored(trial)
        self._at = "the snapshot"
        self._check_state()
        self.findings.note(
            "snapshot",
            f"a snapshot has replaced the first {self.history.first - 1:,} records: the order of results and "
            "attempts, and the decisions, are checked from there on; for the time before, the counters, results and "
            "checkpoints that the snapshot lists are checked",
        )
        return True

    def _check_stored(self, trial: Trial) -> None:
        """Compare the counters of a stored trial with the decisions that are kept with it."""
        self._at = "the snapshot"
        kept = trial.decisions
        if trial.decision_count == len(kept):
            disruptions = sum(decision.kind == "disruption" for decision in kept)
            if disruptions != trial.disruptions:
                self._counter(trial, "disruptions", trial.disruptions, disruptions)
        complete = trial.decision_count == len(kept)
        failures: int | None = 0 if complete else None
        for decision in kept if complete else kept[1:]:  # those behind the first one are not kept
            if decision.kind == "retry" and decision.reason.get("source") == "user":
                failures = 0
            elif decision.kind in ("retry", "failure"):
                failures = int(decision.reason.get("failures", 0))
        if failures is not None and failures != trial.failures:
            self._counter(trial, "failures", trial.failures, failures)
        if trial.current.received > trial.results:
            self._error(
                "counter",
                f"its latest attempt has {trial.current.received} results, more than the trial's {trial.results}",
                trial.trial_id,
            )

    def _counter(self, trial: Trial, what: str, counted: int, found: int) -> None:
        self._error("counter", f"the trial records {counted} {what}, the journal has {found}", trial.trial_id)

    # -- one record --

    def _record(self, record: Record) -> bool:
        event, choices = record.event, record.choices or Choices()
        before = {
            trial.trial_id: (
                trial.current.decision,
                trial.completion_reported,
                trial.status,
                trial.current.failing is not None,
                trial.current.deadline_missed,
                trial.current.fails_if_lost,
            )
            for trial in self._of(event)
        }
        fresh = self._take_in(event, before)
        self._check_verdicts(event, choices, fresh)
        try:
            actions = self.engine.apply(event, record.now, choices)
        except Exception as error:  # noqa: BLE001 - whatever damaged records make an engine raise is the finding
            self._error("replay", f"it cannot be applied: {type(error).__name__}: {error}")
            return False
        if _choices(self.engine.choices) != _choices(choices):
            self._error("replay", "what was chosen then does not follow from its event")
        self._record_decisions(actions, choices)
        self._record_ends(event, before)
        self._record_starts(event, choices, actions)
        applied = sum(len(action.results) for action in actions if isinstance(action, ResultsApplied))
        if applied != len(fresh):
            self._error("result", f"{applied} results were applied, but {len(fresh)} were new")
        for action in actions:
            if isinstance(action, TrialEnded):
                self._check_end(action.trial)
        if isinstance(event, events.RetryRequested):
            self._record_retries(before)
        return True

    def _of(self, event: events.AnyEvent) -> list[Trial]:
        """Return the trials that an event may concern."""
        trials = self.engine.state.trials
        if isinstance(event, (events.Recovered, events.RetryRequested)):
            return list(trials.values())
        trial = trials.get(getattr(event, "trial_id", None) or "")
        return [trial] if trial is not None else []

    def _take_in(self, event: events.AnyEvent, before: dict[str, Any]) -> list[msgspec.Raw]:
        """Enter into the account what an attempt says; return the results that are new."""
        if not isinstance(
            event,
            (
                events.AttemptStarted,
                events.ResultsReceived,
                events.CheckpointsChanged,
                events.FailureObserved,
                events.AttemptEnded,
            ),
        ):
            return []
        facts = self.facts.get(event.trial_id)
        if facts is None:
            self._error("attempt", f"{_name(event)} of a trial that was never created", event.trial_id)
            return []
        if event.attempt > facts.attempt:
            self._error(
                "attempt",
                f"{_name(event)} of attempt {event.attempt}, which was never started (the latest is {facts.attempt})",
                event.trial_id,
            )
            return []
        if event.attempt < facts.attempt or not facts.open:
            self._late[event.trial_id] += 1
            return []
        match event:
            case events.AttemptStarted():
                self._start_process(facts, event)
            case events.CheckpointsChanged(committed=committed):
                facts.committed |= {info.name: info for info in committed}
            case events.ResultsReceived():
                return self._receive(facts, event)
        return []

    def _start_process(self, facts: Facts, event: events.AttemptStarted) -> None:
        process = (event.pid, event.hostname)
        if facts.process not in (None, process):
            self.findings.warning(
                "attempt",
                f"{self._at}: attempt {event.attempt} was started by a second process ({event.pid} on "
                f"{event.hostname})",
                event.trial_id,
            )
        facts.process = process

    def _receive(self, facts: Facts, event: events.ResultsReceived) -> list[msgspec.Raw]:
        known = facts.received + 1 - event.first
        if known < 0:
            facts.promised = max(facts.promised, event.first - 1)
            return []
        fresh = event.results[known:]
        if fresh:
            facts.results += fresh
            facts.received += len(fresh)
            self._results += len(fresh)
            facts.committed |= {info.name: info for info in event.committed}
        return fresh

    def _check_verdicts(self, event: events.AnyEvent, choices: Choices, fresh: Sequence[Any]) -> None:
        for verdict in choices.verdicts:
            facts = self.facts.get(verdict.trial_id)
            arrived = facts.received if facts is not None else 0
            about = isinstance(event, events.ResultsReceived) and event.trial_id == verdict.trial_id
            if not about or not arrived - len(fresh) < verdict.number <= arrived:
                self._error(
                    "verdict",
                    f"the decision '{verdict.decision}' is about result {verdict.number}, which has not just arrived",
                    verdict.trial_id,
                )

    def _record_decisions(self, actions: Sequence[Action], choices: Choices) -> None:
        for action in actions:
            if not isinstance(action, DecisionMade):
                continue
            trial_id = action.trial.trial_id
            self.facts[trial_id].decided.add(action.decision)
            if action.reason.get("source") not in ("scheduler", "stopper") or choices.stop_all is not None:
                continue
            about = {verdict.trial_id for verdict in choices.verdicts} | {each.trial_id for each in choices.commands}
            if trial_id not in about:
                self._error("verdict", f"the decision '{action.decision}' has no verdict", trial_id)

    def _record_ends(self, event: events.AnyEvent, before: dict[str, Any]) -> None:
        """Close attempts, and count failures and disruptions as they must be counted."""
        if isinstance(event, events.AttemptEnded):
            facts = self.facts.get(event.trial_id)
            if facts is not None and facts.open and facts.attempt == event.attempt:
                self._close(facts, event.end.cause, before, after_completion=event.end.after_completion)
        elif isinstance(event, events.Recovered):
            live = set(event.live)
            for facts in self.facts.values():
                if facts.open and (facts.trial_id, facts.attempt) not in live:
                    self._close(facts, "lost", before)

    def _close(self, facts: Facts, cause: str, before: dict[str, Any], *, after_completion: bool = False) -> None:
        unknown = (None, False, PENDING, False, False, False)
        decision, reported, _, failing, overdue, confirmed = before.get(facts.trial_id, unknown)
        facts.open = False
        if (failing and (cause in _OWN_WORD or overdue)) or (confirmed and cause in ("preempted", "lost")):
            cause = "failed"
        facts.last_cause, facts.completion_reported = cause, reported
        if cause == "failed" and (failing or after_completion):
            facts.failures += 1
        elif not reported and decision != "stop":
            facts.failures += cause == "failed"
            facts.disruptions += cause in ("preempted", "lost") and decision is None
        if facts.received < facts.promised:
            missing = f"results {facts.received + 1} to {facts.promised} of attempt {facts.attempt} are missing"
            if cause in _OWN_WORD:
                self._error("result", missing, facts.trial_id)
            else:
                self.findings.warning("result", f"{self._at}: {missing}; it was {cause}", facts.trial_id)
        obeyed = _OBEYED.get(cause)
        if obeyed is not None and facts.decided.isdisjoint(obeyed):
            self._error(
                "verdict",
                f"attempt {facts.attempt} says that it was {cause}, but nothing had decided so",
                facts.trial_id,
            )

    def _record_starts(self, event: events.AnyEvent, choices: Choices, actions: Sequence[Action]) -> None:
        created = [each.trial_id for each in self.engine.choices.created]
        for trial_id in (*created, *(each.trial_id for each in self.engine.choices.repeats)):
            if trial_id in self.facts:
                self._error("trial", "the trial was created twice", trial_id)
            self.facts[trial_id] = Facts(trial_id)
        for trial_id in choices.started:
            facts = self.facts.get(trial_id)
            if facts is None:
                self._error("attempt", "an attempt of a trial that was never created was started", trial_id)
                continue
            if facts.open:
                self._error(
                    "attempt",
                    f"attempt {facts.attempt + 1} was started while attempt {facts.attempt} had not ended",
                    trial_id,
                )
            if facts.ended and not isinstance(event, events.RetryRequested):
                self._error("attempt", "an attempt was started after the trial had ended", trial_id)
            facts.attempt += 1
            facts.open, facts.ended, facts.completion_reported = True, False, False
            facts.received = facts.promised = 0
            facts.decided, facts.process = set(), None

    def _check_end(self, trial: Trial) -> None:
        facts = self.facts[trial.trial_id]
        if facts.ended:
            self._error("trial", "the trial ended twice", trial.trial_id)
        facts.ended = True
        natural = facts.last_cause in ("completed", "stopped") or facts.completion_reported
        if trial.status == TERMINATED and not (trial.stopped or natural):
            self._error(
                "trial", f"it is TERMINATED, but its last attempt was {facts.last_cause or 'none'}", trial.trial_id
            )
        if trial.status == ERROR and facts.last_cause != "failed" and not (natural and not trial.measured):
            self._error(
                "trial", f"it is in ERROR, but its last attempt was {facts.last_cause or 'none'}", trial.trial_id
            )

    def _record_retries(self, before: dict[str, Any]) -> None:
        for trial_id, (_, _, status, *_) in before.items():
            if status in (ERROR, TERMINATED) and not self.engine.state.trials[trial_id].ended:
                self.facts[trial_id].failures = 0
                self.facts[trial_id].ended = False

    # -- the end --

    def _finish(self) -> None:
        self._at = ""
        state = self.engine.state
        for trial in state.trials.values():
            facts = self.facts[trial.trial_id]
            for what, counted, happened in (
                ("results", trial.results, facts.count),
                ("results of the latest attempt", trial.current.received, facts.received),
                ("attempts", trial.attempt, facts.attempt),
                ("failures", trial.failures, facts.failures),
                ("disruptions", trial.disruptions, facts.disruptions),
            ):
                if counted != happened:
                    self._counter(trial, what, counted, happened)
            if trial.running != facts.open:
                word = "runs" if trial.running else "does not run"
                self._error("counter", f"it {word} by the engine's account, but not by the records", trial.trial_id)
        if state.flags.results != self._results:
            what = f"the experiment records {state.flags.results} results, the journal has {self._results}"
            self._error("counter", what)
        self._check_state()
        for trial_id, count in self._late.items():
            self.findings.note(
                "attempt", f"{count} late reports of attempts that were over; they count nothing", trial_id
            )
        for check, count in self._counts.items():
            if count > _MAX_ALIKE:
                self.findings.error(check, f"and {count - _MAX_ALIKE:,} more of this kind")

    def _check_state(self) -> None:
        state = self.engine.state
        total = sum(trial.results for trial in state.trials.values())
        if state.flags.results != total:
            self._error("counter", f"results of all trials are {state.flags.results}, but the trials have {total}")
        actual = Counter(trial.status for trial in state.trials.values())
        for status in STATUSES:
            if state.counts.get(status, 0) != actual[status]:
                self._error("counter", f"{state.counts.get(status, 0)} trials are {status}, but {actual[status]} are")
        queues = {
            RUNNING: state.running,
            PAUSED: state.paused,
            PENDING: {**state.pending, **state.delayed},
            TERMINATED: {},
            ERROR: {},
        }
        for trial in state.trials.values():
            places = [status for status, queue in queues.items() if trial.trial_id in queue]
            if places != [status for status in (trial.status,) if not trial.ended]:
                queued = f"queued as {' and '.join(places)}" if places else "in no queue"
                self._error("trial", f"it is {trial.status}, but {queued}", trial.trial_id)
            if trial.running != (trial.status == RUNNING):
                self._error(
                    "trial", f"it is {trial.status}, but its attempt {'runs' if trial.running else 'is over'}"
                )
            if state.flags.finished and not trial.ended:
                self._error("trial", f"the experiment is finished, but the trial is {trial.status}", trial.trial_id)


def _choices(choices: Choices) -> bytes:
    """Return what was chosen, to be compared."""
    chosen = (choices.verdicts, choices.created, choices.commands, choices.started, choices.repeats)
    return _encoder.encode((*chosen, choices.stop_all, choices.stop_all_at, choices.failure))


_encoder = msgspec.msgpack.Encoder(enc_hook=str)


def _name(event: events.AnyEvent) -> str:
    return {
        events.AttemptStarted: "the start",
        events.ResultsReceived: "results",
        events.CheckpointsChanged: "checkpoints",
        events.AttemptEnded: "the end",
        events.FailureObserved: "a failure",
    }.get(type(event), type(event).__name__)
