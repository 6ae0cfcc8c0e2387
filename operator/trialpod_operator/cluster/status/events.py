"""Which Kubernetes events an experiment gets: few, on transitions only, and never one per trial without a limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trialpod_operator.api.reasons import Reason
from trialpod_operator.cluster.status import conditions
from trialpod_operator.engine.settings import BUDGET_FIELDS, Settings

MAX_TRIAL_FAILURES = 10
"""TrialFailed events of one experiment; the rest is counted in its status."""

DISRUPTED_INTERVAL_S = 300.0
MAX_DISRUPTIONS = 10
"""Disrupted events of one reason within that time; the rest is counted in the status."""

_ANOTHER_NAME = "another metadata.name starts a new one"

MAX_NOTE = 1000
"""Kubernetes takes 1024 characters of an event's message."""


@dataclass(frozen=True)
class KubernetesEvent:
    """One event about an experiment."""

    type: Literal["Normal", "Warning"]
    reason: Reason
    message: str


def transition_events(
    previous: Mapping[str, Any] | None, current: Mapping[str, Any], *, resumed: bool = False
) -> list[KubernetesEvent]:
    """Return the events between two statuses of an experiment; `resumed`: the storage held it when it was opened."""
    before, after = _conditions(previous or {}), _conditions(current)
    found: list[KubernetesEvent] = []
    if current.get("startTime") and not (previous or {}).get("startTime"):
        stored = f"the operator resumed the experiment that {current.get('storageUri')} holds; {_ANOTHER_NAME}"
        message = stored if resumed else "the operator started the experiment"
        found.append(_event("Normal", Reason.STARTED, message))
    was_suspended, suspended = _true(before, conditions.SUSPENDED), _true(after, conditions.SUSPENDED)
    ready = after.get(conditions.READY, {})
    if suspended and not was_suspended:
        found.append(_event("Normal", Reason.SUSPENDED, after[conditions.SUSPENDED]["message"]))
    elif was_suspended and conditions.SUSPENDED not in after and not _over(after):
        found.append(_event("Normal", Reason.RESUMED, "trials continue"))
    away = Reason.STORAGE_UNAVAILABLE
    was_away = before.get(conditions.READY, {}).get("reason") == away
    if ready.get("reason") == away and not was_away:
        found.append(_event("Warning", away, ready.get("message", "")))
    elif was_away and ready.get("reason") not in (None, away):
        found.append(_event("Normal", Reason.STORAGE_AVAILABLE, "the storage answers again"))
    waiting = current.get("waiting") or {}
    if waiting and ready.get("reason") == waiting.get("reason") != before.get(conditions.READY, {}).get("reason"):
        found.append(_event("Warning", Reason.WAITING, ready.get("message", "")))
    if _true(after, conditions.FAILED):
        if not _true(before, conditions.FAILED):
            found.append(_event("Warning", Reason.FAILED, after[conditions.FAILED]["message"]))
    elif _true(after, conditions.STALLED):
        stalled, earlier = after[conditions.STALLED], before.get(conditions.STALLED, {})
        if (stalled["reason"], stalled["message"]) != (earlier.get("reason"), earlier.get("message")):
            found.append(_event("Warning", Reason.STALLED, stalled["message"]))
    if _true(after, conditions.SUCCEEDED) and not _true(before, conditions.SUCCEEDED):
        succeeded = after[conditions.SUCCEEDED]
        found.append(
            _event(
                "Normal",
                Reason.STOPPED if succeeded["reason"] == Reason.STOPPED else Reason.SUCCEEDED,
                succeeded["message"],
            )
        )
    return found


