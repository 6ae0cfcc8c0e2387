"""`trialpod resume`: resume a suspended experiment in a cluster; one on this machine resumes when it is run again."""

from __future__ import annotations

import argparse
import shlex

from trialpod.cli.command import Command
from trialpod.cli.program import program
from trialpod.errors import InvalidInputError
from trialpod_operator.commands import target
from trialpod_operator.commands.stop import refuse_ended


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="DIR|NAME", help="the experiment, on this machine or in a cluster")
    target.add_cluster_options(parser, rule=True)


def run(options: argparse.Namespace) -> int:
    """Resume a suspended experiment."""
    from trialpod_operator.api.reasons import Reason
    from trialpod_operator.cluster.annotations import stop_is_asked

    location = target.experiment_location(options.name, options)
    if location is not None:
        return _explain_local(location)
    with target.connect_for(options.name, options) as api:
        item = api.get(options.name)
        flags = target.cluster_flags(options, api.namespace)
        refuse_ended(item, "resumed", more=f"{options.name} {flags}")
        conditions = (item.get("status") or {}).get("conditions") or ()
        if stop_is_asked(item["metadata"]) or any(each.get("reason") == Reason.STOPPING for each in conditions):
            raise InvalidInputError(
                f"{options.name} is being stopped, which cannot be undone; when it has ended, raise "
                "spec.numSamples to continue it"
            )
        if not (item.get("spec") or {}).get("suspend"):
            print(f"{options.name} is not suspended; its state: trialpod status {options.name} {flags}")
            return 0
        api.change(options.name, {"suspend": False})
    print(
        f"{options.name} resumes, each trial from its newest checkpoint\n"
        f"  to watch: trialpod status {options.name} {flags} --watch"
    )
    return 0


def _explain_local(location: str) -> int:
    """Say how an experiment on this machine is resumed: by running it again."""
    from trialpod_operator.view.reading import RUNNING, live_view

    view, found = live_view(location, rows=0)
    if view.state == RUNNING:
        raise InvalidInputError(f"{location} is running")
    if view.state in ("Succeeded", "Failed", "Stopped"):
        raise InvalidInputError(f"{location} has ended ({view.state}): {program()} results {shlex.quote(location)}")
    command = f": {found.command}" if found.command else ""
    raise InvalidInputError(f"run {location} again where it was started, it resumes{command}")


command = Command("resume", "resume a suspended experiment in a cluster", _configure, run)
