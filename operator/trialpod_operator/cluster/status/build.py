"""The status of a TuneExperiment and of a TuneTrial, computed from the engine's state.

Both are functions of the engine, the time and the status before, from which only times are kept (and the best value
of a trial, which the engine does not remember). A status is complete: it replaces the one before. None grows with the
number of trials; parameters and messages are cut to fixed sizes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from trialpod_operator.api.status_models import (
    BestTrial,
    BudgetStatus,
    FrontTrial,
    RepeatsStatus,
    ResourceHours,
    TrialCounts,
    TuneExperimentStatus,
    Waiting,
    format_hours,
    format_time,
    format_value,
)
from trialpod_operator.api.trial_models import LastDecision, TrialCheckpoint, TuneTrialStatus
from trialpod_operator.cluster import names
from trialpod_operator.cluster.json_values import bounded
from trialpod_operator.cluster.status.conditions import (
    Problem,
    cut,
    is_starting,
    observe_experiment,
    observe_trial,
    update_conditions,
)
from trialpod_operator.engine import accounting
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.reasons import describe_decision
from trialpod_operator.engine.repeats import front, winner
from trialpod_operator.engine.settings import Settings
from trialpod_operator.engine.trial import ERROR, PAUSED, PENDING, RUNNING, TERMINATED, Trial

MAX_FRONT = 25
MAX_BEST_PARAMS = 8 * 1024
MAX_EVIDENCE = 4 * 1024
MAX_RESOURCES = 32
MAX_ERROR = 500
"""Characters of a trial's error in the condition of its experiment."""

Json = dict[str, Any]
_NONE: Mapping[str, Any] = {}
_TEXTS = frozenset({"startTime", "completionTime", "podName", "nodeName", "bestValue", "storageUri"})


def experiment_status(
    engine: Engine | None,
    *,
    name: str,
    generation: int,
    now: float,
    previous: Mapping[str, Any] | None = None,
    waiting: Waiting | None = None,
    held: int | None = None,
    problem: Problem | None = None,
    storage_uri: str | None = None,
    seed: int | None = None,
    uri_of: Callable[[Trial], str] | None = None,
    differs: bool = False,
) -> Json:
    """Return the status of an experiment, as plain data.

    Args:
        engine: the experiment's engine; None while there is none.
        name: of the experiment.
        generation: the metadata.generation that it is about.
        now: seconds since the epoch.
        previous: the status before.
        waiting: why pods do not run, see `waiting.summarize`.
        held: how many trials wait for any reason; by default those of `waiting`.
        problem: what keeps the whole experiment from continuing.
        storage_uri: where it is kept.
        seed: the one in use.
        uri_of: returns where a trial's checkpoints are.
        differs: trials do not run the Trainable that the spec names.
    """
    before = _readable(previous)
    waiting = _brief(waiting)
    flags = engine.state.flags if engine is not None else None
    ended = _ending_message(engine) if engine is not None and engine.finished else ""
    counts = _counts(engine) if engine is not None else None
    observations = observe_experiment(
        started=engine is not None and engine.state.settings is not None,
        state=flags.state if flags is not None else "",
        message=ended or (flags.message if flags is not None else ""),
        finished=flags is not None and flags.finished,
        stopping=flags is not None and flags.stopping is not None,
        suspended=flags is not None and flags.suspended,
        running=engine.state.counts.get(RUNNING, 0) if engine is not None else 0,
        begun=counts.running if counts is not None else 0,
        held=held if held is not None else (waiting.count if waiting is not None else 0),
        waiting=waiting,
        problem=problem,
    )
    trials: Sequence[Trial] = engine.state.get_trials() if engine is not None else ()
    status = TuneExperimentStatus(
        observed_generation=generation,
        conditions=update_conditions(before.get("conditions") or (), observations, generation=generation, now=now),
        message=cut(observations[0].message),
        trials=counts,
        failures=engine.state.standings.failures if engine is not None else None,
        disruptions=engine.state.standings.disruptions if engine is not None else None,
        best=_best(engine, name, uri_of) if engine is not None else None,
        pareto_front=_front(engine, name) if engine is not None else [],
        resources=_resources(engine) if engine is not None else {},
        budget=_budget(engine) if engine is not None else None,
        waiting=waiting,
        start_time=before.get("startTime")
        or (_start(trials, now) if engine is not None and engine.state.settings is not None else None),
        trainable_fixed=engine.state.reported and not differs if engine is not None else before.get("trainableFixed"),
        completion_time=_completion(before, trials, now) if flags is not None and flags.finished else None,
        seed=seed,
        storage_uri=storage_uri or None,
        retried=(flags.retry_token or None) if flags is not None else None,
    )
    plain: Json = msgspec.to_builtins(status)
    return plain


