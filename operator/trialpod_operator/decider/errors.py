"""What a user reads in a condition about an error of deciding code: the place, and their own frames.

Invariants: the first line is the whole message. Frames of trialpod's around and below the user's are left out.
"""

from __future__ import annotations

import os
import traceback

import trialpod
import trialpod_operator
from trialpod.runner.failure import one_line

_OWN = tuple(folder + os.sep for each in (trialpod, trialpod_operator) for folder in each.__path__)
MAX_FRAMES = 6


def error_text(error: BaseException) -> str:
    """Return "ValueError: what it says (mine.py:12, in suggest)", and the lines of its traceback below that."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(_OWN)]
    shown = traceback.StackSummary.from_list(frames[-MAX_FRAMES:]).format()
    return "\n".join(line.rstrip() for line in (one_line(error), *shown))