class TrialEvents:
    """Chooses which ends of attempts are worth an event of the experiment."""

    def __init__(self) -> None:
        self._failures = 0
        self._messages: set[str] = set()
        self._disrupted: dict[str, dict[str, float]] = {}  # by the reason, then by the trial: when it was reported

    def failed(self, trial: str, message: str) -> KubernetesEvent | None:
        """A trial failed for good.

        Args:
            trial: its name.
            message: its error.
        """
        new = message not in self._messages
        if self._failures >= MAX_TRIAL_FAILURES and (not new or len(self._messages) >= 2 * MAX_TRIAL_FAILURES):
            return None
        self._failures += 1
        self._messages.add(message)
        return _event("Warning", Reason.TRIAL_FAILED, f"{trial}: {message}")

    def disrupted(self, trial: str, reason: str, message: str, now: float) -> KubernetesEvent | None:
        """The cluster ended an attempt.

        Args:
            trial: its name.
            reason: of the `Termination`.
            message: of the `Termination`.
            now: seconds since the epoch.
        """
        reported = {
            name: at for name, at in self._disrupted.get(reason, {}).items() if now - at < DISRUPTED_INTERVAL_S
        }
        if trial in reported or len(reported) >= MAX_DISRUPTIONS:
            return None
        self._disrupted[reason] = {**reported, trial: now}
        return _event("Warning", Reason.DISRUPTED, f"{trial}: {message}")


def _event(kind: Literal["Normal", "Warning"], reason: Reason, message: str) -> KubernetesEvent:
    return KubernetesEvent(kind, reason, conditions.cut(message, MAX_NOTE))


def _conditions(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {each["type"]: each for each in conditions.whole(status.get("conditions"))}


def _true(found: Mapping[str, Mapping[str, Any]], kind: str) -> bool:
    return kind in found and found[kind].get("status") == "True"


def _over(found: Mapping[str, Mapping[str, Any]]) -> bool:
    return any(_true(found, kind) for kind in (conditions.SUCCEEDED, conditions.FAILED, conditions.STALLED))


_FIELDS = {
    "max_concurrent": "maxConcurrentTrials",
    "time_budget_s": "timeBudget",
    "progress_deadline_s": "progressDeadline",
    "max_failures": "failurePolicy.maxFailures",
    "fail_fast": "failurePolicy.failFast",
}


def changes(item: Mapping[str, Any], old: Settings, new: Settings, was_suspended: bool, suspend: bool) -> str:
    """Return what was changed of the spec, from what to what and by which client; "" when nothing was.

    The client is that of ``metadata.managedFields``: a program, not a person.

    Args:
        item: the TuneExperiment.
        old: the settings so far.
        new: those that its spec has now.
        was_suspended: whether it was suspended.
        suspend: its spec.suspend.
    """
    found = [f"spec.{name}: {before} -> {after}{_by(item, name)}" for name, before, after in _differences(old, new)]
    if was_suspended != suspend:
        before, after = ("true", "false") if was_suspended else ("false", "true")
        found.append(f"spec.suspend: {before} -> {after}{_by(item, 'suspend')}")
    return "; ".join(found)


def set_by(item: Mapping[str, Any], *path: str) -> tuple[str, str]:
    """Return the client that set a field last and when, ("", "") when that is not known.

    Args:
        item: the object.
        path: of the field: "spec", "suspend".
    """
    newest = ("", "")
    for entry in item["metadata"].get("managedFields") or ():
        owned: Any = entry.get("fieldsV1") or {}
        for part in path:
            owned = owned.get(f"f:{part}") if isinstance(owned, Mapping) else None
        time = str(entry.get("time") or "")
        if owned is not None and time >= newest[1] and not entry.get("subresource"):
            newest = (str(entry.get("manager") or ""), time)
    return newest


def _by(item: Mapping[str, Any], name: str) -> str:
    manager, time = set_by(item, "spec", name.partition(".")[0])
    return f" (by {manager}{f' at {time}' if time else ''})" if manager else ""


def _differences(old: Settings, new: Settings) -> Iterator[tuple[str, str, str]]:
    for name in Settings.__struct_fields__:
        before, after = getattr(old, name), getattr(new, name)
        if name in BUDGET_FIELDS and before != after:
            yield _FIELDS.get(name) or _camel(name), _text(before), _text(after)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _text(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
