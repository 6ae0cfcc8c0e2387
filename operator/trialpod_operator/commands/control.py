"""`trialpod suspend`, `resume`, `stop`, `retry` and `delete`: what somebody does to an experiment in a cluster."""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from typing import TYPE_CHECKING, Any

from trialpod.cli.command import Command
from trialpod.errors import InvalidInputError, TrialpodError
from trialpod_operator.cluster import names
from trialpod_operator.cluster.annotations import next_retry
from trialpod_operator.commands import connection_options, local_stop, target

if TYPE_CHECKING:
    from trialpod_operator.kube_client.client import Experiments

Json = dict[str, Any]

POLL_S = 1.0
GONE_S = 900.0
"""So long a deletion is waited for: longer than the operator's own patience with a storage."""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the TuneExperiment")
    connection_options.configure_place(parser)


def _configure_any(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="DIR|NAME", help="the experiment, on this machine or in a cluster")
    parser.epilog = target.RULE
    connection_options.configure_place(parser)


def _configure_suspend(parser: argparse.ArgumentParser) -> None:
    _configure_any(parser)
    local_stop.configure(parser)


def _configure_stop(parser: argparse.ArgumentParser) -> None:
    _configure_suspend(parser)
    parser.add_argument("--trial", metavar="TRIAL", help="stop this one only: its id, its number, or its TuneTrial")


def _configure_retry(parser: argparse.ArgumentParser) -> None:
    _configure_any(parser)
    parser.add_argument(
        "trial",
        metavar="TRIAL",
        nargs="*",
        help="these only: their ids, numbers, or TuneTrials (default: all failed)",
    )
    parser.add_argument(
        "--from-scratch", action="store_true", help="begin again, instead of from their newest checkpoints"
    )


def _configure_delete(parser: argparse.ArgumentParser) -> None:
    _configure(parser)
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument("--wait", action="store_true", help="return when it is gone")


def suspend(options: argparse.Namespace) -> int:
    """Have all trials checkpoint and their pods go."""
    place = target.experiment_place(options.name, options)
    if place is not None:
        return local_stop.run(place, options)
    _refuse_local_options(options)
    with target.connect(options.name, options) as api:
        item = api.get(options.name)
        _refuse_ended(item, "suspended")
        told = f"to go on: trialpod resume {options.name} {connection_options.flags(options, api.namespace)}"
        if (item.get("spec") or {}).get("suspend"):
            print(f"{options.name} is suspended already\n  {told}")
            return 0
        api.change(options.name, {"suspend": True})
    print(f"{options.name} is being suspended: its trials checkpoint, and their pods go\n  {told}")
    return 0


def resume(options: argparse.Namespace) -> int:
    """Let a suspended experiment go on."""
    local = target.experiment_place(options.name, options)
    if local is not None:
        return local_stop.resume(local)
    with target.connect(options.name, options) as api:
        item = api.get(options.name)
        place = connection_options.flags(options, api.namespace)
        _refuse_ended(item, "resumed", more=f"{options.name} {place}")
        stopping = names.STOP_ANNOTATION in (item["metadata"].get("annotations") or {})
        if stopping:
            raise InvalidInputError(f"{options.name} is being stopped; that cannot be taken back")
        if not (item.get("spec") or {}).get("suspend"):
            print(f"{options.name} is not suspended; how it stands: trialpod status {options.name} {place}")
            return 0
        api.change(options.name, {"suspend": False})
    print(f"{options.name} goes on, each trial from its newest checkpoint\n  to watch: trialpod status "
          f"{options.name} {place} --watch")  # fmt: skip
    return 0


def stop(options: argparse.Namespace) -> int:
    """End an experiment, or one of its trials, in good order: what was reported and saved stays."""
    place = target.experiment_place(options.name, options)
    if place is not None:
        return local_stop.run(place, options)
    _refuse_local_options(options)
    with target.connect(options.name, options) as api:
        item = api.get(options.name)
        place = connection_options.flags(options, api.namespace)
        if options.trial is not None:
            return _stop_trial(api, options.name, options.trial)
        _refuse_ended(item, "stopped")
        generation = int(item["metadata"].get("generation") or 1)
        api.annotate(options.name, {names.STOP_ANNOTATION: str(generation)})
    print(
        f"{options.name} is being stopped: its trials end after the result that they are at, and no others start\n"
        f"  to watch:    trialpod status {options.name} {place} --watch\n"
        f"  its results: trialpod results {options.name} {place}"
    )
    return 0


def _refuse_local_options(options: argparse.Namespace) -> None:
    for option in ("now", "wait"):
        if getattr(options, option):
            raise InvalidInputError(f"--{option} is for an experiment on this machine, and {options.name} is none")


def retry(options: argparse.Namespace) -> int:
    """Have failed trials tried again, with a fresh count of failures."""
    local = target.experiment_place(options.name, options)
    if local is not None:
        raise InvalidInputError(
            f"{local} is an experiment on this machine; to try its failed trials again, run it again: "
            "trialpod run FILE --retry-failed (FILE: its manifest or script)"
        )
    with target.connect(options.name, options) as api:
        item = api.get(options.name)
        place = connection_options.flags(options, api.namespace)
        trials = api.trials(options.name)
        ids = _failed_ids(item, trials, options.trial)
        value = next_retry(item, ids, secrets.token_hex(4), from_scratch=options.from_scratch)
        api.annotate(options.name, {names.RETRY_ANNOTATION: value, names.STOP_ANNOTATION: None})
    what = ", ".join(ids) if ids else "its failed trials"
    start = "from scratch" if options.from_scratch else "from their newest checkpoints"
    print(f"{options.name}: {what} to be tried again {start}")
    print(f"  to watch: trialpod status {options.name} {place} --watch")
    if (item.get("spec") or {}).get("suspend"):
        print(f"  it is suspended; to go on: trialpod resume {options.name} {place}")
    return 0


