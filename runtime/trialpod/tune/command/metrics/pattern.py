"""Metrics by a regular expression of the user's.

Its named groups are metrics of those names; or the groups ``name`` and ``value`` find one metric per match. Python's
expressions can take exponential time, so a line is cut to `MAX_CHARACTERS`, and a search ends after `LIMIT_S`: the
interpreter looks for signals while it matches, so a timer can interrupt it. That needs the main thread.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from trialpod.errors import InvalidInputError, TrainableError
from trialpod.tune.command.metrics.text import Number, number

MAX_CHARACTERS = 8192
MAX_PATTERN = 1024
LIMIT_S = 1.0


class _TimedOutError(Exception):
    pass


class MetricPattern:
    """A compiled pattern.

    Raises:
        InvalidInputError: it is not a regular expression of Python, or names no metric.
    """

    def __init__(self, pattern: str, *, limit_s: float = LIMIT_S) -> None:
        if len(pattern) > MAX_PATTERN:
            raise InvalidInputError(f"the pattern has {len(pattern)} characters; at most {MAX_PATTERN} are allowed")
        try:
            self._compiled = re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise InvalidInputError(
                f"the pattern {pattern!r} is not a regular expression: {error}; it is one of Python's module re, "
                "with a group (?P<loss>...) for each metric"
            ) from None
        groups = self._compiled.groupindex
        if not groups:
            raise InvalidInputError(
                f"the pattern {pattern!r} has no named group; write (?P<loss>[0-9.]+) for a metric of that name, or "
                "the two groups (?P<name>...) and (?P<value>...)"
            )
        if ("name" in groups) and ("value" not in groups):
            raise InvalidInputError(f"the pattern {pattern!r} has the group name but not value; it needs both")
        self._pairs = "name" in groups and "value" in groups
        self._limit_s = limit_s

    def find(self, line: str) -> dict[str, Number]:
        """Return the metrics in a line.

        Raises:
            TrainableError: the search takes too long.
        """
        found = {}
        line = line[:MAX_CHARACTERS]
        try:
            with _limit(self._limit_s):
                for match in self._compiled.finditer(line):
                    given = {match["name"]: match["value"]} if self._pairs else match.groupdict()
                    for name, text in given.items():
                        value = number(text.strip()) if name and text else None
                        if value is not None:
                            found[name] = value
        except _TimedOutError:
            raise TrainableError(
                f"the pattern {self._compiled.pattern!r} took more than {self._limit_s:g} s for one line of the "
                "output; avoid a repetition within a repetition, such as (a+)+"
            ) from None
        return found


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise _TimedOutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
