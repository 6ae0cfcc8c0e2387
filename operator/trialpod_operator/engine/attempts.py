"""The life of attempts: how each kind of end changes its trial."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trialpod.protocol.messages import AttemptEnd
from trialpod_operator.engine import accounting, exploits, progress
from trialpod_operator.engine.actions import TrialEnded, TrialRequeued, Warned
from trialpod_operator.engine.decisions import note
from trialpod_operator.engine.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointDamaged,
    CheckpointsChanged,
    FailureObserved,
)
from trialpod_operator.engine.results import decide, explain_missing_metric, keep_checkpoints, tell_completion
from trialpod_operator.engine.trial import ERROR, PAUSED, PENDING, TERMINATED, Trial

if TYPE_CHECKING:
    from trialpod_operator.engine.engine import Engine

BACKOFF_BASE_S = 1.0
BACKOFF_MAX_S = 60.0
UNMEASURED_LIMIT = 3
"""When this many trials have ended without the metric and no trial ever reported it, the experiment fails."""

BROKEN_LIMIT = 3
"""When the code of this many trials could not be started and none ever ran, the experiment fails."""

FREE_RETRIES = 1
"""Failures and disruptions since the trial last came further that are retried at once; then the back-off doubles."""

_OVERRIDDEN = ("completed", "stopped", "paused")
"""What an attempt may say of its end that does not count after a failure."""

_NO_REASON: dict[str, Any] = {}

MAX_TRACEBACK = 20_000
"""Characters of a traceback that are kept, the last ones."""

MAX_ERROR = 200
"""Characters of an error that are kept with a decision, the first ones."""


def started(engine: Engine, event: AttemptStarted) -> None:
    """Note where the attempt runs."""
    trial = _current(engine, event.trial_id, event.attempt)
    if trial is not None:
        trial.pid, trial.hostname, trial.node_ip = event.pid, event.hostname, event.node_ip
        trial.place = event.place
        accounting.begin(engine, trial, event.resources)
        progress.note(engine, trial)


def checkpoints_changed(engine: Engine, event: CheckpointsChanged) -> None:
    """Note checkpoints that were committed or removed."""
    trial = _current(engine, event.trial_id, event.attempt)
    if trial is None:
        return
    keep_checkpoints(engine, trial, event.committed)
    released = [name for name in event.unneeded if (trial.trial_id, name) not in engine.state.pins]
    gone = {*event.deleted, *released}
    trial.released = tuple(name for name in dict.fromkeys((*trial.released, *released)) if name not in event.deleted)
    if gone:
        trial.checkpoints = [c for c in trial.checkpoints if c.name not in gone]


def checkpoint_damaged(engine: Engine, event: CheckpointDamaged) -> None:
    """Forget a checkpoint that cannot be restored any more."""
    trial = engine.state.trials.get(event.trial_id)
    if trial is not None:
        trial.checkpoints = [c for c in trial.checkpoints if c.name != event.name]
        engine.do(Warned(f"checkpoint {event.name} of trial {trial.trial_id} is missing or damaged", trial))


def ended(engine: Engine, event: AttemptEnded, now: float) -> None:
    """Take an attempt's end into account. The first word about it counts, later ones change nothing."""
    trial = _current(engine, event.trial_id, event.attempt)
    if trial is None:
        return
    trial.running = False
    trial.run_time_s += max(0.0, now - trial.started_at)
    end, failing = event.end, trial.failing
    trial.lost = end.cause == "lost"
    if failing is not None:
        trial.failing = None
        if end.cause in _OVERRIDDEN or trial.overdue:
            end = failing
    if failing is not None and end.cause == "failed":
        accounting.end_attempt(engine, trial, now, accounting.FAILED)
        _fail(engine, trial, end, now)
    elif trial.decision == "stop" or trial.completion_told or end.cause in ("completed", "stopped"):
        accounting.end_attempt(engine, trial, now, None)
        _complete(engine, trial, end, now)
    elif end.cause == "failed":
        accounting.end_attempt(engine, trial, now, accounting.FAILED)
        _fail(engine, trial, end, now)
    elif trial.decision in ("pause", "exploit") or end.cause == "paused":
        goes_on = trial.change is not None or accounting.saved_all(trial)
        accounting.end_attempt(engine, trial, now, None if goes_on else accounting.LOST)
        _pause(engine, trial)
    elif end.cause == "damaged":
        accounting.end_attempt(engine, trial, now, accounting.LOST)
        exploits.undo(engine, trial, end.error, now)
    else:
        accounting.end_attempt(engine, trial, now, accounting.LOST)
        _disrupt(engine, trial, end, now)


