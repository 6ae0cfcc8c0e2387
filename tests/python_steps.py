"""Counts the lines that Python executes: what does not grow with a number takes as many for 10 as for 10,000."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def count(work: Callable[[], object]) -> int:
    """Return how many lines `work` executes, comprehensions and generators included."""
    lines = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()  # finalizers, and what Hypothesis does at each collection, do not belong to the work
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return lines
