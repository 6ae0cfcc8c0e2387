"""Marks of tests that need a search library which is slow to import."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needing(library: str, reason: str) -> list[pytest.MarkDecorator]:
    """Return the marks: skipped without it, and all in one process, which imports it once, for seconds of CPU.

    Args:
        library: the module; it is looked for, not imported, because collecting must not import it.
        reason: what to install.
    """
    return [pytest.mark.skipif(find_spec(library) is None, reason=reason), pytest.mark.xdist_group(library)]
