"""`trialpod checkpoints`, `download`, `explain` and `fsck`: of a folder, a URI, or an experiment in a cluster.

Of an experiment in a cluster they read its storage, with the user's keys or those of its Secret, as `results` does.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialpod.cli.command import Command
from trialpod.errors import InvalidInputError
from trialpod_operator.commands import checkpoints as local_checkpoints
from trialpod_operator.commands import download as local_download
from trialpod_operator.commands import explain as local_explain
from trialpod_operator.commands import fsck as local_fsck
from trialpod_operator.commands import target

if TYPE_CHECKING:
    from trialpod.storage.base import Storage
    from trialpod_operator.kube_client.client import Experiments

Json = dict[str, Any]


def _configure_trial(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trial", metavar="TRIAL", dest="only_trial", default="",
        help="in a cluster: only this trial of the experiment, by its id, its number or its TuneTrial",
    )  # fmt: skip


def _configure_checkpoints(parser: argparse.ArgumentParser) -> None:
    local_checkpoints.configure(parser)
    _configure_trial(parser)
    target.configure(parser)


def _configure_download(parser: argparse.ArgumentParser) -> None:
    local_download.configure(parser)
    _configure_trial(parser)
    parser.add_argument("--checkpoint", metavar="NAME", help="with --trial: only this one, such as checkpoint_000003")
    target.configure(parser)


def _configure_explain(parser: argparse.ArgumentParser) -> None:
    local_explain.configure(parser)
    target.configure(parser)


def _configure_fsck(parser: argparse.ArgumentParser) -> None:
    local_fsck.configure(parser)
    target.configure(parser)


def checkpoints(options: argparse.Namespace) -> int:
    """List the checkpoints."""
    if _is_place(options):
        return local_checkpoints.run(options)
    with _opened(options) as (uri, storage):
        return local_checkpoints.show(local_checkpoints.listed(uri, verify=options.verify, storage=storage), options)


def download(options: argparse.Namespace) -> int:
    """Copy checkpoints to this machine."""
    if options.checkpoint and not options.only_trial:
        raise InvalidInputError(f"--checkpoint {options.checkpoint}: say of which trial: --trial TRIAL")
    if _is_place(options):
        return local_download.run(options)
    with _opened(options) as (uri, storage):
        return local_download.copy(storage, uri, options.checkpoint, Path(options.destination))


def explain(options: argparse.Namespace) -> int:
    """Say what was decided about a trial."""
    from trialpod_operator.local.reading import reading

    if options.place is None:
        if target.in_cluster(options):
            raise InvalidInputError(
                f"explain {options.trial}: name the experiment too: trialpod explain {options.trial} NAME"
            )
        return local_explain.run(options)
    if _is_place(options):
        return local_explain.run(options)
    with _experiment(options) as (api, item, uri, storage), reading(uri, storage) as experiment:
        return local_explain.show(experiment, _trial_id(api, item, options.trial), options)


def fsck(options: argparse.Namespace) -> int:
    """Say whether all that is stored is whole."""
    from trialpod_operator.experiment.fsck.examine import examine

    if _is_place(options):
        return local_fsck.run(options)
    with _experiment(options) as (_, _, _, storage):
        return local_fsck.show(examine(storage, verify=options.verify), options)


def _is_place(options: argparse.Namespace) -> bool:
    """Return whether a folder or a URI is meant, and put it where the local command looks for it."""
    place = target.place(options.place, options)
    if place is None:
        return False
    if only := getattr(options, "only_trial", ""):
        raise InvalidInputError(
            f"--trial {only}: {place} is a folder or a URI; give that of the trial, or of one checkpoint in it"
        )
    options.place = place
    return True


@contextlib.contextmanager
def _experiment(options: argparse.Namespace) -> Iterator[tuple[Experiments, Json, str, Storage]]:
    from trialpod_operator.kube_client.storage import opened

    with (
        target.experiment(options.place, options) as (api, item),
        opened(api, item) as (uri, storage),
    ):
        yield api, item, uri, storage


@contextlib.contextmanager
def _opened(options: argparse.Namespace) -> Iterator[tuple[str, Storage]]:
    """Yield the URI and the storage of an experiment in a cluster, or of the one trial that the options name."""
    from trialpod_operator.commands.trials import chosen

    with _experiment(options) as (api, item, uri, storage):
        if not options.only_trial:
            yield uri, storage
            return
        name = str(item["metadata"]["name"])
        trial = chosen(api.trials(name), options.only_trial, name)
        where = str((trial.get("status") or {}).get("storageUri") or "")
        if not where:
            raise InvalidInputError(f"{trial['metadata']['name']} has nothing in the storage yet")
        yield where, storage.sub(where.removeprefix(uri).strip("/"))


def _trial_id(api: Experiments, item: Json, asked: str) -> str:
    """Return the id of a trial that is named by its TuneTrial, else what was asked."""
    if not asked.startswith(f"{item['metadata']['name']}-"):
        return asked
    trial = api.find_trial(asked)
    return asked if trial is None else str(trial["spec"].get("trialId") or asked)


checkpoints_command = Command(
    "checkpoints",
    "list the checkpoints of an experiment or a trial",
    _configure_checkpoints,
    checkpoints,
)
download_command = Command(
    "download",
    "copy checkpoints to this machine, verified",
    _configure_download,
    download,
)
explain_command = Command(
    "explain",
    "say why a trial was stopped, paused, retried or told to follow another one",
    _configure_explain,
    explain,
)
fsck_command = Command(
    "fsck",
    "check that nothing of an experiment is lost, damaged or contradictory",
    _configure_fsck,
    fsck,
)