def failure_observed(engine: Engine, event: FailureObserved) -> None:
    """Note that an attempt of several processes cannot complete any more; the first failure counts.

    One that was told to end before is ending for that reason, and processes that lose each other then are no failure.
    """
    trial = _current(engine, event.trial_id, event.attempt)
    if trial is not None and trial.failing is None and trial.decision is None and not trial.completion_told:
        trial.failing = event.end


def stop_one(engine: Engine, trial_id: str, reason: dict[str, Any], now: float) -> None:
    """Stop one trial, whatever it is doing."""
    trial = engine.state.trials.get(trial_id)
    if trial is None or trial.ended:
        return
    if trial.running:
        if trial.decision != "stop":
            decide(engine, trial, "stop", reason, now)
        return
    trial.stopped = True
    note(trial, now, "stop", reason)
    if not trial.completion_told:
        trial.completion_told = True
        engine.ask(engine.scheduler.on_trial_remove, engine.controller, trial)
        engine.tell(engine.search.on_trial_stopped, trial.trial_id, trial.last_result or None)
    end_trial(engine, trial, TERMINATED, now)


def _current(engine: Engine, trial_id: str, attempt: int) -> Trial | None:
    trial = engine.state.trials.get(trial_id)
    return trial if trial is not None and trial.running and trial.attempt == attempt else None


def _complete(engine: Engine, trial: Trial, end: AttemptEnd, now: float) -> None:
    if trial.decision == "stop":
        trial.stopped = True
    if end.cause == "failed":
        when = "while it was being stopped" if trial.decision == "stop" else "after its last result"
        engine.do(Warned(f"the trial failed {when}: {end.error}", trial))
    elif end.cause == "completed":
        engine.state.flags.sound = True
    metric = engine.settings.metric
    if metric is not None and engine.settings.strict_metric and not trial.measured and not trial.stopped:
        _fail_unmeasured(engine, trial, metric, now)
        return
    tell_completion(engine, trial, trial.last_result)
    trial.error = trial.traceback = ""
    end_trial(engine, trial, TERMINATED, now)


def _fail_unmeasured(engine: Engine, trial: Trial, metric: str, now: float) -> None:
    flags = engine.state.flags
    flags.unmeasured += 1
    trial.error = (
        explain_missing_metric(metric, trial.last_result)
        if trial.results
        else f"the trial ended without reporting anything; call tune.report({{'{metric}': ...}}) or return it"
    )
    _give_up(engine, trial, now)
    if not flags.measured and flags.unmeasured >= UNMEASURED_LIMIT and flags.stopping is None:
        engine.stop_all({"source": "metric", "message": trial.error}, now)