def trial_status(
    trial: Trial,
    settings: Settings,
    now: float,
    *,
    generation: int = 1,
    previous: Mapping[str, Any] | None = None,
    pod_name: str | None = None,
    node_name: str | None = None,
    best_value: float | None = None,
    waiting: Waiting | None = None,
    storage_uri: str | None = None,
) -> Json:
    """Return the status of a trial, as plain data.

    Args:
        trial: the engine's trial.
        settings: of the experiment.
        now: seconds since the epoch.
        generation: the metadata.generation of the TuneTrial.
        previous: the status before.
        pod_name: the pod of the latest attempt; None keeps the one before.
        node_name: its node; None keeps the one before, while the pod is the same.
        best_value: the best value of the metric; None works it out from the latest value and the status before.
        waiting: why its pod does not run.
        storage_uri: where its results and checkpoints are.
    """
    before = _readable(previous)
    waiting = _brief(waiting) if trial.status == RUNNING else None
    pod = pod_name or before.get("podName")
    node = node_name or (before.get("nodeName") if pod == before.get("podName") else None)
    message = cut(_trial_message(trial, waiting))
    checkpoint = trial.checkpoint
    begun = trial.attempt > 1 or trial.ended or not is_starting(trial)
    started = before.get("startTime") or (
        format_time(trial.current.working_since or trial.current.started_at)
        if trial.current.started_at and begun
        else None
    )
    status = TuneTrialStatus(
        observed_generation=generation,
        state=PENDING if is_starting(trial) else trial.status,  # type: ignore[arg-type]  # one of trial.STATUSES
        message=message,
        attempt=trial.attempt,
        pod_name=pod,
        node_name=node,
        iteration=max(0, trial.iteration),  # a user's own number
        value=format_value(trial.value),
        best_value=_best_value(trial.value, best_value, before.get("bestValue"), settings.mode),
        failures=trial.failures,
        disruptions=trial.disruptions,
        restarts=max(0, min(trial.attempt - 1, trial.failures + trial.disruptions)),
        start_time=started,
        last_report_time=format_time(trial.current.last_progress_at)
        if trial.running and trial.current.last_progress_at
        else None,
        completion_time=format_time(trial.ended_at) if trial.ended and trial.ended_at else None,
        last_decision=_last_decision(trial, before.get("lastDecision"), now),
        waiting=waiting,
        checkpoint=TrialCheckpoint(name=checkpoint.name, iteration=max(0, checkpoint.iteration), size=checkpoint.size)
        if checkpoint is not None
        else None,
        storage_uri=storage_uri or before.get("storageUri"),
        conditions=update_conditions(
            before.get("conditions") or (), observe_trial(trial, message, waiting), generation=generation, now=now
        ),
    )
    plain: Json = msgspec.to_builtins(status)
    return plain


def same_status(left: Mapping[str, Any] | None, right: Mapping[str, Any] | None) -> bool:
    """Return whether two statuses say the same, so that writing the second over the first would change nothing."""
    return (left or {}) == (right or {})


def is_progress(left: Mapping[str, Any] | None, right: Mapping[str, Any] | None) -> bool:
    """Return whether two statuses of a trial differ in nothing but how far it has come."""
    before, after = (
        {key: value for key, value in (each or {}).items() if key not in _PROGRESS} for each in (left, right)
    )
    return before == after


_PROGRESS = frozenset({"iteration", "value", "bestValue", "checkpoint", "lastReportTime"})


def _readable(status: Any) -> Mapping[str, Any]:
    """Return what can be kept of a status, which another version may have written."""
    if not isinstance(status, Mapping):
        return _NONE
    found = {key: value for key, value in status.items() if key not in _TEXTS or isinstance(value, str)}
    try:
        float(found.get("bestValue") or 0.0)
    except ValueError:
        del found["bestValue"]
    try:
        msgspec.convert(found.get("lastDecision"), LastDecision | None)
    except msgspec.ValidationError:
        del found["lastDecision"]
    return found


def _brief(waiting: Waiting | None) -> Waiting | None:
    return None if waiting is None else msgspec.structs.replace(waiting, message=cut(waiting.message))


def _counts(engine: Engine) -> TrialCounts:
    counts = engine.state.counts
    starting = len(engine.state.standings.starting)
    done = counts.get(TERMINATED, 0) + counts.get(ERROR, 0)
    total = engine.total
    return TrialCounts(
        pending=counts.get(PENDING, 0) + starting,
        starting=starting,
        running=counts.get(RUNNING, 0) - starting,
        paused=counts.get(PAUSED, 0),
        terminated=counts.get(TERMINATED, 0),
        error=counts.get(ERROR, 0),
        done=done,
        total=total,
        progress=str(done) if total is None else f"{done}/{total}",
    )


