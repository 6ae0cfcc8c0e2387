"""One-off facts of a run, for every display: what happened, to which trial, in one sentence and as data.

The sentences are made here, by one function per kind, so that the terminal, a log and `--json` tell the same story.
A message never repeats the trial's name: a display puts that in front.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trialpod.protocol.messages import AUTO_RESULT_KEYS, CheckpointInfo
from trialpod_operator.display.view import ENDED, TrialRow
from trialpod_operator.display.words import (
    clip,
    duration,
    number,
    one_line,
    parameters,
    plural,
)
from trialpod_operator.engine.reasons import explain
from trialpod_operator.engine.trial import Trial

_ITERATION = "training_iteration"
Level = Literal["info", "warning", "error"]

TRIAL_STARTED = "trial_started"
TRIAL_ENDED = "trial_ended"
TRIAL_FAILED = "trial_failed"
TRIAL_RETRIED = "trial_retried"
TRIAL_EXPLOITS = "trial_exploits"
TRIAL_RESULT = "trial_result"
TRIAL_DECISION = "trial_decision"
CHECKPOINT_SAVED = "checkpoint_saved"
CHECKPOINT_DAMAGED = "checkpoint_damaged"
LOADING = "loading"
WARNING = "warning"
INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened once.

    Attributes:
        kind: One of this module's constants; other kinds are shown too.
        trial_id: The trial it happened to; empty when it concerns the experiment.
        trial_name: That trial's name.
        message: One sentence without the trial's name.
        data: The same as plain data, for `--json`; its `remedy` (if any) is shown on the next line.
        level: `info` is left out of a live table, `warning` and `error` are always shown.
    """

    kind: str
    trial_id: str = ""
    trial_name: str = ""
    message: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    level: Level = "info"


def trial_started(row: TrialRow) -> Event:
    """A trial's first attempt began."""
    text = clip(parameters(row.config), 120)
    return Event(
        TRIAL_STARTED,
        row.trial_id,
        row.name,
        f"started: {text}" if text else "started",
        {"params": row.config, "path": row.path},
    )


def trial_ended(row: TrialRow, metric: str | None) -> Event:
    """A trial came to its end, by itself or because it was stopped."""
    verb = f"stopped ({clip(one_line(explain(row.stop_reason)), 160)})" if row.stop_reason else "ended"
    value = f": {metric}={number(row.value)}" if metric and row.value is not None else ""
    return Event(
        TRIAL_ENDED,
        row.trial_id,
        row.name,
        f"{verb} after {plural(row.iteration, 'iteration')} in {duration(row.run_time_s)}{value}",
        {
            "status": row.status,
            "iteration": row.iteration,
            "metric": metric,
            "value": row.value,
            "run_time_s": row.run_time_s,
            "stop_reason": row.stop_reason,
            "checkpoint": row.checkpoint,
            "path": row.path,
        },
    )


def trial_exploits(row: TrialRow, *, source: str, iteration: int | None, tag: str) -> Event:
    """A trial continues with another config, from another trial's checkpoint.

    Args:
        row: The trial, with its new config.
        source: trial_id of the trial that it follows; empty for itself.
        iteration: training_iteration of the checkpoint that it resumes from.
        tag: The new experiment tag.
    """
    at = f" (iteration {iteration})" if iteration is not None else ""
    start = f"{source}'s checkpoint{at}" if source else f"its own checkpoint{at}"
    return Event(
        TRIAL_EXPLOITS,
        row.trial_id,
        row.name,
        f"resumes from {start} with {clip(parameters(row.config), 120)}",
        {"source": source, "iteration": iteration, "config": row.config, "experiment_tag": tag},
    )


def trial_result(trial: Trial, name: str, result: Mapping[str, Any], *, everything: bool) -> Event:
    """A trial reported; the values that every result has are left out unless `everything` is asked for."""
    values = {key: value for key, value in result.items() if everything or key not in AUTO_RESULT_KEYS}
    shown = ", ".join(f"{one_line(key)}={number(value)}" for key, value in values.items() if key != _ITERATION)
    if not everything:
        shown = clip(shown, 200)
    head = f"iteration {result.get(_ITERATION, '?')}"
    return Event(TRIAL_RESULT, trial.trial_id, name, f"{head}: {shown}" if shown else head, {"result": dict(result)})


