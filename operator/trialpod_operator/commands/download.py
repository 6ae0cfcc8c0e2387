"""`trialpod download DIR|URI|NAME DEST`: copies checkpoints to this machine as plain files, verified."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from trialpod.cli.command import Command
from trialpod.errors import CheckpointError, InvalidInputError, StorageError, TrialpodError, nearest
from trialpod_operator.commands import target
from trialpod_operator.commands.checkpoints import trials
from trialpod_operator.display.words import one_line, plural

if TYPE_CHECKING:
    from trialpod.protocol.messages import CheckpointInfo
    from trialpod.storage.base import Storage
    from trialpod.storage.checkpoints.store import CheckpointStore


def split(location: str) -> tuple[str, str | None]:
    """Return the directory or URI that holds checkpoints, and the name of the one that `location` ends with."""
    from trialpod.storage.layout import checkpoint_index
    from trialpod.storage.registry import normalize_uri

    location = normalize_uri(location)
    parent, separator, last = location.rstrip("/").rpartition("/")
    if checkpoint_index(last) is None:
        return location, None
    return (parent if separator else "."), last


def download(store: CheckpointStore, info: CheckpointInfo, path: Path) -> None:
    """Put a verified copy of a checkpoint into `path`: a new folder, which appears as a whole, or an empty one.

    Raises:
        CheckpointError: it is damaged.
        StorageError: the copy cannot be written.
    """
    from trialpod.storage.base import storage_error

    # An empty folder stays the same one: it may be a process's working directory, or where a volume is mounted.
    empty = path.is_dir()
    part = path / f".{info.name}.part" if empty else path.with_name(f".{path.name}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        store.download(info, part)
        if not empty:
            os.replace(part, path)
            return
        for child in os.listdir(part):
            os.replace(part / child, path / child)
    except OSError as error:
        raise storage_error(error, "cannot write", path, info.size) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "location",
        metavar="DIR|URI|NAME",
        help="an experiment, a trial in it, or one checkpoint (.../checkpoint_000003); or an experiment's name in a "
        "cluster",
    )
    parser.add_argument("destination", metavar="DEST", help="a folder; one checkpoint's files go directly into it")
    target.add_trial_option(parser)
    parser.add_argument("--checkpoint", metavar="NAME", help="with --trial: only this one, such as checkpoint_000003")
    target.add_cluster_options(parser, rule=True)


def run(options: argparse.Namespace) -> int:
    """Copy; exit status 1 when a checkpoint is damaged."""
    from trialpod.storage.registry import open_storage

    if options.checkpoint and not options.only_trial:
        raise InvalidInputError(f"--checkpoint {options.checkpoint}: say of which trial: --trial TRIAL")
    destination = Path(options.destination)
    location = target.stored_location(options.location, options)
    if location is not None:
        folder, wanted = split(location)
        return copy(open_storage(folder), folder, wanted, destination)
    with target.stored(options.location, options) as (uri, storage):
        return copy(storage, uri, options.checkpoint, destination)


def copy(whole: Storage, location: str, wanted: str | None, destination: Path) -> int:
    """Copy what is asked for; return the exit status.

    Args:
        whole: the storage of an experiment, or of one of its trials.
        location: what to call it.
        wanted: the name of one checkpoint of that trial; None: all there are.
        destination: a folder.

    Raises:
        InvalidInputError: there are no such checkpoints, or the destination is in use.
        StorageError: some of them are damaged; the others are copied.
    """
    from trialpod.storage.checkpoints import open_checkpoints

    if wanted is not None and destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise InvalidInputError(f"{destination} is there already and not an empty folder; name a new folder")
    done = 0
    problems: list[str] = []
    names: list[str] = []
    for trial, storage in trials(whole):
        if wanted is not None and trial:
            continue
        store = open_checkpoints(storage)
        try:
            unreadable: dict[str, TrialpodError] = {}
            committed = store.committed(unreadable.__setitem__)
            problems += [str(problem) for name, problem in unreadable.items() if wanted in (None, name)]
            for info in committed:
                names.append(info.name)
                if wanted not in (None, info.name):
                    continue
                path = destination if wanted is not None else destination / trial / info.name
                if wanted is None and path.exists():
                    raise InvalidInputError(f"{path} is there already; name a new folder")
                try:
                    download(store, info, path)
                except CheckpointError as error:
                    problems.append(str(error))
                else:
                    done += 1
                    print(one_line(str(path)))
        finally:
            store.close()
    if not done and not problems:
        if wanted is None:
            raise InvalidInputError(f"{location} has no checkpoints")
        guess = nearest(wanted, names)
        hint = f"; did you mean {guess}?" if guess else ""
        raise InvalidInputError(f"{location} has no whole {wanted}{hint}")
    if problems:
        raise StorageError("\n".join([f"{plural(len(problems), 'checkpoint')} could not be copied:", *problems]))
    return 0


command = Command("download", "copy checkpoints to this machine, verified", configure, run)
