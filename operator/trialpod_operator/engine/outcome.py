"""The experiment as a whole: time budget, suspend and resume, stopping everything, recovery, and when it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trialpod.protocol.messages import AttemptEnd
from trialpod_operator.engine import accounting, attempts, progress, starts
from trialpod_operator.engine.actions import ExperimentFinished, TrialRequeued, Warned
from trialpod_operator.engine.decisions import note
from trialpod_operator.engine.events import AttemptEnded, Recovered, RetryRequested
from trialpod_operator.engine.results import decide
from trialpod_operator.engine.trial import ERROR, PENDING, TERMINATED

if TYPE_CHECKING:
    from trialpod_operator.engine.engine import Engine

RUNNING, SUSPENDED, SUCCEEDED, FAILED, STOPPED = "Running", "Suspended", "Succeeded", "Failed", "Stopped"


def deadline(engine: Engine) -> float | None:
    """Return when a budget or a stopper's time ends, in seconds since the epoch, while it is running down."""
    flags, settings = engine.state.flags, engine.state.settings
    if settings is None or flags.active_since is None or flags.stopping:
        return None
    ends: list[float] = []
    if settings.time_budget_s is not None:
        ends.append(flags.active_since + settings.time_budget_s - flags.active_s)
    left = getattr(engine.stopper, "remaining", None)
    if left is not None:
        ends.append(flags.now + left)
    runs_out = accounting.runs_out_at(engine, flags.now)
    if runs_out is not None:
        ends.append(runs_out)
    return min(ends, default=None)


def budget_left(engine: Engine, now: float) -> bool:
    """Return whether some of every budget is left, be it of time or of hours; True when there is none."""
    return _budget_used_up(engine, now) is None


def enforce_budgets(engine: Engine, now: float) -> None:
    """Stop everything once a budget is used up."""
    flags = engine.state.flags
    if flags.active_since is None or flags.stopping:
        return
    reason = _budget_used_up(engine, now)
    if reason is not None:
        stop_all(engine, reason, now)


def _budget_used_up(engine: Engine, now: float) -> dict[str, Any] | None:
    budget = engine.settings.time_budget_s
    if budget is not None and engine.active_s(now) >= budget:
        return {"source": "time_budget", "seconds": budget}
    return accounting.used_up(engine, now)


def stop_all(engine: Engine, reason: dict[str, Any], now: float) -> None:
    """Stop every trial that has not ended, and create no more."""
    state = engine.state
    if engine.finished:
        return
    state.flags.stopping = reason
    waiting = [*state.pending.values(), *state.delayed.values(), *state.paused.values()]
    for trial in [*state.running_trials(), *waiting]:
        attempts.stop_one(engine, trial.trial_id, reason, now)


def suspend(engine: Engine, now: float) -> None:
    """Pause all trials; the time budget stands still. What is being stopped, or has finished, stays so."""
    flags = engine.state.flags
    if flags.suspended:
        return
    flags.suspended = True
    if flags.finished or flags.stopping:
        return
    flags.state = SUSPENDED
    _stand_still(engine, now)
    for trial in engine.state.running_trials():
        if trial.decision is None and not trial.completion_told:
            decide(engine, trial, "pause", {"source": "suspend"}, now)


def resume(engine: Engine, now: float) -> None:
    """Go on after `suspend`. Trials that have not yet heard of the pause still pause, and then go on."""
    flags = engine.state.flags
    if not flags.suspended:
        return
    flags.suspended = False
    if not flags.finished:
        flags.state = RUNNING
        if flags.active_since is None:
            flags.active_since = now


def reopen(engine: Engine, changed: bool, now: float) -> None:
    """Go on with an experiment that has ended, or is being ended, when nothing that ended it still holds.

    `changed` tells that the budget was edited: then an end by a stopper, failFast or a missing metric is lifted too.
    """
    flags = engine.state.flags
    stopped_by = (flags.stopping or {}).get("source")
    if not flags.finished:
        if stopped_by in ("time_budget", "budget") and budget_left(engine, now):
            _open(engine, now)  # more time came before the last trial had heard of the end
        return
    recorded = engine.recorded
    # A changed search algorithm may know of more suggestions, or of fewer, than that of the time.
    exhausted = starts.exhausted(engine) if recorded is None else not recorded.reopened
    if exhausted or not budget_left(engine, now):
        return
    if changed or stopped_by in (None, "user", "time_budget", "budget", "broken"):
        engine.outputs.reopened = True
        _open(engine, now)


