"""Why something was decided about a trial, as a sentence with its evidence. One function for each source.

A reason is data (`Decision.reason`, ``stop_reason``); what is not known here, of a plug-in for instance, is shown as
``key=value``. Wherever a reason has a ``rank``, 1 is the best, and ``compared`` is how many were ranked, the trial
itself among them: "rank 3 of 9".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trialpod.tune.plugins.catalogue import SCHEDULERS, STOPPERS
from trialpod.tune.plugins.phrases import evidence_text, text
from trialpod.tune.schedulers.trial_scheduler import TrialScheduler
from trialpod.tune.stopper.stopper import Stopper
from trialpod_operator.engine.choices import Decision

Reason = dict[str, Any]

_VERBS = {
    "stop": "stopped",
    "pause": "paused",
    "exploit": "reset to another trial's state",
    "continue": "continued",
    "retry": "retried",
    "disruption": "interrupted",
    "failure": "failed for good",
    "undo": "continued as before",
    "resources": "given other resources",
    "config": "given another config before its start",
}
_OWN_WORDS = ("retry", "disruption", "failure", "undo")


def sentence(decision: Decision) -> str:
    """Return what was decided and why, without the trial's name: "stopped at iteration 3: ..."."""
    return describe_decision(decision.kind, decision.reason, decision.iteration)


def describe_decision(kind: str, reason: Reason, iteration: int = 0) -> str:
    """Return what was decided and why, where there is no `Decision`; without the iteration when that is 0."""
    verb = _VERBS.get(kind, kind)
    if kind == "exploit":
        verb = f"reset to {_start(reason)}"
    at = f" at iteration {iteration}" if iteration else ""
    why = explain(reason)
    if kind == "continue":
        return f"continued{at} instead of following another trial: {reason.get('problem', '')}"
    return f"{verb}{at}: {why}" if why else f"{verb}{at}"


def explain(reason: Reason) -> str:
    """Return a reason as a phrase: "the time budget of 60 s is used up"; "" for an empty one."""
    if not reason:
        return ""
    return _SOURCES.get(str(reason.get("source", "")), _unknown)(reason)


def _start(reason: Reason) -> str:
    whose, holder = reason.get("source_trial", "?"), reason.get("from")
    if holder is None:
        return "its own state with another config"
    at = f" (iteration {reason['from_iteration']})" if "from_iteration" in reason else ""
    kept = f", kept by {holder}" if holder != whose else ""
    return f"{whose}'s {reason.get('checkpoint', 'checkpoint')}{at}{kept}"


def _scheduler(reason: Reason) -> str:
    if reason.get("rule") == "left paused":
        return "the scheduler had paused it and did not continue with it when nothing else was left to run"
    return SCHEDULERS.describe(str(reason.get("scheduler", "")), reason) or TrialScheduler.describe_reason(reason)


def _stopper(reason: Reason) -> str:
    return STOPPERS.describe(str(reason.get("stopper", "")), reason) or Stopper.describe_reason(reason)


def _user(reason: Reason) -> str:
    return "asked for by the user" + (", from scratch" if reason.get("from_scratch") else "")


def _time_budget(reason: Reason) -> str:
    return f"the time budget of {text(reason.get('seconds'))} s is used up"


def _budget(reason: Reason) -> str:
    return f"the budget of {text(reason.get('hours'))} {reason.get('of')} hours is used up"


def _not_worth(reason: Reason) -> str:
    kind = reason.get("of")
    return (
        f"the expected gain of the next {kind} hour, {text(reason.get('gain'))}, is below stopWhenNotWorth "
        f"({text(reason.get('threshold'))}) after {text(reason.get('used'))} {kind} hours"
    )


def _reserve(reason: Reason) -> str:
    return (
        f"it passed the rung at {text(reason.get('rung'))}, but what is left of the budget is kept for the full "
        "training of the best trial"
    )


def _repeats(reason: Reason) -> str:
    return f"trial {reason.get('original')}, which it repeats, ended at iteration {reason.get('iteration')}"


def _fail_fast(reason: Reason) -> str:
    return f"trial {reason.get('trial_id')} failed, and failFast is set"


def _failure(reason: Reason) -> str:
    failures, allowed = reason.get("failures"), reason.get("max_failures")
    limit = "without limit" if isinstance(allowed, int) and allowed < 0 else f"maxFailures is {allowed}"
    return f"{reason.get('error') or 'no error is known'} (failure {failures}; {limit})"


def _disruption(reason: Reason) -> str:
    what = "its process was preempted" if reason.get("source") == "preempted" else "its process was lost"
    return f"{what} ({reason['error']})" if reason.get("error") else what


def _resources(reason: Reason) -> str:
    asked = ", ".join(f"{name} {text(amount)}" for name, amount in reason.get("resources", {}).items())
    return f"the scheduler gives it other resources: {asked}"


def _checkpoint(reason: Reason) -> str:
    return f"it does not follow trial {reason.get('from')}: {reason.get('error')}"


def _unknown(reason: Reason) -> str:
    source = str(reason.get("source", "")).replace("_", " ")
    return f"{source}{evidence_text(reason, ': ' if source else '')}"


_SOURCES: dict[str, Callable[[Reason], str]] = {
    "scheduler": _scheduler,
    "stopper": _stopper,
    "user": _user,
    "time_budget": _time_budget,
    "budget": _budget,
    "not_worth": _not_worth,
    "reserve": _reserve,
    "repeats": _repeats,
    "fail_fast": _fail_fast,
    "failure": _failure,
    "preempted": _disruption,
    "lost": _disruption,
    "suspend": lambda _reason: "the experiment was suspended",
    "resources": _resources,
    "checkpoint": _checkpoint,
    "metric": lambda reason: str(reason.get("message", "")),
    "algorithm": lambda reason: str(reason.get("message", "")),
    "broken": lambda reason: f"no trial could be started: {reason.get('message', '')}",
}
