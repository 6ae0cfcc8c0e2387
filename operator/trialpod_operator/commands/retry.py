"""`trialpod retry`: try failed trials of an experiment in a cluster again."""

from __future__ import annotations

import argparse
import secrets
from typing import Any

from trialpod.cli.command import Command
from trialpod.errors import InvalidInputError
from trialpod_operator.cluster import names
from trialpod_operator.commands import target

Json = dict[str, Any]


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="DIR|NAME", help="the experiment, on this machine or in a cluster")
    target.add_cluster_options(parser, rule=True)
    parser.add_argument(
        "trial",
        metavar="TRIAL",
        nargs="*",
        help="these only: their ids, numbers, or TuneTrials (default: all failed)",
    )
    parser.add_argument(
        "--from-scratch", action="store_true", help="begin again, instead of from their newest checkpoints"
    )


def run(options: argparse.Namespace) -> int:
    """Have failed trials retried, with a fresh count of failures."""
    from trialpod_operator.cluster.annotations import next_retry

    location = target.experiment_location(options.name, options)
    if location is not None:
        raise InvalidInputError(
            f"{location} is an experiment on this machine; to try its failed trials again, run it again: "
            "trialpod run FILE --retry-failed (FILE: its manifest or script)"
        )
    with target.connect_for(options.name, options) as api:
        item = api.get(options.name)
        flags = target.cluster_flags(options, api.namespace)
        trials = api.trials(options.name)
        ids = _failed_ids(item, trials, options.trial)
        value = next_retry(item, ids, secrets.token_hex(4), from_scratch=options.from_scratch)
        api.annotate(options.name, {names.RETRY_ANNOTATION: value, names.STOP_ANNOTATION: None})
    what = ", ".join(ids) if ids else "its failed trials"
    start = "from scratch" if options.from_scratch else "from their newest checkpoints"
    print(f"{options.name}: {what} to be retried {start}")
    print(f"  to watch: trialpod status {options.name} {flags} --watch")
    if (item.get("spec") or {}).get("suspend"):
        print(f"  it is suspended; to resume: trialpod resume {options.name} {flags}")
    return 0


def _failed_ids(item: Json, trials: list[Json], wanted: list[str]) -> list[str]:
    """Return the ids of the failed trials that are meant; empty when all are."""
    name = item["metadata"]["name"]
    if item["metadata"].get("deletionTimestamp"):
        raise InvalidInputError(f"{name} is being deleted; nothing of it can be retried")
    found = [target.select_trial(trials, each, name) for each in wanted]
    for trial in found:
        if (state := target.trial_state(trial)) != "ERROR":
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


command = Command("retry", "try failed trials of an experiment in a cluster again", _configure, run, cluster=True)
