"""What a script or a notebook shows when trialpod refuses something: the sentence, without a traceback.

Exceptions stay exceptions: code that catches them sees nothing of this. Only uncaught ones come here: in a script by
``sys.excepthook``, which also has interrupts, in a notebook by the method that IPython looks for in exceptions.
Debuggers have their own ways to show exceptions, which are left alone. TRIALPOD_DEBUG=1 shows the traceback as well.
"""

from __future__ import annotations

import linecache
import os
import sys
from itertools import takewhile

from trialpod import variables
from trialpod.errors import TrialpodError

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_PACKAGES = ("trialpod", "trialpod_operator")

_handled: set[int] = set()
"""Ids of interrupts about which the user has been informed."""


def install() -> None:
    """Show refusals in scripts as a sentence, unless the script has an exception hook of its own."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show
    if "IPython" in sys.modules:
        TrialpodError._render_traceback_ = property(_in_notebook)  # type: ignore[attr-defined]


def mark_handled(error: BaseException) -> None:
    """An interrupt ended an experiment gracefully, and the display has said so."""
    _handled.add(id(error))


def _in_notebook(error: TrialpodError) -> Callable[[], list[str]]:
    """Return what IPython calls for the lines to show.

    Raises:
        AttributeError: it is to show the traceback.
    """
    debug = variables.shows_tracebacks(os.environ.get(variables.DEBUG, ""))
    if debug or not _is_refusal(error, error.__traceback__):
        raise AttributeError
    lines = [f"{type(error).__name__}: {error}"]
    if own := _users_frame(error.__traceback__):
        line = linecache.getline(own.tb_frame.f_code.co_filename, own.tb_lineno).strip()
        lines[:0] = [f"line {own.tb_lineno}: {line}", ""] if line else []
    return lambda: lines


def _show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    debug = variables.shows_tracebacks(os.environ.get(variables.DEBUG, ""))
    if not debug and isinstance(error, KeyboardInterrupt) and id(error) in _handled:
        sys.stderr.write("interrupted\n")
        return
    if debug or not isinstance(error, TrialpodError) or not _is_refusal(error, traceback):
        sys.__excepthook__(kind, error, traceback)
        return
    where = _users_line(traceback)
    sys.stderr.write(f"{where}{type(error).__name__}: {error}\n")


def _is_refusal(error: TrialpodError, traceback: TracebackType | None) -> bool:
    """Return whether trialpod itself raised the error, and not for an error of the user's own code."""
    cause = error.__cause__
    if isinstance(cause, ImportError):
        return _is_raised_here(traceback) and _is_raised_here(cause.__traceback__)  # an extra that is not installed
    if isinstance(cause, Exception) and not isinstance(cause, (TrialpodError, OSError)):
        return False
    return _is_raised_here(traceback)


def _is_raised_here(traceback: TracebackType | None) -> bool:
    modules = [
        name for each in _frames(traceback) if (name := _package(each)) not in ("importlib", "_frozen_importlib")
    ]
    return bool(modules) and modules[-1] in _PACKAGES


def _users_line(traceback: TracebackType | None) -> str:
    """Return the line of the user's own code that led to the error, as "file:line: "."""
    own = _users_frame(traceback)
    return "" if own is None else f"{os.path.relpath(own.tb_frame.f_code.co_filename)}:{own.tb_lineno}: "


def _users_frame(traceback: TracebackType | None) -> TracebackType | None:
    own = list(takewhile(lambda each: _package(each) not in _PACKAGES, _frames(traceback)))
    return own[-1] if own else None


def _frames(traceback: TracebackType | None) -> list[TracebackType]:
    found = []
    while traceback is not None:
        found.append(traceback)
        traceback = traceback.tb_next
    return found


def _package(traceback: TracebackType) -> str:
    return str(traceback.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
