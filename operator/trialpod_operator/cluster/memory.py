"""Keeps the C library from holding on to memory that nobody uses: threads that come and go, and bursts, leave it so.

glibc gives each thread an arena of its own, up to eight for each core, and hands little of them back. Where the C
library is another one, nothing happens.
"""

from __future__ import annotations

import contextlib
import ctypes

ARENAS = 2
_M_ARENA_MAX = -8  # malloc.h

TRIM_EVERY_S = 60.0


def share_arenas() -> None:
    """Have all threads share a few arenas; to be called before the first thread."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, ARENAS)


def trim() -> bool:
    """Hand free memory back to the system; return whether there was any. It takes milliseconds: for a thread."""
    with contextlib.suppress(OSError, AttributeError):
        return bool(ctypes.CDLL(None).malloc_trim(0))
    return False
