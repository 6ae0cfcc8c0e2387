"""Conditions: how an experiment and its trials stand, for programs that know nothing of tuning.

Chosen so that kstatus (Flux, `kubectl wait`, Argo CD's health script) comes to the right verdict from the generic
rules alone:

| the experiment | conditions | kstatus |
|---|---|---|
| not looked at yet | none, observedGeneration -1 | InProgress |
| starting | Ready=False Starting | InProgress |
| trials run, or are about to | Ready=True Running | Current |
| no trial can run now | Ready=False, reason of the waiting | InProgress |
| the storage and the like are away | Ready=False, reason of the problem | InProgress |
| no operator serves it | Ready=Unknown NoOperator | InProgress |
| being suspended | Ready=True Suspending, Suspended=False | Current |
| suspended | Ready=True Suspended, Suspended=True | Current |
| ended well, or at its budget, or by the user | Ready=True and Succeeded=True: Succeeded, Stopped | Current |
| ended badly | Ready=False and Stalled=True and Failed=True: Failed | Failed |
| wrong, nothing is created for it | Ready=False and Stalled=True, reason of the problem | Failed |

As with a Job, running is as good as done: to wait for the end, wait for Succeeded or Failed. Stalled is there
only while it is true. Reconciling is never written: observedGeneration says as much. What is absent is unknown.

| the trial | conditions | kstatus |
|---|---|---|
| queued, or waits for its pod | Ready=False Pending, Paused, or the reason of the waiting | InProgress |
| has an attempt that runs | Ready=True Running | Current |
| ended well | Ready=True and Succeeded=True | Current |
| failed | Failed=True, and nothing else | Current |

A trial that failed is a result: no step follows from it, no user has to act, and whether that is bad the
experiment says. So it is neither Ready=False, which kstatus takes for what is still to come, nor Stalled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trialpod_operator.api import status_models
from trialpod_operator.api.reasons import Reason
from trialpod_operator.api.status_models import Condition, format_time
from trialpod_operator.engine.lifecycle import FAILED as ENDED_BADLY
from trialpod_operator.engine.lifecycle import STOPPED as ENDED_BY_BUDGET
from trialpod_operator.engine.trial import ERROR, PAUSED, RUNNING, TERMINATED, Trial

READY, STALLED, SUSPENDED, SUCCEEDED, FAILED = "Ready", "Stalled", "Suspended", "Succeeded", "Failed"
ORDER = (READY, STALLED, SUSPENDED, SUCCEEDED, FAILED)

MAX_MESSAGE = 2000

Truth = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that keeps a whole experiment from continuing.

    Attributes:
        reason: one word for programs.
        message: what is wrong, where, and what to do.
        stalled: it will not go away by itself.
    """

    reason: str
    message: str
    stalled: bool = False


@dataclass(frozen=True)
class Observation:
    """One condition as it is now."""

    type: str
    status: Truth
    reason: str
    message: str = ""


def set_condition(
    conditions: Iterable[Mapping[str, Any]], observation: Observation, *, generation: int, now: float
) -> list[dict[str, Any]]:
    """Return conditions with one set; its lastTransitionTime changes only with its status.

    Args:
        conditions: as they were.
        observation: what is found now.
        generation: the metadata.generation that it was found for.
        now: seconds since the epoch.
    """
    kept = [dict(each) for each in conditions if each.get("type") != observation.type]
    before = next((each for each in conditions if each.get("type") == observation.type), {})
    same = before.get("status") == observation.status and before.get("lastTransitionTime")
    condition = {
        "type": observation.type,
        "status": observation.status,
        "reason": str(observation.reason),
        "message": cut(observation.message),
        "lastTransitionTime": before["lastTransitionTime"] if same else format_time(now),
        "observedGeneration": generation,
    }
    return sorted([*kept, condition], key=_rank)


def update_conditions(
    previous: Iterable[Mapping[str, Any]], observations: Iterable[Observation], *, generation: int, now: float
) -> list[Condition]:
    """Return the conditions for what is found now; those of trialpod's types that were not found go away."""
    conditions = [dict(each) for each in whole(previous)]
    found = list(observations)
    types = {observation.type for observation in found}
    conditions = [each for each in conditions if each.get("type") in types or each.get("type") not in ORDER]
    for observation in found:
        conditions = set_condition(conditions, observation, generation=generation, now=now)
    return [
        Condition(
            type=each["type"],
            status=each["status"],
            reason=each["reason"],
            message=each.get("message", ""),
            last_transition_time=each["lastTransitionTime"],
            observed_generation=each.get("observedGeneration"),
        )
        for each in conditions
    ]


