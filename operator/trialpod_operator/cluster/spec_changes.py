"""Who changed what of a running experiment, for an event that says so. Pure functions of the object.

The API server notes with each field which client set it last, and when (``metadata.managedFields``). That is the
program (`kubectl-patch`, `argocd-controller`), not the person; who that was, the cluster's audit log knows by that
time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trialpod_operator.engine.settings import BUDGET_FIELDS, Settings

_FIELDS = {
    "max_concurrent": "maxConcurrentTrials",
    "time_budget_s": "timeBudget",
    "progress_deadline_s": "progressDeadline",
    "max_failures": "failurePolicy.maxFailures",
    "fail_fast": "failurePolicy.failFast",
}


def changes(item: Mapping[str, Any], old: Settings, new: Settings, was_suspended: bool, suspend: bool) -> str:
    """Return what was changed of the spec, from what to what and by whom; "" when nothing was.

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
