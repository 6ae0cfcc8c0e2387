"""Builds what a person sees from the engine's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trialpod.tune.result_keys import TRAINING_ITERATION
from trialpod_operator.display.pace import RunningTrial, remaining_s, trials_per_minute
from trialpod_operator.display.view import ExperimentView, TrialRow
from trialpod_operator.engine import accounting
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.outcome import RUNNING as EXPERIMENT_RUNNING
from trialpod_operator.engine.settings import Settings
from trialpod_operator.engine.trial import ERROR, PAUSED, PENDING, RUNNING, TERMINATED, Trial
from trialpod_operator.experiment.best import best_trial


def build_row(trial: Trial, *, path: str, name: str, now: float, checkpoints: str = "") -> TrialRow:
    """Return one trial as it is at `now`.

    Args:
        trial: the trial.
        path: its directory.
        name: its readable name.
        now: seconds since the epoch.
        checkpoints: where its checkpoints are, when that is not `path`.
    """
    checkpoint = trial.own_checkpoint
    return TrialRow(
        trial_id=trial.trial_id,
        name=name,
        status=trial.status,
        config=trial.shown_config,
        path=path,
        iteration=trial.iteration,
        value=trial.value,
        value_iteration=trial.value_iteration,
        run_time_s=trial.run_time_s + (max(0.0, now - trial.started_at) if trial.running else 0.0),
        attempts=trial.attempt,
        failures=trial.failures,
        disruptions=trial.disruptions,
        error=trial.error,
        stop_reason=trial.stop_reason,
        checkpoint=f"{checkpoints or path}/{checkpoint.name}" if checkpoint else None,
        checkpoint_iteration=checkpoint.iteration if checkpoint else None,
        last_result=trial.shown_result,
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
    best = best_trial(engine)
    elapsed_s = engine.active_s(now)
    total = engine.search.total
    eta = _eta_s(engine, settings, trials, total, elapsed_s, now) if flags.state == EXPERIMENT_RUNNING else None
    return ExperimentView(
        name=settings.name,
        path=path,
        metric=settings.metric,
        mode=settings.mode,
        state=flags.state,
        message=flags.message,
        total=total,
        counts={status: state.counts.get(status, 0) for status in (PENDING, RUNNING, PAUSED, TERMINATED, ERROR)},
        results=flags.results,
        elapsed_s=elapsed_s,
        time_budget_s=settings.time_budget_s,
        max_concurrent=settings.max_concurrent,
        best=row(best) if best is not None else None,
        rows=[row(trial) for trial in _shown(trials, rows)],
        failures=failures,
        trials_per_minute=trials_per_minute(sum(trial.ended for trial in trials), elapsed_s),
        eta_s=eta,
        resources=accounting.hours(flags.account, flags.spent),
        vocabulary=settings.vocabulary,
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
            age_s = trial.run_time_s + max(0.0, now - trial.started_at)
            known = last_iteration is not None and trial.iteration > 0
            limit_s = age_s * last_iteration / trial.iteration if known and last_iteration is not None else None
            running.append(RunningTrial(age_s, limit_s))
    eta = remaining_s(
        [trial.run_time_s for trial in ended],
        running,
        total - sum(trial.ended for trial in trials) - len(running),
        early_stopping=not engine.silent or len(settings.stop_rules) > 1,
    )
    if eta is None or settings.time_budget_s is None:
        return eta
    return min(eta, max(0.0, settings.time_budget_s - elapsed_s))


def _iteration_limit(settings: Settings) -> float | None:
    """Return the iteration after which every trial is over, by the stop rules."""
    return min((rule.value for rule in settings.stop_rules if rule.key == TRAINING_ITERATION), default=None)