def observe_experiment(
    *,
    started: bool,
    state: str,
    message: str,
    finished: bool,
    stopping: bool,
    suspended: bool,
    running: int,
    held: int,
    waiting: status_models.Waiting | None,
    problem: Problem | None,
    begun: int | None = None,
) -> list[Observation]:
    """Return how an experiment stands; the first one is Ready, whose message sums it up.

    Args:
        started: the engine has its settings.
        state: of the engine's flags.
        message: of the engine's flags.
        finished: nothing runs and nothing will.
        stopping: all trials are being stopped.
        suspended: no trial may run.
        running: trials with an attempt in progress.
        held: those of them whose pods do not run yet, for a reason.
        waiting: why not.
        problem: what keeps the whole experiment from continuing.
        begun: how many of the running ones have a process; None = all that are not held.
    """
    begun = running - held if begun is None else begun
    if problem is not None and problem.stalled:
        return [
            Observation(READY, "False", problem.reason, problem.message),
            Observation(STALLED, "True", problem.reason, problem.message),
        ]
    if finished and state == ENDED_BADLY:
        text = message or "the experiment failed"
        return [
            Observation(READY, "False", Reason.FAILED, text),
            Observation(STALLED, "True", Reason.FAILED, text),
            Observation(FAILED, "True", Reason.FAILED, text),
        ]
    if finished:
        reason = Reason.STOPPED if state == ENDED_BY_BUDGET else Reason.SUCCEEDED
        text = message or "all trials ended"
        return [Observation(READY, "True", reason, text), Observation(SUCCEEDED, "True", reason, text)]
    if problem is not None:
        return [Observation(READY, "False", problem.reason, problem.message)]
    if not started:
        return [Observation(READY, "False", Reason.STARTING, "starting")]
    if suspended:
        if running:
            text = f"suspended: {running} trial{'s' if running > 1 else ''} still save{'s' if running == 1 else ''}"
            return [
                Observation(READY, "True", Reason.SUSPENDING, text),
                Observation(SUSPENDED, "False", Reason.SUSPENDING, text),
            ]
        text = "suspended: no trial runs; set spec.suspend to false to continue"
        return [
            Observation(READY, "True", Reason.SUSPENDED, text),
            Observation(SUSPENDED, "True", Reason.SUSPENDED, text),
        ]
    if stopping:
        return [Observation(READY, "True", Reason.STOPPING, "all trials are being stopped")]
    if waiting is not None and held >= running:
        return [Observation(READY, "False", waiting.reason, f"no trial runs: {waiting.message}")]
    if waiting is not None:
        text = f"{begun} of {running} started trials run; {waiting.message}"
        return [Observation(READY, "True", Reason.RUNNING, text)]
    if running and not begun:
        text = f"{running} trial{'s are' if running > 1 else ' is'} starting"
        return [Observation(READY, "True", Reason.RUNNING, text)]
    return [Observation(READY, "True", Reason.RUNNING, "trials are running")]


def observe_trial(trial: Trial, message: str, waiting: status_models.Waiting | None) -> list[Observation]:
    """Return how a trial stands."""
    if trial.status == TERMINATED:
        return [
            Observation(READY, "True", Reason.SUCCEEDED, message),
            Observation(SUCCEEDED, "True", Reason.SUCCEEDED, message),
        ]
    if trial.status == ERROR:
        return [Observation(FAILED, "True", Reason.FAILED, message)]
    if waiting is not None:
        return [Observation(READY, "False", waiting.reason, waiting.message)]
    if trial.running and trial.current.failing is not None:
        return [Observation(READY, "False", Reason.ATTEMPT_FAILED, message)]
    if is_starting(trial):
        return [Observation(READY, "False", Reason.STARTING, message)]
    if trial.status == RUNNING:
        return [Observation(READY, "True", Reason.RUNNING, message)]
    return [Observation(READY, "False", Reason.PAUSED if trial.status == PAUSED else Reason.PENDING, message)]


def is_starting(trial: Trial) -> bool:
    """Return whether a trial's attempt was started, and no process runs it yet."""
    return trial.running and not (trial.current.pid or trial.current.received)


def cut(text: str, limit: int = MAX_MESSAGE) -> str:
    """Return a message that a condition can hold."""
    text = text.encode(errors="replace").decode()
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def whole(conditions: object) -> list[Mapping[str, Any]]:
    """Return those of a status's conditions that can be read; another version may have left anything there."""
    return [each for each in conditions if _is_complete(each)] if isinstance(conditions, (list, tuple)) else []


def _is_complete(condition: object) -> bool:
    texts = ("type", "status", "reason", "lastTransitionTime")
    return (
        isinstance(condition, Mapping)
        and all(isinstance(condition.get(name), str) for name in texts)
        and isinstance(condition.get("message", ""), str)
        and isinstance(condition.get("observedGeneration", 0), int)
    )


def _rank(condition: Mapping[str, Any]) -> tuple[int, str]:
    kind = str(condition.get("type"))
    return (ORDER.index(kind) if kind in ORDER else len(ORDER), kind)
