"""Who runs an experiment of this machine, and what people see of one that nobody runs."""

from __future__ import annotations

import dataclasses
import socket
from dataclasses import dataclass
from pathlib import Path

from trialpod.storage.lock import LockHolder, is_user, users_of, who_took
from trialpod.storage.registry import local_folder
from trialpod_operator.display.view import ExperimentView
from trialpod_operator.display.words import one_line
from trialpod_operator.local.reading import read_view

RUNNING = "Running"
INTERRUPTED = "Interrupted"
"""The state of an experiment that has work left and no process that does it."""


@dataclass(frozen=True, slots=True)
class Activity:
    """The processes of an experiment's directory.

    Attributes:
        holder: who took its lock last; None when nobody ever did.
        runs: whether that process still runs it.
        orphans: processes that it started and that still run although it has ended.
    """

    holder: LockHolder | None
    runs: bool
    orphans: tuple[int, ...] = ()

    @property
    def command(self) -> str:
        """The command line that ran it last, for people; empty when it is not known."""
        words = self.holder.command.split() if self.holder is not None else []
        for at, word in enumerate(words):
            if word.rpartition("/")[2] == "trialpod":
                return one_line(" ".join(["trialpod", *words[at + 1 :]]))
        return one_line(" ".join(words))

    @property
    def elsewhere(self) -> str:
        """The host that ran it last, when that is another one; nothing is known of its processes."""
        host = self.holder.host if self.holder is not None else ""
        return "" if host == socket.gethostname() else host


def activity(directory: Path) -> Activity:
    """Return who runs the experiment in a directory."""
    holder = who_took(directory)
    users = users_of(directory)
    runs = holder is not None and holder.host == socket.gethostname() and is_user(directory, holder.pid)
    return Activity(holder, runs, () if runs else tuple(users))


def live_view(place: str, *, rows: int | None) -> tuple[ExperimentView, Activity]:
    """Return an experiment as it is: one with work left that nobody runs is interrupted.

    Args:
        place: its directory, or the URI where it is kept, of which this machine has no processes.
        rows: at most so many trials; None = all.
    """
    view = read_view(place, rows=rows)
    folder = local_folder(place)
    if folder is None:
        return view, Activity(None, runs=False)
    found = activity(folder)
    if view.state != RUNNING or found.runs or found.elsewhere:
        return view, found
    counts = dict(view.counts)
    counts["PENDING"] = counts.get("PENDING", 0) + counts.get("RUNNING", 0)
    counts["RUNNING"] = 0
    changed = [dataclasses.replace(row, status="PENDING") if row.status == "RUNNING" else row for row in view.rows]
    message = "no process runs it"
    return (
        dataclasses.replace(view, state=INTERRUPTED, message=message, counts=counts, rows=changed, eta_s=None),
        found,
    )
