"""Which display fits a stream."""

from __future__ import annotations

import os
from typing import TextIO

from trialpod_operator.display.base import Display
from trialpod_operator.display.table_options import TableOptions


def level_of(verbose: int) -> int:
    """Return the `verbose` of `choose_display` for that of a RunConfig: 0 nothing, 1 the usual, 2 and 3 more."""
    return verbose - 1 if verbose > 0 else -2


def choose_display(stream: TextIO, json: bool, verbose: int, table: TableOptions | None = None) -> Display:
    """Return the display for a stream.

    Args:
        stream: Where it writes, normally standard output.
        json: JSON lines, whatever the stream is.
        verbose: -2 and less: nothing; -1: warnings and errors only; 0: the usual; 1: also a line for every event of a
            trial, and for every result; 2 and more: also what was decided about trials, and their checkpoints.
        table: How a live table looks; None is the usual.
    """
    if json:
        from trialpod_operator.display.json_lines import JsonLinesDisplay

        return JsonLinesDisplay(stream)
    if verbose < -1:
        from trialpod_operator.display.quiet import SilentDisplay

        return SilentDisplay(stream)
    if verbose < 0:
        from trialpod_operator.display.quiet import QuietDisplay

        return QuietDisplay(stream)
    from trialpod_operator.display.notebook import NotebookDisplay, find_notebook

    show = find_notebook()
    if show is not None:
        return NotebookDisplay(stream, show, verbose=verbose)
    if can_move_the_cursor(stream):
        from trialpod_operator.display.table import TableDisplay

        return TableDisplay(stream, verbose=verbose, options=table)
    from trialpod_operator.display.plain import PlainDisplay

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
