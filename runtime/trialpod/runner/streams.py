"""What a trial's processes say themselves on stdout and stderr.

A stream that is closed, or a file on a full disk, takes nothing: that must not end the process, and least of all
hide what was to be reported. User code may have put objects of its own in their place, which lack `flush` or
raise anything.
"""

from __future__ import annotations

import contextlib
import sys


def flush() -> bool:
    """Write out what is buffered for stdout and stderr; return whether all of it could be written."""
    written = True
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except Exception:  # noqa: BLE001 - of an object of the user's
                written = False
    return written


def write_stderr(text: str) -> None:
    """Write to stderr at once, if it takes anything."""
    if sys.stderr is not None:
        with contextlib.suppress(Exception):
            sys.stderr.write(text)
            sys.stderr.flush()
