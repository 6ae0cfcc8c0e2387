"""The lines that tell the output of one attempt from that of the next, where a process or a pod runs several.

Invariant: what stands before the first such line belongs to the first attempt. The newline before a line is the
line's own: the output before it may not have ended with one.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_MARK = re.compile(r"^trialpod: trial (\S+) attempt (\d+)\r?$", re.MULTILINE)
_MARK_IN_BYTES = re.compile(_MARK.pattern.encode(), re.MULTILINE)
_MARK_LINE = re.compile(rb"trialpod: trial (\S+) attempt (\d+)\r?\n?")


class Section(NamedTuple):
    """What one attempt printed, with its first line; it may not end with a newline."""

    trial_id: str
    attempt: int
    text: str


def attempt_mark(trial_id: str, attempt: int) -> str:
    """Return what is printed before anything of an attempt is."""
    return f"\ntrialpod: trial {trial_id} attempt {attempt}\n"


def sections(text: str, *, whole: bool = True) -> list[Section]:
    """Return the output of several attempts, one after the other; nothing when no line says whose it is.

    Args:
        text: the output.
        whole: it is there from its beginning; else what comes before the first such line is ignored.
    """
    marks = list(_MARK.finditer(text))
    found = []
    for index, mark in enumerate(marks):
        end = marks[index + 1].start() if index + 1 < len(marks) else None
        part = text[0 if whole and not index else mark.start() : end]
        if end is not None:
            part = part.removesuffix("\n")
        found.append(Section(mark[1], int(mark[2]), part.removeprefix("\n")))
    return found


def not_in(log: bytes, printed: bytes) -> bytes:
    """Return what of an attempt's output a log does not have, in which a shorter reading of it may be.

    Args:
        log: what was kept before.
        printed: the output, with the line that begins it where it has one; without one it is in the log as a whole or
            not at all, since the same words may be another attempt's.
    """
    if printed in log:
        return b""
    mark = _MARK_IN_BYTES.search(printed)
    if mark is None or (at := log.find(printed[: mark.end()])) < 0:
        return printed
    more = range(mark.end(), len(printed) + 1)
    return printed[more[bisect(more, False, key=lambda end: not log.startswith(printed[:end], at)) - 1] :]


def marked_attempt(line: bytes) -> tuple[str, int] | None:
    """Return the trial and its attempt whose output begins with a line; None for any other line."""
    mark = _MARK_LINE.fullmatch(line)
    return None if mark is None else (mark[1].decode(), int(mark[2]))


def lines_of(
    lines: Iterable[bytes], trial_id: str, first: str, *, first_attempt: int = 1, until: int | None = None
) -> Iterator[bytes]:
    """Yield the lines that one trial printed, as they come.

    Args:
        lines: of the whole output, with their newlines.
        trial_id: whose are wanted.
        first: whose the lines before the first mark are.
        first_attempt: of that trial.
        until: end where another trial follows this attempt of the wanted one, or a later; None = never.
    """
    wanted, whose, held = trial_id.encode(), first.encode(), b""
    begun = until is not None and whose == wanted and first_attempt >= until
    for line in lines:
        mark = _MARK_LINE.fullmatch(line)
        if mark is not None:
            held = b"" if held in (b"\n", b"\r\n") else held
        if held and whose == wanted:
            yield held
        held = b""
        if mark is not None:
            whose = mark[1]
            if begun and whose != wanted:
                return
            begun = begun or (until is not None and whose == wanted and int(mark[2]) >= until)
        if line in (b"\n", b"\r\n"):
            held = line  # the newline of a mark, unless something else follows
        elif whose == wanted:
            yield line
    if held and whose == wanted:
        yield held