def _ending_message(engine: Engine) -> str:
    """Return how an experiment has ended, with the most frequent error of its failed trials."""
    message = engine.state.flags.message
    errors = Counter(trial.error for trial in engine.state.trials.values() if trial.status == ERROR and trial.error)
    if not message or not errors:
        return message
    (error, count), *others = errors.most_common()
    if error in message:
        return message
    which = f" ({count} of them)" if others else ""
    return f"{message}{which}: {cut(error, MAX_ERROR)}"


def _resources(engine: Engine) -> dict[str, ResourceHours]:
    account = engine.state.account
    table = accounting.hours(account.outcomes, account.spent)
    return {
        name: ResourceHours(**{part: format_hours(amount) for part, amount in parts.items()})
        for name, parts in list(table.items())[:MAX_RESOURCES]
    }


def _budget(engine: Engine) -> BudgetStatus | None:
    """Return how the budget stands at the latest event: a status changes only with the engine."""
    report = engine.plan.report(engine.state.clock.now)
    if report is None:
        return None
    return BudgetStatus(
        unit="GPU" if report.unit == "GPU" else "trial",
        limit=None if report.limit is None else format_hours(report.limit),
        used=format_hours(report.used),
        left=None if report.left is None else format_hours(report.left),
        reserved=None if report.reserved is None else format_hours(report.reserved),
        expected_gain=format_value(report.gain),
        message=str(report),
    )


def _best(engine: Engine, name: str, uri_of: Callable[[Trial], str] | None) -> BestTrial | None:
    best, evaluation = winner(engine.state)
    if best is None:
        return None
    checkpoint = best.checkpoint
    uri = f"{uri_of(best)}/{checkpoint.name}" if checkpoint is not None and uri_of is not None else None
    return BestTrial(
        trial=names.trial_name(name, best.trial_id),
        trial_id=best.trial_id,
        value=format_value(best.value) or "",
        iteration=max(0, best.iteration if best.value_iteration is None else best.value_iteration),
        repeats=None
        if evaluation is None
        else RepeatsStatus(
            mean=format_value(evaluation.mean) or "",
            spread=format_value(evaluation.spread),
            number=evaluation.number,
        ),
        params=bounded(best.shown_config, MAX_BEST_PARAMS),
        checkpoint=uri,
    )


def _front(engine: Engine, name: str) -> list[FrontTrial]:
    objectives = engine.state.settings.objectives if engine.state.settings is not None else []
    return [
        FrontTrial(
            trial=names.trial_name(name, trial.trial_id),
            trial_id=trial.trial_id,
            values={
                each.name: format_value(value) or "" for each, value in zip(objectives, trial.point, strict=True)
            },
        )
        for trial in front(engine.state)[:MAX_FRONT]
    ]


def _start(trials: Sequence[Trial], now: float) -> str:
    return format_time(trials[0].created_at if trials else now)  # in order of creation


def _completion(before: Mapping[str, Any], trials: Sequence[Trial], now: float) -> str:
    return before.get("completionTime") or format_time(max((trial.ended_at for trial in trials), default=now) or now)


def _best_value(value: float | None, best: float | None, before: str | None, mode: str) -> str | None:
    if best is not None:
        return format_value(best)
    latest = value if value is not None and math.isfinite(value) else None
    earlier = float(before) if before else None
    if latest is None or earlier is None:
        return before or format_value(latest)
    better = latest > earlier if mode == "max" else latest < earlier
    return format_value(latest) if better else before


def _last_decision(trial: Trial, before: Mapping[str, Any] | None, now: float) -> LastDecision | None:
    kind, reason = (
        ("stop", trial.stop_reason) if trial.stop_reason else (trial.current.decision, trial.current.decision_reason)
    )
    if kind is None:
        return msgspec.convert(dict(before), LastDecision) if before else None
    data = bounded({key: value for key, value in reason.items() if key != "source"}, MAX_EVIDENCE)
    source = str(reason.get("source") or "unknown")
    known = before or _NONE
    same = known.get("kind") == kind and known.get("reason") == source and (known.get("data") or {}) == data
    return LastDecision(
        kind=kind,
        reason=source,
        message=cut(describe_decision(kind, reason)),
        data=data,
        time=known.get("time") if same else format_time(now),
    )


def _trial_message(trial: Trial, waiting: Waiting | None) -> str:
    if trial.status == ERROR:
        return trial.error or "failed without a message"
    if trial.status == TERMINATED:
        return describe_decision("stop", trial.stop_reason) if trial.stop_reason else "ended by itself"
    if waiting is not None:
        return waiting.message
    if trial.current.failing is not None:
        return f"attempt {trial.attempt} has failed and is being ended: {trial.current.failing.error}"
    if is_starting(trial):
        return f"attempt {trial.attempt} is starting"
    if trial.status == RUNNING:
        return f"attempt {trial.attempt} is running"
    if trial.status == PAUSED:
        return describe_decision("pause", trial.current.decision_reason)
    if trial.error:
        return f"to be retried after: {trial.error}"
    return "pending" if trial.attempt == 0 else "waiting to resume"
