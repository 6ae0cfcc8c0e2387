"""The life of attempts: how each kind of end changes its trial."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trialpod.protocol.messages import AttemptEnd
from trialpod_operator.engine.actions import TrialEnded, TrialRequeued, Warned
from trialpod_operator.engine.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointDamaged,
    CheckpointsChanged,
)
from trialpod_operator.engine.results import advance, decide, explain_missing_metric, tell_completion
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
"""Attempts in a row without progress that are retried at once; after them the back-off doubles each time."""

MAX_TRACEBACK = 20_000
"""Characters of a traceback that are kept, the last ones."""


def started(engine: Engine, event: AttemptStarted) -> None:
    """Note where the attempt runs."""
    trial = _current(engine, event.trial_id, event.attempt)
    if trial is not None:
        trial.pid, trial.hostname, trial.node_ip = event.pid, event.hostname, event.node_ip


def checkpoints_changed(engine: Engine, event: CheckpointsChanged) -> None:
    """Note checkpoints that were committed or removed."""
    trial = _current(engine, event.trial_id, event.attempt)
    if trial is None:
        return
    known = {checkpoint.name for checkpoint in trial.checkpoints}
    fresh = [checkpoint for checkpoint in event.committed if checkpoint.name not in known]
    gone = set(event.deleted)
    kept = [c for c in [*trial.checkpoints, *fresh] if c.name not in gone]
    trial.checkpoints = sorted(kept, key=lambda checkpoint: checkpoint.index)
    for checkpoint in fresh:
        trial.next_checkpoint_index = max(trial.next_checkpoint_index, checkpoint.index + 1)
        advance(trial, checkpoint.iteration)
        engine.state.flags.sound = True


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
    end = event.end
    trial.lost = end.cause == "lost"
    if trial.decision == "stop" or trial.completion_told or end.cause in ("completed", "stopped"):
        _complete(engine, trial, end, now)
    elif end.cause == "failed":
        _fail(engine, trial, end, now)
    elif trial.decision == "pause" or end.cause == "paused":
        _pause(engine, trial)
    else:
        _disrupt(engine, trial, end, now)


def stop_one(engine: Engine, trial_id: str, reason: dict[str, Any], now: float) -> None:
    """Stop one trial, whatever it is doing."""
    trial = engine.state.trials.get(trial_id)
    if trial is None or trial.ended:
        return
    if trial.running:
        if trial.decision != "stop":
            decide(engine, trial, "stop", reason)
        return
    trial.stop_reason = reason
    if not trial.completion_told:
        trial.completion_told = True
        engine.ask(engine.scheduler.on_trial_remove, engine.state, trial)
        engine.ask(engine.search.on_trial_complete, trial.trial_id, trial.last_result or None)
    _end(engine, trial, TERMINATED, now)


def _current(engine: Engine, trial_id: str, attempt: int) -> Trial | None:
    trial = engine.state.trials.get(trial_id)
    return trial if trial is not None and trial.running and trial.attempt == attempt else None


def _complete(engine: Engine, trial: Trial, end: AttemptEnd, now: float) -> None:
    if trial.decision == "stop":
        trial.stop_reason = trial.decision_reason
    if end.cause == "failed":
        when = "while it was being stopped" if trial.decision == "stop" else "after its last result"
        engine.do(Warned(f"trial {trial.trial_id} failed {when}: {end.error}", trial))
    elif end.cause == "completed":
        engine.state.flags.sound = True
    metric = engine.settings.metric
    if metric is not None and not trial.measured and not trial.stop_reason:
        _fail_unmeasured(engine, trial, metric, now)
        return
    tell_completion(engine, trial, trial.last_result)
    trial.error = trial.traceback = ""
    _end(engine, trial, TERMINATED, now)


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
    if flags.stopping is None and end.retry and (limit < 0 or trial.failures <= limit):
        flags.sound = True
        engine.ask(engine.scheduler.on_trial_error, engine.state, trial)
        _back_off(trial, now)
        engine.state.move(trial, PENDING)
        engine.ask(engine.scheduler.on_trial_add, engine.state, trial)
        allowed = "no limit" if limit < 0 else f"of {limit}"
        engine.do(TrialRequeued(trial, "failed", f"retry {trial.failures} ({allowed}): {trial.error}"))
        return
    _give_up(engine, trial, now)
    if end.retry:
        flags.sound = True
    elif not flags.sound:
        flags.broken += 1
        if flags.broken >= BROKEN_LIMIT and flags.stopping is None:
            engine.stop_all({"source": "broken", "message": trial.error}, now)


def _give_up(engine: Engine, trial: Trial, now: float) -> None:
    if not trial.completion_told:
        trial.completion_told = True
        engine.ask(engine.scheduler.on_trial_error, engine.state, trial)
        engine.ask(engine.search.on_trial_complete, trial.trial_id, error=True)
    _end(engine, trial, ERROR, now)
    if engine.settings.fail_fast and engine.state.flags.stopping is None:
        engine.stop_all({"source": "fail_fast", "trial_id": trial.trial_id}, now)


def _pause(engine: Engine, trial: Trial) -> None:
    source = str(trial.decision_reason.get("source", "paused"))
    engine.state.move(trial, PENDING if source == "suspend" else PAUSED)
    engine.do(TrialRequeued(trial, "paused", source))


def _disrupt(engine: Engine, trial: Trial, end: AttemptEnd, now: float) -> None:
    trial.disruptions += 1
    _back_off(trial, now)
    engine.state.move(trial, PENDING)
    checkpoint = trial.checkpoint
    where = f"from iteration {checkpoint.iteration}" if checkpoint else "from the start"
    engine.do(TrialRequeued(trial, "disrupted", f"{end.error or end.cause}; it goes on {where}"))


def _back_off(trial: Trial, now: float) -> None:
    trial.fruitless += 1
    doublings = trial.fruitless - FREE_RETRIES - 1
    if doublings >= 0:
        trial.retry_at = now + min(BACKOFF_BASE_S * 2.0 ** min(doublings, 32), BACKOFF_MAX_S)


def _end(engine: Engine, trial: Trial, status: str, now: float) -> None:
    trial.ended_at = now
    engine.state.move(trial, status)
    if engine.on_trial_end is not None:
        engine.ask(engine.on_trial_end, trial.trial_id)
    engine.do(TrialEnded(trial))
