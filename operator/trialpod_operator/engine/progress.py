"""Attempts that run and report nothing: a warning after half of the time that they may, then the attempt fails.

Results and checkpoints are progress, and so is the beginning of an attempt. A trial that was told to end or to pause
has nothing to report any more.

Invariant: `Engine.silence_due` is never later than the first moment at which `enforce` has something to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trialpod.protocol.messages import AttemptEnd
from trialpod_operator.engine.actions import Warned

if TYPE_CHECKING:
    from trialpod_operator.engine.engine import Engine
    from trialpod_operator.engine.trial import Trial


def note(engine: Engine, trial: Trial) -> None:
    """The trial's attempt has begun, or has come further."""
    trial.progress_at, trial.quiet = engine.state.flags.now, False
    settings = engine.state.settings
    if settings is not None and settings.progress_deadline_s is not None and engine.silence_due is not None:
        engine.silence_due = min(engine.silence_due, trial.progress_at + settings.progress_deadline_s / 2)


def enforce(engine: Engine, now: float) -> None:
    """Warn of attempts that have been silent for half of the deadline, and end those that have for all of it."""
    limit = engine.settings.progress_deadline_s
    if limit is None or engine.state.flags.suspended or not engine.state.running:
        engine.silence_due = None
        return
    if engine.silence_due is not None and now < engine.silence_due:
        return
    dues = []
    for trial in engine.state.running_trials():
        ends = trial.decision is not None or trial.completion_told or trial.failing is not None
        if ends or not trial.progress_at:
            continue
        silent = now - trial.progress_at
        if silent >= limit:
            trial.overdue = True
            trial.failing = AttemptEnd(
                cause="failed",
                error=f"it reported nothing for {limit:g} s (spec.progressDeadline): it hangs, or takes longer for a "
                "result; report more often, or raise spec.progressDeadline",
            )
            engine.stop_attempt(trial)
            continue
        if silent >= limit / 2 and not trial.quiet:
            trial.quiet = True
            text = f"trial {trial.trial_id} has reported nothing for {silent:g} s"
            engine.do(Warned(f"{text}; its attempt fails after {limit:g} s (spec.progressDeadline)", trial))
        dues.append(trial.progress_at + (limit if trial.quiet else limit / 2))
    engine.silence_due = min(dues, default=None)
