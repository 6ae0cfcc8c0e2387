"""`trialpod suspend`: checkpoint and pause all trials of an experiment; on this machine, as `trialpod stop` does."""

from __future__ import annotations

import argparse

from trialpod.cli.command import Command
from trialpod_operator.commands import target
from trialpod_operator.commands.stop import add_options, interrupt_local, refuse_ended, refuse_local_options


def run(options: argparse.Namespace) -> int:
    """Have all trials checkpoint and their pods go."""
    location = target.experiment_location(options.name, options)
    if location is not None:
        return interrupt_local(location, options)
    refuse_local_options(options)
    with target.connect_for(options.name, options) as api:
        item = api.get(options.name)
        refuse_ended(item, "suspended")
        next_step = f"to resume: trialpod resume {options.name} {target.cluster_flags(options, api.namespace)}"
        if (item.get("spec") or {}).get("suspend"):
            print(f"{options.name} is suspended already\n  {next_step}")
            return 0
        api.change(options.name, {"suspend": True})
    print(f"{options.name} is being suspended: its trials checkpoint, and their pods go\n  {next_step}")
    return 0


command = Command("suspend", "checkpoint and pause all trials of an experiment", add_options, run)
