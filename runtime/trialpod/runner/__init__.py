"""The life of an attempt process: assignment, Trainable, reports, checkpoints, signals."""

from __future__ import annotations

import sys


def _import_msgspec_lightly() -> None:
    """Import msgspec without typing_extensions, which it prefers to `typing` when that is installed.

    Loading it would take a third of a fork server's start, and on Python 3.11 and later `typing` has the same names.
    """
    if "msgspec" in sys.modules or "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    try:
        import msgspec  # noqa: F401
    finally:
        del sys.modules["typing_extensions"]


_import_msgspec_lightly()