def _failed_ids(item: Json, trials: list[Json], wanted: list[str]) -> list[str]:
    """Return the ids of the failed trials that are meant; empty when all are."""
    from trialpod_operator.commands.trials import chosen, state_of_trial

    name = item["metadata"]["name"]
    if item["metadata"].get("deletionTimestamp"):
        raise InvalidInputError(f"{name} is being deleted; nothing of it can be tried again")
    found = [chosen(trials, each, name) for each in wanted]
    for trial in found:
        if (state := state_of_trial(trial)) != "ERROR":
            raise InvalidInputError(
                f"the trial {trial['metadata']['name']} has not failed ({state}); nothing was changed"
            )
    counts = (item.get("status") or {}).get("trials") or {}
    if not found and not counts.get("error") and not _is_failed(item):
        raise InvalidInputError(f"no trial of {name} has failed; nothing was changed")
    return [str(trial["spec"]["trialId"]) for trial in found]


def _is_failed(item: Json) -> bool:
    from trialpod_operator.kube_client.view import is_true

    return is_true(item, "Failed")


def delete(options: argparse.Namespace) -> int:
    """Delete an experiment; say first what becomes of what is stored."""
    with connection_options.connect(options) as api:
        item = api.get(options.name)
        fate = stored_fate(item)
        if not options.yes:
            print(f"{options.name} (namespace {api.namespace}): {_pods_words(item)}\n{fate}", file=sys.stderr)
            if not sys.stdin.isatty():
                raise InvalidInputError(f"delete {options.name}: nobody is there to be asked; --yes deletes it")
            if not connection_options.confirmed(f"delete {options.name}?"):
                print("nothing was deleted")
                return 1
        api.delete(options.name, uid=str(item["metadata"].get("uid") or ""))
        if options.wait:
            _wait_until_gone(api, item)
    print(f"{options.name} {'is deleted' if options.wait else 'is being deleted'}\n{fate}")
    return 0


def stored_fate(item: Json) -> str:
    """Return what becomes of an experiment's stored data when its resource is deleted."""
    storage = (item.get("spec") or {}).get("storage") or {}
    where = (item.get("status") or {}).get("storageUri") or (
        f"{str(storage['uri']).rstrip('/')}/{item['metadata']['name']}" if storage.get("uri") else ""
    )
    if not where:
        return "  nothing of it is stored yet"
    if storage.get("deletionPolicy") == "Delete":
        return f"  deletionPolicy is Delete: what is stored in {where} is deleted too, checkpoints and all"
    return (
        f"  deletionPolicy is Retain: {where} stays, with results and checkpoints\n"
        f"  to read it:  trialpod results {where}\n"
        "  to go on:    submit the same manifest again"
    )


def _pods_words(item: Json) -> str:
    trials = (item.get("status") or {}).get("trials") or {}
    running = int(trials.get("running") or 0)
    return f"{trials.get('progress') or 'no'} trials done, {running} running{', which end now' if running else ''}"


def _refuse_ended(item: Json, verb: str, more: str = "") -> None:
    from trialpod_operator.kube_client.view import finished, state_of

    name = item["metadata"]["name"]
    if item["metadata"].get("deletionTimestamp"):
        raise InvalidInputError(f"{name} is being deleted, and cannot be {verb}")
    if finished(item):
        generation = int(item["metadata"].get("generation") or 1)
        if int((item.get("status") or {}).get("observedGeneration", -1)) < generation:
            return  # it may have been given more to do just now
        extend = (
            '; more samples make it go on: kubectl patch te NAME --type=merge -p \'{"spec":{"numSamples":N}}\''
            if more
            else ""
        )
        raise InvalidInputError(f"{name} has ended ({state_of(item)}) and cannot be {verb}{extend}")


def _stop_trial(api: Experiments, name: str, wanted: str) -> int:
    from trialpod_operator.commands.trials import chosen, state_of_trial

    trial = chosen(api.trials(name), wanted, name)
    called = trial["metadata"]["name"]
    if (state := state_of_trial(trial)) in ("TERMINATED", "ERROR"):
        raise InvalidInputError(f"the trial {called} has ended already ({state})")
    api.stop_trial(called)
    print(f"the trial {called} is being stopped; its results stay")
    return 0


def _wait_until_gone(api: Experiments, item: Json) -> None:
    name, uid = str(item["metadata"]["name"]), item["metadata"].get("uid")
    deadline = time.monotonic() + GONE_S
    while (found := api.find(name)) is not None and found["metadata"].get("uid") == uid:
        if time.monotonic() > deadline:
            raise TrialpodError(f"{name} is still there; trialpod why {name} -n {api.namespace} says what holds it")
        time.sleep(POLL_S)


suspend_command = Command("suspend", "have an experiment checkpoint and pause", _configure_suspend, suspend)
resume_command = Command("resume", "resume a suspended experiment in a cluster", _configure_any, resume)
stop_command = Command("stop", "stop an experiment, or one trial in a cluster, gracefully", _configure_stop, stop)
retry_command = Command("retry", "try failed trials of an experiment in a cluster again", _configure_retry, retry)
delete_command = Command(
    "delete", "delete an experiment in a cluster, and say what becomes of its data", _configure_delete, delete
)
