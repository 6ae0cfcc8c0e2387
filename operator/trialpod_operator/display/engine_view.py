"""What displays show of an engine: rows, views, and events made of its actions.

The lines about single results are bounded like what trials print: the others are counted, and are in the trials'
files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from trialpod.protocol.messages import CheckpointInfo
from trialpod.storage.layout import RESULT_FILE
from trialpod.tune.result_keys import TRAINING_ITERATION
from trialpod_operator.display import events
from trialpod_operator.display.base import Display
from trialpod_operator.display.line_budget import LineBudget
from trialpod_operator.display.view import ExperimentView, RunningTrial, TrialRow, remaining_s, trials_per_minute
from trialpod_operator.display.words import plural
from trialpod_operator.engine import accounting
from trialpod_operator.engine.actions import (
    Action,
    DecisionMade,
    ResultsApplied,
    StartAttempt,
    TrialEnded,
    TrialRequeued,
    Warned,
)
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.lifecycle import RUNNING as EXPERIMENT_RUNNING
from trialpod_operator.engine.reasons import describe_decision
from trialpod_operator.engine.repeats import front, winner
from trialpod_operator.engine.settings import Settings
from trialpod_operator.engine.trial import ERROR, PAUSED, PENDING, RUNNING, TERMINATED, Trial


def build_row(trial: Trial, *, path: str, name: str, now: float, checkpoints: str = "") -> TrialRow:
    """Return one trial as it is at `now`.

    Args:
        trial: the trial.
        path: its directory.
        name: its readable name.
        now: seconds since the epoch.
        checkpoints: where its checkpoints are, when that is not `path`.
    """
    checkpoint, current = trial.own_checkpoint, trial.current
    return TrialRow(
        trial_id=trial.trial_id,
        name=name,
        status=trial.status,
        config=trial.shown_config,
        path=path,
        iteration=trial.iteration,
        value=trial.value,
        value_iteration=trial.value_iteration,
        run_time_s=trial.run_time_s + (max(0.0, now - current.started_at) if trial.running else 0.0),
        attempts=trial.attempt,
        failures=trial.failures,
        disruptions=trial.disruptions,
        error=trial.error,
        stop_reason=trial.stop_reason,
        checkpoint=f"{checkpoints or path}/{checkpoint.name}" if checkpoint else None,
        checkpoint_iteration=checkpoint.iteration if checkpoint else None,
        last_result=trial.shown_result,
        silent_s=max(0.0, now - (current.last_progress_at or current.started_at)) if trial.running else 0.0,
    )


def build_view(
    engine: Engine, settings: Settings, *, path: str, now: float, rows: int | None, row: Callable[[Trial], TrialRow]
) -> ExperimentView:
    """Return the experiment as it is at `now` (seconds since the epoch), with at most `rows` trials (None = all).

    `settings` are the current ones, or those to come when the engine has none yet; `row` makes the line of one trial.
    """
    state = engine.state
    flags = state.flags
    trials = list(state.trials.values())
    failures: dict[str, int] = {}
    for trial in trials:
        if trial.status == ERROR:
            failures[trial.error] = failures.get(trial.error, 0) + 1
    best, evaluation = winner(state)
    elapsed_s = state.clock.active_at(now)
    total = engine.total
    eta = _eta_s(engine, settings, trials, total, elapsed_s, now) if flags.state == EXPERIMENT_RUNNING else None
    return ExperimentView(
        name=settings.name,
        path=path,
        metric=settings.metric,
        mode=settings.mode,
        objectives=settings.objectives,
        front=[(row(trial), trial.point) for trial in front(state)],
        state=flags.state,
        message=flags.message,
        total=total,
        counts={status: state.counts.get(status, 0) for status in (PENDING, RUNNING, PAUSED, TERMINATED, ERROR)},
        results=flags.results,
        elapsed_s=elapsed_s,
        time_budget_s=settings.time_budget_s,
        progress_deadline_s=settings.progress_deadline_s,
        max_concurrent=settings.max_concurrent,
        best=replace(row(best), evaluation=evaluation) if best is not None else None,
        rows=[row(trial) for trial in _shown(trials, rows)],
        failures=failures,
        trials_per_minute=trials_per_minute(sum(trial.ended for trial in trials), elapsed_s),
        eta_s=eta,
        resources=accounting.hours(state.account.outcomes, state.account.spent),
        vocabulary=settings.vocabulary,
        budget=str(engine.plan.report(max(now, state.clock.now) if not flags.finished else state.clock.now) or ""),
        budget_used_up=_budget_used_up(flags.stopping),
    )


def _budget_used_up(reason: dict[str, Any] | None) -> tuple[str, float] | None:
    ended = reason is not None and reason.get("source") == "budget"
    return (str(reason["budget"]), float(reason["hours"])) if ended and reason is not None else None


def _shown(trials: list[Trial], limit: int | None) -> list[Trial]:
    if limit is None:
        return trials
    running = [trial for trial in trials if trial.status == RUNNING]
    if len(running) >= limit:
        return running[:limit]
    ended = sorted((trial for trial in trials if trial.ended), key=lambda trial: -trial.ended_at)
    waiting = [trial for trial in trials if trial.status in (PENDING, PAUSED)]
    return [*running, *ended, *waiting][:limit]


def _eta_s(
    engine: Engine, settings: Settings, trials: list[Trial], total: int | None, elapsed_s: float, now: float
) -> float | None:
    """Return how long the experiment still takes; None when that is not known."""
    if total is None:
        return None
    ended = sorted((trial for trial in trials if trial.status == TERMINATED), key=lambda trial: trial.ended_at)
    last_iteration = _iteration_limit(settings)
    running = []
    for trial in trials:
        if trial.running:
            age_s = trial.run_time_s + max(0.0, now - trial.current.started_at)
            known = last_iteration is not None and trial.iteration > 0
            limit_s = age_s * last_iteration / trial.iteration if known and last_iteration is not None else None
            running.append(RunningTrial(age_s, limit_s))
    eta = remaining_s(
        [trial.run_time_s for trial in ended],
        running,
        total - sum(trial.ended for trial in trials) - len(running),
        early_stopping=engine.stops_early or len(settings.stop_rules) > 1,
    )
    if eta is None or settings.time_budget_s is None:
        return eta
    return min(eta, max(0.0, settings.time_budget_s - elapsed_s))


def _iteration_limit(settings: Settings) -> float | None:
    """Return the iteration after which every trial is over, by the stop rules."""
    return min((rule.value for rule in settings.stop_rules if rule.key == TRAINING_ITERATION), default=None)


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
            # Already the next attempt may have begun. Where it starts is said by the event itself.
            lost = replace(row(trial), attempts=trial.attempt - trial.running)
            return events.trial_retried(lost, reason=message, disruption=why == "disrupted")
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


NOTICE_INTERVAL_S = 5.0


class TrialDetails:
    """Tells a display of single results, decisions and checkpoints, as far as its `detail` asks for them.

    Args:
        display: shows them.
        directory: the experiment's.
        name: the readable name of a trial.
        now: seconds, monotonic.
    """

    def __init__(
        self,
        display: Display,
        directory: str,
        name: Callable[[Trial], str],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._display = display
        self._directory = directory
        self._name = name
        self._now = now
        self._budget = LineBudget(now)
        self._hidden = 0
        self._noticed_at = now()

    def action(self, action: Action) -> None:
        """Tell of what the engine did."""
        match action:
            case ResultsApplied(trial=trial, results=results):
                shown = self._budget.spend(len(results))
                self._hidden += len(results) - shown
                for result in results[:shown]:
                    everything = self._display.detail > 1
                    self._display.event(events.trial_result(trial, self._name(trial), result, everything=everything))
            case DecisionMade(trial=trial, decision=decision, reason=reason) if self._display.detail > 1:
                if self._budget.spend(1):
                    words = describe_decision(decision, reason, trial.iteration)
                    self._display.event(events.trial_decision(trial, self._name(trial), decision, words))

    def committed(self, trial: Trial, infos: Iterable[CheckpointInfo]) -> None:
        """Tell of checkpoints that are complete."""
        if self._display.detail > 1:
            for info in infos:
                if self._budget.spend(1):
                    self._display.event(events.checkpoint_saved(trial, self._name(trial), info))

    def poll(self, *, last: bool = False) -> None:
        """Tell now and then how many results were not shown."""
        if self._hidden and (last or self._now() - self._noticed_at >= NOTICE_INTERVAL_S):
            where = f"{self._directory}/*/{RESULT_FILE}"
            self._display.event(
                events.Event("results_hidden", message=f"{plural(self._hidden, 'result')} not shown: {where}")
            )
            self._hidden = 0
            self._noticed_at = self._now()


def best_trial(engine: Engine) -> Trial | None:
    """Return the trial whose latest finite value of the metric is the best, or whose repeats are; see `repeats`."""
    return winner(engine.state)[0]
