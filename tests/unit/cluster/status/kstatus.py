"""The generic verdict of kstatus (cli-utils), as Flux and others compute it for kinds that they do not know."""

from __future__ import annotations

from typing import Any


def verdict(resource: dict[str, Any]) -> str:
    """Return Terminating, InProgress, Failed or Current."""
    metadata, status = resource.get("metadata", {}), resource.get("status", {})
    if metadata.get("deletionTimestamp"):
        return "Terminating"
    observed = status.get("observedGeneration")
    if observed is not None and observed != metadata.get("generation"):
        return "InProgress"
    conditions = status.get("conditions", [])
    for condition in conditions:
        if condition["type"] == "Reconciling" and condition["status"] == "True":
            return "InProgress"
        if condition["type"] == "Stalled" and condition["status"] == "True":
            return "Failed"
    for condition in conditions:
        if condition["type"] == "Ready":
            return "Current" if condition["status"] == "True" else "InProgress"
    return "Current"
