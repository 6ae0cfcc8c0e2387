"""Which trials' files are to be copied, and when: those that run, those that are complete, those that may lag behind.

Running trials take turns (`LiveTurns`), so that the requests for their copies do not grow with their number.

A trial whose files the storage may not have is in one of these sets at every moment, also while it is copied: a
snapshot, which replaces the records that these files could be written from again, brings them all along.

Of a trial at rest, which does not run and was copied `REST_S` ago, nothing is kept here or in `FileReplica`.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterable
from typing import NamedTuple

from trialpod_operator.experiment.replica.files import LogText

LIVE_INTERVAL_S = 15.0
"""Minimum interval between two looks at the files of a running trial, and before the first one."""

LIVE_PER_S = 1.0
"""Rate of these looks: with more running trials than `LIVE_INTERVAL_S` they take turns."""

MAX_LIVE_INTERVAL_S = 300.0
"""Maximum interval between two looks at a trial: with very many, the rate grows instead."""

REST_S = 120.0
"""Time after which no more is expected of a trial that has ended; its log comes seconds after its end."""


class Taken(NamedTuple):
    """What is copied now: directories of trials that are due, of those that run, and what goes into logs before."""

    due: list[str]
    live: list[str]
    logs: list[LogText]


class UploadQueue:
    """The trials' directories, by name. All methods may be called from any thread, `take` and after it from one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: set[str] = set()  # of trials that are running
        self._due: set[str] = set()  # to be copied now, most because they are complete
        self._copying: set[str] = set()  # being copied now
        self._unknown: set[str] = set()  # the storage may hold less of them than is here
        self._logs: list[LogText] = []
        self._copied: dict[str, float] = {}  # trials that did not run when they were copied, and when, in this order

    def start(self, dirname: str) -> None:
        """A trial is running here."""
        with self._lock:
            self._live.add(dirname)

    def end(self, dirname: str) -> None:
        """A trial runs no more."""
        with self._lock:
            self._live.discard(dirname)

    def add(self, dirname: str) -> None:
        """The files here are to be copied."""
        with self._lock:
            self._due.add(dirname)

    def add_log(self, log: LogText) -> None:
        """This is to be written, and the files there to be copied."""
        with self._lock:
            self._logs.append(log)
            self._due.add(log.dirname)

    def add_unknown(self, dirnames: Iterable[str]) -> None:
        """The files here are to be compared with the storage's."""
        with self._lock:
            self._unknown.update(dirnames)

    def end_all(self) -> None:
        """No trial runs any more."""
        with self._lock:
            self._due |= self._live
            self._live.clear()

    def waiting(self, dirname: str | None) -> bool:
        """Return whether files are to be copied at once that are not copied yet: here, or anywhere."""
        with self._lock:
            due = self._due | self._copying | self._unknown
        return bool(due) if dirname is None else dirname in due

    def behind(self) -> list[str]:
        """Return all of which the storage may hold less than is here."""
        with self._lock:
            return sorted({*self._due, *self._copying, *self._live, *self._unknown})

    def unknown(self) -> set[str]:
        """Return what is to be compared."""
        with self._lock:
            return set(self._unknown)

    def compared(self, dirnames: set[str]) -> None:
        """It is known now which files there are to be copied."""
        with self._lock:
            self._unknown -= dirnames
            self._due |= dirnames

    def take(self) -> Taken:
        """Return what to copy now. What grows while it is copied is added again, and taken again."""
        with self._lock:
            self._copying, self._due = self._due, set()
            logs, self._logs = self._logs, []
            return Taken(sorted(self._copying), sorted(self._live), logs)

    def copied(self, taken: Taken, now: float, *, whole: bool) -> None:
        """That was copied, or not all of it; `taken.logs` has what was not written."""
        with self._lock:
            if whole:
                for name in self._copying - self._live:
                    self._copied.pop(name, None)
                    self._copied[name] = now
            else:
                self._due |= self._copying
                self._logs[:0] = taken.logs
            self._copying = set()

    def take_resting(self, now: float) -> list[str]:
        """Return which trials are at rest since the last call."""
        found = []
        with self._lock:
            while self._copied and now - self._copied[name := next(iter(self._copied))] >= REST_S:
                del self._copied[name]
                if name not in self._live and name not in self._due:
                    found.append(name)
        return found


class LiveTurns:
    """Says which running trials' files are to be looked at. Not safe for use by several threads."""

    def __init__(self) -> None:
        self._looked: dict[str, float] = {}  # of each that runs, when it was looked at, or first seen
        self._used_to = float("-inf")  # looks are allowed from then on

    def take(self, live: Iterable[str], now: float) -> list[str]:
        """Return the directories whose turn it is among those of all trials that run.

        Args:
            live: of all that run.
            now: monotonic seconds.
        """
        looked = self._looked = {name: self._looked.get(name, now) for name in live}
        rate = max(LIVE_PER_S, len(looked) / MAX_LIVE_INTERVAL_S)
        self._used_to = max(self._used_to, now - LIVE_INTERVAL_S)  # what was not used for long is lost
        room = int((now - self._used_to) * rate)
        due = [(at, name) for name, at in looked.items() if now - at >= LIVE_INTERVAL_S]
        found = [name for _, name in heapq.nsmallest(room, due)]
        self._used_to += len(found) / rate
        looked.update(dict.fromkeys(found, now))
        return found
