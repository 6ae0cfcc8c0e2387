"""`trialpod delete`: delete an experiment in a cluster, and say what happens to its data."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialpod.cli.command import Command
from trialpod.errors import InvalidInputError, TrialpodError
from trialpod_operator.commands import target
from trialpod_operator.view.reading import is_experiment

if TYPE_CHECKING:
    from trialpod_operator.kube_client.client import Experiments

Json = dict[str, Any]

POLL_INTERVAL_S = 1.0
DELETION_TIMEOUT_S = 900.0
"""Maximum time that --wait waits: longer than the operator itself tries to delete from a storage."""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the TuneExperiment")
    target.add_cluster_options(parser)
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument("--wait", action="store_true", help="return when it is deleted")


def run(options: argparse.Namespace) -> int:
    """Delete an experiment; say first what becomes of what is stored."""
    folder = target.location(options.name, options)
    if folder is not None and is_experiment(Path(folder)):
        raise InvalidInputError(
            f"{options.name} is an experiment on this machine; to delete it, delete its folder: rm -r "
            f"{shlex.quote(folder)}. For the one of that name in a cluster say which: trialpod delete "
            f"{shlex.quote(options.name)} -n NAMESPACE"
        )
    with target.connect(options) as api:
        item = api.get(options.name)
        fate = stored_fate(item)
        if not options.yes:
            print(f"{options.name} (namespace {api.namespace}): {_pods_words(item)}\n{fate}", file=sys.stderr)
            if not sys.stdin.isatty():
                raise InvalidInputError(f"delete {options.name}: there is no terminal to confirm it; add --yes")
            if not target.confirmed(f"delete {options.name}?"):
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
        "  to resume:   submit the same manifest again"
    )


def _pods_words(item: Json) -> str:
    trials = (item.get("status") or {}).get("trials") or {}
    running = int(trials.get("running") or 0)
    return f"{trials.get('progress') or 'no'} trials done, {running} running{', which end now' if running else ''}"


def _wait_until_gone(api: Experiments, item: Json) -> None:
    name, uid = str(item["metadata"]["name"]), item["metadata"].get("uid")
    deadline = time.monotonic() + DELETION_TIMEOUT_S
    while (found := api.find(name)) is not None and found["metadata"].get("uid") == uid:
        if time.monotonic() > deadline:
            raise TrialpodError(f"{name} is not deleted yet; trialpod why {name} -n {api.namespace} says why")
        time.sleep(POLL_INTERVAL_S)


command = Command(
    "delete", "delete an experiment in a cluster, and say what happens to its data", _configure, run, cluster=True
)
