"""Imports Nevergrad, which does not work unchanged beside today's NumPy and bayesian-optimization."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any

from trialpod.tune.search.library import require

PACKAGE = ("nevergrad", "nevergrad>=1.0.3", "NevergradSearch")


def nevergrad_library() -> Any:
    """Return the library, without its optimiser "BO" beside a bayesian-optimization that is too new for that."""
    if PACKAGE[0] in sys.modules:
        return sys.modules[PACKAGE[0]]
    with _without_new_bayes_opt():
        found = require(*PACKAGE)
    # It takes float() of arrays of one number, which NumPy refuses since 2.4.
    require("nevergrad.optimization.metamodel", *PACKAGE[1:]).float = _scalar
    return found


def _scalar(value: Any) -> float:
    return float(value.item() if hasattr(value, "item") else value)


@contextlib.contextmanager
def _without_new_bayes_opt() -> Iterator[None]:
    """Hide a bayes_opt of which Nevergrad cannot import what it wants; it can do without any."""
    try:
        found = importlib.import_module("bayes_opt")
    except ImportError:
        found = None
    if found is None or hasattr(found, "UtilityFunction"):
        yield
        return
    sys.modules["bayes_opt"] = None  # type: ignore[assignment]  # Python's way to say that there is none
    try:
        yield
    finally:
        sys.modules["bayes_opt"] = found
