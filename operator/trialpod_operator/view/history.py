"""What became of a trial's attempts, and when: by the journal's records, or what a snapshot still knows.

A snapshot keeps the times of a trial's latest attempts, and its latest decisions. What was read in the journal before
a snapshot replaced it stays known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from trialpod_operator.engine.actions import Action, StartAttempt, TrialRequeued
from trialpod_operator.engine.events import AnyEvent, AttemptEnded, AttemptStarted
from trialpod_operator.engine.trial import Trial

_FAILURES = frozenset({"disruption", "retry", "failure"})
"""Kinds of decisions whose reason has the error of the attempt."""

_GAPS = {"paused": "paused", "preempted": "preempted", "lost": "preempted"}
"""How an attempt ended -> what the time until the next one is called; waiting for all others."""


@dataclass(slots=True)
class Attempt:
    """One attempt; times in seconds since the epoch, None = not known or not yet."""

    number: int
    requested: float | None = None
    started: float | None = None
    ended: float | None = None
    exit: str = ""
    error: str = ""
    hostname: str = ""
    node: str = ""
    pid: int = 0
    reused_pod: str = ""
    resumed_from: int | None = None


@dataclass(frozen=True, slots=True)
class Clone:
    """A trial took over another one's state."""

    time: float
    source: str
    trial_id: str


class Histories:
    """The attempts of all trials of an experiment."""

    def __init__(self) -> None:
        self._attempts: dict[str, list[Attempt]] = {}
        self.clones: list[Clone] = []

    def attempts(self, trial: Trial) -> list[Attempt]:
        """Return a trial's attempts, oldest first."""
        known = self._attempts.get(trial.trial_id)
        if known is None or (trial.attempt and (not known or known[-1].number < trial.attempt)):
            known = self._attempts[trial.trial_id] = _completed(trial, known or [])
        return known

    def begin(self, trials: Iterable[Trial]) -> None:
        """The experiment begins again with a snapshot; what is known of attempts and is not in it stays."""
        known = {(clone.trial_id, clone.time) for clone in self.clones}
        for trial in trials:
            if trial.trial_id in self._attempts:  # their ends may be in records that were not read
                self._attempts[trial.trial_id] = _completed(trial, self._attempts[trial.trial_id])
            for decision in trial.decisions if trial.decision_count else ():
                source = str(decision.reason.get("source_trial", ""))
                if decision.kind == "exploit" and source and (trial.trial_id, decision.time) not in known:
                    self.clones.append(Clone(decision.time, source, trial.trial_id))

    def observe(self, event: AnyEvent, actions: Iterable[Action], now: float) -> None:
        """Take in a record of the journal, and what followed from it."""
        if isinstance(event, AttemptStarted):
            found = self._find(event.trial_id, event.attempt)
            if found is not None and found.started is None:
                found.started, found.pid, found.hostname = now, event.pid, event.hostname
                found.node, found.reused_pod = event.node_ip, event.reused_pod
        elif isinstance(event, AttemptEnded):
            found = self._find(event.trial_id, event.attempt)
            if found is not None and found.ended is None:
                found.ended, found.exit, found.error = now, event.end.cause, event.end.error
        for action in actions:
            match action:
                case StartAttempt(trial=trial, attempt=number):
                    start = trial.checkpoint
                    known = self.attempts(trial)
                    if known and known[-1].number == number:  # as `attempts` remembers it
                        known[-1].requested = now
                    else:
                        known.append(Attempt(number, requested=now))
                    known[-1].resumed_from = start.iteration if start is not None else None
                case TrialRequeued(trial=trial, why="exploited", message=source):
                    # When it was decided, as a snapshot has it.
                    decided = (each.time for each in reversed(trial.decisions) if each.kind == "exploit")
                    self.clones.append(Clone(next(decided, now), source, trial.trial_id))

    def _find(self, trial_id: str, number: int) -> Attempt | None:
        known = self._attempts.get(trial_id, [])
        return next((each for each in reversed(known) if each.number == number), None)

    def spans(self, trial: Trial) -> Iterator[dict[str, Any]]:
        """Return what the trial did from its creation on: waiting, running, paused, preempted.

        Of a time before the oldest attempt that is known, the kind is "unknown".
        """
        attempts = self.attempts(trial)
        since = trial.created_at
        kind = "unknown" if attempts and attempts[0].number > 1 else "waiting"
        for attempt in attempts:
            begun = attempt.started
            if begun is None:  # its process never began to work
                if attempt.ended is not None and attempt.ended > since:
                    yield _span(trial, kind, since, attempt.ended, attempt.number)
                if attempt.ended is None:
                    break
                since, kind = attempt.ended, _GAPS.get(attempt.exit, "waiting")
                continue
            if begun > since:
                yield _span(trial, kind, since, begun, attempt.number)
            yield _span(trial, "running", begun, attempt.ended, attempt.number)
            if attempt.ended is None:
                return
            since, kind = attempt.ended, _GAPS.get(attempt.exit, "waiting")
        if not trial.ended:
            yield _span(trial, kind, since, None, trial.attempt + (not trial.running))


def _span(trial: Trial, kind: str, start: float, end: float | None, attempt: int) -> dict[str, Any]:
    return {"trial": trial.trial_id, "kind": kind, "start": start, "end": end, "attempt": attempt}


def _completed(trial: Trial, known: list[Attempt]) -> list[Attempt]:
    """Return the attempts that are known, completed by what the trial itself keeps of them."""
    found = {each.number: each for each in known}
    for past in trial.past_attempts:
        attempt = found.setdefault(past.number, Attempt(past.number))
        attempt.requested, attempt.ended = past.requested, past.ended
        attempt.started = past.started if attempt.started is None else attempt.started
        attempt.exit = attempt.exit or past.cause
    if trial.attempt:
        latest, current = found.setdefault(trial.attempt, Attempt(trial.attempt)), trial.current
        if latest.started is None:
            latest.requested, latest.started = current.started_at, current.began_at
            latest.hostname, latest.node, latest.pid = current.hostname, current.node_ip, current.pid
            latest.reused_pod = current.reused_pod
        if current.cause is not None and latest.ended is None:
            latest.ended, latest.exit = current.ended_at, current.cause
    for decision in trial.decisions if trial.decision_count else ():
        failed = found.get(decision.attempt)
        if failed is not None and decision.kind in _FAILURES:
            failed.error = failed.error or str(decision.reason.get("error") or "")
    return [found[number] for number in sorted(found)]