def _fail(engine: Engine, trial: Trial, end: AttemptEnd, now: float) -> None:
    flags = engine.state.flags
    trial.failures += 1
    trial.error = end.error or "failed without a message"
    trial.traceback = end.traceback[-MAX_TRACEBACK:]
    limit = engine.settings.max_failures
    if trial.decision == "stop" and end.retry and (limit < 0 or trial.failures <= limit):
        note(trial, now, "failure", {"source": "failure", "error": _short(trial.error), **_counted(engine, trial)})
        _complete(engine, trial, end, now)  # it was to be tried again, and has been stopped since
        return
    if flags.stopping is None and end.retry and (limit < 0 or trial.failures <= limit):
        flags.sound = True
        allowed = "no limit" if limit < 0 else f"of {limit}"
        requeued = TrialRequeued(trial, "failed", f"retry {trial.failures} ({allowed}): {trial.error}")
        if trial.decision == "pause":
            # What was decided is not decided anew: it waits for its turn, and then it is the retry.
            _back_off(trial, now)
            note(trial, now, "retry", {"source": "failure", "error": _short(trial.error), **_counted(engine, trial)})
            engine.do(requeued)
            _pause(engine, trial)
            return
        engine.ask(engine.scheduler.on_trial_error, engine.controller, trial)
        exploits.enforce(engine, trial)
        _back_off(trial, now)
        note(trial, now, "retry", {"source": "failure", "error": _short(trial.error), **_counted(engine, trial)})
        engine.state.move(trial, PENDING)
        engine.ask(engine.scheduler.on_trial_add, engine.controller, trial)
        engine.do(requeued)
        return
    _give_up(engine, trial, now)
    if end.retry:
        flags.sound = True
    elif not flags.sound:
        flags.broken += 1
        if flags.broken >= BROKEN_LIMIT and flags.stopping is None:
            engine.stop_all({"source": "broken", "message": trial.error}, now)


def _give_up(engine: Engine, trial: Trial, now: float) -> None:
    note(trial, now, "failure", {"source": "failure", "error": _short(trial.error), **_counted(engine, trial)})
    if not trial.completion_told:
        trial.completion_told = True
        engine.ask(engine.scheduler.on_trial_error, engine.controller, trial)
        engine.tell(engine.search.on_trial_complete, trial.trial_id, error=True)
    end_trial(engine, trial, ERROR, now)
    if engine.settings.fail_fast and engine.state.flags.stopping is None:
        engine.stop_all({"source": "fail_fast", "trial_id": trial.trial_id}, now)


def _pause(engine: Engine, trial: Trial) -> None:
    reason = trial.decision_reason
    source = str(reason.get("source", "paused"))
    exploits.enforce(engine, trial)
    if trial.decision == "exploit":
        engine.state.move(trial, PENDING)
        return
    engine.state.move(trial, PENDING if source in ("suspend", "resources") else PAUSED)
    engine.do(TrialRequeued(trial, "paused", source))


def _disrupt(engine: Engine, trial: Trial, end: AttemptEnd, now: float) -> None:
    trial.disruptions += 1
    _back_off(trial, now)
    engine.state.move(trial, PENDING)
    note(trial, now, "disruption", {"source": end.cause, "error": _short(end.error)})
    engine.do(TrialRequeued(trial, "disrupted", end.error or end.cause))


def _counted(engine: Engine, trial: Trial) -> dict[str, int]:
    return {"failures": trial.failures, "max_failures": engine.settings.max_failures}


def _short(text: str) -> str:
    return text if len(text) <= MAX_ERROR else f"{text[:MAX_ERROR]}..."


def _back_off(trial: Trial, now: float) -> None:
    trial.fruitless += 1
    doublings = trial.fruitless - FREE_RETRIES - 1
    if doublings >= 0:
        trial.retry_at = now + min(BACKOFF_BASE_S * 2.0 ** min(doublings, 32), BACKOFF_MAX_S)


def end_trial(engine: Engine, trial: Trial, status: str, now: float) -> None:
    """End a trial that does not run; one in ERROR keeps what it would go on from."""
    trial.ended_at = now
    trial.decision_reason = _NO_REASON
    accounting.end_trial(engine, trial, status)
    engine.state.plant(trial, None, trial.planted if status == ERROR else None)
    engine.state.move(trial, status)
    if engine.on_trial_end is not None:
        engine.ask(engine.on_trial_end, trial.trial_id)
    engine.do(TrialEnded(trial))
