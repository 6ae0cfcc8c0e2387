"""`trialpod why` of an experiment on this machine: why it does not proceed or has failed, and what to do."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import time
from typing import Any

from trialpod.cli.program import program
from trialpod.storage.layout import LOG_FILE
from trialpod_operator.display.progress import trials
from trialpod_operator.display.view import ExperimentView
from trialpod_operator.display.words import duration, one_line, plural
from trialpod_operator.local.running import INTERRUPTED, RUNNING, Activity, live_view

MAX_GROUPS = 5

Json = dict[str, Any]


def findings(view: ExperimentView, found: Activity, now: float) -> Json:
    """Return what there is to say, as data.

    Args:
        view: the experiment with all its trials.
        found: its processes.
        now: seconds since the epoch.
    """
    groups = sorted(view.failures.items(), key=lambda item: (-item[1], item[0]))
    first = {row.error: row for row in reversed(view.rows) if row.error}
    holder = found.holder
    return {
        "name": view.name,
        "path": view.path,
        "state": view.state,
        "message": view.message,
        "progress": trials(view),
        "running": view.counts.get("RUNNING", 0),
        "waiting": view.counts.get("PENDING", 0),
        "process": holder.pid if holder is not None and found.runs else None,
        "running_for_s": now - holder.started if holder is not None and found.runs else None,
        "command": found.command,
        "host": found.elsewhere,
        "orphans": list(found.orphans),
        "failed": [
            {"message": message, "count": count, "trial": row.trial_id, "log": f"{row.path}/{LOG_FILE}"}
            for message, count in groups
            if (row := first.get(message)) is not None
        ],
    }


def next_steps(found: Json, place: str) -> list[str]:
    """Return what to do.

    Args:
        found: what `findings` says.
        place: the experiment, as a command names it.
    """
    where, state = shlex.quote(place), found["state"]
    steps = []
    if found["orphans"]:
        pids = ", ".join(map(str, found["orphans"]))
        steps.append(f"processes of an earlier run still end: {pids}; the next run waits for them")
    if state == RUNNING:
        steps += [f"{program()} status {where} --watch shows it until it ends"] if not found["host"] else []
    elif state in (INTERRUPTED, "Suspended"):
        again = f": {found['command']}" if found["command"] else ""
        steps.append(f"run it again where it was started, it resumes{again}")
    if found["failed"]:
        steps.append(f"{program()} logs {where} {found['failed'][0]['trial']} shows what the trial printed")
        if "trialpod run" in found["command"] and state != RUNNING:
            retry = " ".join([found["command"].replace(" --retry-failed", ""), "--retry-failed"])
            steps.append(f"what failed runs again, once the cause is corrected, by: {retry}")
    if state in ("Succeeded", "Stopped"):
        steps.append(f"{program()} best {where} prints the best parameters")
    return steps


def text(found: Json, place: str) -> str:
    """Return the same for a person; `place` as for `next_steps`."""
    lines = [f"{one_line(found['name'])}: {found['state']}, {found['progress']}, {found['running']} running"]
    if found["message"]:
        lines.append(f"  {one_line(found['message'])}")
    if found["process"] is not None:
        since = duration(found["running_for_s"])
        lines.append(f"  process {found['process']} has run it for {since}: {found['command']}")
    elif found["host"]:
        lines.append(f"  it was last run on the host {found['host']}; nothing is known here of processes there")
    if found["state"] == RUNNING and found["waiting"]:
        waiting = plural(found["waiting"], "trial")
        lines.append(f"  {waiting} waiting for CPUs, GPUs or memory of {os.uname().nodename}, or for a place")
    if found["failed"]:
        lines += ["", "trials that failed:"]
        for each in found["failed"][:MAX_GROUPS]:
            lines.append(f"  {plural(each['count'], 'trial')}: {one_line(each['message'])}")
            lines.append(f"    log: {one_line(each['log'])}")
        rest = len(found["failed"]) - MAX_GROUPS
        lines += [f"  and {plural(rest, 'other message')}: {program()} results {shlex.quote(place)} --failed"][
            : rest > 0
        ]
    steps = next_steps(found, place)
    if found["state"] == RUNNING and not found["failed"] and not found["host"]:
        lines += ["", "no obstacle is known"]
    return "\n".join([*lines, "", *(f"next: {step}" for step in steps)]).rstrip()


def run(place: str, options: argparse.Namespace) -> int:
    """Print it."""
    found = findings(*live_view(place, rows=None), time.time())
    print(json.dumps(found, indent=2) if options.json else text(found, place))
    return 0
