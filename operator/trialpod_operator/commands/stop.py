"""`trialpod stop`: end an experiment, or one trial of it in a cluster, gracefully.

On this machine it does what Ctrl-C does, from another terminal: the process that holds the experiment's lock gets the
signal that Ctrl-C sends. What was reported and saved stays, and running the experiment again resumes it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trialpod.cli.command import Command
from trialpod.cli.program import program
from trialpod.errors import InvalidInputError, TrialpodError
from trialpod_operator.cluster import names
from trialpod_operator.commands import target

if TYPE_CHECKING:
    from trialpod_operator.kube_client.client import Experiments
    from trialpod_operator.view.reading import Activity

Json = dict[str, Any]

POLL_INTERVAL_S = 0.1
SECOND_SIGNAL_DELAY_S = 0.2
"""Signals that come at the same time count as one."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the experiment, and what only experiments of this machine have."""
    parser.add_argument("name", metavar="DIR|NAME", help="the experiment, on this machine or in a cluster")
    target.add_cluster_options(parser, rule=True)
    group = parser.add_argument_group("an experiment on this machine")
    group.add_argument("--now", action="store_true", help="do not wait until trials have finished their step")
    group.add_argument("--wait", action="store_true", help="return when it has ended")


def _configure(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument("--trial", metavar="TRIAL", help="stop only this trial: its id, its number, or its TuneTrial")


def run(options: argparse.Namespace) -> int:
    """End an experiment, or one of its trials, gracefully: what was reported and saved stays."""
    location = target.experiment_location(options.name, options)
    if location is not None:
        return interrupt_local(location, options)
    refuse_local_options(options)
    with target.connect_for(options.name, options) as api:
        item = api.get(options.name)
        flags = target.cluster_flags(options, api.namespace)
        if options.trial is not None:
            return _stop_trial(api, options.name, options.trial)
        refuse_ended(item, "stopped")
        generation = int(item["metadata"].get("generation") or 1)
        api.annotate(options.name, {names.STOP_ANNOTATION: str(generation)})
    print(
        f"{options.name} is being stopped: its trials end after the result that they are at, and no others start\n"
        f"  to watch:    trialpod status {options.name} {flags} --watch\n"
        f"  its results: trialpod results {options.name} {flags}"
    )
    return 0


def refuse_local_options(options: argparse.Namespace) -> None:
    """Raise InvalidInputError for options that have no meaning in a cluster."""
    for option in ("now", "wait"):
        if getattr(options, option):
            raise InvalidInputError(f"--{option} is for an experiment on this machine, and {options.name} is none")


def refuse_ended(item: Json, verb: str, more: str = "") -> None:
    """Raise InvalidInputError if an experiment in a cluster has ended or is being deleted."""
    from trialpod_operator.kube_client.view import finished, state_of

    name = item["metadata"]["name"]
    if item["metadata"].get("deletionTimestamp"):
        raise InvalidInputError(f"{name} is being deleted, and cannot be {verb}")
    if finished(item):
        generation = int(item["metadata"].get("generation") or 1)
        if int((item.get("status") or {}).get("observedGeneration", -1)) < generation:
            return  # its spec has changed, perhaps to more samples
        extend = (
            '; more samples make it continue: kubectl patch te NAME --type=merge -p \'{"spec":{"numSamples":N}}\''
            if more
            else ""
        )
        raise InvalidInputError(f"{name} has ended ({state_of(item)}) and cannot be {verb}{extend}")


def _stop_trial(api: Experiments, name: str, wanted: str) -> int:
    trial = target.select_trial(api.trials(name), wanted, name)
    called = trial["metadata"]["name"]
    if (state := target.trial_state(trial)) in ("TERMINATED", "ERROR"):
        raise InvalidInputError(f"the trial {called} has ended already ({state})")
    api.stop_trial(called)
    print(f"the trial {called} is being stopped; its results stay")
    return 0


def interrupt_local(location: str, options: argparse.Namespace, sleep: Callable[[float], None] = time.sleep) -> int:
    """Ask the process that runs the experiment on this machine to end."""
    from trialpod.storage.registry import local_folder
    from trialpod_operator.view.reading import activity, live_view

    if getattr(options, "trial", None) is not None:
        raise InvalidInputError(
            f"--trial {options.trial}: single trials are stopped in a cluster only; here a stop rule or a "
            "scheduler ends them, or stop the whole experiment"
        )
    folder = local_folder(location)
    if folder is None:
        raise InvalidInputError(
            f"{location} is in a bucket; name the experiment on the machine that runs it, where its folder is"
        )
    view, found = live_view(location, rows=0)
    holder = found.holder
    if holder is None or not found.runs:
        raise InvalidInputError(f"no process runs {location}: {_standing(view.state, found)}")
    _interrupt(holder.pid, location)
    if options.now:
        sleep(SECOND_SIGNAL_DELAY_S)
        if activity(folder).runs:
            _interrupt(holder.pid, location)
    how = "its trials are ended at once" if options.now else "its trials finish their step and checkpoint"
    print(f"{view.name} is being stopped: {how}")
    while options.wait and (activity(folder).runs or activity(folder).orphans):
        sleep(POLL_INTERVAL_S)
    if options.wait:
        print(f"{view.name} has stopped")
    print(f"  its results: {program()} results {shlex.quote(location)}\n  to resume:   {found.command}")
    return 0


def _interrupt(pid: int, location: str) -> None:
    try:
        os.kill(pid, signal.SIGINT)
    except ProcessLookupError:
        return  # it ended in this moment
    except PermissionError:
        raise TrialpodError(
            f"process {pid}, which runs {location}, belongs to another user; ask them, or root"
        ) from None


def _standing(state: str, found: Activity) -> str:
    from trialpod_operator.view.reading import RUNNING

    if found.other_host:
        return f"it was last run on the host {found.other_host}; stop it there"
    if found.orphans:
        return f"what it started ends by itself: {', '.join(map(str, found.orphans))}"
    return "nothing is left to stop" if state == RUNNING else f"its state is {state}"


command = Command("stop", "stop an experiment, or one trial in a cluster, gracefully", _configure, run)
