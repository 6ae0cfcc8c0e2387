"""`trialpod list`: the experiments of a namespace, or of all of them, one per line."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from trialpod.cli.command import Command
from trialpod_operator.cluster.commands import asking

Json = dict[str, Any]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    asking.configure_place(parser)
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="of all namespaces")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def facts(item: Mapping[str, Any]) -> Json:
    """Return what a list says of an experiment, as data."""
    from trialpod_operator.cluster.remote_view import condition, state_of

    spec, status = item.get("spec") or {}, item.get("status") or {}
    trials, best = status.get("trials") or {}, status.get("best") or {}
    state = state_of(item)
    ready = condition(item, "Ready")
    return {
        "namespace": item["metadata"].get("namespace", ""),
        "name": item["metadata"]["name"],
        "state": "Deleting" if item["metadata"].get("deletionTimestamp") else state,
        "reason": str(ready.get("reason") or "") if state in ("Waiting", "Stalled") else "",
        "progress": trials.get("progress", ""),
        "running": trials.get("running", 0),
        "failed": trials.get("error", 0),
        "metric": spec.get("metric"),
        "best": best.get("value"),
        "best_trial": best.get("trialId"),
        "created": item["metadata"].get("creationTimestamp", ""),
    }


def table(found: Sequence[Json], now: float, *, everywhere: bool) -> str:
    """Return the list as a table; `now` in seconds since the epoch."""
    from trialpod_operator.cluster.remote_view import seconds
    from trialpod_operator.local.display.words import duration

    rows = [["NAME", "STATE", "TRIALS", "RUNNING", "FAILED", "BEST", "AGE"]]
    for each in found:
        made = seconds(each["created"])
        state = f"{each['state']} ({each['reason']})" if each["reason"] else each["state"]
        best = f"{each['metric']}={_short(each['best'])}" if each["best"] is not None else ""
        age = duration(max(0.0, now - made)) if made else ""
        rows.append([each["name"], state, each["progress"], str(each["running"]), str(each["failed"]), best, age])
    if everywhere:
        spaces = ["NAMESPACE", *(each["namespace"] for each in found)]
        rows = [[space, *row] for space, row in zip(spaces, rows, strict=True)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return "\n".join("  ".join(row).rstrip() for row in padded)


def _short(text: str) -> str:
    from trialpod_operator.local.display.words import number

    try:
        return number(float(text))
    except ValueError:
        return text


def run(options: argparse.Namespace) -> int:
    """Print the list."""
    with asking.connect(options) as api:
        found = [facts(item) for item in api.all(everywhere=options.all_namespaces)]
    if options.json:
        print(json.dumps(found, indent=2))
    elif found:
        print(table(found, time.time(), everywhere=options.all_namespaces))
    else:
        where = "the cluster" if options.all_namespaces else f"the namespace {api.namespace}"
        hint = "" if options.all_namespaces else "; `trialpod list -A` looks into all namespaces"
        print(f"there is no experiment in {where}{hint}. To start one: trialpod submit FILE.yaml")
    return 0


command = Command(name="list", help="list the experiments in a cluster", configure=configure, run=run)
