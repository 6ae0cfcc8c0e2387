"""`trialpod checkpoints DIR|URI|NAME`: the checkpoints of an experiment or a trial, and which are damaged."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trialpod.cli.command import Command
from trialpod.errors import CheckpointError, InvalidInputError, StorageError, TrialpodError
from trialpod_operator.commands import target
from trialpod_operator.display.json_lines import strict
from trialpod_operator.display.words import one_line, plural

if TYPE_CHECKING:
    from trialpod.protocol.messages import CheckpointInfo
    from trialpod.storage.base import Storage
    from trialpod.storage.checkpoints.store import CheckpointStore

EXIT_FINE, EXIT_DAMAGED = 0, 1
_SHOWN_METRICS = 4
_UNINTERESTING = frozenset(
    {
        "checkpoint_dir_name",
        "date",
        "done",
        "iterations_since_restore",
        "should_checkpoint",
        "time_since_restore",
        "time_this_iter_s",
        "time_total_s",
        "timestamp",
        "training_iteration",
    }
)


@dataclass
class Listed:
    """One checkpoint.

    Attributes:
        trial: name of the trial's directory, "" when that is what was asked for.
        name: its own.
        info: what its manifest says; None when that cannot be read.
        problem: what is wrong with it; None: nothing is known to be.
        verified: it was read.
    """

    trial: str
    name: str
    info: CheckpointInfo | None
    problem: str | None = None
    verified: bool = False

    @property
    def verdict(self) -> str:
        """The word for the table."""
        if self.problem is not None:
            return "damaged"
        return "yes" if self.verified else "-"


def trials(storage: Storage) -> Iterator[tuple[str, Storage]]:
    """Yield the directories below (or "" for the storage itself) that have checkpoints, with their storages."""
    from trialpod.storage.layout import checkpoint_index

    found: dict[str, None] = {}
    for key in storage.list():
        parts = key.split("/")
        for depth, part in enumerate(parts[:-1]):
            if checkpoint_index(part) is not None:
                found["/".join(parts[:depth])] = None
                break
    for name in found:
        yield name, storage.sub(name) if name else storage


def listed(uri: str, *, verify: bool, storage: Storage | None = None) -> list[Listed]:
    """Return the checkpoints of the experiment or trial at a directory or URI, by trial and age.

    Args:
        uri: the directory or URI.
        verify: read each of them.
        storage: that of `uri`, when it is open already.

    Raises:
        InvalidInputError: there are none.
        StorageError: the storage cannot be read.
    """
    from trialpod.storage.checkpoints import open_checkpoints
    from trialpod.storage.layout import checkpoint_index
    from trialpod.storage.registry import open_storage

    found: list[Listed] = []
    for name, folder in trials(open_storage(uri) if storage is None else storage):
        store = open_checkpoints(folder)
        unreadable: dict[str, TrialpodError] = {}
        try:
            infos = store.committed(unreadable.__setitem__)
            here = [
                Listed(name, info.name, info, find_damage(store, info) if verify else None, verify) for info in infos
            ]
        finally:
            store.close()
        here += [Listed(name, each, None, str(problem)) for each, problem in unreadable.items()]
        found += sorted(here, key=lambda each: checkpoint_index(each.name) or 0)
    if not found:
        raise InvalidInputError(
            f"{uri} has no checkpoints; give the directory or URI of an experiment or of one of its trials"
        )
    return found


def find_damage(store: CheckpointStore, info: CheckpointInfo) -> str | None:
    """Read a checkpoint; return what is wrong with it, None when it is complete and undamaged.

    Raises:
        StorageUnavailableError: the storage cannot be reached for now.
    """
    from trialpod.storage.base import StorageUnavailableError

    try:
        store.verify(info)
    except StorageUnavailableError:
        raise
    except (CheckpointError, StorageError) as error:
        return str(error)
    return None


def metrics_of(info: CheckpointInfo) -> dict[str, Any]:
    """Return the metrics that are the user's."""
    return {key: value for key, value in info.metrics.items() if key not in _UNINTERESTING}


def table(found: list[Listed]) -> str:
    """Return the checkpoints as a table, one block for each trial."""
    from trialpod.storage.checkpoints.commit_queue import size_text

    lines: list[str] = []
    trial = None
    for one in found:
        if one.trial != trial:
            trial = one.trial
            lines += ["", one_line(trial)] if lines else [one_line(trial)] if trial else []
            lines.append(
                f"  {'CHECKPOINT':<20}{'SIZE':>10}  {'ITERATION':>9}  {'ATTEMPT':>7}  {'VERIFIED':<9} METRICS"
            )
        info = one.info
        if info is None:
            lines.append(f"  {one.name:<20}{'-':>10}  {'-':>9}  {'-':>7}  {one.verdict}")
            continue
        items = list(metrics_of(info).items())
        shown = ", ".join(f"{key}={_brief(value)}" for key, value in items[:_SHOWN_METRICS])
        more = ", ..." if len(items) > _SHOWN_METRICS else ""
        lines.append(
            f"  {info.name:<20}{size_text(info.size):>10}  {info.iteration:>9}  {info.attempt:>7}  "
            f"{one.verdict:<9} {one_line(shown)}{more}"
        )
    total = sum(one.info.size for one in found if one.info is not None)
    lines += ["", f"{plural(len(found), 'checkpoint')}, {size_text(total)}"]
    lines += [f"damaged: {one_line(one.problem)}" for one in found if one.problem]
    return "\n".join(lines)


def _brief(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:40]


def data(one: Listed) -> dict[str, Any]:
    """Return a checkpoint for `--json`."""
    info = one.info
    return {
        "trial": one.trial,
        "name": one.name,
        "size": info.size if info is not None else None,
        "iteration": info.iteration if info is not None else None,
        "attempt": info.attempt if info is not None else None,
        "time": info.time if info is not None else None,
        "verified": one.problem is None if one.verified or one.problem else None,
        "problem": one.problem,
        "metrics": info.metrics if info is not None else {},
    }


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "location",
        metavar="DIR|URI|NAME",
        help="an experiment's or a trial's directory, or s3://bucket/prefix, or an experiment's name in a cluster",
    )
    parser.add_argument("--json", action="store_true", help="one JSON array")
    parser.add_argument("--verify", action="store_true", help="read every checkpoint and check sizes and checksums")
    target.add_trial_option(parser)
    target.add_cluster_options(parser, rule=True)


def run(options: argparse.Namespace) -> int:
    """Print the checkpoints; exit status 1 when one is damaged."""
    location = target.stored_location(options.location, options)
    if location is not None:
        return show(listed(location, verify=options.verify), options)
    with target.stored(options.location, options) as (uri, storage):
        return show(listed(uri, verify=options.verify, storage=storage), options)


def show(found: list[Listed], options: argparse.Namespace) -> int:
    """Print these checkpoints as the options say; return the exit status."""
    if options.json:
        print(json.dumps(strict([data(one) for one in found]), indent=2))
    else:
        print(table(found))
    return EXIT_DAMAGED if any(one.problem for one in found) else EXIT_FINE


command = Command("checkpoints", "list the checkpoints of an experiment or a trial", configure, run)
