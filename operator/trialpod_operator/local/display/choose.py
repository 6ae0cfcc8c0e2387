"""Which display fits a stream."""

from __future__ import annotations

import os
from typing import TextIO

from trialpod_operator.local.display.base import Display
from trialpod_operator.local.display.table_options import TableOptions


def choose_display(stream: TextIO, json: bool, verbose: int, table: TableOptions | None = None) -> Display:
    """Return the display for a stream.

    Args:
        stream: Where it writes, normally standard output.
        json: JSON lines, whatever the stream is.
        verbose: Below 0: warnings and errors only; 0: the usual; 1 and more: a line for every trial event.
        table: How a live table looks; None is the usual.
    """
    if json:
        from trialpod_operator.local.display.json_lines import JsonLinesDisplay

        return JsonLinesDisplay(stream)
    if verbose < 0:
        from trialpod_operator.local.display.quiet import QuietDisplay

        return QuietDisplay(stream)
    if can_move_the_cursor(stream):
        from trialpod_operator.local.display.table import TableDisplay

        return TableDisplay(stream, verbose=verbose, options=table)
    from trialpod_operator.local.display.plain import PlainDisplay

    return PlainDisplay(stream, verbose=verbose)


def can_move_the_cursor(stream: TextIO) -> bool:
    """Return whether a stream is a terminal on which a table can be drawn in place."""
    encoding = (getattr(stream, "encoding", None) or "").lower().replace("-", "")
    if encoding != "utf8" or os.environ.get("TERM", "dumb") in ("", "dumb", "unknown"):
        return False
    try:
        return stream.isatty()
    except ValueError:  # a closed stream
        return False