def retry_errors(engine: Engine, event: RetryRequested, now: float) -> None:
    """Queue the trials in ERROR once more; the experiment goes on for them even if it was being stopped."""
    from_scratch = event.from_scratch
    if event.token:
        if event.token == engine.state.flags.retried:
            return
        engine.state.flags.retried = event.token
    failed = [
        trial
        for trial in engine.state.trials.values()
        if (trial.status == ERROR or (event.cut_short and trial.may_be_retried))
        and (not event.trial_ids or trial.trial_id in event.trial_ids)
    ]
    if not failed:
        return
    if not budget_left(engine, now):
        engine.do(Warned("failed trials cannot be retried: the budget is used up; raise it first"))
        return
    if engine.finished or engine.state.flags.stopping:
        _open(engine, now)
    for trial in failed:
        trial.failures = trial.fruitless = 0
        trial.error = trial.traceback = ""
        trial.stopped, trial.unlogged_stop = False, None
        trial.ended_at = 0.0
        trial.completion_told = False
        if from_scratch:
            trial.checkpoints = []
            trial.furthest = 0
            engine.state.plant(trial, None, None)
        note(trial, now, "retry", {"source": "user", "from_scratch": from_scratch})
        engine.state.move(trial, PENDING)
        engine.ask(engine.scheduler.on_trial_add, engine.controller, trial)
        engine.do(TrialRequeued(trial, "retry", "asked for by the user"))


def recover(engine: Engine, event: Recovered, now: float) -> None:
    """Take up the experiment after the shell restarted: attempts without a process were disrupted."""
    flags = engine.state.flags
    flags.dry = False
    if flags.active_since is not None:
        flags.active_s += max(0.0, flags.last_alive - flags.active_since)
        flags.active_since = now
    live = {(trial_id, attempt) for trial_id, attempt in event.live}
    # A failure may end the whole experiment, and what was disrupted was so before that.
    for trial in sorted(engine.state.running_trials(), key=lambda trial: trial.failing is not None):
        if (trial.trial_id, trial.attempt) in live:
            progress.note(engine, trial)  # what it has sent meanwhile may still be on its way
            engine.stop_attempt(trial)  # whoever was to carry it out may not have come to it
        else:
            end = trial.failing or AttemptEnd(cause="lost", error="trialpod itself was interrupted")
            attempts.ended(
                engine,
                AttemptEnded(trial_id=trial.trial_id, attempt=trial.attempt, end=end),
                flags.last_alive,
            )


def finish_or_unblock(engine: Engine, now: float) -> bool:
    """Close the experiment when nothing runs and nothing will.

    Returns:
        True when nothing could happen any more although there is something left, and a paused trial was stopped for
        that reason: then it is worth asking for the next trial again.
    """
    state, flags = engine.state, engine.state.flags
    if flags.finished or state.running:
        return False
    if not flags.stopping:
        if flags.suspended or state.waiting or flags.asked or flags.spare or not starts.has_room(engine):
            return False
        if state.paused:
            # The scheduler had its chance to go on with them while nothing else was running.
            left = next(iter(state.paused.values()))
            attempts.stop_one(engine, left.trial_id, {"source": "scheduler", "rule": "left paused"}, now)
            return True
        if not starts.exhausted(engine):
            engine.warn_once("search", lambda: f"{starts.search_name(engine)} has no further suggestion")
    flags.finished = True
    _stand_still(engine, now)
    flags.state, flags.message = _verdict(engine, now)
    engine.do(ExperimentFinished(flags.state, flags.message))
    return False


def _open(engine: Engine, now: float) -> None:
    flags = engine.state.flags
    flags.finished = False
    flags.stopping = None
    flags.state = SUSPENDED if flags.suspended else RUNNING
    flags.message = ""
    flags.unmeasured = flags.broken = 0
    flags.sound = False
    if flags.active_since is None and not flags.suspended:
        flags.active_since = now


def _stand_still(engine: Engine, now: float) -> None:
    flags = engine.state.flags
    flags.active_s = engine.active_s(now)
    flags.active_since = None


def _verdict(engine: Engine, now: float) -> tuple[str, str]:
    stopping = engine.state.flags.stopping or {}
    counts = engine.state.counts
    failed, trials = counts.get(ERROR, 0), len(engine.state.trials)
    match stopping.get("source"):
        case "time_budget":
            return STOPPED, f"the time budget of {stopping.get('seconds'):g} s is used up"
        case "budget":
            kind, field = str(stopping.get("of")), engine.settings.vocabulary.field(str(stopping.get("budget")))
            used = f"{accounting.hours_used(engine, kind, now):.4g} were used"
            limit = f"the budget of {stopping.get('hours'):g} {kind} hours is used up"
            return STOPPED, f"{limit}: {used}; to go on, raise {field}"
        case "user":
            return STOPPED, "stopped by the user"
        case "fail_fast":
            return (
                FAILED,
                f"trial {stopping.get('trial_id')} failed, and {engine.settings.vocabulary.fail_fast} is set",
            )
        case "metric" | "algorithm":
            return FAILED, str(stopping.get("message"))
        case "broken":
            failed_early = f"the first {attempts.BROKEN_LIMIT} trials failed before their first result"
            return FAILED, f"{failed_early}: {stopping.get('message')}"
        case "stopper":
            return SUCCEEDED, f"the stopper {stopping.get('stopper', '')} ended the experiment"
    if trials and not counts.get(TERMINATED):
        return FAILED, f"all {failed} trials failed" if failed > 1 else "the trial failed"
    return SUCCEEDED, f"{failed} of {trials} trials failed" if failed else ""
