"""`trialpod list`: the experiments of this machine and of a cluster, one per line."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trialpod.cli.command import Command
from trialpod.errors import InvalidInputError, TrialpodError
from trialpod_operator.commands import target

Json = dict[str, Any]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "folder", nargs="?", metavar="DIR",
        help=f"a folder of experiments on this machine (default: ./{target.LOCAL_FOLDER}, and those of a cluster)",
    )  # fmt: skip
    target.add_cluster_options(parser)
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="those of all namespaces")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def local_facts(root: Path) -> list[Json]:
    """Return what a list says of each experiment in a folder, as data, by name."""
    from trialpod_operator.view.reading import experiments_below, is_experiment

    if is_experiment(root):  # what is below are its trials
        return [_local_fact(root)]
    return [_local_fact(path) for path in (experiments_below(root) if root.is_dir() else [])]


def _local_fact(path: Path) -> Json:
    from trialpod_operator.display.progress import done
    from trialpod_operator.view.reading import live_view

    try:
        with target.without_collections():
            view, _ = live_view(str(path), rows=0, orphans=False)
    except TrialpodError as error:  # of a newer version, or damaged: the others are still listed
        return {"name": path.name, "path": str(path), "state": "Unreadable", "message": str(error)}
    total = "" if view.total is None else f"/{view.total}"
    best = view.best
    return {
        "name": view.name,
        "path": str(path),
        "state": view.state,
        "progress": f"{done(view)}{total}",
        "running": view.counts.get("RUNNING", 0),
        "failed": view.counts.get("ERROR", 0),
        "metric": view.metric,
        "best": best.value if best is not None else None,
        "best_trial": best.trial_id if best is not None else None,
        "active_s": view.elapsed_s,
    }


def cluster_facts(item: Mapping[str, Any]) -> Json:
    """Return what a list says of an experiment, as data."""
    from trialpod_operator.kube_client.view import condition, state_of

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
        "metric": spec.get("metric") or next((each.get("name") for each in spec.get("metrics") or ()), None),
        "best": best.get("value"),
        "best_trial": best.get("trialId"),
        "created": item["metadata"].get("creationTimestamp", ""),
    }


def cluster_table(found: Sequence[Json], now: float, *, everywhere: bool) -> str:
    """Return the list as a table; `now` in seconds since the epoch."""
    from trialpod_operator.display.words import duration
    from trialpod_operator.kube_client.view import seconds

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
    return _aligned(rows)


def local_table(found: Sequence[Json]) -> str:
    """Return the experiments of this machine as a table."""
    from trialpod_operator.display.words import duration, number, one_line

    rows = [["NAME", "STATE", "TRIALS", "RUNNING", "FAILED", "BEST", "TIME", "FOLDER"]]
    for each in found:
        best = f"{each['metric']}={number(each['best'])}" if each.get("best") is not None else ""
        cells = [each.get("progress", ""), each.get("running", ""), each.get("failed", ""), best]
        time = duration(each["active_s"]) if "active_s" in each else ""
        rows.append([one_line(str(cell)) for cell in (each["name"], each["state"], *cells, time, each["path"])])
    return _aligned(rows)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return "\n".join("  ".join(row).rstrip() for row in padded)


def _short(text: str) -> str:
    from trialpod_operator.display.words import number

    try:
        return number(float(text))
    except ValueError:
        return text


def run(options: argparse.Namespace) -> int:
    """Print the list: the experiments of this machine, of a cluster, or both."""
    in_cluster = target.is_in_cluster(options) or options.all_namespaces
    if options.folder is not None:
        if in_cluster:
            raise InvalidInputError(
                f"{options.folder} is a folder on this machine; leave out the options of a cluster"
            )
        if not Path(options.folder).is_dir():
            raise InvalidInputError(f"{options.folder} is not a folder; -n NAMESPACE lists experiments in a cluster")
    local = [] if in_cluster else local_facts(Path(options.folder or target.LOCAL_FOLDER))
    remote: list[Json] | None = None
    where = ""
    if options.folder is None:
        try:
            with target.connect(options) as api:
                remote = [cluster_facts(item) for item in api.all(everywhere=options.all_namespaces)]
                where = "the cluster" if options.all_namespaces else f"the namespace {api.namespace}"
        except TrialpodError as error:
            if in_cluster or not (local or isinstance(error, InvalidInputError)):
                raise
            if isinstance(error, InvalidInputError) and not Path(target.LOCAL_FOLDER).is_dir():
                raise InvalidInputError(f"there is no ./{target.LOCAL_FOLDER} here, and {error}") from error
            if not isinstance(error, InvalidInputError):
                print(f"trialpod: experiments in the cluster are not listed: {error}", file=sys.stderr)
    if options.json:
        print(json.dumps([*local, *(remote or [])], indent=2))
        return 0
    if local:
        print(local_table(local))
    if remote:
        print(("\n" if local else "") + cluster_table(remote, time.time(), everywhere=options.all_namespaces))
    if local or remote:
        return 0
    places = [] if in_cluster else [f"in {options.folder or f'./{target.LOCAL_FOLDER}'}"]
    places += [f"in {where}"] if remote is not None else []
    narrow = remote is not None and not options.all_namespaces
    hint = "; `trialpod list -A` looks into all namespaces" if narrow else ""
    start = "trialpod submit FILE.yaml" if remote is not None else "trialpod run FILE.yaml"
    print(f"there is no experiment {' or '.join(places)}{hint}. To start one: {start}")
    return 0


command = Command(
    name="list", help="list the experiments on this machine and in a cluster", configure=configure, run=run
)
