"""`trialpod stop` and `suspend` of an experiment on this machine: what Ctrl-C does, from another terminal.

The process that holds the experiment's lock gets the signal that Ctrl-C sends. What it has is kept, and running the
experiment again resumes it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import time
from collections.abc import Callable

from trialpod.cli.program import program
from trialpod.errors import InvalidInputError, TrialpodError
from trialpod.storage.registry import local_folder
from trialpod_operator.local.running import RUNNING, Activity, activity, live_view

POLL_INTERVAL_S = 0.1
SECOND_DELAY_S = 0.2
"""Signals that come at the same time count as one."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options that only experiments of this machine have."""
    group = parser.add_argument_group("an experiment on this machine")
    group.add_argument("--now", action="store_true", help="do not wait for the step that its trials are at")
    group.add_argument("--wait", action="store_true", help="return when it has ended")


def run(place: str, options: argparse.Namespace, sleep: Callable[[float], None] = time.sleep) -> int:
    """Ask the process that runs the experiment to end."""
    if getattr(options, "trial", None) is not None:
        raise InvalidInputError(
            f"--trial {options.trial}: single trials are stopped in a cluster only; here a stop rule or a "
            "scheduler ends them, or stop the whole experiment"
        )
    folder = local_folder(place)
    if folder is None:
        raise InvalidInputError(
            f"{place} is in a bucket; name the experiment on the machine that runs it, where its folder is"
        )
    view, found = live_view(place, rows=0)
    holder = found.holder
    if holder is None or not found.runs:
        raise InvalidInputError(f"no process runs {place}: {_standing(view.state, found)}")
    _interrupt(holder.pid, place)
    if options.now:
        sleep(SECOND_DELAY_S)
        if activity(folder).runs:
            _interrupt(holder.pid, place)
    how = "its trials are ended at once" if options.now else "its trials finish their step and checkpoint"
    print(f"{view.name} is being stopped: {how}")
    while options.wait and (activity(folder).runs or activity(folder).orphans):
        sleep(POLL_INTERVAL_S)
    if options.wait:
        print(f"{view.name} has stopped")
    print(f"  its results: {program()} results {shlex.quote(place)}\n  to resume:   {found.command}")
    return 0


def resume(place: str) -> int:
    """Say how an experiment on this machine is resumed: by running it again."""
    view, found = live_view(place, rows=0)
    if view.state == RUNNING:
        raise InvalidInputError(f"{place} is running")
    if view.state in ("Succeeded", "Failed", "Stopped"):
        raise InvalidInputError(f"{place} has ended ({view.state}): {program()} results {shlex.quote(place)}")
    command = f": {found.command}" if found.command else ""
    raise InvalidInputError(f"run {place} again where it was started, it resumes{command}")


def _interrupt(pid: int, place: str) -> None:
    try:
        os.kill(pid, signal.SIGINT)
    except ProcessLookupError:
        return  # it ended in this moment
    except PermissionError:
        raise TrialpodError(
            f"process {pid}, which runs {place}, belongs to another user; ask them, or root"
        ) from None


def _standing(state: str, found: Activity) -> str:
    if found.elsewhere:
        return f"it was last run on the host {found.elsewhere}; stop it there"
    if found.orphans:
        return f"what it started ends by itself: {', '.join(map(str, found.orphans))}"
    return "nothing is left to stop" if state == RUNNING else f"its state is {state}"
