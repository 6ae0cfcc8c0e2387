"""Follows what running trials print: reads the new lines of their log files and passes them on at a bounded rate.

Trials write to their own files and never wait for a reader. What comes faster than a person can read stays in the
files; one notice says how much was left out, and where it is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trialpod_operator.display.base import TrialOutput
from trialpod_operator.display.line_budget import LineBudget

POLL_INTERVAL_S = 0.25
MAX_BYTES = 64 * 1024
"""What is read of one file at a time; when there is more, the rest up to its end is left out."""
MAX_LINE_LENGTH = 1000
NOTICE_INTERVAL_S = 5.0
ALL = "all"
LINGER_S = 1.0
"""How long a trial that has ended is still followed: its process prints until it exits."""


@dataclass(slots=True)
class _Followed:
    name: str
    path: str
    offset: int
    pid: int = 0
    partial: bytes = b""
    skipping: bool = False  # up to the next newline
    until: float | None = None  # monotonic; None while the trial runs


def follow_all(_trial_id: str, _trial_name: str) -> bool:
    """Follow every trial."""
    return True


class FollowedTrials:
    """The trials that a user named, to follow what they print.

    Args:
        names: each an id, a number, a readable name, the end of one of them, or ``all``.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._missing = set(names)
        self._names = tuple(self._missing)

    def __call__(self, trial_id: str, trial_name: str) -> bool:
        """Return whether to follow a trial."""
        matching = [name for name in self._names if name == ALL or _is_named(trial_id, trial_name, name)]
        self._missing.difference_update(matching)
        return bool(matching)

    @property
    def missing(self) -> list[str]:
        """The names that no trial had so far."""
        return sorted(self._missing)


def _is_named(trial_id: str, trial_name: str, name: str) -> bool:
    if name.isdecimal():
        number = trial_id.rpartition("_")[2]
        return number.isdecimal() and int(number) == int(name)
    return trial_id == name or trial_name == name or trial_id.endswith(f"_{name}")


class OutputFollower:
    """Follows the output of trials.

    Args:
        show: takes what was printed.
        wanted: whether to follow a trial, by its id and name.
        now: seconds, monotonic.
    """

    def __init__(
        self,
        show: Callable[[TrialOutput], None],
        wanted: Callable[[str, str], bool] = follow_all,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._show = show
        self._wanted = wanted
        self._now = now
        self._trials: dict[str, _Followed] = {}
        self._budget = LineBudget(now)
        self._noticed_at = now()
        self._hidden_lines = 0
        self._hidden: dict[str, str] = {}  # trial name -> its file

    def trial_started(self, trial_id: str, name: str, path: str) -> None:
        """Follow a trial's file from its present end on; an attempt after the first continues where it was."""
        if not self._wanted(trial_id, name):
            return
        followed = self._trials.get(trial_id)
        if followed is not None:
            followed.until = None
            return
        self._trials[trial_id] = _Followed(name, path, _size(path))

    def trial_running(self, trial_id: str, pid: int) -> None:
        """Note the process of a trial."""
        followed = self._trials.get(trial_id)
        if followed is not None:
            followed.pid = pid

    def refresh(self, trial_id: str) -> None:
        """Show what a trial has printed until now."""
        followed = self._trials.get(trial_id)
        if followed is not None:
            self._read(trial_id, followed)

    def trial_ended(self, trial_id: str) -> None:
        """Show what a trial has printed, and stop following it soon."""
        followed = self._trials.get(trial_id)
        if followed is not None:
            self._read(trial_id, followed)
            followed.until = self._now() + LINGER_S

    def poll(self) -> None:
        """Show what is new."""
        now = self._now()
        for trial_id, followed in list(self._trials.items()):
            self._read(trial_id, followed)
            if followed.until is not None and now >= followed.until:
                self._read(trial_id, followed, last=True)
                del self._trials[trial_id]
        if self._hidden and now - self._noticed_at >= NOTICE_INTERVAL_S:
            self._give_notice()

    def finish(self) -> None:
        """Show what is left, with lines that have no end."""
        for trial_id, followed in self._trials.items():
            self._read(trial_id, followed, last=True)
        self._trials.clear()
        if self._hidden:
            self._give_notice()

    def _read(self, trial_id: str, followed: _Followed, *, last: bool = False) -> None:
        size = _size(followed.path)
        if size < followed.offset:  # the file was truncated
            followed.offset, followed.partial = 0, b""
        data = b""
        if size > followed.offset:
            data = _read_range(followed.path, followed.offset, min(size - followed.offset, MAX_BYTES))
            followed.offset += len(data)
        if followed.skipping and data:
            _, newline, data = data.partition(b"\n")
            followed.skipping = not newline
        complete, newline, rest = (followed.partial + data).rpartition(b"\n")
        if size > followed.offset:
            self._hide(followed, 0)
            followed.offset, followed.skipping, rest = size, True, b""
        if last and rest:
            complete, newline, rest = complete + newline + rest, b"\n", b""
        followed.partial = rest[-MAX_BYTES:]
        if newline:
            self._pass_on(trial_id, followed, [_text(line) for line in complete.split(b"\n")])

    def _pass_on(self, trial_id: str, followed: _Followed, lines: list[str]) -> None:
        shown = lines[: self._budget.spend(len(lines))]
        if len(shown) < len(lines):
            self._hide(followed, len(lines) - len(shown))
        if shown:
            self._show(TrialOutput(trial_id, followed.name, followed.pid, shown))

    def _hide(self, followed: _Followed, lines: int) -> None:
        if not self._hidden:
            self._noticed_at = self._now()
        self._hidden_lines += lines
        self._hidden[followed.name] = followed.path

    def _give_notice(self) -> None:
        name, path = next(iter(self._hidden.items()))
        others = len(self._hidden) - 1
        if others:
            whose = f"of {name} and {others:,} other {'trial' if others == 1 else 'trials'}"
            where = f"{os.path.dirname(os.path.dirname(path))}/*/{os.path.basename(path)}"
        else:
            whose, where = f"of {name}", path
        what = f"{self._hidden_lines:,} lines or more" if self._hidden_lines else "more output"
        self._show(TrialOutput("", "", 0, [f"{what} {whose} not shown: {where}"]))
        self._hidden_lines = 0
        self._hidden.clear()


def _text(line: bytes) -> str:
    """Return a line as a terminal shows it in the end: a progress bar overwrites itself at each carriage return."""
    shown = line.rstrip(b"\r").rpartition(b"\r")[2]
    return shown[:MAX_LINE_LENGTH].decode(errors="replace")


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0  # not made yet, or removed


def _read_range(path: str, offset: int, count: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, count, offset)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
