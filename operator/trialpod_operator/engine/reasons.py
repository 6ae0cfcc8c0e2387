"""Why something was decided about a trial, as a sentence with its evidence. One function for each source.

A reason is data (`Decision.reason`, ``stop_reason``); what is not known here, of a plug-in for instance, is shown as
``key=value``. Wherever a reason has a ``rank``, 1 is the best, and ``compared`` is how many were ranked, the trial
itself among them: "rank 3 of 9".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from trialpod_operator.engine.decisions import Decision

Reason = dict[str, Any]

_VERBS = {
    "stop": "stopped",
    "pause": "paused",
    "exploit": "told to follow another trial",
    "continue": "went on",
    "retry": "retried",
    "disruption": "interrupted",
    "failure": "failed for good",
    "undo": "went on as before",
    "resources": "given other resources",
    "config": "given another config before its start",
}
_UNTOLD = ("source", "scheduler", "stopper", "rule")
_OWN_WORDS = ("retry", "disruption", "failure", "undo")


def sentence(decision: Decision) -> str:
    """Return what was decided and why, without the trial's name: "stopped at iteration 3: ..."."""
    return told(decision.kind, decision.reason, decision.iteration)


def told(kind: str, reason: Reason, iteration: int = 0) -> str:
    """Return what was decided and why, where there is no `Decision`; without the iteration when that is 0."""
    verb = _VERBS.get(kind, kind)
    if kind == "exploit":
        verb = f"told to go on from {_start(reason)}"
    at = f" at iteration {iteration}" if iteration else ""
    why = explain(reason)
    if kind == "continue":
        return f"went on{at} instead of following another trial: {reason.get('problem', '')}"
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
    name = str(reason.get("scheduler", "the scheduler"))
    rule = str(reason.get("rule", ""))
    value, time = _value(reason), _time(reason)
    match rule:
        case "max_t":
            return f"{name}: it reached max_t={_text(reason.get('max_t'))}{time}"
        case "rung" if "cutoff" in reason and reason.get("cutoff") is not None:
            worse = "below" if reason.get("mode") == "max" else "above"
            cutoff = f"the cutoff {_text(reason['cutoff'])} of that rung"
            return f"{name}: {value}{time} is {worse} {cutoff}{_rank(reason)}"
        case "rung":
            place = f"the rung at {_text(reason.get('rung'))}"
            return f"{name}: it reached {place} with {value or 'no value'}{_rank(reason)}"
        case "median":
            worse = "below" if reason.get("mode") == "max" else "above"
            best = f"its best {reason.get('metric')}={_text(reason.get('best'))}{time}"
            return f"{name}: {best} is {worse} the median {_text(reason.get('cutoff'))} of the others{_rank(reason)}"
        case "exploit":
            better = f"{reason.get('source_trial')} with {_text(reason.get('source_value'))}"
            source = f" (rank {reason['source_rank']})" if "source_rank" in reason else ""
            return f"{name}: {value}{time}{_rank(reason)}; it follows {better}{source}"
        case "missing":
            return f"{name}: drew what the search space lacks: {reason.get('parameters')}"
        case "first config":
            return f"{name}: it starts with the first config of the schedule"
        case "replay":
            return f"{name}: change {reason.get('change')} of {reason.get('changes')}{time}"
        case "left paused":
            return "the scheduler had paused it and did not go on with it when nothing else was left to run"
        case "time_slice":
            return f"{name}: its time slice was over{time}, and others wait"
        case "synch":
            return f"{name}: it waits until all trials have come to {_text(reason.get('waits_until'))}{time}"
    about = " by the rule " + rule.replace("_", " ") if rule else ""
    return f"{name}{about}{_more(reason, ': ')}"


def _stopper(reason: Reason) -> str:
    name = str(reason.get("stopper", "")) or "the stopper"
    match name:
        case "timeout":
            return f"the timeout of {_text(reason.get('timeout_s'))} s is used up"
        case "maximum_iteration":
            return f"it reported {_text(reason.get('max_iter'))} results, as many as the stopper allows"
        case "function":
            return f"the function {reason.get('function')} said so"
        case "trial_plateau" | "experiment_plateau":
            return (
                f"{reason.get('metric')} has levelled off: the standard deviation of the latest values is "
                f"{_text(reason.get('std'))}, not above {_text(reason.get('threshold'))}"
            )
    return f"the stopper {name}{_more(reason, ': ')}" if name != "the stopper" else f"{name}{_more(reason, ': ')}"


def _user(reason: Reason) -> str:
    return "asked for by the user" + (", from scratch" if reason.get("from_scratch") else "")


def _time_budget(reason: Reason) -> str:
    return f"the time budget of {_text(reason.get('seconds'))} s is used up"


def _budget(reason: Reason) -> str:
    return f"the budget of {_text(reason.get('hours'))} {reason.get('of')} hours is used up"


def _fail_fast(reason: Reason) -> str:
    return f"trial {reason.get('trial_id')} failed, and failFast is set"


def _failure(reason: Reason) -> str:
    failures, allowed = reason.get("failures"), reason.get("max_failures")
    limit = "without limit" if isinstance(allowed, int) and allowed < 0 else f"maxFailures is {allowed}"
    return f"{reason.get('error') or 'no error is known'} (failure {failures}; {limit})"


def _disruption(reason: Reason) -> str:
    what = "its process was taken away" if reason.get("source") == "preempted" else "its process was lost"
    return f"{what} ({reason['error']})" if reason.get("error") else what


def _resources(reason: Reason) -> str:
    asked = ", ".join(f"{name} {_text(amount)}" for name, amount in reason.get("resources", {}).items())
    return f"the scheduler gives it other resources: {asked}"


def _checkpoint(reason: Reason) -> str:
    return f"it does not follow trial {reason.get('from')}: {reason.get('error')}"


def _unknown(reason: Reason) -> str:
    source = str(reason.get("source", "")).replace("_", " ")
    return f"{source}{_more(reason, ': ' if source else '')}"


_SOURCES: dict[str, Callable[[Reason], str]] = {
    "scheduler": _scheduler,
    "stopper": _stopper,
    "user": _user,
    "time_budget": _time_budget,
    "budget": _budget,
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


def _value(reason: Reason) -> str:
    if reason.get("value") is None:
        return ""
    return f"{reason.get('metric', 'value')}={_text(reason['value'])}"


def _time(reason: Reason) -> str:
    attribute = reason.get("time_attr", "training_iteration")
    return f" at {attribute} {_text(reason['time'])}" if reason.get("time") is not None else ""


def _rank(reason: Reason) -> str:
    if "rank" not in reason or "compared" not in reason:
        return ""
    return f" (rank {reason['rank']} of {reason['compared']})"


def _more(reason: Reason, before: str = "; ") -> str:
    told = {*_UNTOLD, "source_trial", "from", "from_iteration", "checkpoint"}
    items = [f"{key}={_text(value)}" for key, value in reason.items() if key not in told]
    return before + ", ".join(items) if items else ""


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    return str(value)
