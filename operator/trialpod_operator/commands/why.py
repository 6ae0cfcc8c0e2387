"""`trialpod why DIR|URI|NAME`: why an experiment does not proceed, or why its trials failed, with the next step.

For an experiment in a cluster, it groups the conditions, TuneTrials and events, and adds queue positions, a silent
operator, and the next step.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from trialpod.cli.command import Command
from trialpod.cli.program import program
from trialpod_operator.api.reasons import Reason
from trialpod_operator.commands import target

if TYPE_CHECKING:
    from trialpod_operator.display.view import ExperimentView
    from trialpod_operator.kube_client.client import Experiments
    from trialpod_operator.view.reading import Activity

MAX_GROUPS = 5
MAX_NAMES = 5
MAX_EVENTS = 5
NO_REPORT_S = 300.0
"""A trial that has reported nothing for this long gets a line, or for half of `spec.progressDeadline`."""

Json = dict[str, Any]


# -- of an experiment in a cluster --


def findings(
    item: Mapping[str, Any], trials: Iterable[Mapping[str, Any]], events: Iterable[Mapping[str, Any]]
) -> Json:
    """Return what there is to say, as data.

    Args:
        item: the TuneExperiment.
        trials: its TuneTrials.
        events: those about it, the latest last.
    """
    from trialpod_operator.kube_client.client import event_time
    from trialpod_operator.kube_client.view import condition, seconds, state_of

    status = item.get("status") or {}
    waiting: dict[tuple[str, str], list[str]] = {}
    failed: dict[str, list[str]] = {}
    logs: dict[str, str] = {}
    silent: dict[str, float] = {}
    failing: dict[str, list[str]] = {}
    said: dict[str, str] = {}  # the first of each kind of message, as it is
    for trial in trials:
        found = trial.get("status") or {}
        name = str((trial.get("spec") or {}).get("trialId") or trial["metadata"]["name"])
        if why := found.get("waiting"):
            kind = _without_names(str(why.get("message")), trial)
            message = said.setdefault(kind, str(why.get("message")))
            waiting.setdefault((str(why.get("reason")), message), []).append(name)
        if condition(trial, "Ready").get("reason") == Reason.ATTEMPT_FAILED:
            kind = _without_names(str(found.get("message")), trial)
            failing.setdefault(said.setdefault(kind, str(found.get("message"))), []).append(name)
        if found.get("state") == "ERROR":
            message = str(found.get("message") or "no reason is known")
            message = said.setdefault(_without_names(message, trial), message)
            failed.setdefault(message, []).append(name)
            logs.setdefault(message, f"{found.get('storageUri')}/log.txt" if found.get("storageUri") else "")
        if found.get("state") == "RUNNING" and found.get("lastReportTime"):
            silent[name] = seconds(found["lastReportTime"])
    held = status.get("waiting") or {}
    if held and not waiting:
        waiting[str(held.get("reason")), str(held.get("message"))] = []
    observed = int(status.get("observedGeneration", -1))
    return {
        "name": item["metadata"]["name"],
        "namespace": item["metadata"].get("namespace", ""),
        "state": state_of(item),
        "observed": observed >= int(item["metadata"].get("generation") or 1),
        "deleting": bool(item["metadata"].get("deletionTimestamp")),
        "finalizers": list(item["metadata"].get("finalizers") or []),
        "progress": (status.get("trials") or {}).get("progress", ""),
        "running": (status.get("trials") or {}).get("running", 0),
        "starting": (status.get("trials") or {}).get("starting", 0),
        "disruptions": status.get("disruptions") or 0,
        "conditions": {
            kind: {key: found.get(key) for key in ("status", "reason", "message", "lastTransitionTime")}
            for kind in ("Ready", "Stalled", "Suspended", "Succeeded", "Failed")
            if (found := condition(item, kind))
        },
        "waiting": [
            {"reason": reason, "message": message, "trials": names} for (reason, message), names in waiting.items()
        ],
        "failed": [
            {"message": message, "trials": names, "log": logs[message]}
            for message, names in sorted(failed.items(), key=lambda entry: -len(entry[1]))
        ],
        "failing": [{"message": message, "trials": names} for message, names in failing.items()],
        "events": [
            {"type": e.get("type"), "reason": e.get("reason"), "message": e.get("message"), "time": event_time(e)}
            for e in list(events)[-MAX_EVENTS:]
        ],
        "last_reports": silent,
        "deadline_s": _deadline_s((item.get("spec") or {}).get("progressDeadline")),
        "storage": status.get("storageUri") or "",
        "trainable_fixed": status.get("trainableFixed"),
    }


def _without_names(message: str, trial: Mapping[str, Any]) -> str:
    """Return what is the same in the messages of all trials to which the same has happened."""
    names = (trial.get("status") or {}).get("podName"), trial["metadata"]["name"], trial["spec"].get("trialId")
    for name in names:
        message = message.replace(str(name), "TRIAL") if name else message
    return message


def next_steps(found: Mapping[str, Any], connection: str = "") -> list[str]:
    """Return what to do; the messages themselves name what is wrong and how to put it right.

    Args:
        found: what was found.
        connection: the options with which other commands find the namespace; "" = its name.
    """
    name, where = found["name"], f"-n {found['namespace']}"
    connection = connection or where
    if found["deleting"]:
        if found["finalizers"]:
            free = '{"metadata":{"finalizers":null}}'
            step = (
                "the operator deletes the stored data first; if none runs any more, remove the finalizer yourself "
                f"(the data stays): kubectl {where} patch te {name} --type=merge -p '{free}'"
            )
            return [step]
        return ["it is being deleted, with its trials and pods"]
    if not found["observed"]:
        step = (
            "no operator has seen its latest change; is one running that serves this namespace? "
            f"trialpod check {connection} --no-pod"
        )
        return [step]
    steps = []
    if found.get("operator"):
        steps.append(f"trialpod check {connection} --no-pod says what is wrong with the operator")
    stalled = found["conditions"].get("Stalled", {})
    if stalled.get("reason") == Reason.INVALID_SPEC:
        steps.append("correct the manifest, check it with `trialpod validate FILE`, and apply it again")
    elif stalled.get("status") == "True" and "Failed" not in found["conditions"]:
        steps.append("correct what the message names; the experiment then continues by itself")
    if found["state"] == "Suspended":
        steps.append(f"trialpod resume {name} {connection} resumes it")
    if found["waiting"] and found["state"] != "Suspended":
        steps.append(f"kubectl {where} get pods -l trialpod.dev/experiment={name} shows the pending pods")
    if found["failed"]:
        first = found["failed"][0]["trials"][0]
        steps.append(f"trialpod logs {name} {first} {connection} shows what it printed")
        steps.append(f"trialpod results {name} {connection} --failed lists all that failed")
        changeable, fixed = "spec.resources, spec.image and spec.template", "trainable, metric or searchSpace"
        if found["trainable_fixed"] is False:
            changeable, fixed = (
                "spec.resources, spec.image, spec.template and spec.trainable",
                "metric or searchSpace",
            )
        steps.append(
            f"when the cause is corrected: trialpod retry {name} {connection} retries them. {changeable} can be "
            f"changed for that (kubectl {where} edit te {name}); another {fixed} needs another "
            f"name: trialpod submit FILE --name {target.another_name(name)} {connection}"
        )
    ready = found["conditions"].get("Ready", {})
    if not steps and ready.get("status") == "False":
        steps += [each.remedy for each in Reason if each == ready.get("reason") and each.remedy]
    if found["state"] in ("Succeeded", "Stopped"):
        steps.append(f"trialpod best {name} {connection} prints the best parameters")
    return steps


def text(found: Mapping[str, Any], now: float, connection: str = "") -> str:
    """Return the same for a person; `now` in seconds since the epoch, `connection` as for `next_steps`."""
    from trialpod_operator.display.words import one_line, plural
    from trialpod_operator.kube_client.view import ago, seconds

    running = "".join(f", {found[kind]} {kind}" for kind in ("running", "starting") if found[kind])
    progress = f", {found['progress']} trials done{running}" if found["progress"] else ""
    lines = [f"{found['name']} (namespace {found['namespace']}): {found['state']}{progress}"]
    if silence := found.get("operator"):
        lines.append(f"  {silence}; running pods continue, and nothing else happens. What follows is as it was then")
    shown: set[str] = set()
    for kind, each in found["conditions"].items():
        if each["message"] in shown:
            continue
        shown.add(each["message"])
        alike = (c for c in found["conditions"].values() if c["message"] == each["message"])
        when = ago(max(seconds(c.get("lastTransitionTime")) for c in alike), now)
        lines.append(f"  {kind}={each['status']} {each['reason']}, {when}: {one_line(str(each['message']))}")
    if found["waiting"]:
        lines += ["", "pending trials:"]
        for each in found["waiting"][:MAX_GROUPS]:
            lines.append(f"  {each['reason']}: {one_line(each['message'])}")
            lines += [f"    {_names(each['trials'])}"] if each["trials"] else []
        lines += _more(found["waiting"], "reason")
    lines += ["", *(f"queue {each}" for each in found["queues"])] if found.get("queues") else []
    quiet = _quiet({name: now - at for name, at in found["last_reports"].items()}, found["deadline_s"])
    lines += _quiet_lines(quiet, found["deadline_s"])
    if found["failing"]:
        lines += ["", "attempts that have failed and are being ended, each within its grace period:"]
        for each in found["failing"][:MAX_GROUPS]:
            lines.append(f"  {plural(len(each['trials']), 'trial')}: {one_line(each['message'])}")
            lines.append(f"    {_names(each['trials'])}")
        lines += _more(found["failing"], "message")
    if found["failed"]:
        lines += ["", "trials that failed:"]
        for each in found["failed"][:MAX_GROUPS]:
            lines.append(f"  {plural(len(each['trials']), 'trial')}: {one_line(each['message'])}")
            lines.append(f"    {_names(each['trials'])}{'; log: ' + each['log'] if each['log'] else ''}")
        lines += _more(found["failed"], "message")
    if found["disruptions"]:
        lines += ["", f"{plural(found['disruptions'], 'attempt')} ended by the cluster; no trial fails by that"]
    if found["events"]:
        lines += ["", "last events:"]
        for each in found["events"]:
            when = ago(seconds(each["time"]), now)
            lines.append(f"  {when}  {each['type']} {each['reason']}: {one_line(str(each['message']))}")
    steps = next_steps(found, connection)
    if steps:
        lines += ["", *(f"next: {step}" for step in steps)]
    elif not any(found[kind] for kind in ("waiting", "failing", "failed")) and not quiet:
        ready = found["conditions"].get("Ready", {}).get("status") == "True"
        lines += ["", "no obstacle is known"] if ready else []
    return "\n".join(lines)


def queue_lines(api: Experiments, name: str) -> list[str]:
    """Return how full the queues are in which pods of an experiment wait, and how many are before them."""
    from trialpod_operator.cluster.pods import queues

    held = [pod for pod in api.pods(name) if queues.is_held(pod)]
    lines = []
    for queue in sorted({queues.queue_of(pod) for pod in held} - {""}):
        facts = api.queue(queue)
        if facts is None:
            continue
        before = queues.position(facts.pending, api.workloads(held)) if facts.pending else None
        ahead = f"; {before} before the first of these" if before is not None else ""
        lines.append(f"{queue}: {queues.numbers(facts.local, facts.cluster)}{ahead}")
    return lines


def _deadline_s(given: object) -> float | None:
    from trialpod.errors import InvalidInputError
    from trialpod_operator.api.duration import parse_duration

    try:
        return parse_duration(given) if isinstance(given, str | int | float) else None
    except InvalidInputError:  # the conditions say so
        return None


def _quiet(silent: Mapping[str, float], deadline_s: float | None) -> dict[str, float]:
    """Return those of the running trials that have been silent for long, in seconds by id."""
    least = NO_REPORT_S if deadline_s is None else min(NO_REPORT_S, deadline_s / 2)
    return {trial: for_s for trial, for_s in sorted(silent.items()) if for_s >= least}


def _quiet_lines(quiet: Mapping[str, float], deadline_s: float | None) -> list[str]:
    from trialpod_operator.display.words import duration

    if not quiet:
        return []
    then = "spec.progressDeadline would end them"
    if deadline_s is not None:
        then = f"their attempts end after {duration(deadline_s)} without a report (spec.progressDeadline)"
    longest = duration(max(quiet.values()))
    return [
        "",
        f"trials that run and have reported nothing for up to {longest}; {then}:",
        f"    {_names(list(quiet))}",
    ]


def _names(trials: list[str]) -> str:
    rest = len(trials) - MAX_NAMES
    return ", ".join(trials[:MAX_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def _more(groups: list[Json], noun: str) -> list[str]:
    rest = len(groups) - MAX_GROUPS
    return [f"  ... and {rest} more {noun}{'s' if rest > 1 else ''}"] if rest > 0 else []


# -- of an experiment on this machine --


def local_findings(view: ExperimentView, found: Activity, now: float) -> Json:
    """Return what there is to say, as data.

    Args:
        view: the experiment with all its trials.
        found: its processes.
        now: seconds since the epoch.
    """
    from trialpod.storage.layout import LOG_FILE
    from trialpod_operator.display.progress import trials

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
        "retry_command": found.retry_command,
        "host": found.other_host,
        "orphans": list(found.orphans),
        "deadline_s": view.progress_deadline_s,
        "silent": {row.trial_id: row.silent_s for row in view.rows if row.status == "RUNNING"},
        "failed": [
            {"message": message, "count": count, "trial": row.trial_id, "log": f"{row.path}/{LOG_FILE}"}
            for message, count in groups
            if (row := first.get(message)) is not None
        ],
    }


def local_next_steps(found: Json, location: str) -> list[str]:
    """Return what to do.

    Args:
        found: what `local_findings` says.
        location: the experiment, as a command names it.
    """
    from trialpod_operator.view.reading import INTERRUPTED, RUNNING

    where, state = shlex.quote(location), found["state"]
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
        if found["retry_command"] and state != RUNNING:
            steps.append(f"what failed runs again, once the cause is corrected, by: {found['retry_command']}")
    if state in ("Succeeded", "Stopped"):
        steps.append(f"{program()} best {where} prints the best parameters")
    return steps


def local_text(found: Json, location: str) -> str:
    """Return the same for a person; `location` as for `local_next_steps`."""
    from trialpod_operator.display.words import duration, one_line, plural
    from trialpod_operator.view.reading import RUNNING

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
        lines += [f"  and {plural(rest, 'other message')}: {program()} results {shlex.quote(location)} --failed"][
            : rest > 0
        ]
    quiet = _quiet(found["silent"], found["deadline_s"]) if found["state"] == RUNNING else {}
    lines += _quiet_lines(quiet, found["deadline_s"])
    steps = local_next_steps(found, location)
    if found["state"] == RUNNING and not found["failed"] and not found["host"] and not quiet:
        lines += ["", "no obstacle is known"]
    return "\n".join([*lines, "", *(f"next: {step}" for step in steps)]).rstrip()


# -- the command --


def run(options: argparse.Namespace) -> int:
    """Print it."""
    location = target.experiment_location(options.name, options)
    return _explain_in_cluster(options) if location is None else _explain_local(location, options)


def _explain_local(location: str, options: argparse.Namespace) -> int:
    from trialpod_operator.view.reading import live_view

    found = local_findings(*live_view(location, rows=None), time.time())
    print(json.dumps(found, indent=2) if options.json else local_text(found, location))
    return 0


def _explain_in_cluster(options: argparse.Namespace) -> int:
    with target.connect_for(options.name, options) as api:
        flags = target.cluster_flags(options, api.namespace)
        item = api.get(options.name)
        found = findings(item, api.trials(options.name), api.events(options.name, item["metadata"].get("uid", "")))
        if any(each["reason"] == Reason.QUEUED for each in found["waiting"]):
            found["queues"] = queue_lines(api, options.name)
        if silence := api.operator_silence(time.time(), item["metadata"].get("uid", "")):
            found["operator"] = silence
    print(json.dumps(found, indent=2) if options.json else text(found, time.time(), flags))
    return 0


command = Command(
    name="why",
    help="say why an experiment does not proceed or has failed, and what to do",
    configure=target.add_experiment_options,
    run=run,
)
