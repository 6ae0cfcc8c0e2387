"""Turns what the engine did into facts for a display."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trialpod_operator.display import events
from trialpod_operator.display.view import TrialRow
from trialpod_operator.engine.actions import (
    Action,
    DecisionMade,
    StartAttempt,
    TrialEnded,
    TrialRequeued,
    Warned,
)
from trialpod_operator.engine.trial import ERROR, Trial


def announce(action: Action, row: Callable[[Trial], TrialRow], metric: str | None) -> events.Event | None:
    """Return what to tell people of an action, or None when it is of no interest to them."""
    match action:
        case StartAttempt(trial=trial, attempt=1):
            return events.trial_started(row(trial))
        case TrialEnded(trial=trial) if trial.status == ERROR:
            return events.trial_failed(row(trial))
        case TrialEnded(trial=trial):
            return events.trial_ended(row(trial), metric)
        case TrialRequeued(trial=trial, why="failed" | "disrupted" as why, message=message):
            # By now the next attempt may have begun. Where it starts is said by the event itself.
            lost = replace(row(trial), attempts=trial.attempt - trial.running)
            reason = message.partition("; it goes on ")[0]
            return events.trial_retried(lost, reason=reason, disruption=why == "disrupted")
        case TrialRequeued(trial=trial, why="exploited", message=source):
            start = trial.checkpoint
            return events.trial_exploits(
                row(trial),
                source=source if source != trial.trial_id else "",
                iteration=start.iteration if start is not None else None,
                tag=trial.tag,
            )
        case Warned(message=message, trial=trial):
            return events.warning(message, trial_id=trial.trial_id if trial is not None else "")
        case DecisionMade():
            return None
    return None
