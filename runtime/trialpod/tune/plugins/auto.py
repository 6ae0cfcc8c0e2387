"""What `algorithm: auto` of a manifest and of `TuneConfig` have in common."""

from __future__ import annotations

from collections.abc import Iterable

AUTO = "auto"


def samples_by_default(algorithm: str | None, budgets: Iterable[object]) -> int:
    """Return the number of samples of an experiment that states none.

    Args:
        algorithm: of the experiment.
        budgets: of time and of hours; None is none.
    """
    return -1 if algorithm and any(budget is not None for budget in budgets) else 1
