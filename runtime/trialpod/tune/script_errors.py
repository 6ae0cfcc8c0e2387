"""What a script shows when trialpod refuses something, or is interrupted: the sentence, without a traceback.

Exceptions stay exceptions: who catches them sees nothing of this. Only what nobody catches in a script comes here, by
``sys.excepthook``. Notebooks and debuggers have their own ways to show exceptions, which are left alone. With
TRIALPOD_DEBUG=1 the traceback is shown as well.
"""

from __future__ import annotations

import os
import sys
from itertools import takewhile

from trialpod import variables
from trialpod.errors import TrialpodError

TYPE_CHECKING = False

if TYPE_CHECKING:
    from types import TracebackType

_PACKAGES = ("trialpod", "trialpod_operator")

_handled: set[int] = set()
"""Ids of interrupts about which the user has been informed."""


def install() -> None:
    """Show refusals in scripts as a sentence, unless somebody shows exceptions in a way of their own."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show


def mark_handled(error: BaseException) -> None:
    """An interrupt ended an experiment in good order, and the display has said so."""
    _handled.add(id(error))


def _show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    debug = os.environ.get(variables.DEBUG, "") not in ("", "0")
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
    if isinstance(error.__cause__, Exception) and not isinstance(error.__cause__, (TrialpodError, OSError)):
        return False
    modules = [_package(each) for each in _frames(traceback)]
    return bool(modules) and modules[-1] in _PACKAGES


def _users_line(traceback: TracebackType | None) -> str:
    """Return the line of the user's own code that led to the error, as "file:line: "."""
    own = list(takewhile(lambda each: _package(each) not in _PACKAGES, _frames(traceback)))
    if not own:
        return ""
    return f"{os.path.relpath(own[-1].tb_frame.f_code.co_filename)}:{own[-1].tb_lineno}: "


def _frames(traceback: TracebackType | None) -> list[TracebackType]:
    found = []
    while traceback is not None:
        found.append(traceback)
        traceback = traceback.tb_next
    return found


def _package(traceback: TracebackType) -> str:
    return str(traceback.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