def trial_decision(trial: Trial, name: str, decision: str, words: str) -> Event:
    """A scheduler, stopper or the user decided about a running trial."""
    return Event(TRIAL_DECISION, trial.trial_id, name, one_line(words), {"decision": decision})


def checkpoint_saved(trial: Trial, name: str, info: CheckpointInfo) -> Event:
    """A checkpoint of a trial is complete."""
    message = f"{info.name} of iteration {info.iteration} is complete"
    data = {"checkpoint": info.name, "iteration": info.iteration}
    return Event(CHECKPOINT_SAVED, trial.trial_id, name, message, data)


def trial_failed(row: TrialRow) -> Event:
    """A trial ended with an error and is not retried."""
    return Event(
        TRIAL_FAILED,
        row.trial_id,
        row.name,
        f"failed: {one_line(row.error) or 'no reason is known'}",
        {
            "error": row.error,
            "iteration": row.iteration,
            "failures": row.failures,
            "log": f"{row.path}/log.txt",
            "path": row.path,
        },
        "error",
    )


def trial_retried(row: TrialRow, *, reason: str, disruption: bool) -> Event:
    """A trial's attempt was lost and the trial resumes from its newest checkpoint.

    Args:
        row: The trial; `attempts` are those so far, the lost one included.
        reason: What ended that attempt, one line.
        disruption: True when the machine ended it, False when its own code did.
    """
    start = (
        f"it resumes from the checkpoint of iteration {row.checkpoint_iteration}"
        if row.checkpoint is not None
        else "it starts again from the beginning"
    )
    end = "was lost" if disruption else "failed"
    return Event(
        TRIAL_RETRIED,
        row.trial_id,
        row.name,
        f"attempt {row.attempts} {end} ({one_line(reason) or 'no reason is known'}); {start}",
        {
            "attempt": row.attempts,
            "failures": row.failures,
            "disruptions": row.disruptions,
            "disruption": disruption,
            "reason": reason,
            "checkpoint": row.checkpoint,
            "log": f"{row.path}/log.txt",
        },
        "info" if disruption else "warning",
    )


def checkpoint_damaged(row: TrialRow, *, checkpoint: str, problem: str, used: str | None) -> Event:
    """A checkpoint could not be used; `used` is the one taken in its place, None when there is none."""
    instead = f"{used} is used instead" if used else "the trial starts from the beginning"
    return Event(
        CHECKPOINT_DAMAGED,
        row.trial_id,
        row.name,
        f"{checkpoint} cannot be used ({one_line(problem)}); {instead}",
        {"checkpoint": checkpoint, "problem": problem, "used": used},
        "warning",
    )


def loading(what: str, seconds: float, *, ended: bool) -> Event:
    """The import of the user's code takes long, or took long and has ended."""
    text = f"imported {what} in {duration(seconds)}" if ended else f"importing {what}, {seconds:.0f} s"
    return Event(LOADING, message=text, data={"what": what, "seconds": round(seconds, 1), "ended": ended})


def warning(message: str, remedy: str = "", *, trial_id: str = "", **data: Any) -> Event:
    """Something the user should know, with what to do about it; of one trial when `trial_id` is given."""
    return Event(
        WARNING,
        trial_id,
        message=one_line(message),
        data={"remedy": one_line(remedy), **data} if remedy else data,
        level="warning",
    )


def interrupted(message: str, remedy: str = "") -> Event:
    """The run was asked to end early (Ctrl-C, SIGTERM)."""
    return Event(
        INTERRUPTED,
        message=one_line(message),
        data={"remedy": one_line(remedy)} if remedy else {},
        level="warning",
    )


def changes(
    before: Mapping[str, TrialRow], after: Mapping[str, TrialRow], metric: str | None, *, lost: str
) -> list[Event]:
    """Return what happened between two views of the trials.

    Args:
        before: the trials by name, as they were.
        after: the same, as they are.
        metric: the experiment's.
        lost: why an attempt ended that did not fail.
    """
    found = []
    for name, row in after.items():
        old = before.get(name)
        if row.attempts and (old is None or not old.attempts):
            found.append(trial_started(row))
        if row.status in ENDED and (old is None or old.status not in ENDED):
            found.append(trial_failed(row) if row.status == "ERROR" else trial_ended(row, metric))
        elif old is not None and row.failures + row.disruptions > old.failures + old.disruptions:
            disrupted = row.failures == old.failures
            found.append(trial_retried(row, reason=lost if disrupted else "see its log.txt", disruption=disrupted))
    return found
