"""The ids of repeats: trials that run a config again, from the start, before the winner is named."""

from __future__ import annotations

import re
from collections.abc import Container

_REPEAT = re.compile(r"(.+)r[1-9][0-9]*")


def repeat_id(source: str, number: int) -> str:
    """Return the id of a trial's repeat; numbers begin with 1."""
    return f"{source}r{number}"


def source_of(trial_id: str, known: Container[str]) -> str | None:
    """Return the id of the trial that a trial repeats, which must be one of `known`; None if it repeats none."""
    found = _REPEAT.fullmatch(trial_id)
    return found[1] if found is not None and found[1] in known else None
