"""`trialpod retry`: retry failed trials of an experiment.

In a cluster it annotates the experiment. On this machine it becomes the command that ran the experiment last, in the
folder where that was typed.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from trialpod.cli.command import Command
from trialpod.errors import InvalidInputError
from trialpod_operator.cluster import names
from trialpod_operator.commands import target
from trialpod_operator.view.rerun import rerun_arguments

if TYPE_CHECKING:
    from trialpod.storage.lock import LockOwner
    from trialpod_operator.view.reading import ReadExperiment

Json = dict[str, Any]


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="DIR|NAME", help="the experiment, on this machine or in a cluster")
    target.add_cluster_options(parser, rule=True)
    parser.add_argument(
        "trial",
        metavar="TRIAL",
        nargs="*",
        default=[],
        help="only these: their ids, numbers, or TuneTrials (default: all failed)",
    )
    parser.add_argument(
        "--from-scratch",
        action="store_true",
        help="start them from the beginning instead of from their newest checkpoints",
    )


def run(options: argparse.Namespace) -> int:
    """Have failed trials retried, with a fresh count of failures."""
    from trialpod_operator.cluster.annotations import next_retry

    location = target.experiment_location(options.name, options)
    if location is not None:
        _retry_here(location, options)
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
    """Return the ids of the selected failed trials; empty when all are."""
    name = item["metadata"]["name"]
    if item["metadata"].get("deletionTimestamp"):
        raise InvalidInputError(f"{name} is being deleted; nothing of it can be retried")
    found = [target.select_trial(trials, each, name) for each in wanted]
    for trial in found:
        if (state := target.trial_state(trial)) != "ERROR":
            status = trial.get("status") or {}
            others = [str(t["spec"]["trialId"]) for t in trials if target.trial_state(t) == "ERROR"]
            stands = _standing(state, int(status.get("attempt") or 0), int(status.get("failures") or 0))
            raise InvalidInputError(_not_failed(trial["metadata"]["name"], stands, others))
    counts = (item.get("status") or {}).get("trials") or {}
    if not found and not counts.get("error") and not _is_failed(item):
        raise InvalidInputError(f"no trial of {name} has failed; nothing was changed")
    return [str(trial["spec"]["trialId"]) for trial in found]


def _standing(state: str, attempt: int, failures: int) -> str:
    """Return in words what a trial that has not failed does; it may have failed before and have been continued."""
    which = f", attempt {attempt}" if attempt > 1 else ""
    before = f", after {failures} failure{'s' if failures > 1 else ''}" if failures else ""
    words = {"TERMINATED": "completed", "RUNNING": "is running", "PAUSED": "is paused by the scheduler"}
    return f"{words.get(state, 'waits to be started')}{which}{before}"


def _not_failed(trial: str, stands: str, failed: list[str]) -> str:
    shown = ", ".join(failed[:5]) + (f" and {len(failed) - 5} more" if len(failed) > 5 else "")
    those = f"failed: {shown}" if failed else "no other trial has failed either"
    return f"the trial {trial} has not failed: it {stands}; nothing was changed ({those})"


def _is_failed(item: Json) -> bool:
    from trialpod_operator.kube_client.view import is_true

    return is_true(item, "Failed")


# -- of an experiment on this machine --


def _retry_here(location: str, options: argparse.Namespace) -> NoReturn:
    """Become the command that ran the experiment last, with what is to be retried; never returns."""
    from trialpod.storage.registry import local_folder
    from trialpod_operator.view.reading import activity, reading

    folder = local_folder(location)
    if folder is None:
        raise InvalidInputError(
            f"{location} is in a bucket; to try its failed trials again, run its manifest or script with "
            "--retry-failed, or name its folder on the machine that ran it"
        )
    with reading(location) as experiment:
        ids = _failed_here(experiment, options.trial)
    found = activity(folder)
    if found.runs:
        raise InvalidInputError(
            f"{location} is running ({found.command}); what has failed can be retried when that has ended"
        )
    arguments = retry_arguments(found.holder, folder, ids, from_scratch=options.from_scratch)
    assert found.holder is not None
    print(f"in {found.holder.folder}: trialpod {shlex.join(arguments)}", file=sys.stderr, flush=True)
    own = os.path.abspath(sys.argv[0])
    try:
        os.chdir(found.holder.folder)
    except OSError as error:
        raise InvalidInputError(
            f"the folder {found.holder.folder}, in which it was run, cannot be entered: {error.strerror}; run its "
            "manifest or script with --retry-failed"
        ) from error
    os.execv(sys.executable, [sys.executable, own, *arguments])


def retry_arguments(holder: LockOwner | None, folder: Path, ids: list[str], *, from_scratch: bool) -> list[str]:
    """Return the arguments of `trialpod` that run an experiment as before and retry what failed.

    Args:
        holder: who ran it last.
        folder: the experiment's directory.
        ids: of the trials to retry; empty = all that have failed.
        from_scratch: not from their newest checkpoints.

    Raises:
        InvalidInputError: it was not run by `trialpod run`, or not here.
    """
    remedy = "run its manifest or script with --retry-failed"
    if holder is None or not holder.arguments or not holder.directory:
        raise InvalidInputError(f"the command that ran {folder} is not recorded; {remedy}")
    if os.path.realpath(holder.directory) != os.path.realpath(folder):
        raise InvalidInputError(f"{folder} was {holder.directory} when it was run, and was moved since; {remedy}")
    ours = [option for each in ids for option in ("--retry-trial", each)] or ["--retry-failed"]
    arguments = rerun_arguments(holder, [*ours, *(["--from-scratch"] if from_scratch else [])])
    if arguments is None:
        command = shlex.join(holder.arguments)
        raise InvalidInputError(
            f"{folder} was run by `{command}`, which has no option for it; in Python: "
            f"Tuner.restore({str(folder)!r}, trainable, resume_errored=True).fit(), or trialpod run SCRIPT "
            "--retry-failed from the first run on"
        )
    end = arguments.index("--") if "--" in arguments else len(arguments)
    if "-" in arguments[:end]:
        raise InvalidInputError(f"the manifest of {folder} came from standard input; {remedy}")
    return arguments


def _failed_here(experiment: ReadExperiment, wanted: list[str]) -> list[str]:
    from trialpod_operator.commands.explain import find

    found = [find(experiment, each) for each in wanted]
    state = experiment.engine.state
    for trial in found:
        if trial.status != "ERROR":
            others = [each.trial_id for each in state.trials.values() if each.status == "ERROR"]
            stands = _standing(trial.status, trial.attempt, trial.failures)
            raise InvalidInputError(_not_failed(trial.trial_id, stands, others))
    if not found and not any(t.status == "ERROR" or t.may_be_retried for t in state.trials.values()):
        raise InvalidInputError(f"no trial of {experiment.location} has failed; nothing was changed")
    return [trial.trial_id for trial in found]


command = Command("retry", "retry failed trials of an experiment", _configure, run)
